"""Schedules: which stream each step runs on, and the steps of other streams that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """By position of a step: its stream, and the earlier steps of others it waits for."""

    stream: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    """A bit for every step that is certain to end before this one starts."""

    @property
    def streams(self) -> int:
        return max(self.stream, default=0) + 1

    @property
    def crossings(self) -> int:
        """The number of waits for steps of other streams."""
        return sum(map(len, self.waits))

    def ordered(self, first: int, second: int) -> bool:
        """Return True if a step is certain to end before another starts."""
        return bool(self.before[second] >> first & 1)


def schedule(needed: Sequence[set[int]], limit: int) -> Schedule:
    """Distribute steps among at most `limit` streams; a step follows one that it needs."""
    tails: list[int] = []
    stream: list[int] = []
    waits: list[tuple[int, ...]] = []
    before: list[int] = []
    for position, wanted in enumerate(needed):
        own = _stream(wanted, tails, before, limit)
        if own == len(tails):
            tails.append(-1)
        known = 0
        if tails[own] >= 0:
            known = before[tails[own]] | 1 << tails[own]
        missing = []
        for other in sorted(wanted, reverse=True):
            if not known >> other & 1:
                missing.append(other)
                known |= before[other] | 1 << other
        tails[own] = position
        stream.append(own)
        waits.append(tuple(missing))
        before.append(known)
    return Schedule(tuple(stream), tuple(waits), tuple(before))


def narrowed(order: Schedule, limit: int) -> Schedule:
    """Return the same steps on at most `limit` streams.

    All guarantees of order still hold. So memory planned for the wide schedule serves the narrow
    one too, but not the other way round.
    """
    tails: dict[int, int] = {}
    needed = []
    for position, stream in enumerate(order.stream):
        behind = {tails[stream]} if stream in tails else set()
        needed.append(behind | set(order.waits[position]))
        tails[stream] = position
    return schedule(needed, limit)


def _stream(wanted: set[int], tails: list[int], before: list[int], limit: int) -> int:
    """Return the stream of a step: one that ends with a step it needs, or a new one."""
    behind = [i for i, tail in enumerate(tails) if tail in wanted]
    if behind:
        return max(behind, key=lambda i: tails[i])
    done = 0
    for other in wanted:
        done |= before[other] | 1 << other
    idle = [i for i, tail in enumerate(tails) if done >> tail & 1]
    if idle:
        return max(idle, key=lambda i: tails[i])
    if len(tails) < limit:
        return len(tails)
    return min(range(len(tails)), key=lambda i: tails[i])
