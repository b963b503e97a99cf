"""State at an address that a library's launch cannot take: all of it is brought along."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monograph.runtime.counts import Counts
from monograph.runtime.gpu.stretches import MISALIGNED, launch_on

ALIGNED, SIZE = 256, 64


def launched(aligned: dict[str, int]) -> Any:
    """State after a launch that writes one byte of it, and what was counted."""
    block = torch.zeros(SIZE + 2 * ALIGNED, dtype=torch.uint8)
    start = -block.data_ptr() % ALIGNED + 16
    state = block[start : start + SIZE]
    state.copy_(torch.arange(SIZE, dtype=torch.uint8))
    memory = {"input:past": state, "output:present": state}
    recorded: Any = SimpleNamespace(staging={}, reasons={}, aligned=aligned, names=list(memory))

    def launch(_: Any, addresses: list[int], stream: int) -> None:
        ctypes.memset(addresses[1] + 5, 99, 1)

    launches: Any = SimpleNamespace(counts=Counts(), launch=launch)
    launch_on(launches, recorded, memory, 0)
    return state.tolist(), dict(launches.counts.staged)


@pytest.mark.parametrize("strict", [("input:past", "output:present"), ("output:present",), ()])
def test_rows_that_a_kernel_does_not_write_stay(strict: tuple[str, ...]) -> None:
    names = ("input:past", "output:present")
    state, staged = launched({n: ALIGNED if n in strict else 16 for n in names})
    assert state == [99 if i == 5 else i for i in range(SIZE)]
    assert staged == {f"{n.partition(':')[2]}: {MISALIGNED}": 1 for n in strict}
