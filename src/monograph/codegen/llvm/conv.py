"""Direct convolution, channels last: a tile of pixels by vectors of output channels in registers.

The input has a halo of zeros as wide as the padding, so no tap needs a bounds check. Each pixel
that is loaded feeds every tap of the row and every output vector of the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from monograph.codegen.llvm.builder import Int, Reg, vector
from monograph.codegen.llvm.epilogue import Epilogue
from monograph.codegen.llvm.features import Features
from monograph.codegen.llvm.kernel import Kernel, KernelContext, Packed, pointers, share
from monograph.codegen.llvm.tiles import (
    FMAS_PER_CYCLE,
    LOADS_PER_CYCLE,
    MAX_ROWS,
    MAX_VECTORS,
    STORE_CYCLES,
    TILE_CYCLES,
    Run,
    Tile,
    room,
    split,
)
from monograph.ir import Array, Value, known
from monograph.ops.conv import Conv
from monograph.program.index import strides_of
from monograph.program.strided import strided

UNROLL = 2
BIG_WEIGHTS = 600_000
"""Bytes of weights beyond which a panel of them is kept in cache while all rows pass by."""


@dataclass(frozen=True)
class Taps:
    """The last spatial dimension of a window: which loads feed which taps."""

    size: int
    stride: int
    dilation: int

    def pixels(self, rows: int) -> list[int]:
        """Offsets of the pixels that a row of outputs reads."""
        return sorted(
            {r * self.stride + k * self.dilation for r in range(rows) for k in range(self.size)}
        )

    def uses(self, pixel: int, rows: int) -> list[tuple[int, int]]:
        """(output, tap) pairs that a pixel feeds."""
        found = []
        for k in range(self.size):
            r, rest = divmod(pixel - k * self.dilation, self.stride)
            if rest == 0 and 0 <= r < rows:
                found.append((r, k))
        return found


def choose(value: Value, features: Features) -> tuple[Tile, float]:
    """The register tile with the least estimated time for a row of the image, and that time."""
    assert isinstance(value.op, Conv)
    shape, weights = value.tensor.static, value.inputs[1].tensor.static
    vectors = -(-shape[-1] // features.lanes(32))
    taps = Taps(weights[-1], value.op.strides[-1], value.op.dilations[-1])
    depth = math.prod(weights[1:-1])
    best, least = Tile(1, 1), float("inf")
    for v in range(1, min(MAX_VECTORS, vectors) + 1):
        # With a stride, at most two taps of weights are live at once.
        held = v * (taps.size if taps.stride == 1 else min(taps.size, 2))
        for r in range(1, min(MAX_ROWS, shape[-2]) + 1):
            if r * v + held + 1 > room(features, v):
                break
            cycles = _row_cycles(shape[-2], vectors, depth, taps, Tile(r, v))
            if cycles < least:
                best, least = Tile(r, v), cycles
    return best, least


def _row_cycles(pixels: int, vectors: int, depth: int, taps: Taps, tile: Tile) -> float:
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
    """The estimated time of a convolution by this kernel, in cycles of one core."""
    return choose(value, features)[1] * math.prod(value.tensor.static[:-2])


def conv(context: KernelContext) -> Kernel:
    """A kernel for a dense convolution in f32 and what follows it."""
    return _Conv(context).emit()


class _Conv:
    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Conv)
        self.anchor, self.op = anchor, anchor.op
        weights = known(anchor.inputs[1])
        assert weights is not None
        self.weights: Array = weights
        self.channels = weights.shape[1]
        self.kernel = weights.shape[2:]
        self.shape = anchor.tensor.static
        found = strided(anchor.inputs[0], context.program.places.storage)
        assert found is not None
        self.x = found
        self.lanes = context.features.lanes(32)
        self.vectors = -(-self.shape[-1] // self.lanes)
        self.taps = Taps(self.kernel[-1], self.op.strides[-1], self.op.dilations[-1])
        self.tile, _ = choose(anchor, context.features)
        self.panels = split(self.vectors, self.tile.vectors)
        self.runs = split(self.shape[-2], self.tile.rows)

    def emit(self) -> Kernel:
        region = self.context.step.region
        for value in (*region.inputs, *region.outputs):
            if value is not self.anchor.inputs[1]:
                self.context.argument(value)
        self.packed = self.context.argument(Packed(self._pack()))
        b = self.b = self.context.builder(len(self.context.arguments))
        self.pointers = pointers(b, self.context.arguments)
        self.epilogue = Epilogue(self.context, b)
        self.epilogue.reserve(self.tile.rows * self.tile.vectors, self.lanes)
        self._loops()
        flops = 2.0 * math.prod(self.shape) * math.prod(self.weights.shape[1:])
        return self.context.finish(b, flops)

    def _pack(self) -> Array:
        """[panel][outer taps][channel][tap][lanes of the panel], channels padded with zeros."""
        out = self.weights.shape[0]
        taps = self.weights.reshape(out, self.channels, -1, self.kernel[-1]).astype(np.float32)
        wide = np.zeros((self.vectors * self.lanes, *taps.shape[1:]), np.float32)
        wide[:out] = taps
        pieces = []
        for run in self.panels:
            width = run.size * self.lanes
            for i in range(run.count):
                start = run.start * self.lanes + i * width
                panel = wide[start : start + width]
                pieces.append(panel.transpose(2, 1, 3, 0).reshape(-1))
        return np.concatenate(pieces)

    def _loops(self) -> None:
        """Rows of the image over the threads; panels of channels outside where they are large."""
        b = self.b
        lines = math.prod(self.shape[:-2])
        span = share(b, lines, self.context.threads)
        panels = self._panel_runs()
        if self.weights.size * 4 > BIG_WEIGHTS:
            for panel, _ in panels:
                b.loop(0, panel.count, 1, partial(self._lines, span, panel))
            return

        def line(h: Int, _: list[Reg]) -> None:
            for panel, _last in panels:
                b.loop(0, panel.count, 1, partial(self._line, panel, h))

        b.loop(*span, 1, line)

    def _lines(self, span: tuple[Int, Int], panel: Run, i: Int, _: list[Reg]) -> None:
        self.b.loop(*span, 1, lambda h, _: self._line(panel, h, i, []))

    def _panel_runs(self) -> list[tuple[Run, bool]]:
        """Runs of panels; one with unused lanes stands last and alone, at a literal place."""
        runs = [(r, False) for r in self.panels]
        if self.shape[-1] % self.lanes:
            whole, _ = runs.pop()
            if whole.count > 1:
                runs.append((Run(whole.start, whole.size, whole.count - 1), False))
            start = whole.start + (whole.count - 1) * whole.size
            runs.append((Run(start, whole.size, 1), True))
        return runs

    def _line(self, panel: Run, h: Int, i: Int, _: list[Reg]) -> None:
        """One row of the image, for one panel of channels."""
        for run in self.runs:
            self.b.loop(0, run.count, 1, partial(self._tile, panel, h, i, run))

    def _outer(self, h: Int) -> list[Int]:
        """Batch and outer spatial indices of a row of the image."""
        b, dims = self.b, self.shape[:-2]
        return [b.mod(b.div(h, s), d) for s, d in zip(strides_of(dims), dims, strict=True)]

    def _tile(self, panel: Run, h: Int, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        b = self.b
        outer = self._outer(h)
        w0 = b.add(b.mul(j, run.size), run.start)
        at: Int = self.x.offset
        first = [*outer[1:], w0]
        for axis, o in enumerate(first):
            origin = b.add(b.mul(o, self.op.strides[axis]), -self.op.pads_begin[axis])
            at = b.add(at, b.mul(origin, self.x.strides[axis + 1]))
        at = b.add(at, b.mul(outer[0], self.x.strides[0]))
        x = b.offset(self.pointers[self.x.source], b.mul(at, 4))
        size = self.channels * math.prod(self.kernel) * self.lanes * 4
        before = b.mul(b.add(b.mul(i, panel.size), panel.start), size)
        w = b.offset(b.arguments[f"p{self.packed}"], before)
        zero = b.number(0, "float", self.lanes)
        sums = self._taps(x, w, [zero] * (run.size * panel.size), run, panel, 0)[0]
        v0 = b.add(b.mul(i, panel.size), panel.start)
        self._finish(outer, w0, v0, run, panel, sums)

    def _taps(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, panel: Run, axis: int
    ) -> tuple[list[Reg], Reg]:
        """Adds the products of all taps from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.kernel) - 1:
            return self._channels(x, w, sums, run, panel)
        step = self.op.dilations[axis] * self.x.strides[axis + 1] * 4

        def one(_: Int, carried: list[Reg]) -> list[Reg]:
            *inner, xk, wk = carried
            after, following = self._taps(xk, wk, inner, run, panel, axis + 1)
            return [*after, b.offset(xk, step), following]

        *result, _, last = b.loop(0, self.kernel[axis], 1, one, [*sums, x, w])
        return result, last

    def _channels(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, panel: Run
    ) -> tuple[list[Reg], Reg]:
        """Adds the products of one row of taps, channel after channel."""
        b = self.b
        unroll = UNROLL if self.channels % UNROLL == 0 else 1
        width = self.taps.size * panel.size * self.lanes * 4
        kind = vector(self.lanes, "float")

        def some(_: Int, carried: list[Reg]) -> list[Reg]:
            *acc, xk, wk = carried
            for u in range(unroll):
                held: dict[tuple[int, int], Reg] = {}
                for pixel in self.taps.pixels(run.size):
                    where = pixel * self.x.strides[-2] + u * self.x.strides[-1]
                    factor = b.splat(b.load("float", b.offset(xk, where * 4), 4), self.lanes)
                    for r, k in self.taps.uses(pixel, run.size):
                        for v in range(panel.size):
                            if (k, v) not in held:
                                place = u * width + (k * panel.size + v) * self.lanes * 4
                                held[k, v] = b.load(kind, b.offset(wk, place), 4)
                            at = r * panel.size + v
                            acc[at] = b.intrinsic("fmuladd", factor, held[k, v], acc[at])
            return [
                *acc,
                b.offset(xk, unroll * self.x.strides[-1] * 4),
                b.offset(wk, unroll * width),
            ]

        *result, _, last = b.loop(0, self.channels, unroll, some, [*sums, x, w])
        return result, last

    def _finish(
        self, outer: list[Int], w0: Int, v0: Int, run: Run, panel: Run, sums: list[Reg]
    ) -> None:
        b, out = self.b, self.shape[-1]

        def store(r: Int, v: int, total: Reg) -> None:
            n = b.mul(b.add(v0, v), self.lanes)
            left = out - n if isinstance(n, int) else self.lanes
            self.epilogue.store([*outer, b.add(w0, r), n], total, min(left, self.lanes))

        self.epilogue.store_rows(sums, run.size, store)


def serves(value: Value) -> bool:
    """Whether the direct kernel computes a convolution."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != "channels_last" or op.groups != 1 or op.auto:
        return False
    floats = value.dtype.name == "f32" and value.inputs[0].dtype.name == "f32"
    return floats and known(value.inputs[1]) is not None
