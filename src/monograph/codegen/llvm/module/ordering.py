"""Barriers between kernels that access the same memory.

Kernels that do not (the rotations of queries and keys, the updates of two caches) follow each other
without a barrier: a thread that has finished its part of one continues with the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monograph.codegen.llvm.module.kernel import Kernel, LlvmScratch
from monograph.ir import Value
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY, Buffer, Places
from monograph.program.memory.inplace import root
from monograph.program.program import Step

ARENA = -1


@dataclass(frozen=True)
class ByteSpan:
    """A range of bytes: of the arena, or all of a port."""

    memory: int
    start: int = 0
    stop: int = 1

    def meets(self, other: ByteSpan) -> bool:
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop


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
                writes.append(ByteSpan(ARENA, at, at + max(argument.nbytes, 1)))
            elif isinstance(argument, Value):
                given = argument in step.region.inputs
                span = self._span(self.places.storage[argument].buffer)
                if span is not None:
                    (reads if given else writes).append(span)
        return reads, writes

    def _span(self, buffer: Buffer) -> ByteSpan | None:
        """Return the bytes of a buffer; one written over another has the same address."""
        if buffer.kind == CONSTANT:
            return None
        if buffer.kind == TEMPORARY:
            at = self.offsets[buffer.id]
            return ByteSpan(ARENA, at, at + max(buffer.nbytes, 1))
        return ByteSpan(root(buffer.id, self.places.over))
