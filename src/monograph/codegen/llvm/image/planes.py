"""Windows over planes: pools and depthwise convolutions with channels first, vectors along rows.

A thread copies a strip of a plane and its padding into memory of its own. There, the columns that
one tap of adjacent windows reads are adjacent: with stride 2, even and odd columns lie apart. So
no load needs a mask, and no window at an edge a path of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register
from monograph.codegen.llvm.conv.tiling import Taps
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars, load_elements
from monograph.codegen.llvm.image.windows import TapSpan, correlated, dims, image
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    LlvmScratch,
    pointers,
    share,
)
from monograph.ir import Value
from monograph.ir.dtype import f32
from monograph.ops.conv import Conv
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.scalar import Scalar
from monograph.ops.window import CHANNELS_FIRST
from monograph.program.memory.strided import strided

STRIP_BYTES = 1 << 14
"""The size of a strip, so that it stays in the cache next to the core."""
TILE_ROWS = 4
"""The rows of results that share the loads of a tile."""
_SIZE = 4


def serves(value: Value) -> bool:
    """Return True if these kernels compute a value: its elements are f32 in registers."""
    if not isinstance(value.op, (AveragePool, Conv, MaxPool)) or not value.op.suits_planes(value):
        return False
    floats = [v.dtype for v in (value, *value.inputs)]
    return len(set(floats)) == 1 and value.dtype.is_float and register(value.dtype) == "float"


def planes(context: KernelContext) -> Kernel:
    """Generate a kernel for a pool or a depthwise convolution, and its epilogue."""
    kinds = {AveragePool: _Average, Conv: _Depthwise, MaxPool: _Max}
    return kinds[type(context.anchor.op)](context).emit()


class _Planes:
    """The walk over strips, tiles and taps; subclasses state what a window computes."""

    padding = 0.0

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, (AveragePool, Conv, MaxPool))
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.given = anchor.inputs[0]
        self.x = image(context, self.given, CHANNELS_FIRST)
        self.batch, self.channels, (self.rows, self.columns) = dims(
            anchor.tensor.static, CHANNELS_FIRST
        )
        _, _, (self.height, self.width) = dims(self.given.tensor.static, CHANNELS_FIRST)
        self.lanes = context.features.lanes(32)
        self.down, self.along = (
            Taps(*axis)
            for axis in zip(self.kernel, self.op.strides, self.op.dilations, strict=True)
        )
        # Whole vectors of results read inside of a row of the strip.
        whole = -(-self.columns // self.lanes) * self.lanes
        reads = max(self._reach(self.along, whole), self.op.pads_begin[1] + self.width)
        self.phase = -(-reads // self.op.strides[1])
        self.row_bytes = self.phase * self.op.strides[1] * _SIZE
        fitting = STRIP_BYTES // self.row_bytes - self._reach(self.down, 1)
        self.strips = split(self.rows, max(TILE_ROWS, fitting // self.op.strides[0] + 1))
        self.strip_bytes = self.row_bytes * max(self._reach(self.down, s.size) for s in self.strips)

    @property
    def kernel(self) -> tuple[int, ...]:
        assert not isinstance(self.op, Conv)
        return self.op.kernel

    @staticmethod
    def _reach(taps: Taps, outputs: int) -> int:
        """Return the number of places from the first to the last one that some windows read."""
        return (outputs - 1) * taps.stride + (taps.size - 1) * taps.dilation + 1

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        self.prepare()
        own = -(-self.strip_bytes // 64) * 64
        scratch = context.argument(LlvmScratch(own * context.threads))
        b = self.b = context.builder()
        self.pointers = pointers(b, context.arguments)
        self.scalars = LlvmScalars(b, context.features)
        self.epilogue = Epilogue(context, b)
        self.epilogue.reserve(TILE_ROWS, self.lanes)
        mine = b.mul(b.arguments["tid"], own) if context.threads > 1 else 0
        self.strip = b.offset(b.arguments[f"p{scratch}"], mine)
        b.loop(0, own // _SIZE, self.lanes, self._clear)
        total = self.batch * self.channels
        for run in self.strips:
            b.loop(*share(b, total * run.count, context.threads), 1, partial(self._unit, run))
        return context.finish(b)

    def _clear(self, at: Int, _: list[Reg]) -> None:
        b = self.b
        b.store(self._padding(self.lanes), b.offset(self.strip, b.mul(at, _SIZE)), _SIZE)

    def _padding(self, lanes: int) -> Reg:
        return self.b.number(self.padding, "float", lanes)

    def _unit(self, run: Run, i: Int, _: list[Reg]) -> None:
        """Compute a strip of rows of one plane."""
        b = self.b
        plane = b.div(i, run.count)
        first = b.add(b.mul(b.mod(i, run.count), run.size), run.start)
        n, c = b.div(plane, self.channels), b.mod(plane, self.channels)
        top = b.sub(b.mul(first, self.op.strides[0]), self.op.pads_begin[0])
        source = self.x.position(b, n, c, [0, 0])
        copied = partial(self._copy_row, source, top)
        b.loop(0, self._reach(self.down, run.size), 1, copied)
        self.enter(c)
        for tile in split(run.size, TILE_ROWS):

            def rows(k: Int, _: list[Reg], tile: Run = tile) -> None:
                at = b.add(b.mul(k, tile.size), tile.start)
                place = b.offset(self.strip, b.mul(b.mul(at, self.op.strides[0]), self.row_bytes))
                self._tile(tile.size, place, [n, c, b.add(first, at)])

            b.loop(0, tile.count, 1, rows)

    def _copy_row(self, source: Int, top: Int, k: Int, _: list[Reg]) -> None:
        """Copy a row of the plane into the strip; a row outside of the plane is padding."""
        b = self.b
        to = b.offset(self.strip, b.mul(k, self.row_bytes))
        y = b.i64(b.add(top, k))
        inside = b.compare("ult", y, b.i64(self.height))
        at = b.add(source, b.mul(y, self.x.spatial[0]))
        outside = self.scalars.a.op("xor", inside, 1)
        b.when(inside, lambda: self._copy_columns(at, to))
        b.when(outside, lambda: self._fill_columns(to))

    def _copy_columns(self, at: Int, to: Reg) -> None:
        step = self.lanes * self.op.strides[1] if self.x.spatial[1] == 1 else 1

        def some(count: int, x: Int, _: list[Reg]) -> None:
            self._copy_piece(at, to, x, count)

        self._in_pieces(step, some)

    def _in_pieces(self, step: int, piece: Callable[[int, Int, list[Reg]], None]) -> None:
        """Call `piece` with a number of columns and the first one, until all have been taken."""
        done = 0
        while step and done < self.width:
            stop = done + (self.width - done) // step * step
            self.b.loop(done, stop, step, partial(piece, step))
            done, step = stop, step // 2

    def _copy_piece(self, at: Int, to: Reg, x: Int, count: int) -> None:
        """Copy adjacent columns, at most as many as the stride has vectors."""
        b, (_, stride) = self.b, self.op.strides
        where = b.add(at, b.mul(x, self.x.spatial[1]))
        source = b.offset(self.pointers[self.x.source], b.mul(where, self.given.dtype.itemsize))
        loaded = load_elements(b, self.given.dtype, source, count if count > 1 else 0).reg
        for k in range(min(stride, count)):
            lanes = range(k, count, stride)
            part = loaded
            if len(lanes) < count:
                part = b.shuffle(loaded, loaded, lanes) if len(lanes) > 1 else b.extract(loaded, k)
            b.store(part, self._column(to, b.add(x, self.op.pads_begin[1] + k)), _SIZE)

    def _column(self, row: Reg, column: Int) -> Reg:
        """Return the place of a column of the padded plane in a row of the strip."""
        b, stride = self.b, self.op.strides[1]
        index = b.add(b.mul(b.mod(column, stride), self.phase), b.div(column, stride))
        return b.offset(row, b.mul(index, _SIZE))

    def _fill_columns(self, to: Reg) -> None:
        def some(count: int, at: Int, _: list[Reg]) -> None:
            lanes = count if count > 1 else 0
            self.b.store(self._padding(lanes), self.b.offset(to, self.b.mul(at, _SIZE)), _SIZE)

        done, step, total = 0, self.lanes, self.row_bytes // _SIZE
        while done < total:
            stop = done + (total - done) // step * step
            self.b.loop(done, stop, step, partial(some, step))
            done, step = stop, step // 2

    def _tile(self, rows: int, place: Reg, at: list[Int]) -> None:
        """Compute some rows of results; `place` is the first row of the strip that they read."""
        b, lanes = self.b, self.lanes

        def columns(valid: int, x: Int, _: list[Reg]) -> None:
            start = b.offset(place, b.mul(x, _SIZE))
            *outer, first = at

            def store(r: Int, _: int, total: Reg) -> None:
                row = b.add(first, r)
                self.epilogue.store([*outer, row, x], self.finish(total, row, x), valid)

            self.epilogue.store_rows(self.windows(rows, start), rows, store)

        whole = self.columns // lanes * lanes
        b.loop(0, whole, lanes, partial(columns, lanes))
        if whole < self.columns:
            columns(self.columns - whole, whole, [])

    def loaded(self, start: Reg, row: int, tap: int) -> Reg:
        """Load what a tap of adjacent windows reads in a row."""
        b, column = self.b, tap * self.op.dilations[1]
        return b.load(
            vector(self.lanes, "float"),
            self._column(b.offset(start, row * self.row_bytes), column),
            _SIZE,
        )

    def windows(self, rows: int, start: Reg) -> list[Reg]:
        """Return the results of adjacent windows in some rows, a vector for each.

        The taps of a row are combined once for all windows that read it.
        """
        totals: list[Reg | None] = [None] * rows
        for y in self.down.pixels(rows):
            line = self.loaded(start, y, 0)
            for tap in range(1, self.along.size):
                line = self.combined(line, self.loaded(start, y, tap))
            for r, _ in self.down.uses(y, rows):
                before = totals[r]
                totals[r] = line if before is None else self.combined(before, line)
        return [t for t in totals if t is not None]

    def prepare(self) -> None:
        """Request more arguments."""

    def enter(self, channel: Int) -> None:
        """Load what the windows of a plane share."""

    def combined(self, x: Reg, y: Reg) -> Reg:
        raise NotImplementedError

    def finish(self, total: Reg, row: Int, column: Int) -> Reg:
        return total


class _Max(_Planes):
    padding = -math.inf

    def combined(self, x: Reg, y: Reg) -> Reg:
        made: Reg = self.scalars.max(Scalar(x, f32), Scalar(y, f32)).reg
        return made


class _Average(_Planes):
    padding = -0.0

    def prepare(self) -> None:
        assert isinstance(self.op, AveragePool)
        sizes, pads = [self.height, self.width], list(self.op.pads_begin)
        if self.op.include_pad:
            sizes = [sum(x) for x in zip(sizes, pads, self.op.pads_end, strict=True)]
            pads = [0, 0]
        outputs, op = (self.rows, self.columns), self.op
        axes = zip(outputs, sizes, op.kernel, op.strides, op.dilations, pads, strict=True)
        counts = [s.count for s in (correlated(*a) for a in axes) if isinstance(s, TapSpan)]
        self.constant = all((c == k).all() for c, k in zip(counts, op.kernel, strict=True))
        if not self.constant:
            room = np.ones(self.columns + self.lanes, np.float32)
            room[: self.columns] = counts[1]
            tables = (counts[0].astype(np.float32), room)
            self.counts = [self.context.argument(LlvmPacked(t)) for t in tables]

    def combined(self, x: Reg, y: Reg) -> Reg:
        return self.scalars.a.op("fadd", x, y)

    def finish(self, total: Reg, row: Int, column: Int) -> Reg:
        b, lanes = self.b, self.lanes
        if self.constant:
            count = b.number(math.prod(self.kernel), "float", lanes)
        else:
            down, along = (b.arguments[f"p{n}"] for n in self.counts)
            one = b.load("float", b.offset(down, b.mul(row, _SIZE)), _SIZE)
            place = b.offset(along, b.mul(column, _SIZE))
            each = b.load(vector(lanes, "float"), place, _SIZE)
            count = self.scalars.a.op("fmul", b.splat(one, lanes), each)
        return self.scalars.a.op("fdiv", total, count)


class _Depthwise(_Planes):
    @property
    def kernel(self) -> tuple[int, ...]:
        return self.anchor.inputs[1].tensor.static[2:]

    def enter(self, channel: Int) -> None:
        """Load the weights of a channel, each in every lane."""
        b, weights = self.b, self.anchor.inputs[1]
        found = strided(weights, self.context.program.places.storage)
        assert found is not None
        first, _, *steps = found.strides
        self.factors = {}
        for tap in np.ndindex(*self.kernel):
            at = b.position(tap, steps, b.add(b.mul(channel, first), found.offset))
            place = b.offset(self.pointers[found.source], b.mul(at, weights.dtype.itemsize))
            one = load_elements(b, weights.dtype, place).reg
            self.factors[tap] = b.splat(one, self.lanes)

    def windows(self, rows: int, start: Reg) -> list[Reg]:
        totals = [self.b.number(0, "float", self.lanes)] * rows
        for y in self.down.pixels(rows):
            for tap in range(self.along.size):
                loaded = self.loaded(start, y, tap)
                for r, k in self.down.uses(y, rows):
                    factor = self.factors[k, tap]
                    totals[r] = self.b.intrinsic("fmuladd", loaded, factor, totals[r])
        return totals
