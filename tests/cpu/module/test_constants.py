"""The block of constants: each once, where it was said to lie, however large it grows."""

from __future__ import annotations

import mmap
from unittest import mock

import numpy as np
import pytest

from monograph.codegen.llvm.module import memory as module_memory
from monograph.codegen.llvm.module.memory import ConstantLayout
from monograph.program.memory.memory_planner import ALIGNMENT

SLACK = 256


def pieces() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = [1, 3, 1000, 400_000, 17, 900_000, 0, 5]
    return [rng.integers(0, 255, n).astype(np.uint8) for n in sizes]


class Fixed(mmap.mmap):
    """Memory of a system that cannot move mappings."""

    def resize(self, size: int) -> None:
        raise SystemError("mmap: resizing not available")


@pytest.mark.parametrize("memory", [mmap.mmap, Fixed])
def test_everything_lies_where_it_was_said_to(memory: type) -> None:
    given = pieces()
    with mock.patch.object(module_memory.mmap, "mmap", memory):
        made = ConstantLayout(SLACK)
        places = [made.add(piece) for piece in given]
        block = made.block()
    assert block.ctypes.data % ALIGNMENT == 0
    assert len(set(places)) == len(places)
    for at, piece in zip(places, given, strict=True):
        assert at % ALIGNMENT == 0
        np.testing.assert_array_equal(block[at : at + piece.size], piece)
    end = max(at + piece.size for at, piece in zip(places, given, strict=True))
    assert block.size >= end + SLACK
    assert not block[-SLACK:].any()


def test_equal_bytes_are_there_once() -> None:
    made = ConstantLayout(SLACK)
    data = np.arange(100, dtype=np.float32)
    first = made.add(data)
    assert made.add(data.reshape(10, 10)) == first
    assert made.add(np.asfortranarray(data.reshape(10, 10).T)) != first
    assert made.add(data[::2]) != first
    assert made.block().size < 3 * data.nbytes + SLACK


def test_nothing() -> None:
    assert ConstantLayout(SLACK).block().size == SLACK
