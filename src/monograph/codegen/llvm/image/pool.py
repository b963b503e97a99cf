"""Pools of any form: each window reduced in registers, vectors along the channels; MaxUnpool.

Unpooling writes zeros first, then elements at positions that are data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image import planes
from monograph.codegen.llvm.image.grid_sample import ElementReader
from monograph.codegen.llvm.image.windows import (
    ChannelBlocks,
    OpenTapSpan,
    TapSpan,
    Windows,
    blocks,
    correlated,
    dims,
    each_pixel,
    image,
    index_in,
    strided_view,
)
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    Sync,
    kernel_for,
    pointers,
    report,
    synchronise,
)
from monograph.ir import Value
from monograph.ir.dtype import FLOAT, UINT
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, MaxUnpool, Pool
from monograph.ops.scalar import Scalar
from monograph.ops.window import CHANNELS_LAST

VECTORS = 4
"""Accumulators that process a window together."""
MOST_UNROLLED = 32
"""The most taps of a window inside the data that are unrolled."""


def serves(value: Value) -> bool:
    """Return True if these kernels compute a pool."""
    return isinstance(value.op, Pool) and not value.op.auto


@kernel_for(Pool, when=serves, readable=strided_view)
def pool(context: KernelContext) -> Kernel:
    """Generate a kernel for a pool and its epilogue."""
    if planes.serves(context.anchor):
        return planes.planes(context)
    kinds = {MaxPool: _Max, AveragePool: _Average, LpPool: _Lp, ArgMaxPool: _ArgMax}
    return kinds[type(context.anchor.op)](context).emit()


class _Pool:
    """The common base of pools: the walk over pixels, blocks of channels and taps."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Pool)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.given = anchor.inputs[0]
        self.batch, self.channels, self.outputs = dims(anchor.tensor.static, self.op.layout)
        _, _, self.sizes = dims(self.given.tensor.static, self.op.layout)
        self.x = image(context, self.given, self.op.layout)

    def lanes(self) -> int:
        vectors = self.op.layout == CHANNELS_LAST and self.x.channel == 1
        return self.context.features.lanes(max(32, self.given.dtype.bits)) if vectors else 1

    def spans(self, sizes: Sequence[int], pads: Sequence[int]) -> list[TapSpan | OpenTapSpan]:
        axes = (self.outputs, sizes, self.op.kernel, self.op.strides, self.op.dilations, pads)
        return [correlated(*axis) for axis in zip(*axes, strict=True)]

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        self.windows = Windows(context, self.spans(self.sizes, self.op.pads_begin))
        self.prepare()
        b = self.b = context.builder()
        self.pointer = pointers(b, context.arguments)[self.x.source]
        self.scalars = LlvmScalars(b, context.features)
        self.epilogue = Epilogue(context, b)
        self.walk()
        return context.finish(b)

    def walk(self) -> None:
        """Compute every block of channels of every pixel."""
        runs = blocks(self.channels, self.lanes(), VECTORS)
        each_pixel(self.b, self.context.threads, self.batch, self.outputs, runs, self.unit)

    def unit(self, n: Int, c: Int, place: list[Int], run: ChannelBlocks) -> None:
        """Compute one block of channels of one pixel; windows at the edges have a separate path."""
        few = math.prod(self.op.kernel) <= MOST_UNROLLED
        inside = self.windows.inside(self.b, place) if few else False
        if isinstance(inside, bool):
            self._reduce(n, c, place, run, inside)
            return
        outside = self.scalars.a.op("xor", inside, 1)
        self.b.when(inside, lambda: self._reduce(n, c, place, run, True))
        self.b.when(outside, lambda: self._reduce(n, c, place, run, False))

    def _reduce(self, n: Int, c: Int, place: list[Int], run: ChannelBlocks, inside: bool) -> None:
        lanes = run.lanes if run.lanes > 1 else 0
        start = [self.start(lanes).reg] * run.vectors
        each = self.windows.each_inside if inside else self.windows.each
        totals = each(self.b, place, partial(self.tap, n, c, run, lanes), start)
        for v, total in enumerate(totals):
            made = self.finish(Scalar(total, self.given.dtype), place, inside)
            at = index_in(self.op.layout, n, self.b.add(c, v * run.lanes), place)
            self.epilogue.store(at, made.reg, run.lanes)

    def tap(
        self,
        n: Int,
        c: Int,
        run: ChannelBlocks,
        lanes: int,
        places: list[Int],
        _: list[Int],
        totals: list[Reg],
    ) -> list[Reg]:
        dtype, made = self.given.dtype, []
        at = self.x.position(self.b, n, c, places)
        start = self.b.offset(self.pointer, self.b.mul(at, dtype.itemsize))
        for v, total in enumerate(totals):
            x = self.scalars.load(dtype, self.b.offset(start, v * lanes * dtype.itemsize), lanes)
            made.append(self.step(Scalar(total, dtype), x).reg)
        return made

    def prepare(self) -> None:
        """Request more arguments."""

    def start(self, lanes: int) -> Scalar:
        return self.scalars.literal(0, self.given.dtype, lanes)

    def step(self, total: Scalar, x: Scalar) -> Scalar:
        raise NotImplementedError

    def finish(self, total: Scalar, place: list[Int], inside: bool) -> Scalar:
        return total


class _Max(_Pool):
    def start(self, lanes: int) -> Scalar:
        dtype = self.given.dtype
        lowest: float | int = -math.inf
        if not dtype.is_float:
            lowest = 0 if dtype.kind == UINT else -(1 << (dtype.bits - 1))
        return self.scalars.literal(lowest, dtype, lanes)

    def step(self, total: Scalar, x: Scalar) -> Scalar:
        return self.scalars.max(total, x)


class _Average(_Pool):
    def prepare(self) -> None:
        assert isinstance(self.op, AveragePool)
        self.counted = self.windows
        if self.op.include_pad:
            pads = zip(self.sizes, self.op.pads_begin, self.op.pads_end, strict=True)
            padded = [sum(axis) for axis in pads]
            self.counted = Windows(self.context, self.spans(padded, (0,) * len(padded)))

    def step(self, total: Scalar, x: Scalar) -> Scalar:
        return self.scalars.add(total, x)

    def finish(self, total: Scalar, place: list[Int], inside: bool) -> Scalar:
        count: Int = math.prod(self.op.kernel)
        if not inside:
            count = self.counted.count(self.b, place)
        dtype = self.given.dtype
        if isinstance(count, int):
            return self.scalars.div(total, self.scalars.constant(count, dtype))
        element = register(dtype)
        number = self.b.set(element, f"sitofp i64 {count} to {element}")
        return self.scalars.div(total, Scalar(number, dtype))


class _Lp(_Pool):
    def step(self, total: Scalar, x: Scalar) -> Scalar:
        return self.scalars.add(total, self._power(self.scalars.abs(x), float(self._p)))

    def finish(self, total: Scalar, place: list[Int], inside: bool) -> Scalar:
        if self._p == 2:
            return self.scalars.sqrt(total)
        return self._power(total, 1.0 / self._p)

    def _power(self, x: Scalar, exponent: float) -> Scalar:
        return self.scalars.pow(x, self.scalars.constant(exponent, x.dtype))

    @property
    def _p(self) -> int:
        assert isinstance(self.op, LpPool)
        return self.op.p


class _ArgMax(_Pool):
    """Carries the largest element so far and its index; -1 if there is none so far.

    Lanes are places along the last axis: scalars would be selected by branches, which data decide.
    """

    def walk(self) -> None:
        *outer, last = self.outputs
        lanes = self.context.features.lanes(max(32, self.given.dtype.bits))
        whole = math.prod(self.op.kernel) <= MOST_UNROLLED and self.windows.all_inside
        planes = self.batch * self.channels

        def unit(plane: Int, at: Int, place: list[Int], run: ChannelBlocks) -> None:
            self._largest(plane, [*place, at], run.lanes if run.lanes > 1 else 0, whole)

        runs = blocks(last, lanes if whole else 1, 1)
        each_pixel(self.b, self.context.threads, planes, outer, runs, unit)

    def _largest(self, plane: Int, place: list[Int], lanes: int, whole: bool) -> None:
        b = self.b
        n, c = b.div(plane, self.channels), b.mod(plane, self.channels)
        lowest = self.scalars.literal(0, self.given.dtype, lanes).reg
        start = [lowest, b.number(-1, "i64", lanes)]
        each = self.windows.each_inside if whole else self.windows.each
        _, found = each(b, place, partial(self._compare, n, c, lanes), start)
        if not lanes:  # a window of padding only has found nothing
            found = b.i64(b.maximum(found, 0))
        before = b.splat(b.i64(b.mul(plane, math.prod(self.sizes))), lanes)
        total = self.scalars.a.op("add", found, before)
        for lane in range(max(lanes, 1)):
            one = b.extract(total, lane) if lanes else total
            at = [*place[:-1], b.add(place[-1], lane)]
            self.epilogue.store(index_in(self.op.layout, n, c, at), one, 1)

    def _compare(
        self, n: Int, c: Int, lanes: int, places: list[Int], _: list[Int], carried: list[Reg]
    ) -> list[Reg]:
        b, s, dtype = self.b, self.scalars, self.given.dtype
        best, found = Scalar(carried[0], dtype), carried[1]
        x = self._load(self.x.position(b, n, c, places), lanes)
        better = s.less(best, x).reg
        if dtype.kind == FLOAT:
            first_nan = s.a.op("and", s.is_nan(x).reg, s.a.op("xor", s.is_nan(best).reg, 1))
            better = s.a.op("or", better, first_nan)
        better = s.a.op("or", better, s.a.compare("slt", found, 0))
        here = b.splat(b.i64(self._number(places)), lanes)
        if lanes:
            steps = ", ".join(f"i64 {k * self._lane_step}" for k in range(lanes))
            here = s.a.op("add", here, Reg(f"<{steps}>", here.type))
        return [s.a.select(better, x.reg, best.reg), s.a.select(better, here, found)]

    def _load(self, at: Int, lanes: int) -> Scalar:
        """Load an element, or those of windows side by side."""
        b, dtype = self.b, self.given.dtype
        step = self.op.strides[-1] * self.x.spatial[-1]
        each = [
            self.scalars.load(
                dtype, b.offset(self.pointer, b.mul(b.add(at, k * step), dtype.itemsize))
            )
            for k in range(max(lanes, 1))
        ]
        if not lanes:
            return each[0]
        made = Reg("poison", vector(lanes, each[0].reg.type))
        for k, one in enumerate(each):
            made = b.insert(made, one.reg, k)
        return Scalar(made, dtype)

    @property
    def _lane_step(self) -> int:
        """The numbers between the elements of windows side by side."""
        assert isinstance(self.op, ArgMaxPool)
        rest = math.prod(self.sizes[:-1]) if self.op.column_major else 1
        return self.op.strides[-1] * rest

    def _number(self, places: Sequence[Int]) -> Int:
        """The number of an element within its plane."""
        assert isinstance(self.op, ArgMaxPool)
        order = range(len(places)) if self.op.column_major else reversed(range(len(places)))
        total: Int = 0
        step = 1
        for axis in order:
            total = self.b.add(total, self.b.mul(places[axis], step))
            step *= self.sizes[axis]
        return total


def serves_unpool(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if not isinstance(value.op, MaxUnpool):
        return False
    x, indices = value.inputs
    return x.tensor.static == indices.tensor.static and 0 not in pooled(value)


def pooled(value: Value) -> tuple[int, ...]:
    """Return the shape that the indices refer to."""
    assert isinstance(value.op, MaxUnpool)
    return tuple(max(0, int(d)) for d in value.op.pooled_shape(value.inputs[0].tensor.static))


@kernel_for(MaxUnpool, when=serves_unpool, readable=strided_view)
def unpool(context: KernelContext) -> Kernel:
    """Generate a kernel for unpooling and its epilogue."""
    region, anchor = context.step.region, context.anchor
    context.add(*region.inputs, *region.outputs)
    counted = pooled(anchor)
    total = math.prod(counted)
    fault = context.argument(LlvmFault("index out of range", f"0..{total - 1}"))
    sync = context.argument(Sync())
    b = context.builder()
    scalars = LlvmScalars(b, context.features)
    reader = ElementReader(context, b, scalars)
    epilogue = Epilogue(context, b)
    shape = anchor.tensor.static
    lanes = context.features.lanes(max(32, anchor.dtype.bits))

    def clear(n: Int, c: Int, place: Sequence[Int], run: ChannelBlocks) -> None:
        zero = scalars.literal(0, anchor.dtype, run.lanes if run.lanes > 1 else 0).reg
        for v in range(run.vectors):
            epilogue.store([n, *place, b.add(c, v * run.lanes)], zero, run.lanes)

    rows = blocks(shape[-1], lanes, VECTORS)
    each_pixel(b, context.threads, shape[0], shape[1:-1], rows, clear)
    synchronise(b, sync, context.threads)
    given = anchor.inputs[0].tensor.static
    cut = [axis for axis, size in enumerate(shape) if size < counted[axis]]

    def move(at: list[Int]) -> None:
        index = reader.load(anchor.inputs[1], at).reg
        wrong = b.compare("uge", index, Reg(str(total), "i64"))
        report(b, fault, wrong, index)
        safe = b.set("i64", f"select i1 {wrong}, i64 0, i64 {index}")
        to = b.coordinates(safe, counted)
        inside = Reg("true", "i1")
        for axis in cut:
            fits = b.compare("slt", b.i64(to[axis]), b.i64(shape[axis]))
            inside = scalars.a.op("and", inside, fits)
        x = reader.load(anchor.inputs[0], at).reg
        b.when(inside, lambda: epilogue.store(to, x, 1))

    def along(outer: list[Int]) -> None:
        if len(outer) == len(given):
            move(outer)
        else:
            b.loop(0, given[len(outer)], 1, lambda i, _: along([*outer, i]))

    # One thread, in order: of several elements for one position the last stays.
    b.on_thread(0, lambda: along([]))
    return context.finish(b)
