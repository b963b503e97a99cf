"""Time stamps around the parts of steps, for code that is compiled for profiling."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.ir import Array
from monograph.program.memory.memory_planner import ALIGNMENT

BEGIN, END = 0, 1
STAMP_BYTES = 16
"""A timespec as 64-bit systems have it: i64 seconds, i64 nanoseconds."""
_NANOSECONDS = 1_000_000_000
_CLOCK = "clock_gettime"
DECLARATIONS = frozenset({f"declare i32 @{_CLOCK}(i32, ptr)"})


@dataclass(frozen=True)
class Stamps:
    """The location of the stamps in the arena: one row per thread, two stamps per step."""

    offset: int
    threads: int
    steps: int

    @property
    def row_bytes(self) -> int:
        # Threads write at the same time: their rows must not share a cache line.
        return -(-2 * STAMP_BYTES * self.steps // ALIGNMENT) * ALIGNMENT

    @property
    def stop(self) -> int:
        """The first byte after them."""
        return self.offset + self.threads * self.row_bytes

    def write(self, b: Builder, arena: Reg, part: Reg, step: int, which: int) -> None:
        """Write the current time, at the beginning or the end of a part of a step."""
        row = b.offset(arena, b.mul(part, self.row_bytes))
        place = b.offset(row, self.offset + STAMP_BYTES * (2 * step + which))
        b.line(f"call i32 @{_CLOCK}(i32 {time.CLOCK_MONOTONIC}, ptr {place})")

    def read(self, arena: Array) -> Array:
        """Return the nanoseconds [thread, step, begin or end] of the last run."""
        rows = arena[self.offset : self.stop].reshape(self.threads, self.row_bytes)
        pairs = rows[:, : 2 * STAMP_BYTES * self.steps].copy().view(np.int64)
        seconds = pairs.reshape(self.threads, self.steps, 2, 2)
        times: Array = seconds[..., 0] * _NANOSECONDS + seconds[..., 1]
        return times
