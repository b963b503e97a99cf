"""The memory that kernels of a module share.

Constants are laid out once each, in one block. Halos of zeros around buffers are cleared in each
run, because their memory is shared. Kernels that access the same memory need a barrier between
them; others (the rotations of queries and keys, the updates of two caches) follow each other
without one: a thread that has finished its part of one continues with the next.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.shared_weights import (
    SHARED_BYTES,
    share_weight,
    weight_in_process,
)
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.bounds_checks import Extent
from monograph.codegen.llvm.module.kernel import (
    NAME,
    Kernel,
    LaidOut,
    LlvmScratch,
    finished,
    share,
)
from monograph.errors import UnsupportedError
from monograph.ir import Array, Value
from monograph.ir.sizes import is_open, proven
from monograph.program.index import strides_of
from monograph.program.memory.buffer_assignment import (
    CONSTANT,
    TEMPORARY,
    Buffer,
    Places,
    described,
)
from monograph.program.memory.inplace import root
from monograph.program.memory.memory_planner import ALIGNMENT
from monograph.program.program import Step

_FIRST = 1 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}

_LARGE_PAGE = 2 << 20
_COLLAPSE = 25
"""Linux's MADV_COLLAPSE, which the standard library does not name yet."""


class GrowingBlock:
    """Constant data in one block, each once. The block grows in place.

    Packed weights are as large as the model, and there is never a second copy of them.
    """

    def __init__(self, slack: int) -> None:
        self._slack = slack
        self._size = 0
        self._at: dict[str, int] = {}
        self._memory = mmap.mmap(-1, _FIRST, **_PRIVATE)

    def add(self, digest: str, raw: Array) -> int:
        """Return the offset of data, which its digest identifies."""
        if digest in self._at:
            return self._at[digest]
        at = self._at[digest] = self._size
        self._size += -(-max(raw.size, 1) // ALIGNMENT) * ALIGNMENT
        if self._size > len(self._memory):
            self._resize(2 * self._size)
        self._memory[at : at + raw.size] = raw.data
        return at

    def finish(self) -> Array:
        """Return the block, which starts at a page; nothing can be added later."""
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


class ConstantLayout:
    """Lays constant data out: small data in a block of the program, large data as weights.

    Data is identified by its bytes. Programs of one model for several shapes share the weights.
    """

    def __init__(self, slack: int) -> None:
        self._own, self._new = GrowingBlock(slack), GrowingBlock(slack)
        """The small data, and the weights that no other program holds."""
        self._weights: dict[str, tuple[int, int] | Array] = {}
        """By digest: the range in the block of weights, or the copy of another program."""
        self._numbers: dict[str, int] = {}

    def add(self, data: Array) -> LaidOut:
        """Return the place of constant data."""
        if data.dtype == object:
            given = f"{data.size} numbers"
            raise UnsupportedError("a vector of open sizes has no memory", given=given)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        digest = hashlib.sha256(raw.data).hexdigest()
        if raw.size < SHARED_BYTES:
            return LaidOut(self._own.add(digest, raw))
        if digest not in self._weights:
            found = weight_in_process(digest)
            if found is None:
                at = self._new.add(digest, raw)
                self._weights[digest] = at, at + raw.size
            else:
                self._weights[digest] = found
            self._numbers[digest] = len(self._numbers)
        return LaidOut(0, self._numbers[digest])

    def finish(self) -> tuple[Array, dict[str, Array]]:
        """Return the block of small data, and the weights by digest; nothing can be added later."""
        block = self._new.finish()
        weights: dict[str, Array] = {}
        for digest, place in self._weights.items():
            if isinstance(place, tuple):
                weights[digest] = block[slice(*place)]
                share_weight(digest, weights[digest])
            else:
                weights[digest] = place
        return self._own.finish(), weights


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


def zero_halo(value: Value, buffer: Buffer, threads: int, checked: bool = False) -> Kernel:
    """Generate a kernel that clears the halo of a value's buffer, and nothing else."""
    b = Builder(NAME, [("p0", "ptr"), ("tid", "i64")], checked=checked)
    size = buffer.dtype.itemsize
    padded = buffer.padded
    strides = strides_of(padded)
    for axis, (before, after) in enumerate(buffer.halo):
        if not before and not after:
            continue
        # Elements of all outer indices: before and after along this axis, memory is contiguous.
        count = math.prod(padded[:axis])
        whole = padded[axis] * strides[axis] * size
        front = before * strides[axis] * size
        back = after * strides[axis] * size

        clear = partial(_clear, b, whole, ((0, front), (whole - back, back)))
        b.loop(*share(b, count, threads), 1, clear)
    b.ret()
    return finished(b, [value], [Extent(buffer.nbytes, described(buffer))])


def _clear(
    b: Builder, whole: int, ranges: tuple[tuple[int, int], ...], i: Int, _: list[Reg]
) -> None:
    """Clear ranges of (start, length) in one of many equal blocks of bytes."""
    start = b.offset(b.arguments["p0"], b.mul(i, whole))
    zero, no = Reg("0", "i8"), Reg("false", "i1")
    for at, length in ranges:
        if is_open(length) or length:
            count = Reg(str(length), "i64")
            b.call("llvm.memset.p0.i64", "void", b.offset(start, at), zero, count, no)


ARENA = -1


@dataclass(frozen=True)
class ByteSpan:
    """A range of bytes: of the arena, or all of a port."""

    memory: int | str
    start: int = 0
    stop: int = 1

    def meets(self, other: ByteSpan) -> bool:
        """Return True unless the ranges are apart for all sizes."""
        if self.memory != other.memory:
            return False
        return not (proven(self.stop, "<=", other.start) or proven(other.stop, "<=", self.start))


@dataclass
class Ordering:
    """The memory that kernels have accessed since the last barrier."""

    places: Places
    offsets: Mapping[int, int]
    """The offsets of temporary buffers and scratch memory in the arena."""
    reads: list[ByteSpan] = field(default_factory=list)
    writes: list[ByteSpan] = field(default_factory=list)

    def waits(self, step: Step, kernel: Kernel, scratch: Mapping[tuple[int, int], int]) -> bool:
        """Return True if a kernel needs a barrier before it; record its accesses.

        `scratch` gives the arena's buffers by steps and the positions of their kernels' arguments.
        """
        reads, writes = self._touched(step, kernel, scratch)
        clash = any(a.meets(b) for a in writes for b in (*self.reads, *self.writes))
        clash = clash or any(a.meets(b) for a in reads for b in self.writes)
        # A barrier inside a kernel (`Sync`) does not count: it is not used at every size.
        if clash:
            self.reads, self.writes = [], []
        self.reads += reads
        self.writes += writes
        return clash

    def _touched(
        self, step: Step, kernel: Kernel, scratch: Mapping[tuple[int, int], int]
    ) -> tuple[list[ByteSpan], list[ByteSpan]]:
        """Return the memory that a kernel reads, and the memory that it writes."""
        reads: list[ByteSpan] = []
        writes: list[ByteSpan] = []
        for position, argument in enumerate(kernel.arguments):
            if isinstance(argument, LlvmScratch):
                at = self.offsets[scratch[step.index, position]]
                writes.append(self._in_arena(at, argument.nbytes))
            elif isinstance(argument, Value):
                given = argument in step.region.inputs
                span = self._span(self.places.storage[argument].buffer)
                if span is not None:
                    (reads if given else writes).append(span)
        return reads, writes

    def _in_arena(self, at: int, nbytes: int) -> ByteSpan:
        """Return a range of the arena."""
        return ByteSpan(ARENA, at, at + (nbytes if is_open(nbytes) else max(nbytes, 1)))

    def _span(self, buffer: Buffer) -> ByteSpan | None:
        """Return the bytes of a buffer; one written over another has the same address."""
        if buffer.kind == CONSTANT:
            return None
        if buffer.kind == TEMPORARY:
            return self._in_arena(self.offsets[buffer.id], buffer.nbytes)
        return ByteSpan(root(buffer.id, self.places.over))
