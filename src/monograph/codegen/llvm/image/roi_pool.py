"""Pools over boxes of an image; the boxes are data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalar_functions import number, tamed
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.grid_sample import ElementReader, float_of, integer_of
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, each_pixel, strided_view
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    kernel_for,
    report,
)
from monograph.ir import Value
from monograph.ir.dtype import f64, i64
from monograph.ir.sizes import is_one
from monograph.ops.roi import AVERAGE, MAX_SAMPLES, MaxRoiPool, RoiAlign
from monograph.ops.scalar import Scalar
from monograph.program.memory.strided import strided


def serves(value: Value) -> bool:
    """Return True if these kernels compute a value."""
    if not isinstance(value.op, (RoiAlign, MaxRoiPool)):
        return False
    return 0 not in value.inputs[0].tensor.static


@kernel_for(RoiAlign, MaxRoiPool, when=serves, readable=strided_view)
def regions(context: KernelContext) -> Kernel:
    """Generate a kernel for a pool over boxes and its epilogue."""
    made = _Align(context) if isinstance(context.anchor.op, RoiAlign) else _MaxPool(context)
    return made.emit()


class _Regions:
    """The common base of pools over boxes: a loop over the elements of the result."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        self.context, self.anchor = context, anchor
        self.x, self.rois, *self.batch = anchor.inputs
        self.images, _, *self.sizes = self.x.tensor.static
        found = strided(self.x, context.program.places.storage)
        self.together = found is not None and is_one(found.strides[1])
        """True if the channels of a pixel are contiguous."""

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        no_image = LlvmFault("a region of no image", f"0..{self.images - 1}")
        self.no_image = context.argument(no_image)
        self.no_box = context.argument(LlvmFault("a region is not of this image"))
        b = self.b = context.builder()
        self.s = LlvmScalars(b, context.features)
        self.reader = ElementReader(context, b, self.s)
        self.epilogue = Epilogue(context, b)
        count, channels, *bins = self.anchor.tensor.static
        each_pixel(b, context.threads, count, bins, blocks(channels, self.lanes, 1), self._unit)
        return context.finish(b)

    @property
    def lanes(self) -> int:
        """Return the channels that are computed together."""
        return 1

    def _unit(self, r: Int, c: Int, bins: list[Int], run: ChannelBlocks) -> None:
        result = self.s.cast(self.element(r, c, bins, run.lanes), self.anchor.dtype)
        for k in range(run.lanes):
            one = self.s.lane(result, k).reg
            self.epilogue.store([r, self.b.add(c, k), *bins], one, 1)

    def element(self, r: Int, c: Int, bins: list[Int], lanes: int) -> Scalar:
        """Return the elements of consecutive channels of a bin, as lanes if there are several."""
        raise NotImplementedError

    def image(self, given: Reg) -> Reg:
        """Return the number of an image; one out of range is reported and replaced by 0."""
        wrong = self.b.compare("uge", given, Reg(str(self.images), "i64"))
        report(self.b, self.no_image, wrong, given)
        return self.b.set("i64", f"select i1 {wrong}, i64 0, i64 {given}")


class _Align(_Regions):
    @property
    def lanes(self) -> int:
        # Positions and weights are the same for all channels.
        return self.context.features.lanes(32) if self.together else 1

    def element(self, r: Int, c: Int, bins: list[Int], lanes: int) -> Scalar:
        s, op = self.s, self.anchor.op
        assert isinstance(op, RoiAlign)
        index = s.cast(self.reader.load(self.batch[0], [r]), i64)
        n = self.image(index.reg)
        axes = [self._axis(r, axis, bins[axis]) for axis in range(2)]
        average = op.mode == AVERAGE
        vectors = lanes if lanes > 1 else 0
        start = s.splat(number(s, 0.0 if average else -math.inf), vectors).reg
        channels = [self.b.add(c, k) for k in range(lanes)]
        (total,) = self._samples(n, channels, axes, average, start)
        counts = [float_of(s, axis[3]) for axis in axes]
        if average:
            most = [s.max(count, number(s, 1)) for count in counts]
            return s.div(Scalar(total, f64), s.mul(*most))
        none = s.equal(s.mul(*counts), number(s, 0))
        return s.select(none, number(s, 0), Scalar(total, f64))

    def _axis(self, r: Int, axis: int, i: Int) -> tuple[Scalar, Scalar, Int, Int]:
        """Return the start of the box, its step, the bin and its samples along an axis."""
        s, op = self.s, self.anchor.op
        assert isinstance(op, RoiAlign)
        shift = number(s, 0.5 if op.half_pixel else 0.0)
        scaled = (
            s.mul(self.reader.wide(self.rois, [r, k]), number(s, op.scale))
            for k in (1 - axis, 3 - axis)
        )
        start, end = (s.sub(x, shift) for x in scaled)
        length = s.sub(end, start)
        if not op.half_pixel:
            length = s.max(length, number(s, 1.0))
        step = s.div(length, number(s, op.sizes[axis]))
        finite = s.less_equal(s.abs(step), number(s, 2.0**1000))
        fits = s.and_(finite, s.less_equal(step, number(s, MAX_SAMPLES)))
        report(self.b, self.no_box, s.not_(fits).reg, integer_of(s, tamed(s, length)))
        step = s.select(fits, step, number(s, 0))
        if op.ratio:
            return start, step, i, op.ratio
        return start, step, i, self.b.maximum(integer_of(s, s.ceil(step)), 0)

    def _samples(
        self,
        n: Reg,
        channels: Sequence[Int],
        axes: Sequence[tuple[Scalar, Scalar, Int, Int]],
        average: bool,
        start: Reg,
    ) -> list[Reg]:
        b, s = self.b, self.s

        def row(ky: Int, sums: list[Reg]) -> list[Reg]:
            down = self._neighbours(0, *axes[0], ky)

            def sample(kx: Int, inner: list[Reg]) -> list[Reg]:
                across = self._neighbours(1, *axes[1], kx)
                total = Scalar(inner[0], f64)
                for y, wy in down:
                    for x, wx in across:
                        value = s.cast(self._elements(n, channels, y, x), f64)
                        value = s.mul(s.mul(value, wy), wx)
                        total = s.add(total, value) if average else s.max(total, value)
                return [total.reg]

            return b.loop(0, axes[1][3], 1, sample, sums)

        return b.loop(0, axes[0][3], 1, row, [start])

    def _elements(self, n: Reg, channels: Sequence[Int], y: Reg, x: Reg) -> Scalar:
        """Load a pixel of some channels; a vector if they are contiguous."""
        first, *others = channels
        if others and self.together:
            return self.reader.load(self.x, [n, first, y, x], len(channels))
        every = [self.reader.load(self.x, [n, c, y, x]) for c in channels]
        return self.s.gathered(every) if others else every[0]

    def _neighbours(
        self, axis: int, start: Scalar, step: Scalar, i: Int, samples: Int, k: Int
    ) -> list[tuple[Reg, Scalar]]:
        """Return the two elements beside a sample, with their weights."""
        b, s, size = self.b, self.s, self.sizes[axis]
        count = s.max(float_of(s, samples), number(s, 1))
        fraction = s.div(s.add(float_of(s, k), number(s, 0.5)), count)
        at = s.add(start, s.mul(s.add(float_of(s, i), fraction), step))
        low, high = s.less_equal(number(s, -1), at), s.less_equal(at, number(s, size))
        inside = s.and_(low, high)
        at = s.min(s.max(tamed(s, at), number(s, 0)), number(s, size - 1))
        whole = s.floor(at)
        rest = s.sub(at, whole)
        first = integer_of(s, whole)
        second = b.i64(b.minimum(b.add(first, 1), size - 1))
        weights = (s.sub(number(s, 1), rest), rest)
        scaled = [s.select(inside, w, number(s, 0)) for w in weights]
        return [(first, scaled[0]), (second, scaled[1])]


class _MaxPool(_Regions):
    def element(self, r: Int, c: Int, bins: list[Int], lanes: int) -> Scalar:
        b, s, dtype = self.b, self.s, self.x.dtype
        n = self.image(integer_of(s, tamed(s, self.reader.wide(self.rois, [r, 0]))))
        spans = [self._span(r, axis, bins[axis]) for axis in range(2)]

        def row(y: Int, outer: list[Reg]) -> list[Reg]:
            def one(x: Int, inner: list[Reg]) -> list[Reg]:
                value = self.reader.load(self.x, [n, c, y, x])
                return [s.max(Scalar(inner[0], dtype), value).reg]

            return b.loop(*spans[1], 1, one, outer)

        lowest = s.literal(-math.inf, dtype, 0).reg
        (total,) = b.loop(*spans[0], 1, row, [lowest])
        empty = [s.b.compare("sge", b.i64(low), b.i64(high)) for low, high in spans]
        none = s.a.op("or", *empty)
        zero = s.literal(0, dtype, 0).reg
        return Scalar(s.a.select(none, zero, total), dtype)

    def _span(self, r: Int, axis: int, i: Int) -> tuple[Int, Int]:
        """Return the range of elements of a bin along an axis."""
        s, op = self.s, self.anchor.op
        assert isinstance(op, MaxRoiPool)
        start, end = (
            self._rounded(s.mul(self.reader.wide(self.rois, [r, k]), number(s, op.scale)))
            for k in (2 - axis, 4 - axis)
        )
        length = s.max(s.add(s.sub(end, start), number(s, 1)), number(s, 1))
        step = s.div(length, number(s, op.sizes[axis]))
        low = s.floor(s.mul(float_of(s, i), step))
        high = s.ceil(s.mul(float_of(s, self.b.add(i, 1)), step))
        return self._clipped(s.add(low, start), axis), self._clipped(s.add(high, start), axis)

    def _rounded(self, x: Scalar) -> Scalar:
        """The nearest whole number, halves away from zero."""
        s = self.s
        whole = s.floor(s.add(s.abs(x), number(s, 0.5)))
        return s.select(s.less(x, number(s, 0)), s.neg(whole), whole)

    def _clipped(self, x: Scalar, axis: int) -> Int:
        s, b = self.s, self.b
        return b.minimum(b.maximum(integer_of(s, tamed(s, x)), 0), self.sizes[axis])
