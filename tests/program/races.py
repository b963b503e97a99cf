"""Race detector: of two uses of one memory, one must have ended before the other starts.

It reads what is launched (streams, the works that each work waits for, the addresses of its
arguments) and shares no code with the stream schedule or the memory planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monograph.ir import Array


@dataclass(frozen=True)
class Touch:
    """Elements of a memory that a piece of work reads or writes."""

    memory: str
    start: int
    """The first byte."""
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    writes: bool

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @cached_property
    def stop(self) -> int:
        """The first byte behind all of them."""
        last = sum((d - 1) * s for d, s in zip(self.shape, self.strides, strict=True))
        return self.start + (last + 1) * self.itemsize

    def bytes_from(self, base: int, size: int) -> Array:
        """Return which of some bytes it touches."""
        at = np.zeros((), np.int64)
        for extent, stride in zip(self.shape, self.strides, strict=True):
            at = at[..., None] + np.arange(extent, dtype=np.int64) * stride
        first = self.start - base + at.reshape(-1) * self.itemsize
        found = np.zeros(size, bool)
        for byte in range(self.itemsize):
            found[first + byte] = True
        return found

    def meets(self, other: Touch) -> bool:
        """Tell whether the two share a byte."""
        if self.memory != other.memory or self.is_empty or other.is_empty:
            return False
        if self.stop <= other.start or other.stop <= self.start:
            return False
        base = min(self.start, other.start)
        size = max(self.stop, other.stop) - base
        return bool((self.bytes_from(base, size) & other.bytes_from(base, size)).any())


@dataclass(frozen=True)
class Task:
    """A piece of work as it is launched."""

    stream: int
    step: int
    """The number that others wait for it by."""
    waits: tuple[int, ...]
    touches: tuple[Touch, ...]


def ends_before(tasks: Sequence[Task]) -> list[int]:
    """For every task a bit for each task that has surely ended when it starts.

    A stream's tasks run in order. To wait for a step is to wait for its last task so far; a step
    that nothing was launched for is not waited for.
    """
    tails: dict[int, int] = {}
    ended: dict[int, int] = {}
    found: list[int] = []
    for number, task in enumerate(tasks):
        known = 0
        behind = [tails[task.stream]] if task.stream in tails else []
        for other in (*behind, *(ended[s] for s in task.waits if s in ended)):
            known |= found[other] | 1 << other
        found.append(known)
        tails[task.stream] = ended[task.step] = number
    return found


def races(tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """Pairs of tasks that may run at once, of which one writes what the other touches."""
    before = ends_before(tasks)
    found: dict[tuple[int, int], None] = {}
    for (a, first), (b, second) in _close(tasks):
        low, high = min(a, b), max(a, b)
        if low == high or not (first.writes or second.writes):
            continue
        if not before[high] >> low & 1 and first.meets(second):
            found[low, high] = None
    return sorted(found)


_Used = tuple[int, Touch]


def _close(tasks: Sequence[Task]) -> Iterator[tuple[_Used, _Used]]:
    """Pairs of touches of one memory whose bytes lie between each other's ends."""
    used = [(n, t) for n, task in enumerate(tasks) for t in task.touches if not t.is_empty]
    live: list[_Used] = []
    for number, touch in sorted(used, key=lambda u: (u[1].memory, u[1].start)):
        live = [(n, t) for n, t in live if t.memory == touch.memory and t.stop > touch.start]
        for other in live:
            yield other, (number, touch)
        live.append((number, touch))
