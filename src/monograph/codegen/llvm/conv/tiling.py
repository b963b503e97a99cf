"""The tiling of a direct convolution: an axis along which the tiles run, and the registers that
they fill; the taps of a window along that axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from monograph.codegen.llvm.matmul.tiles import (
    FMAS_PER_CYCLE,
    LOADS_PER_CYCLE,
    MAX_ROWS,
    MAX_VECTORS,
    STORE_CYCLES,
    TILE_CYCLES,
    RegisterTile,
    room,
    split,
)
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Value
from monograph.ir.sizes import hint_of
from monograph.ops.conv import Conv

T = TypeVar("T")
CLEARLY = 0.7
"""Another axis must take at most this share of the time along the last axis."""

LONG = 32
"""The most taps of an axis whose products are written out one after another."""
PIECE = 16
"""The taps of one turn of a loop over a longer axis."""


@dataclass(frozen=True)
class Taps:
    """One spatial dimension of a window: the taps that each load feeds."""

    size: int
    stride: int
    dilation: int

    @property
    def is_long(self) -> bool:
        """True if a kernel goes through the taps in pieces: their code would be too long."""
        return self.size > LONG

    def pieces(self) -> list[tuple[Taps, int]]:
        """Return the taps in equal pieces and what is left, each with its count."""
        if not self.is_long:
            return [(self, 1)]
        left = self.size % PIECE
        rest = [(replace(self, size=left), 1)] if left else []
        return [(replace(self, size=PIECE), self.size // PIECE), *rest]

    def pixels(self, rows: int) -> list[int]:
        """Return the offsets of the pixels that a row of outputs reads."""
        return sorted(
            {r * self.stride + k * self.dilation for r in range(rows) for k in range(self.size)}
        )

    def uses(self, pixel: int, rows: int) -> list[tuple[int, int]]:
        """Return the (output, tap) pairs that a pixel feeds."""
        found = []
        for k in range(self.size):
            r, rest = divmod(pixel - k * self.dilation, self.stride)
            if rest == 0 and 0 <= r < rows:
                found.append((r, k))
        return found


@dataclass(frozen=True)
class ConvTiling:
    """The spatial axis of the tiles, the register tile, and the estimated time in cycles."""

    axis: int
    tile: RegisterTile
    cycles: float

    def turned(self, items: Sequence[T]) -> tuple[T, ...]:
        """Permute entries of spatial axes so that the tiles' axis is last."""
        return (*items[: self.axis], *items[self.axis + 1 :], items[self.axis])

    def turned_back(self, items: Sequence[T]) -> tuple[T, ...]:
        """The inverse of `turned`."""
        return (*items[: self.axis], items[-1], *items[self.axis : -1])


def make_plan(value: Value, features: Features) -> ConvTiling:
    """Return the tiling with the least estimated time on one core.

    Tiles run along the last axis, where pixels are contiguous, unless another is clearly better: an
    image one pixel wide.
    """
    *others, last = (_along(value, axis, features) for axis in range(value.tensor.rank - 2))
    best = min(others, key=lambda p: p.cycles, default=last)
    return best if best.cycles < CLEARLY * last.cycles else last


def _along(value: Value, axis: int, features: Features) -> ConvTiling:
    """Return the best tiling whose tiles run along an axis."""
    assert isinstance(value.op, Conv)
    shape = tuple(map(hint_of, value.tensor.static))
    weights = value.inputs[1].tensor.static
    pixels = shape[1 + axis]
    vectors = -(-shape[-1] // features.lanes(32))
    window = Taps(weights[2 + axis], value.op.strides[axis], value.op.dilations[axis])
    taps, _ = window.pieces()[0]
    depth = math.prod(weights[1:]) // max(taps.size, 1)
    best, least = RegisterTile(1, 1), float("inf")
    for v in range(1, min(MAX_VECTORS, vectors) + 1):
        # With a stride, at most two taps of weights are live at once.
        held = v * (taps.size if taps.stride == 1 else min(taps.size, 2))
        for r in range(1, min(MAX_ROWS, pixels) + 1):
            if r * v + held + 1 > room(features, v):
                break
            cycles = _line_cycles(pixels, vectors, depth, taps, RegisterTile(r, v))
            if cycles < least:
                best, least = RegisterTile(r, v), cycles
    if math.isinf(least):
        least = _line_cycles(pixels, vectors, depth, taps, best)
    lines = math.prod(shape[:-1]) // max(pixels, 1)
    return ConvTiling(axis, best, least * lines)


def _line_cycles(pixels: int, vectors: int, depth: int, taps: Taps, tile: RegisterTile) -> float:
    total = 0.0
    for columns in split(vectors, tile.vectors):
        for run in split(pixels, tile.rows):
            loads = len(taps.pixels(run.size)) + taps.size * columns.size
            fmas = max(run.size * columns.size * taps.size, 8)
            each = depth * max(loads / LOADS_PER_CYCLE, fmas / FMAS_PER_CYCLE)
            each += run.size * columns.size * STORE_CYCLES + TILE_CYCLES
            total += each * run.count * columns.count
    return total


def direct_cycles(value: Value, features: Features) -> float:
    """The estimated time of a convolution by the direct kernel, in cycles of one core."""
    return make_plan(value, features).cycles
