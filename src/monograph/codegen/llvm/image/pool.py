"""Pools of any form: each window reduced in registers, vectors along the channels; MaxUnpool.

Unpooling writes zeros first, then elements at positions that are data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import register
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
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
        runs = blocks(self.channels, self.lanes(), VECTORS)
        each_pixel(b, context.threads, self.batch, self.outputs, runs, self.unit)
        return context.finish(b)

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
    """Carries the largest element so far and its index; -1 if there is none so far."""

    def lanes(self) -> int:
        return 1

    def unit(self, n: Int, c: Int, place: list[Int], run: ChannelBlocks) -> None:
        b = self.b
        lowest = self.scalars.literal(0, self.given.dtype, 0).reg
        start = [lowest, Reg("-1", "i64")]
        _, found = self.windows.each(b, place, partial(self._compare, n, c), start)
        plane = b.add(b.mul(n, self.channels), c)
        # A window of padding only has found nothing.
        first = b.maximum(found, 0)
        total = b.add(first, b.mul(plane, math.prod(self.sizes)))
        self.epilogue.store(index_in(self.op.layout, n, c, place), b.i64(total), 1)

    def _compare(
        self, n: Int, c: Int, places: list[Int], _: list[Int], carried: list[Reg]
    ) -> list[Reg]:
        b, s, dtype = self.b, self.scalars, self.given.dtype
        best, found = Scalar(carried[0], dtype), carried[1]
        at = self.x.position(b, n, c, places)
        x = s.load(dtype, b.offset(self.pointer, b.mul(at, dtype.itemsize)))
        better = s.less(best, x).reg
        if dtype.kind == FLOAT:
            first_nan = s.a.op("and", s.is_nan(x).reg, s.a.op("xor", s.is_nan(best).reg, 1))
            better = s.a.op("or", better, first_nan)
        better = s.a.op("or", better, b.compare("slt", found, Reg("0", "i64")))
        here = b.i64(self._number(places))
        return [s.a.select(better, x.reg, best.reg), s.a.select(better, here, found)]

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
    zero = scalars.literal(0, anchor.dtype, 0).reg

    def clear(n: Int, _: object, place: Sequence[Int], run: object) -> None:
        epilogue.store([n, *place], zero, 1)

    each_pixel(b, context.threads, shape[0], shape[1:], blocks(1, 1, 1), clear)
    synchronise(b, sync, context.threads)
    given = anchor.inputs[0].tensor.static

    def move(i: Int, _: list[Reg]) -> None:
        at = b.coordinates(i, given)
        index = reader.load(anchor.inputs[1], at).reg
        wrong = b.compare("uge", index, Reg(str(total), "i64"))
        report(b, fault, wrong, index)
        safe = b.set("i64", f"select i1 {wrong}, i64 0, i64 {index}")
        to = b.coordinates(safe, counted)
        inside = Reg("true", "i1")
        for number, size in zip(to, shape, strict=True):
            fits = b.compare("slt", b.i64(number), b.i64(size))
            inside = scalars.a.op("and", inside, fits)
        x = reader.load(anchor.inputs[0], at).reg
        b.when(inside, lambda: epilogue.store(to, x, 1))

    def move_all() -> None:
        b.loop(0, math.prod(given), 1, move)

    # One thread, in order: of several elements for one position the last stays.
    b.on_thread(0, move_all)
    return context.finish(b)
