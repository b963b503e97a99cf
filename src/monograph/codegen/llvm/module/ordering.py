"""Where threads have to wait for each other: between kernels that touch the same memory.

Kernels that do not (the rotations of queries and of keys, the updates of two caches) follow each
other without a barrier: a thread that is done with its part of one goes on with the next.
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
    """Bytes of a memory: the arena, or all of a port."""

    memory: int
    start: int = 0
    stop: int = 1

    def meets(self, other: ByteSpan) -> bool:
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop


@dataclass
class Ordering:
    """What kernels have touched since the last barrier."""

    places: Places
    offsets: Mapping[int, int]
    """Where temporary buffers and scratch memory lie in the arena."""
    reads: list[ByteSpan] = field(default_factory=list)
    writes: list[ByteSpan] = field(default_factory=list)

    def waits(self, step: Step, kernel: Kernel, scratch: Mapping[tuple[int, int], int]) -> bool:
        """Whether a barrier comes before a kernel; what it touches is remembered.

        `scratch` tells the arena's buffers by steps and the positions of their kernels' arguments.
        """
        reads, writes = self._touched(step, kernel, scratch)
        clash = any(a.meets(b) for a in writes for b in (*self.reads, *self.writes))
        clash = clash or any(a.meets(b) for a in reads for b in self.writes)
        # A kernel that may wait inside (`Sync`) counts for nothing: it need not, at every size.
        if clash:
            self.reads, self.writes = [], []
        self.reads += reads
        self.writes += writes
        return clash

    def _touched(
        self, step: Step, kernel: Kernel, scratch: Mapping[tuple[int, int], int]
    ) -> tuple[list[ByteSpan], list[ByteSpan]]:
        """What a kernel reads, and what it writes: all that is not given to it."""
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
        """The bytes of a buffer; what is written over another lies where that does."""
        if buffer.kind == CONSTANT:
            return None
        if buffer.kind == TEMPORARY:
            at = self.offsets[buffer.id]
            return ByteSpan(ARENA, at, at + max(buffer.nbytes, 1))
        return ByteSpan(root(buffer.id, self.places.over))
