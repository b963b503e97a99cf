"""The memory planner: it places buffers with disjoint lifetimes at the same addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from monograph.ir.sizes import any_open, hint_of, largest

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """The bytes of a buffer, and the first and last step that need it."""

    key: int
    nbytes: int
    first: int
    last: int
    over: tuple[int, ...] = ()
    """Buffers that are written over it, one after the other, at the same address."""


@dataclass(frozen=True)
class MemoryPlan:
    """The offset of each buffer in the arena, and the size of the arena."""

    offsets: dict[int, int]
    size: int


def plan(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place buffers so that no two live ones overlap; the largest first."""
    if any_open(x.nbytes for x in lifetimes):
        bins = _plan_bins(lifetimes)
        stacks = _plan_stacks(lifetimes)
        return stacks if hint_of(stacks.size) < hint_of(bins.size) else bins
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, Lifetime]] = []
    size = 0
    for life in sorted(lifetimes, key=lambda x: (-x.nbytes, x.first, x.key)):
        taken = sorted(
            (start, stop)
            for start, stop, other in placed
            if other.first <= life.last and life.first <= other.last
        )
        # An empty buffer takes room too, so that no two buffers share an address.
        nbytes = _aligned(life.nbytes)
        offset = _gap(taken, nbytes)
        stop = offset + nbytes
        offsets.update(dict.fromkeys((life.key, *life.over), offset))
        placed.append((offset, stop, life))
        size = max(size, stop)
    return MemoryPlan(offsets, size)


def _plan_stacks(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Stack buffers of open sizes in the order in which they lie for the sizes of the hint.

    A buffer starts where all those end that are live with it and lie below it.
    """
    exact = plan([replace(x, nbytes=hint_of(x.nbytes)) for x in lifetimes])
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    placed: list[Lifetime] = []
    for life in sorted(lifetimes, key=lambda x: exact.offsets[x.key]):
        below = [o for o in placed if o.first <= life.last and life.first <= o.last]
        # One that lies below another of them ends before that one starts.
        top = [
            o
            for o in below
            if not any(
                o.first <= p.last and p.first <= o.last
                for p in below
                if exact.offsets[p.key] > exact.offsets[o.key]
            )
        ]
        start = largest([ends[o.key] for o in top] or [0])
        offsets.update(dict.fromkeys((life.key, *life.over), start))
        ends[life.key] = start + _aligned(life.nbytes)
        placed.append(life)
    return MemoryPlan(offsets, largest(ends.values()))


def _plan_bins(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place buffers of open sizes in bins: which buffers share memory does not depend on sizes.

    A bin is as large as its largest buffer.
    """
    bins: list[list[Lifetime]] = []
    for life in sorted(lifetimes, key=lambda x: (-hint_of(x.nbytes), x.first, x.key)):
        free = (b for b in bins if all(o.last < life.first or life.last < o.first for o in b))
        # The tightest bin: the first buffer of each is its largest.
        best = min(free, key=lambda b: hint_of(b[0].nbytes), default=None)
        if best is None:
            bins.append([life])
        else:
            best.append(life)
    offsets: dict[int, int] = {}
    start = 0
    for members in bins:
        for life in members:
            offsets.update(dict.fromkeys((life.key, *life.over), start))
        start = start + _aligned(largest(x.nbytes for x in members))
    return MemoryPlan(offsets, start)


def fullest(lifetimes: Sequence[Lifetime]) -> tuple[int, list[Lifetime]]:
    """Return the step that needs the most bytes, and its buffers, largest first.

    No plan can be smaller; a larger plan has gaps.
    """
    change: dict[int, int] = {}
    for x in lifetimes:
        change[x.first] = change.get(x.first, 0) + x.nbytes
        change[x.last + 1] = change.get(x.last + 1, 0) - x.nbytes
    steps = sorted(change)
    totals = itertools.accumulate(change[s] for s in steps)
    _, step = max(zip(totals, (-s for s in steps), strict=True), default=(0, 0))
    needed = [x for x in lifetimes if x.first <= -step <= x.last]
    return -step, sorted(needed, key=lambda x: (-x.nbytes, x.key))


def _gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Return the start of the tightest gap between taken ranges for `nbytes`, or their end."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= nbytes and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    return best[1] if best is not None else end


def _aligned(nbytes: int) -> int:
    return -(-largest((nbytes, 1)) // ALIGNMENT) * ALIGNMENT
