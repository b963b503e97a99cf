"""Row tiling: the division of rows among the programs of a kernel, and the order of candidates."""

from __future__ import annotations

from dataclasses import dataclass

from monograph.codegen.triton.emit.writer import power

BUSY = 132 * 2
"""The programs that keep a large device busy; with fewer, splitting long rows pays."""
MOST = 1 << 14
"""The elements that a program can hold in registers."""
LEAST = 256
"""With fewer elements a program has too little work, if there are more."""
PIECE = 32
"""The smallest unit of a memory read, in bytes."""
SHORTEST = 1024
"""The fewest elements of parts of rows that are worth a program."""
PARTS = 256
"""The most parts of a row: their totals are combined in registers."""
TRIED = 3
"""The candidates of each kind that are kept, the most promising ones."""


@dataclass(frozen=True)
class RowTiling:
    """The block of a program: some rows, some elements of each at a time, its warps."""

    rows: int
    block: int
    warps: int = 4
    split: int = 1
    """The programs that share a row."""

    def trips(self, length: int) -> int:
        """Return the number of blocks of a part of a row."""
        return max(-(-length // (self.split * self.block)), 1)

    def fitted(self, length: int) -> RowTiling:
        """Return the tiling without empty parts."""
        chunk = self.trips(length) * self.block
        return RowTiling(self.rows, self.block, self.warps, -(-length // chunk))

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.rows}x{self.block} w{self.warps}{split}"


@dataclass(frozen=True)
class Field:
    """The number of rows, and their length."""

    count: int
    length: int
    lane: int = 0
    """The number of contiguous rows, if lanes run across rows."""
    itemsize: int = 4

    def programs(self, cut: RowTiling) -> int:
        if not self.lane:
            return -(-self.count // cut.rows) * cut.split
        return self.count // self.lane * -(-self.lane // cut.rows) * cut.split


def row_tilings(field: Field) -> list[RowTiling]:
    """Return tilings of rows, the most promising first."""
    if field.count * field.length == 1:
        return [RowTiling(1, 1, 1)]
    found: dict[RowTiling, None] = {}
    least = min(LEAST, max(_row_counts(field)) * power(field.length))
    for rows in _row_counts(field):
        for block in _blocks(field, rows):
            if rows * block < least:
                continue
            for warps in _warps(rows * block):
                for split in _splits(field, RowTiling(rows, block, warps)):
                    found[RowTiling(rows, block, warps, split).fitted(field.length)] = None
    kinds: dict[tuple[bool, bool], list[RowTiling]] = {}
    for cut in sorted(found, key=lambda c: guess(field, c)):
        # Rows that are held, looped over, or shared.
        kinds.setdefault((cut.split > 1, cut.trips(field.length) > 1), []).append(cut)
    kept = [c for of_kind in kinds.values() for c in of_kind[:TRIED]]
    return sorted(kept, key=lambda c: guess(field, c))


def joining_tiling(field: Field, parts: int) -> RowTiling:
    """Return the tiling that combines the totals of parts of rows: a few rows at a time."""
    size = power(parts)
    rows = min(max(512 // size, 1), power(field.lane or field.count))
    return RowTiling(rows, size, 1 if rows * size < 512 else 4)


def _row_counts(field: Field) -> list[int]:
    most = power(field.lane or field.count)
    if field.lane:
        # Memory is read in units of so many bytes, whether all of a unit is used or not.
        least = max(PIECE // field.itemsize, 1)
        return [r for r in (8, 16, 32, 64, 128) if least <= r <= most] or [most]
    # Rows of one element form blocks of rows.
    least = 2 if field.length == 1 else 1
    return [r for r in (1, 2, 4, 8, 16, 32, 64, 128, 256) if least <= r <= most]


def _blocks(field: Field, rows: int) -> list[int]:
    """Return numbers of elements at a time: whole rows, or enough to keep the lanes busy."""
    whole = power(field.length)
    found = [whole] if rows * whole <= MOST else []
    found += [size // rows for size in (1024, 2048, 4096, 8192) if 1 <= size // rows < whole]
    return found or [max(MOST // rows, 1)]


def _warps(size: int) -> list[int]:
    if size >= 8192:
        return [8, 16]
    return [4, 8] if size >= 2048 else [4] if size >= 512 else [2] if size >= 256 else [1]


def _splits(field: Field, cut: RowTiling) -> list[int]:
    """Return numbers of programs per row: enough to keep the device busy, each with enough work."""
    programs = field.programs(cut)
    fewest = _row_counts(field)[0]
    if field.programs(RowTiling(fewest, cut.block)) >= BUSY:
        return [1]
    shortest = SHORTEST // cut.rows if field.lane else SHORTEST
    most = min(-(-field.length // max(cut.block, shortest)), PARTS)
    if programs >= BUSY or most < 2:
        return [1]
    enough = power(-(-BUSY // programs))
    return [1, *dict.fromkeys(min(s, most) for s in (enough, enough // 4) if s > 1)]


def guess(field: Field, cut: RowTiling) -> float:
    """Estimate the time, only to order candidates: rounds of programs times the work of each."""
    slots = 132 * min(64 // cut.warps, 24)
    rounds = max(field.programs(cut) / slots, 1.0)
    each = cut.rows * cut.block / (32 * cut.warps)
    trips = cut.trips(field.length)
    held = 1.0 if each <= 32 else 1.5
    broken = 1.5 if field.lane and cut.rows * field.itemsize < 2 * PIECE else 1.0
    work = 1.0 + trips * (0.4 + 0.06 * each * held) * broken
    return rounds * work + (2.5 if cut.split > 1 else 0.0)
