"""The partition of a matrix product among threads: batches, panels of columns or tiles of rows."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.llvm.matmul.tiles import Run, split

BATCH, PANELS, ROWS = "batch", "panels", "rows"
MATTERS = 1.03
"""The factor by which a partition must be more even to be preferred to one of higher rank."""


def choose_share(
    batch: int, panels: Sequence[tuple[Run, bool]], rows: Sequence[Run], threads: int
) -> str:
    """Return the partition with the least work for the busiest thread; the first of equal ones.

    Batches share no data; panels share the rows, tiles of rows share the weights, so the more
    numerous of the two are divided. The last panel may be separate.
    """
    loads = {BATCH: busiest([Run(0, 1, batch)], threads)}
    alone = sum(run.size for run, last in panels if last)
    shared = [run for run, last in panels if not last]
    loads[PANELS] = busiest(shared, threads, alone)
    loads[ROWS] = busiest(rows, threads)
    count = sum(run.count for run, _ in panels)
    more_panels = count >= sum(run.count for run in rows)
    ranked = (BATCH, PANELS, ROWS) if more_panels else (BATCH, ROWS, PANELS)
    least = min(loads.values())
    return next(way for way in ranked if loads[way] <= least * MATTERS)


def busiest(runs: Sequence[Run], threads: int, last: int = 0) -> float:
    """Return the work of the busiest thread relative to an even share; the last has some more."""
    work = [0] * threads
    work[-1] = last
    for run in runs:
        for t in range(threads):
            mine = run.count * (t + 1) // threads - run.count * t // threads
            work[t] += mine * run.size
    return max(work) * threads / max(sum(work), 1)


def even_width(vectors: int, most: int, threads: int) -> int:
    """Return the widest power-of-two panels that give no thread more work than narrower ones.

    Panels of such widths are whole cache lines.
    """
    widths = [1 << k for k in reversed(range(most.bit_length()))]
    loads = {width: busiest(split(vectors, width), threads) for width in widths}
    least = min(loads.values())
    return next(width for width in widths if loads[width] <= least * MATTERS)
