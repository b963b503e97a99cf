"""Images read at positions that are data: places and weights in f64, vectors of channels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalar_functions import neighbours, number
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, each_pixel, strided_view
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, pointers
from monograph.ir import Value
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import is_one
from monograph.ops.image import MIRROR, REFLECT
from monograph.ops.scalar import Scalar
from monograph.program.legalise.sampling import CORNERS, PIXELS, ReadBetween
from monograph.program.memory.strided import strided

VECTORS = 2
"""Vectors of channels that are computed together."""


@kernel_for(ReadBetween, readable=strided_view)
def read_between(context: KernelContext) -> Kernel:
    """Generate a kernel for reads between pixels, and its epilogue."""
    return _ReadBetween(context).emit()


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


class _ReadBetween:
    """Reads between pixels: places and weights once for each, then vectors of channels."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, ReadBetween)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.x, *self.places = anchor.inputs
        found = strided(self.x, context.program.places.storage)
        assert found is not None
        self.found = found
        # Integers and f64 are interpolated in f64.
        self.wide = f32 if self.x.dtype.is_float and self.x.dtype != f64 else f64
        lanes = context.features.lanes(self.wide.bits) if is_one(found.strides[-1]) else 1
        self.runs = blocks(self.x.tensor.static[-1], lanes, VECTORS)

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        b = self.b = context.builder()
        self.s = LlvmScalars(b, context.features)
        self.reader = ElementReader(context, b, self.s)
        self.epilogue = Epilogue(context, b)
        count, *places = self.places[0].tensor.static
        each_pixel(b, context.threads, count, places, blocks(1, 1, 1), self._pixel)
        return context.finish(b)

    def _pixel(self, n: Int, _: Int, place: list[Int], run: ChannelBlocks) -> None:
        b, s = self.b, self.s
        sizes = self.x.tensor.static[2:-1]
        axes = []
        for operand, size in zip(self.places, sizes, strict=True):
            at = self._in_pixels(self.reader.wide(operand, [n, *place]), size)
            axes.append(taps(s, at, size, self.op.mode, self.op.outside))
        read = []
        for chosen in itertools.product(*axes):
            index = [n, place[0], *(at for at, _ in chosen), 0]
            weight = _product(s, [w for _, w in chosen])
            read.append((self._position(index), s.cast(weight, self.wide)))
        for block in self.runs:
            lanes = block.lanes if block.lanes > 1 else 0
            # A weight of zero drops what it reads: that may be infinite.
            factors = [(at, s.splat(w, lanes)) for at, w in read]
            parts = [(at, w, s.equal(w, s.literal(0, self.wide, lanes))) for at, w in factors]
            b.loop(0, block.count, 1, partial(self._channels, [n, *place], block, parts))

    def _in_pixels(self, place: Scalar, size: int) -> Scalar:
        s = self.s
        if self.op.unit == PIXELS:
            return place
        g = s.add(place, number(s, 1))
        if self.op.unit == CORNERS:
            return s.mul(s.div(g, number(s, 2)), number(s, size - 1))
        return s.div(s.sub(s.mul(g, number(s, size)), number(s, 1)), number(s, 2))

    def _position(self, index: Sequence[Int]) -> Int:
        return self.b.position(index, self.found.strides, self.found.offset)

    def _channels(
        self,
        at: list[Int],
        run: ChannelBlocks,
        parts: list[tuple[Int, Scalar, Scalar]],
        i: Int,
        _: list[Reg],
    ) -> None:
        """Interpolate a block of channels."""
        b, s, dtype = self.b, self.s, self.x.dtype
        lanes = run.lanes if run.lanes > 1 else 0
        zero = s.literal(0, self.wide, lanes)
        for v in range(run.vectors):
            c = b.add(b.mul(i, run.width), run.start + v * run.lanes)
            total = zero
            for position, weight, silent in parts:
                where = b.add(position, b.mul(c, self.found.strides[-1]))
                pointer = self.reader.pointers[self.found.source]
                x = s.load(dtype, b.offset(pointer, b.mul(where, dtype.itemsize)), lanes)
                x = s.select(silent, zero, s.cast(x, self.wide))
                total = s.fma(x, weight, total)
            result = s.cast(total, self.anchor.dtype)
            self.epilogue.store([*at, c], result.reg, run.lanes)


def _product(s: LlvmScalars, factors: Sequence[Scalar]) -> Scalar:
    """Multiply weights along axes."""
    total, *rest = factors
    for factor in rest:
        total = s.mul(total, factor)
    return total
