"""Donated state of loops, on the GPU too; and on a device, in graphs that turn by themselves."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch

import monograph
from monograph.session import Session
from tests.gpu.test_session import ON_DEVICE, TARGET
from tests.test_donated_loops import *  # noqa: F403
from tests.test_donated_loops import SHAPE, STRAIGHT, Load, loop_model

del test_state_of_a_loop_that_comes_back_is_not_copied  # noqa: F821


@pytest.fixture
def load() -> Load:
    def made(model: onnx.ModelProto, **options: Any) -> Session:
        return monograph.load(model, target=TARGET, cache_dir="", **options)

    return made


@pytest.mark.parametrize("body", ["updated", "swapped", "made of each other"])
def test_state_of_a_loop_on_the_device_is_not_copied_by_the_host(load: Load, body: str) -> None:
    """Each run is a launch and nothing else: the host copies no state beside it."""
    session = load(loop_model(body), donate=STRAIGHT)
    place = torch.device("cuda" if ON_DEVICE else "cpu")
    state = [torch.ones(SHAPE, device=place), torch.zeros(SHAPE, device=place)]
    at = [x.data_ptr() for x in state]
    for count in (2, 0, 3):
        turns = torch.tensor(count, device=place)
        feeds = {"turns": turns, "x0": state[0], "x1": state[1]}
        new = session.run(feeds, out={"y0": state[0], "y1": state[1]})
        assert [x.data_ptr() for x in new] == at
    stats = session.stats
    assert stats["donation_copies"] == 0
    if ON_DEVICE:
        assert stats["replays"] == stats["runs"] == 3
        assert not stats["fallbacks"]
