"""Lanes: steps that do not need each other side by side, and memory that stays apart for that.

A lane is a line of steps that run one after the other. A step that needs what another lane made
waits for it. Two buffers may share memory only where every use of one is sure to come before every
use of the other: along lanes and waits, not merely in the program's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monograph.ir import Constant
from monograph.program.place import Places
from monograph.program.plan import ALIGNMENT, Plan
from monograph.program.program import Step


@dataclass(frozen=True)
class Schedule:
    """For every step, by position: its lane, and the earlier steps of other lanes it waits for."""

    lane: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    """A bit for every step that is sure to have ended before this one starts."""

    @property
    def lanes(self) -> int:
        return max(self.lane, default=0) + 1

    def ordered(self, first: int, second: int) -> bool:
        """Whether a step is sure to end before another starts."""
        return bool(self.before[second] >> first & 1)


def needs(steps: Sequence[Step], places: Places) -> list[set[int]]:
    """For every step, the steps that write what it reads."""
    writers: dict[int, list[int]] = {}
    found: list[set[int]] = []
    for position, step in enumerate(steps):
        wanted: set[int] = set()
        for value in step.region.inputs:
            storage = places.storage.get(value)
            if storage is not None and not isinstance(value.op, Constant):
                wanted.update(writers.get(storage.buffer.id, ()))
        found.append(wanted)
        for value in step.region.outputs:
            storage = places.storage.get(value)
            if storage is not None:
                writers.setdefault(storage.buffer.id, []).append(position)
    return found


def schedule(needed: Sequence[set[int]], limit: int) -> Schedule:
    """Deals steps out to at most so many lanes: each goes on where something it needs ended."""
    tails: list[int] = []
    lane: list[int] = []
    waits: list[tuple[int, ...]] = []
    before: list[int] = []
    for position, wanted in enumerate(needed):
        own = _lane(wanted, tails, before, limit)
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
        lane.append(own)
        waits.append(tuple(missing))
        before.append(known)
    return Schedule(tuple(lane), tuple(waits), tuple(before))


def _lane(wanted: set[int], tails: list[int], before: list[int], limit: int) -> int:
    """Where a step goes: behind something it needs, or into a lane of its own."""
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


@dataclass(frozen=True)
class Uses:
    """A buffer's bytes, and the positions of the steps that write or read it."""

    key: int
    nbytes: int
    steps: tuple[int, ...]


def plan_apart(buffers: Sequence[Uses], order: Schedule) -> Plan:
    """Places buffers so that no two that may be in use at once overlap; the largest first."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, Uses]] = []
    size = 0
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.steps[:1], b.key)):
        nbytes = -(-max(buffer.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        taken = sorted((a, b) for a, b, other in placed if _meet(buffer, other, order))
        offset = _gap(taken, nbytes)
        offsets[buffer.key] = offset
        placed.append((offset, offset + nbytes, buffer))
        size = max(size, offset + nbytes)
    return Plan(offsets, size)


def _meet(a: Uses, b: Uses, order: Schedule) -> bool:
    """Whether two buffers may be in use at once."""
    first = all(order.ordered(x, y) for x in a.steps for y in b.steps)
    return not first and not all(order.ordered(y, x) for x in a.steps for y in b.steps)


def _gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """The first gap between taken ranges that holds so many bytes, or their end."""
    end = 0
    for start, stop in taken:
        if start - end >= nbytes:
            return end
        end = max(end, stop)
    return end
