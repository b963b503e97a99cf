"""Register tiles of matrix products, their partition among threads, and the prefetch of weights.

In a register tile every load feeds many multiply-adds. Threads divide batches, panels of columns or
tiles of rows. The hardware prefetches sequential addresses, but not as far ahead as memory could
serve; a software prefetch brings data into the second-level cache early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.features import Features
from monograph.ir import DType
from monograph.ir.dtype import f32
from monograph.ir.sizes import hint_of, is_open

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
    more_panels = hint_of(count) >= hint_of(sum(run.count for run in rows))
    ranked = (BATCH, PANELS, ROWS) if more_panels else (BATCH, ROWS, PANELS)
    least = min(loads.values())
    return next(way for way in ranked if loads[way] <= least * MATTERS)


def busiest(runs: Sequence[Run], threads: int, last: int = 0) -> float:
    """Return the work of the busiest thread relative to an even share; the last has some more."""
    work = [0] * threads
    work[-1] = last
    runs = [Run(0, run.size, hint_of(run.count)) for run in runs]
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


LOADS_PER_CYCLE = 1.1
"""Measured: the vector or broadcast loads per cycle that a core sustains beside arithmetic."""
FMAS_PER_CYCLE = 2.0
STORE_CYCLES = 9.0
TILE_CYCLES = 40.0
MAX_VECTORS = 6
MAX_ROWS = 24


@dataclass(frozen=True)
class Run:
    """`count` equal pieces of `size`, the first of them at `start`."""

    start: int
    size: int
    count: int


def split(extent: int, most: int) -> list[Run]:
    """Split an extent into as few pieces of at most `most` as possible: two sizes at most."""
    if is_open(extent):
        return _split_open(extent, most)
    if extent == 0:
        return []
    pieces = -(-extent // most)
    small, larger = divmod(extent, pieces)
    runs = []
    if larger:
        runs.append(Run(0, small + 1, larger))
    if pieces > larger:
        runs.append(Run(larger * (small + 1), small, pieces - larger))
    return runs


def _split_open(extent: int, most: int) -> list[Run]:
    """Split an open extent into pieces of `most`, and the rest into one piece per power of two.

    The pieces of the rest have counts of 0 or 1 that are known at run time.
    """
    runs, start, left, size = [], 0, extent, most
    while size:
        count = left // size
        runs.append(Run(start, size, count))
        start, left = start + count * size, left - count * size
        size = (1 << (size - 1).bit_length()) // 2
    return runs


@dataclass(frozen=True)
class RegisterTile:
    """Rows by vectors of accumulators."""

    rows: int
    vectors: int


def room(features: Features, vectors: int) -> int:
    """Return the registers that a tile may fill; narrow ones spilled when they filled all."""
    return features.registers - (1 if vectors > 3 else 2)


def choose_tile(
    rows: int,
    vectors: int,
    depth: int,
    features: Features,
    threads: int,
    accumulators: int = MAX_ROWS * MAX_VECTORS,
    most_rows: int = MAX_ROWS,
) -> RegisterTile:
    """The tile with the least estimated time for a product of rows x (vectors * lanes)."""
    best = RegisterTile(1, 1)
    least = float("inf")
    rows, vectors, depth = hint_of(rows), hint_of(vectors), hint_of(depth)
    for v in range(1, min(MAX_VECTORS, vectors) + 1):
        for r in range(1, min(most_rows, rows) + 1):
            if r * v + v + 1 > room(features, v) or r * v > accumulators:
                break
            cycles = tile_cycles(rows, vectors, depth, RegisterTile(r, v), threads)
            if cycles < least:
                best, least = RegisterTile(r, v), cycles
    return best


def tile_cycles(rows: int, vectors: int, depth: int, tile: RegisterTile, threads: int) -> float:
    """The estimated time of a product in tiles of this form, in cycles."""
    total = 0.0
    for columns in split(vectors, tile.vectors):
        for run in split(rows, tile.rows):
            loads = (run.size + columns.size) / LOADS_PER_CYCLE
            # Fewer than eight accumulators wait for each other.
            fmas = max(run.size * columns.size, 8) / FMAS_PER_CYCLE
            each = depth * max(loads, fmas) + run.size * columns.size * STORE_CYCLES + TILE_CYCLES
            units = run.count * columns.count
            total += each * -(-units // threads)
    return total


LINE = 64
FAR_BYTES = 1 << 20
"""Weights of more bytes do not stay in a core's own caches."""
AHEAD_BYTES = 12 << 10
"""The prefetch distance if there is arithmetic to hide it."""
ROW_AHEAD_BYTES, ROW_BYTES = 4 << 10, 256
"""The prefetch distance for one row, and the bytes of a panel that it reads at a time: whole lines.
Measured: a tenth faster than without, less if panels are no power of two or at twice the distance.
"""


def streams(rows: int, dtype: DType, nbytes: int) -> bool:
    """Return True if one row only streams weights from far memory.

    Only plain floats: for weights that need a conversion this was slower.
    """
    return rows == 1 and dtype == f32 and nbytes > FAR_BYTES


def choose_ahead(rows: int, tile_rows: int, nbytes: int, streamed: bool) -> int:
    """Return the prefetch distance of weights in bytes; 0 for none.

    It pays if weights are read from far memory once or twice, and if there is arithmetic to hide
    it, or nothing but loads: two or three rows are loads that run ahead by themselves.
    """
    if streamed:
        return ROW_AHEAD_BYTES
    few = rows <= 4 * tile_rows
    return AHEAD_BYTES if nbytes > FAR_BYTES and tile_rows >= 4 and few else 0


def row_width(vectors: int, lanes: int, features: Features, threads: int) -> int:
    """Return the vectors of columns that one row processes at a time, for weights in far memory."""
    most = ROW_BYTES // (lanes * f32.itemsize)
    return even_width(vectors, min(most, features.registers // 2), threads)


def fetch(b: Builder, w: Reg, ahead: int, nbytes: int) -> None:
    """Prefetch `nbytes` of weights at a distance."""
    read, level, data = (Reg(str(k), "i32") for k in (0, 2, 1))
    for at in range(ahead, ahead + nbytes, LINE):
        b.call("llvm.prefetch.p0", "void", b.offset(w, at), read, level, data)
