"""The block of constants: each once, where it was said to lie, however large it grows."""

from __future__ import annotations

import mmap
from unittest import mock

import numpy as np
import pytest

from monograph.codegen.common.shared_weights import SHARED_BYTES, weight_in_process
from monograph.codegen.llvm.module import memory as module_memory
from monograph.codegen.llvm.module.memory import ConstantLayout, GrowingBlock
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
        made = GrowingBlock(SLACK)
        places = [made.add(str(i), piece) for i, piece in enumerate(given)]
        block = made.finish()
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
    assert made.finish()[0].size < 3 * data.nbytes + SLACK


def test_nothing() -> None:
    block, weights = ConstantLayout(SLACK).finish()
    assert block.size == SLACK
    assert weights == {}


def test_programs_share_large_constants_while_one_lives() -> None:
    large = np.random.default_rng(7).integers(0, 255, SHARED_BYTES).astype(np.uint8)
    small, other = np.arange(9), large[::-1]
    first, second = ConstantLayout(SLACK), ConstantLayout(SLACK)
    assert [first.add(x).weight for x in (large, small, other, large)] == [0, -1, 1, 0]
    block, weights = first.finish()
    assert block.size < SHARED_BYTES
    assert [second.add(x).weight for x in (small, other)] == [-1, 0]
    _, shared = second.finish()
    ((digest, copy),) = shared.items()
    assert copy is weights[digest]
    np.testing.assert_array_equal(copy, other)
    for held in weights.values():
        assert held.ctypes.data % ALIGNMENT == 0
    del weights, shared, copy, held, first, second
    assert weight_in_process(digest) is None, "nobody holds it"
