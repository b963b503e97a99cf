"""What the threads share out of a matrix product: batches, panels of columns or tiles of rows."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.llvm.matmul.tiles import Run, split

BATCH, PANELS, ROWS = "batch", "panels", "rows"
MATTERS = 1.03
"""By how much one way must be more even than another to be taken against its rank."""


def choose_share(
    batch: int, panels: Sequence[tuple[Run, bool]], rows: Sequence[Run], threads: int
) -> str:
    """The way that gives the busiest thread the least work; of ways alike, the first.

    Whole batches need no data of each other; panels share the rows, tiles of rows the weights, so
    that the more numerous of the two are shared out. The last of the panels may stand alone.
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
    """The work of the busiest thread over that of an even share; the last thread has some more."""
    work = [0] * threads
    work[-1] = last
    for run in runs:
        for t in range(threads):
            mine = run.count * (t + 1) // threads - run.count * t // threads
            work[t] += mine * run.size
    return max(work) * threads / max(sum(work), 1)


def even_width(vectors: int, most: int, threads: int) -> int:
    """The widest panels of a power of two that leave no thread with more work than narrower ones.

    Panels of such widths are whole cache lines that begin at their start.
    """
    widths = [1 << k for k in reversed(range(most.bit_length()))]
    loads = {width: busiest(split(vectors, width), threads) for width in widths}
    least = min(loads.values())
    return next(width for width in widths if loads[width] <= least * MATTERS)
