"""Grid sampling and deformable convolution: images read at positions that are data, in f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalar_functions import combined, neighbours, number
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, each_pixel, strided_view
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    kernel_for,
    pointers,
)
from monograph.ir import Value
from monograph.ir.dtype import f64
from monograph.ops.conv import DeformConv
from monograph.ops.image import (
    LINEAR,
    MIRROR,
    REFLECT,
    ZEROS,
    GridSample,
)
from monograph.ops.scalar import Scalar
from monograph.program.index import strides_of
from monograph.program.memory.strided import strided


def serves(value: Value) -> bool:
    """Return True if these kernels compute a value."""
    if not isinstance(value.op, (GridSample, DeformConv)):
        return False
    return 0 not in value.inputs[0].tensor.static


@kernel_for(GridSample, DeformConv, when=serves, readable=strided_view)
def sampling(context: KernelContext) -> Kernel:
    """Generate a kernel for an op that samples, and its epilogue."""
    anchor = context.anchor
    made = _GridSample(context) if isinstance(anchor.op, GridSample) else _DeformConv(context)
    return made.emit()


class ElementReader:
    """Loads elements of operands, by any strides."""

    def __init__(self, context: KernelContext, b: Builder, scalars: LlvmScalars) -> None:
        self.b, self.scalars = b, scalars
        self.storage = context.program.places.storage
        self.pointers = pointers(b, context.arguments)

    def load(self, value: Value, index: Sequence[Int], lanes: int = 0) -> Scalar:
        """Load an element, or contiguous elements as lanes."""
        found = strided(value, self.storage)
        assert found is not None
        at: Int = found.offset
        for i, stride in zip(index, found.strides, strict=True):
            at = self.b.add(at, self.b.mul(i, stride))
        where = self.b.mul(at, value.dtype.itemsize)
        pointer = self.b.offset(self.pointers[found.source], where)
        return self.scalars.load(value.dtype, pointer, lanes)

    def wide(self, value: Value, index: Sequence[Int]) -> Scalar:
        """An element as f64."""
        return self.scalars.cast(self.load(value, index), f64)


def float_of(s: LlvmScalars, value: Int) -> Scalar:
    """An integer as f64."""
    if isinstance(value, int):
        return number(s, value)
    return Scalar(s.b.set("double", f"sitofp i64 {value} to double"), f64)


def integer_of(s: LlvmScalars, x: Scalar) -> Reg:
    """Truncate a float that is in range to an integer."""
    return s.b.set("i64", f"fptosi double {x.reg} to i64")


def taps(
    s: LlvmScalars, place: Scalar, size: int, mode: str, outside: str
) -> list[tuple[Reg, Scalar]]:
    """Return the elements of one axis that a position reads, with their weights."""
    near = neighbours(s, place, size, mode, outside)
    return [(_within(s, integer_of(s, at), size, outside), weight) for at, weight in near]


def _within(s: LlvmScalars, at: Reg, size: int, outside: str) -> Reg:
    """Map a position outside of an axis back into it."""
    b = s.b
    if outside not in (REFLECT, MIRROR) or (outside == MIRROR and size == 1):
        return b.i64(b.minimum(b.maximum(at, 0), size - 1))
    period = 2 * size if outside == REFLECT else 2 * size - 2
    rest = b.set("i64", f"srem i64 {at}, {period}")
    negative = b.compare("slt", rest, Reg("0", "i64"))
    folded = s.a.select(negative, b.i64(b.add(rest, period)), rest)
    turned = b.i64(b.sub(period - 1 if outside == REFLECT else period, folded))
    return s.a.select(b.compare("slt", folded, Reg(str(size), "i64")), folded, turned)


def weighted(
    s: LlvmScalars,
    reader: ElementReader,
    value: Value,
    lead: list[Int],
    axes: list[list[tuple[Reg, Scalar]]],
) -> Scalar:
    """The sum over all combinations of taps."""
    return combined(s, axes, lambda places: reader.wide(value, [*lead, *places]))


class _Sampling:
    """The common base of sampling kernels: arguments, readers, a loop over the result."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        self.context, self.anchor = context, anchor
        self.shape = anchor.tensor.static

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        self.prepare()
        b = self.b = context.builder()
        self.s = LlvmScalars(b, context.features)
        self.reader = ElementReader(context, b, self.s)
        self.epilogue = Epilogue(context, b)
        self.begin()
        one = blocks(1, 1, 1)
        each_pixel(b, context.threads, self.shape[0], self.shape[2:], one, self.unit)
        return context.finish(b)

    def prepare(self) -> None:
        """Request more arguments."""

    def begin(self) -> None:
        """Emit code before the loop."""

    def unit(self, n: Int, _: Int, place: list[Int], run: ChannelBlocks) -> None:
        raise NotImplementedError

    def store(self, n: Int, c: Int, place: list[Int], total: Scalar) -> None:
        result = self.s.cast(total, self.anchor.dtype)
        self.epilogue.store([n, c, *place], result.reg, 1)


class _GridSample(_Sampling):
    def unit(self, n: Int, _: Int, place: list[Int], run: ChannelBlocks) -> None:
        op, s = self.anchor.op, self.s
        assert isinstance(op, GridSample)
        x, grid = self.anchor.inputs
        sizes = x.tensor.static[2:]
        turned = MIRROR if op.align_corners and op.outside == REFLECT else op.outside
        axes = []
        for i, size in enumerate(sizes):
            g = self.reader.wide(grid, [n, *place, len(sizes) - 1 - i])
            g = s.add(g, number(s, 1))
            if op.align_corners:
                at = s.mul(s.div(g, number(s, 2)), number(s, size - 1))
            else:
                at = s.div(s.sub(s.mul(g, number(s, size)), number(s, 1)), number(s, 2))
            axes.append(taps(s, at, size, op.mode, turned))

        def channel(c: Int, _: list[Reg]) -> None:
            self.store(n, c, place, weighted(s, self.reader, x, [n, c], axes))

        self.b.loop(0, self.shape[1], 1, channel)


class _DeformConv(_Sampling):
    """Deformable convolution: all windows at a position are read into memory, then multiplied."""

    def prepare(self) -> None:
        op = self.anchor.op
        assert isinstance(op, DeformConv)
        self.op = op
        self.x, self.w, self.offset, *self.mask = self.anchor.inputs
        self.channels = self.x.tensor.static[1]
        self.kernel = self.w.tensor.static[2:]
        self.terms = math.prod(self.kernel)
        self.size = self.channels * self.terms * 8
        self.scratch = self.context.argument(LlvmScratch(self.size * self.context.threads))

    def begin(self) -> None:
        b = self.b
        own = b.mul(b.arguments["tid"], self.size)
        self.columns = b.offset(b.arguments[f"p{self.scratch}"], own)

    def unit(self, n: Int, _: Int, place: list[Int], run: ChannelBlocks) -> None:
        b, groups = self.b, self.op.offset_groups

        def group(g: Int, _: list[Reg]) -> None:
            b.loop(0, self.terms, 1, lambda t, _: self._read(n, g, t, place))

        b.loop(0, groups, 1, group)
        b.loop(0, self.shape[1], 1, lambda o, _: self._multiply(n, o, place))

    def _tap(self, t: Int) -> list[Int]:
        """The index of a tap in the kernel, from its number."""
        b = self.b
        strides = strides_of(self.kernel)
        return [b.mod(b.div(t, s), k) for s, k in zip(strides, self.kernel, strict=True)]

    def _read(self, n: Int, g: Int, t: Int, place: list[Int]) -> None:
        """Read one tap of all channels of an offset group."""
        b, s, op = self.b, self.s, self.op
        entry = b.add(b.mul(g, self.terms), t)
        axes = []
        for axis, k in enumerate(self._tap(t)):
            channel = b.add(b.mul(entry, len(self.kernel)), axis)
            moved = self.reader.wide(self.offset, [n, channel, *place])
            start = b.add(b.mul(place[axis], op.strides[axis]), -op.pads_begin[axis])
            at = s.add(moved, float_of(s, b.add(start, b.mul(k, op.dilations[axis]))))
            axes.append(taps(s, at, self.x.tensor.static[2 + axis], LINEAR, ZEROS))
        scale = [self.reader.wide(m, [n, entry, *place]) for m in self.mask]
        share = self.channels // op.offset_groups

        def channel_of(i: Int, _: list[Reg]) -> None:
            c = b.add(b.mul(g, share), i)
            total = weighted(s, self.reader, self.x, [n, c], axes)
            for factor in scale:
                total = s.mul(total, factor)
            where = b.add(b.mul(c, self.terms), t)
            b.store(total.reg, b.offset(self.columns, b.mul(where, 8)), 8)

        b.loop(0, share, 1, channel_of)

    def _multiply(self, n: Int, o: Int, place: list[Int]) -> None:
        b, s = self.b, self.s
        per_group = self.channels // self.op.groups
        group = b.div(o, self.shape[1] // self.op.groups)
        first = b.mul(group, per_group * self.terms * 8)
        start = b.offset(self.columns, first)

        def channel(i: Int, sums: list[Reg]) -> list[Reg]:
            def tap(t: Int, inner: list[Reg]) -> list[Reg]:
                weight = self.reader.wide(self.w, [o, i, *self._tap(t)])
                where = b.mul(b.add(b.mul(i, self.terms), t), 8)
                x = Scalar(b.load("double", b.offset(start, where), 8), f64)
                return [s.fma(x, weight, Scalar(inner[0], f64)).reg]

            return b.loop(0, self.terms, 1, tap, sums)

        (total,) = b.loop(0, per_group, 1, channel, [number(s, 0).reg])
        self.store(n, o, place, Scalar(total, f64))
