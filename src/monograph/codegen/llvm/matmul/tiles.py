"""Register tiles of matrix products: every load feeds many multiply-adds."""

from __future__ import annotations

from dataclasses import dataclass

from monograph.codegen.llvm.module.features import Features

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
