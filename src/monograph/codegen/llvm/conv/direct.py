"""Direct convolution, channels last: a register tile of pixels by vectors of output channels.

The input has a halo of zeros as wide as the padding, so no tap needs a bounds check. Each loaded
pixel feeds every tap of the row and every output vector of the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register
from monograph.codegen.llvm.conv.packing import Packing
from monograph.codegen.llvm.conv.tiling import ConvTiling, Taps, make_plan
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import load_elements
from monograph.codegen.llvm.matmul.tiles import (
    Run,
    split,
)
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, pointers, share
from monograph.ir import Array, Value, known
from monograph.ir.sizes import hint_of
from monograph.ops.conv import Conv
from monograph.program.memory.strided import strided

UNROLL = 2
BIG_WEIGHTS = 600_000
"""With more bytes of weights, a panel of them stays in cache while all lines are processed."""
ENOUGH = 8
"""With this many units of work per thread, an uneven division does not matter."""


def conv(context: KernelContext) -> Kernel:
    """Generate a kernel for a dense convolution of floats and its epilogue."""
    return DirectConv(context).emit()


@dataclass(frozen=True)
class Spot:
    """The position of a tile: batch and outer indices, its first pixel along the line, the number
    of its panel in a run of panels; and its extent along both.
    """

    outer: tuple[Int, ...]
    w0: Int
    number: Int
    run: Run
    panel: Run


class DirectConv:
    """Tiles along lines of the image; subclasses define the access to their input."""

    whole_lines = False
    """True if threads divide whole lines only."""

    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.anchor
        assert isinstance(anchor.op, Conv)
        self.anchor = anchor
        plan = self.plan = self._plan()
        self.weights = known(anchor.inputs[1])
        """The weights [results, channels per result, *K]; None if they are known only in a run."""
        shape = anchor.inputs[1].tensor.static
        self.channels = shape[1]
        self.out = anchor.tensor.static[-1]
        found = strided(anchor.inputs[0], context.program.places.storage)
        assert found is not None
        self.x = found
        self.dtype = anchor.inputs[0].dtype
        # One entry per spatial axis, that of the tiles last.
        self.kernel = plan.turned(shape[2:])
        self.image = plan.turned(anchor.tensor.static[1:-1])
        self.steps = plan.turned(found.strides[1:-1])
        self.strides = plan.turned(anchor.op.strides)
        self.dilations = plan.turned(anchor.op.dilations)
        self.pads = plan.turned(anchor.op.pads_begin)
        self.lines = (anchor.tensor.static[0], *self.image[:-1])
        self.lanes = context.features.lanes(32)
        self.vectors = -(-self.out // self.lanes)
        self.taps = Taps(self.kernel[-1], self.strides[-1], self.dilations[-1])
        self.panels = split(self.vectors, plan.tile.vectors)
        self.runs = split(self.image[-1], plan.tile.rows)

    def _plan(self) -> ConvTiling:
        return make_plan(self.anchor, self.context.features)

    def emit(self) -> Kernel:
        self.packing = Packing(self.context)
        self.packed = self.packing.arguments(self._pack, self._packed_bytes())
        b = self.b = self.context.builder()
        self.pointers = pointers(b, self.context.arguments)
        self.epilogue = Epilogue(self.context, b)
        self.epilogue.reserve(self.plan.tile.rows * self.plan.tile.vectors, self.lanes)
        self.packing.emit(b, self._pack_in_run)
        self._loops()
        return self.context.finish(b)

    def _packed_bytes(self) -> int:
        return self.vectors * self.lanes * self.channels * math.prod(self.kernel) * 4

    def _pack_in_run(self) -> None:
        """Pack the weights in a run, in the form of `_pack`; threads divide the rows of taps."""
        b, packing = self.b, self.packing
        *outer, last = self.kernel
        result, channel, *steps = packing.strides
        *outer_steps, last_step = self.plan.turned(steps)
        rows = math.prod(outer) * self.channels
        for panel, _ in self._panel_runs():
            width = panel.size * self.lanes * 4

            def row(u: Int, _: list[Reg], panel: Run = panel, width: int = width) -> None:
                # A panel with unused lanes needs a literal index.
                i = b.div(u, rows) if panel.count > 1 else 0
                number = b.mod(u, rows)
                at = b.position(
                    b.coordinates(number, [*outer, self.channels]), [*outer_steps, channel]
                )
                before = b.mul(self._first_vector(panel, i), rows * last * self.lanes * 4)
                before = b.add(before, b.mul(number, last * width))
                to = b.offset(b.arguments[f"p{self.packed}"], before)
                spot = Spot((), 0, i, panel, panel)

                def one(k: Int, _: list[Reg]) -> None:
                    for v in range(panel.size):
                        c, valid = self._channel(spot, v)
                        place = b.position([k, c], [last_step, result], at)
                        lanes = packing.gathered(b, place, valid, self.lanes)
                        b.store(lanes, b.offset(to, b.add(b.mul(k, width), v * self.lanes * 4)), 4)

                b.loop(0, last, 1, one)

            b.loop(*share(b, panel.count * rows, self.context.threads), 1, row)

    def _pack(self) -> Array:
        """Pack weights as [panel][outer taps][channel][tap][lanes], channels padded with zeros."""
        taps = self._taps_last()
        wide = np.zeros((self.vectors * self.lanes, *taps.shape[1:]), np.float32)
        wide[: self.out] = taps
        pieces = []
        for run in self.panels:
            width = run.size * self.lanes
            for i in range(run.count):
                start = run.start * self.lanes + i * width
                panel = wide[start : start + width]
                pieces.append(panel.transpose(2, 1, 3, 0).reshape(-1))
        return np.concatenate(pieces)

    def _taps_last(self) -> Array:
        """Return the weights as [results, channels, outer taps, taps along the line]."""
        assert self.weights is not None
        order = self.plan.turned(range(2, self.weights.ndim))
        turned = self.weights.transpose(0, 1, *order)
        return turned.reshape(self.out, self.channels, -1, self.kernel[-1])

    def _loops(self) -> None:
        """Divide lines of the image among the threads; large panels of channels are the outer loop.

        Panels in the outer loop also give threads more units, each with fewer weights to read.
        """
        b, threads = self.b, self.context.threads
        lines = math.prod(self.lines)
        panels = self._panel_runs()
        uneven = threads > 1 and hint_of(lines) < ENOUGH * threads and hint_of(lines) % threads
        if self.anchor.inputs[1].tensor.size * 4 > BIG_WEIGHTS or uneven:
            for panel, _ in panels:
                self._panels(panel, lines)
            return

        def line(h: Int, _: list[Reg]) -> None:
            for panel, _last in panels:
                b.loop(0, panel.count, 1, partial(self._line, panel, h))

        b.loop(*share(b, lines, threads), 1, line)

    def _panels(self, panel: Run, lines: int) -> None:
        """Process all lines panel by panel; lines and even parts of them are divided."""
        b, threads = self.b, self.context.threads
        enough = hint_of(panel.count * lines) >= ENOUGH * threads or threads == 1
        whole = enough or self.whole_lines
        for run in [None] if whole else self.runs:
            pieces = 1 if run is None else run.count

            def unit(u: Int, _: list[Reg], run: Run | None = run, pieces: int = pieces) -> None:
                i = b.div(u, lines * pieces) if panel.count > 1 else 0
                h = b.mod(b.div(u, pieces), lines)
                if run is None:
                    self._line(panel, h, i, [])
                else:
                    self._tile(panel, h, i, run, b.mod(u, pieces), [])

            b.loop(*share(b, panel.count * lines * pieces, threads), 1, unit)

    def _panel_runs(self) -> list[tuple[Run, bool]]:
        """Return runs of panels; one with unused lanes comes last and alone, at a literal index."""
        runs = [(r, False) for r in self.panels]
        if self.out % self.lanes:
            whole, _ = runs.pop()
            if whole.count > 1:
                runs.append((Run(whole.start, whole.size, whole.count - 1), False))
            start = whole.start + (whole.count - 1) * whole.size
            runs.append((Run(start, whole.size, 1), True))
        return runs

    def _first_vector(self, panel: Run, i: Int) -> Int:
        """Return the first vector of results of a panel, in the order of the packed weights."""
        return self.b.add(self.b.mul(i, panel.size), panel.start)

    def _channel(self, spot: Spot, v: int) -> tuple[Int, int]:
        """Return the first channel of a vector of results, and the number of its used lanes."""
        c = self.b.mul(self.b.add(self._first_vector(spot.panel, spot.number), v), self.lanes)
        left = self.out - c if isinstance(c, int) else self.lanes
        return c, min(left, self.lanes)

    def _line(self, panel: Run, h: Int, i: Int, _: list[Reg]) -> None:
        """Compute one line of the image for one panel of channels."""
        for run in self.runs:
            self.b.loop(0, run.count, 1, partial(self._tile, panel, h, i, run))

    def _outer(self, h: Int) -> list[Int]:
        """Return batch and outer spatial indices of a line of the image."""
        return self.b.coordinates(h, self.lines)

    def _tile(self, panel: Run, h: Int, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        b = self.b
        w0 = b.add(b.mul(j, run.size), run.start)
        spot = Spot(tuple(self._outer(h)), w0, i, run, panel)
        size = self.channels * math.prod(self.kernel) * self.lanes * 4
        before = b.mul(self._first_vector(panel, i), size)
        w = b.offset(b.arguments[f"p{self.packed}"], before)
        zero = b.number(0, "float", self.lanes)
        sums = self._products(spot, w, [zero] * (run.size * panel.size))
        self._finish(spot, sums)

    def _products(self, spot: Spot, w: Reg, sums: list[Reg]) -> list[Reg]:
        """Add the products of all taps."""
        return self._taps(self._start(spot, 0), w, sums, spot, 0)[0]

    def _start(self, spot: Spot, channel: Int) -> Reg:
        """Return the address of the first pixel that a tile reads, at a channel."""
        b = self.b
        at = b.add(self.x.offset, b.mul(channel, self.x.strides[-1]))
        for axis, o in enumerate((*spot.outer[1:], spot.w0)):
            origin = b.add(b.mul(o, self.strides[axis]), -self.pads[axis])
            at = b.add(at, b.mul(origin, self.steps[axis]))
        at = b.add(at, b.mul(spot.outer[0], self.x.strides[0]))
        return b.offset(self.pointers[self.x.source], b.mul(at, self.dtype.itemsize))

    def _taps(
        self, x: Reg, w: Reg, sums: list[Reg], spot: Spot, axis: int
    ) -> tuple[list[Reg], Reg]:
        """Add the products of all taps from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.kernel) - 1:
            return self._channels(x, w, sums, spot)
        step = self.dilations[axis] * self.steps[axis] * self.dtype.itemsize

        def one(_: Int, carried: list[Reg]) -> list[Reg]:
            *inner, xk, wk = carried
            after, following = self._taps(xk, wk, inner, spot, axis + 1)
            return [*after, b.offset(xk, step), following]

        *result, _, last = b.loop(0, self.kernel[axis], 1, one, [*sums, x, w])
        return result, last

    def _pixels(self, spot: Spot) -> list[int]:
        """Return the pixels that a tile reads along its line; x points to the first."""
        return self.taps.pixels(spot.run.size)

    def _channels(self, x: Reg, w: Reg, sums: list[Reg], spot: Spot) -> tuple[list[Reg], Reg]:
        """Add the products of one row of taps, channel by channel."""
        if self.taps.is_long:
            return self._long_channels(x, w, sums, spot)
        b, panel, size = self.b, spot.panel, self.dtype.itemsize
        unroll = UNROLL if self.channels % UNROLL == 0 else 1
        width = self.taps.size * panel.size * self.lanes * 4
        pixels = self._pixels(spot)

        def some(_: Int, carried: list[Reg]) -> list[Reg]:
            *acc, xk, wk = carried
            for u in range(unroll):
                at = u * self.x.strides[-1]
                self._row(acc, (xk, at), (wk, u * width), (self.taps, pixels), spot)
            return [
                *acc,
                b.offset(xk, unroll * self.x.strides[-1] * size),
                b.offset(wk, unroll * width),
            ]

        *result, _, last = b.loop(0, self.channels, unroll, some, [*sums, x, w])
        return result, last

    def _long_channels(self, x: Reg, w: Reg, sums: list[Reg], spot: Spot) -> tuple[list[Reg], Reg]:
        """Add the products of one row of many taps, channel by channel and piece by piece."""
        b, size = self.b, self.dtype.itemsize
        tap_bytes = spot.panel.size * self.lanes * 4

        def channel(_: Int, carried: list[Reg]) -> list[Reg]:
            *acc, first, wk = carried
            xk = first
            for taps, count in self.taps.pieces():
                pixels = taps.pixels(spot.run.size)

                def piece(
                    _: Int, inner: list[Reg], taps: Taps = taps, pixels: list[int] = pixels
                ) -> list[Reg]:
                    *acc, xk, wk = inner
                    self._row(acc, (xk, 0), (wk, 0), (taps, pixels), spot)
                    step = taps.size * taps.dilation * self.steps[-1] * size
                    return [*acc, b.offset(xk, step), b.offset(wk, taps.size * tap_bytes)]

                *acc, xk, wk = b.loop(0, count, 1, piece, [*acc, xk, wk])
            return [*acc, b.offset(first, self.x.strides[-1] * size), wk]

        *result, _, last = b.loop(0, self.channels, 1, channel, [*sums, x, w])
        return result, last

    def _row(
        self,
        sums: list[Reg],
        x: tuple[Reg, int],
        w: tuple[Reg, int],
        window: tuple[Taps, list[int]],
        spot: Spot,
    ) -> None:
        """Add the products of some taps of one channel to the sums.

        x: the first pixel and a distance in elements. w: the weights and a distance in bytes.
        window: the taps, and the pixels that they read.
        """
        b, panel = self.b, spot.panel
        kind = vector(self.lanes, "float")
        taps, pixels = window
        held: dict[tuple[int, int], Reg] = {}
        for pixel in pixels:
            where = (pixel - pixels[0]) * self.steps[-1] + x[1]
            one = load_elements(b, self.dtype, b.offset(x[0], where * self.dtype.itemsize))
            factor = b.splat(one.reg, self.lanes)
            for r, k in taps.uses(pixel, spot.run.size):
                for v in range(panel.size):
                    if (k, v) not in held:
                        place = w[1] + (k * panel.size + v) * self.lanes * 4
                        held[k, v] = b.load(kind, b.offset(w[0], place), 4)
                    at = r * panel.size + v
                    sums[at] = b.intrinsic("fmuladd", factor, held[k, v], sums[at])

    def _finish(self, spot: Spot, sums: list[Reg]) -> None:
        b = self.b
        n, *others = spot.outer

        def store(r: Int, v: int, total: Reg) -> None:
            c, lanes = self._channel(spot, v)
            place = self.plan.turned_back([*others, b.add(spot.w0, r)])
            self.epilogue.store([n, *place, c], total, lanes)

        self.epilogue.store_rows(sums, spot.run.size, store)


def serves(value: Value) -> bool:
    """Return True if the direct kernel computes a convolution."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != "channels_last" or op.groups != 1 or op.auto:
        return False
    return sums_in_f32(value)


def sums_in_f32(value: Value) -> bool:
    """Return True for a convolution of floats that registers hold as f32."""
    x, w = value.inputs
    same = x.dtype == w.dtype == value.dtype and value.dtype.is_float
    return same and register(value.dtype) == "float"
