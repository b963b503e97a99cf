"""Replays give the bits of eager runs, on many inputs and however they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.faults.rig import KINDS, ON_DEVICE, Rig, equal, fault

INPUTS = 100 if ON_DEVICE else 20


@pytest.mark.parametrize("kind", KINDS)
@fault
def test_many_inputs(rig: Rig, kind: str) -> None:
    case = rig.case(kind)
    for seed in range(INPUTS):
        case.check(seed)
    assert case.stats["captures"] == 1
    assert case.stats["replays"] == INPUTS
    assert case.stats["fallbacks"] == {}
    assert case.replay.launches == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["auto", "direct", "copy"])
@fault
def test_arrays_of_the_host(rig: Rig, host: str, kind: str) -> None:
    case = rig.case(kind, host=host)
    for seed in range(10):
        feeds = case.feeds(seed)
        found = case.replay.run({n: t.cpu().numpy() for n, t in feeds.items()})
        assert all(isinstance(x, np.ndarray) for x in found)
        equal([torch.from_numpy(x) for x in found], [t.cpu() for t in case.right(feeds)])
    assert case.stats["captures"] == 1
    assert case.replay.launches == 1


@fault
def test_a_librarys_launches_are_rebound_or_staged(rig: Rig) -> None:
    """The session finds the addresses in a launch; if it cannot, it says why."""
    case = rig.case("library")
    held = [case.check(seed) for seed in range(10)]
    assert case.stats["captures"] == 1
    staged = case.stats["staged_copies"]
    if ON_DEVICE and staged:  # how its library launches is not ours to choose
        assert all("a library's launch uses it" in reason for reason in staged)
    else:
        assert staged == {}
        assert case.stats["rebinds"] >= len(held) - 1
