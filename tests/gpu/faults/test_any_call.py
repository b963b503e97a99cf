"""Every call to the driver that a run makes is made to fail, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import MonographError
from tests.gpu.faults.misbehaving import QUERIES
from tests.gpu.faults.rig import KINDS, ON_DEVICE, Case, Rig, equal, fault

MOST = 3
"""Calls of a name that fail in turn: the first ones are the capture's, later ones are alike."""


def calls_of(rig: Rig, kind: str, wrap: Any) -> list[tuple[str, int]]:
    """The calls of the first two runs, by name and number."""
    rig.graphs.calls.clear()
    case = rig.case(kind)
    for seed in range(2):
        _run(case, wrap, seed)
    found = dict(rig.graphs.calls)
    assert not set(found) & QUERIES
    return [(name, n) for name, count in sorted(found.items()) for n in range(min(count, MOST))]


def _run(case: Case, wrap: Any, seed: int) -> list[torch.Tensor]:
    found = case.replay.run({n: wrap(t) for n, t in case.feeds(seed).items()})
    return [torch.as_tensor(x).cpu() for x in found]


def as_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


@pytest.mark.parametrize("wrap", [as_tensor, as_array])
@pytest.mark.parametrize("kind", KINDS)
@fault
def test_any_call_may_fail(rig: Rig, kind: str, wrap: Any) -> None:
    """A run that meets it gives the right answer or an error; no later one notices anything."""
    for name, number in calls_of(rig, kind, wrap):
        if name == "function":  # asks nobody
            continue
        case = rig.case(kind)
        rig.graphs.fail(name, number)
        told = ""
        for seed in range(3):
            before = len(rig.driver.ran) if rig.driver else 0
            runs = case.replay.executable.runs
            try:
                found = _run(case, wrap, seed)
            except MonographError as e:
                told = str(e)
                assert case.replay.executable.runs <= runs + 1
            else:
                equal(found, [t.cpu() for t in case.right(case.feeds(seed))])
                assert case.replay.executable.runs == runs + 1
            _once(rig, case, kind, before)
        rig.graphs.well()
        assert not told or f"{name} fails on purpose" in told
        assert sum(case.stats["fallbacks"].values()) <= 1
        rig.synchronise()


def _once(rig: Rig, case: Case, kind: str, before: int) -> None:
    """No kernel of a run has run twice; what loops and libraries run is not as regular."""
    if not ON_DEVICE and kind in ("model", "state"):
        ran = rig.driver.ran[before:]
        assert len(ran) == len(set(ran)) <= case.replay.executable.launches
