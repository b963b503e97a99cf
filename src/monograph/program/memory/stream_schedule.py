"""The stream schedule: independent steps run on different streams, in memory that they do not
share.

The steps of a stream run one after the other. A step that needs a result of another stream waits
for it. Two buffers may share memory only if every use of one ends before every use of the other
starts, as streams and waits guarantee it, not only by the program's order.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from monograph.ir import Value
from monograph.ir.sizes import any_open, hint_of, largest, proven
from monograph.program.index import strides_of
from monograph.program.memory.buffer_assignment import CONSTANT, Places, Storage
from monograph.program.memory.inplace import root
from monograph.program.memory.memory_planner import ALIGNMENT, MemoryPlan
from monograph.program.memory.schedules import Schedule
from monograph.program.program import Step


def needs(steps: Sequence[Step], places: Places, changed: Container[Value] = ()) -> list[set[int]]:
    """Return, for every step, the earlier steps that have to end first.

    A step waits for the writers of what it reads. A step that writes into another buffer's memory
    (a donated output over its input) waits for all users of that buffer; a step that advances a
    state (`changed`) waits for all users of the state. Other writes to the same buffer need no
    wait: each element is written once, parts of a join side by side.
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
    """The steps that have read and written each buffer so far."""

    places: Places
    writers: _Notes = field(default_factory=dict)
    readers: _Notes = field(default_factory=dict)

    def note(self, uses: _Notes, value: Value, position: int) -> None:
        place = self.places.storage.get(value)
        if place is not None and place.buffer.kind != CONSTANT:
            uses.setdefault(place.buffer.id, []).append((position, value))

    def written(self, value: Value) -> set[int]:
        """Return the steps that have written a part of a value."""
        place = self.places.storage.get(value)
        if place is None:
            return set()
        return {
            at
            for at, other in self.writers.get(place.buffer.id, ())
            if other is value or not _disjoint(value, other, self.places)
        }

    def beneath(self, value: Value, everything: bool) -> set[int]:
        """Return the steps that have used other buffers in the memory that a value is written to.

        With `everything`, also those that have used its own buffer.
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


def _disjoint(a: Value, b: Value, places: Places) -> bool:
    """Return True if two values of one buffer share no element: different parts of a join."""
    first, second = _box(a, places.storage[a]), _box(b, places.storage[b])
    if first is None or second is None:
        return False
    pairs = zip(first, second, strict=True)
    return any(proven(x[1], "<=", y[0]) or proven(y[1], "<=", x[0]) for x, y in pairs)


def _box(value: Value, place: Storage) -> list[tuple[int, int]] | None:
    """Return where a value starts and stops along the dimensions of its buffer.

    None if it is not a plain box.
    """
    steps = strides_of(place.buffer.padded)
    shape = value.tensor.static
    if len(shape) != len(steps) or any(
        not proven(s, "==", t) and d > 1
        for d, s, t in zip(shape, place.strides, steps, strict=True)
    ):
        return None
    rest, found = place.offset, []
    for extent, step in zip(shape, steps, strict=True):
        start, rest = divmod(rest, step) if step else (0, rest)
        found.append((start, start + extent))
    return found


@dataclass(frozen=True)
class Uses:
    """The bytes of a buffer, and the positions of the steps that write or read it."""

    key: int
    nbytes: int
    steps: tuple[int, ...]


def plan_concurrent(buffers: Sequence[Uses], order: Schedule) -> MemoryPlan:
    """Place buffers so that no two that may be in use at once overlap; the largest first."""
    if any_open(b.nbytes for b in buffers):
        return _plan_bins(buffers, order)
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


def _plan_bins(buffers: Sequence[Uses], order: Schedule) -> MemoryPlan:
    """Place buffers of open sizes: which of them share memory does not depend on sizes."""
    bins: list[list[Uses]] = []
    for buffer in sorted(buffers, key=lambda b: (-hint_of(b.nbytes), b.steps[:1], b.key)):
        free = (b for b in bins if not any(_meet(buffer, other, order) for other in b))
        # The tightest bin: the first buffer of each is its largest.
        best = min(free, key=lambda b: hint_of(b[0].nbytes), default=None)
        if best is None:
            bins.append([buffer])
        else:
            best.append(buffer)
    offsets: dict[int, int] = {}
    start = 0
    for members in bins:
        offsets.update({buffer.key: start for buffer in members})
        room = largest((1, *(buffer.nbytes for buffer in members)))
        start = start + -(-room // ALIGNMENT) * ALIGNMENT
    return MemoryPlan(offsets, start)


def _meet(a: Uses, b: Uses, order: Schedule) -> bool:
    """Return True if two buffers may be in use at once."""
    first = all(order.ordered(x, y) for x in a.steps for y in b.steps)
    return not first and not all(order.ordered(y, x) for x in a.steps for y in b.steps)


def _gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Return the start of the first gap between taken ranges that holds `nbytes`, or their end."""
    end = 0
    for start, stop in taken:
        if start - end >= nbytes:
            return end
        end = max(end, stop)
    return end
