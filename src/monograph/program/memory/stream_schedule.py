"""Lanes: steps that do not need each other side by side, and memory that stays apart for that.

A lane is a line of steps that run one after the other. A step that needs what another lane made
waits for it. Two buffers may share memory only where every use of one is sure to come before every
use of the other: along lanes and waits, not merely in the program's order.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from monograph.ir import Value
from monograph.program.index import strides_of
from monograph.program.memory.buffer_assignment import CONSTANT, Places, Storage
from monograph.program.memory.inplace import root
from monograph.program.memory.memory_planner import ALIGNMENT, MemoryPlan
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

    @property
    def crossings(self) -> int:
        """How often a step waits for one of another lane."""
        return sum(map(len, self.waits))

    def ordered(self, first: int, second: int) -> bool:
        """Whether a step is sure to end before another starts."""
        return bool(self.before[second] >> first & 1)


def needs(steps: Sequence[Step], places: Places, changed: Container[Value] = ()) -> list[set[int]]:
    """For every step, the earlier steps that have to end first.

    A step waits for those that write what it reads. One that writes where another buffer lies (a
    donated output over its input) waits for all that use that buffer; one that counts up a state
    (`changed`) for all that use the state. Within one buffer no other write is waited for: every
    element of it is written once, parts of a join side by side.
    """
    history = _History(places)
    found: list[set[int]] = []
    for position, step in enumerate(steps):
        read = [v for v in step.region.inputs if v not in changed]
        both = [v for v in step.region.inputs if v in changed]
        wanted: set[int] = set()
        for value in (*read, *both):
            wanted |= history.written(value)
        for value in (*step.region.outputs, *both):
            wanted |= history.beneath(value, everything=value in changed)
        for value in read:
            history.note(history.readers, value, position)
        for value in (*step.region.outputs, *both):
            history.note(history.writers, value, position)
        found.append(wanted - {position})
    return found


_Notes = dict[int, list[tuple[int, Value]]]


@dataclass
class _History:
    """Which steps have read and written each buffer so far."""

    places: Places
    writers: _Notes = field(default_factory=dict)
    readers: _Notes = field(default_factory=dict)

    def note(self, uses: _Notes, value: Value, position: int) -> None:
        place = self.places.storage.get(value)
        if place is not None and place.buffer.kind != CONSTANT:
            uses.setdefault(place.buffer.id, []).append((position, value))

    def written(self, value: Value) -> set[int]:
        """The steps that have written something of what a value holds."""
        place = self.places.storage.get(value)
        if place is None:
            return set()
        return {
            at
            for at, other in self.writers.get(place.buffer.id, ())
            if other is value or not _apart(value, other, self.places)
        }

    def beneath(self, value: Value, everything: bool) -> set[int]:
        """The steps that have used other buffers in the memory that a value is written to.

        With `everything` those that have used its own buffer too.
        """
        place = self.places.storage.get(value)
        if place is None:
            return set()
        own = place.buffer.id
        others = {own} if everything else set()
        over = self.places.over
        if over:
            base = root(own, over)
            others |= {b for b in (base, *over) if b != own and root(b, over) == base}
        return {
            at for uses in (self.writers, self.readers) for b in others for at, _ in uses.get(b, ())
        }


def _apart(a: Value, b: Value, places: Places) -> bool:
    """Whether two values of one buffer surely share no element: different parts of a join."""
    first, second = _box(a, places.storage[a]), _box(b, places.storage[b])
    if first is None or second is None:
        return False
    return any(x.stop <= y.start or y.stop <= x.start for x, y in zip(first, second, strict=True))


def _box(value: Value, place: Storage) -> list[range] | None:
    """A value's place along each dimension of its buffer; None where it is not cut out straight."""
    steps = strides_of(place.buffer.padded)
    shape = value.tensor.static
    if len(shape) != len(steps) or any(
        d > 1 and s != t for d, s, t in zip(shape, place.strides, steps, strict=True)
    ):
        return None
    rest, found = place.offset, []
    for extent, step in zip(shape, steps, strict=True):
        start, rest = divmod(rest, step) if step else (0, rest)
        found.append(range(start, start + extent))
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


def narrowed(order: Schedule, limit: int) -> Schedule:
    """The same steps in at most so many lanes.

    What was sure to be over before a step still is. So memory that was planned for the wide order
    serves the narrow one too; the other way round it would not.
    """
    tails: dict[int, int] = {}
    needed = []
    for position, lane in enumerate(order.lane):
        behind = {tails[lane]} if lane in tails else set()
        needed.append(behind | set(order.waits[position]))
        tails[lane] = position
    return schedule(needed, limit)


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


def plan_apart(buffers: Sequence[Uses], order: Schedule) -> MemoryPlan:
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
    return MemoryPlan(offsets, size)


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
