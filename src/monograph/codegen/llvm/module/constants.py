"""The constants that kernels read: laid out once each, in one block."""

from __future__ import annotations

import hashlib
import mmap
import sys
from contextlib import suppress

import numpy as np

from monograph.ir import Array
from monograph.program.memory.memory_planner import ALIGNMENT

_FIRST = 1 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}

_LARGE_PAGE = 2 << 20
_COLLAPSE = 25
"""Linux's MADV_COLLAPSE, which the standard library does not name yet."""


class ConstantLayout:
    """Lays constant data out, and returns its offsets.

    Data is identified by its bytes, so equal packed data is stored once. The block grows in place:
    packed weights are as large as the model, and there is never a second copy of them.
    """

    def __init__(self, slack: int) -> None:
        self._slack = slack
        self._size = 0
        self._at: dict[object, int] = {}
        self._memory = mmap.mmap(-1, _FIRST, **_PRIVATE)

    def add(self, data: Array) -> int:
        """The offset of constant data."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        key = (raw.size, hashlib.blake2b(raw.data, digest_size=32).digest())
        if key in self._at:
            return self._at[key]
        at = self._at[key] = self._size
        self._size += -(-max(raw.size, 1) // ALIGNMENT) * ALIGNMENT
        if self._size > len(self._memory):
            self._resize(2 * self._size)
        self._memory[at : at + raw.size] = raw.data
        return at

    def block(self) -> Array:
        """Return all constants in one block that starts at a page; nothing can be added
        afterwards.
        """
        size = self._size + self._slack
        self._resize(size)
        _on_large_pages(self._memory)
        return np.frombuffer(self._memory, np.uint8, size)

    def _resize(self, size: int) -> None:
        try:
            self._memory.resize(size)
        except SystemError:  # a system that cannot move mappings
            moved = mmap.mmap(-1, size, **_PRIVATE)
            kept = min(size, len(self._memory))
            moved[:kept] = self._memory[:kept]
            self._memory = moved


def _on_large_pages(memory: mmap.mmap) -> None:
    """Move memory to large pages if the system has them.

    Weights are read sequentially, and a page table walk every 4 KB costs a product of few rows a
    tenth of its time.
    """
    if sys.platform != "linux" or len(memory) < _LARGE_PAGE:
        return
    with suppress(OSError):  # an old kernel, or no such pages to be had
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(_COLLAPSE)
