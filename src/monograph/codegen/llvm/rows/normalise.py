"""Softmax, log-softmax, LayerNorm and RMSNorm along rows that stay in cache.

Softmax takes three passes; a norm takes one for the mean, one for the variance, one for the result.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.registry import any_view
from monograph.codegen.common.types import register
from monograph.codegen.llvm.emit.elements import Point
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for
from monograph.codegen.llvm.rows.rows import LlvmRows, RowPosition, Totals
from monograph.ir import Value
from monograph.ir.dtype import f32, f64
from monograph.ir.lazy import lazy
from monograph.ir.sizes import is_open
from monograph.ops.composite import LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.scalar import Scalar
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, Resolved, aligned, resolve

# 2^r for |r| <= 1/2; relative error 2^-25.9
_EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022646248340607,
    0.05550328642129898,
    0.009618489071726799,
    0.0013399930903688073,
    0.0001534581242594868,
)
_ROUNDER = 1.5 * 2.0**23 + 127
"""Added to a float, it leaves the nearest whole number in the low bits, as an exponent."""
_EXP2_LOW = -127.0
LOG2_E = 1 / math.log(2)


def power_below_one(a: LlvmArith, t: Reg) -> Reg:
    """2^t of f32 for t <= 0, exactly 0 from -127 on; cheaper than e^x of any x."""
    t = a.at_least(t, _EXP2_LOW)
    shifted = a.add(t, _ROUNDER)
    r = a.sub(t, a.sub(shifted, _ROUNDER))
    return a.mul(a.polynomial(r, _EXP2), a.floats(a.op("shl", a.bits(shifted), 23)))


@kernel_for(Softmax, LogSoftmax, readable=any_view)
def softmax(context: KernelContext) -> Kernel:
    """Generate a kernel for a softmax, its operand and its epilogue."""
    anchor = context.anchor
    assert isinstance(anchor.op, (Softmax, LogSoftmax))
    return _Softmax(context, anchor, anchor.op.axis, isinstance(anchor.op, LogSoftmax)).emit()


class _Softmax:
    def __init__(self, context: KernelContext, anchor: Value, axis: int, logarithm: bool) -> None:
        self.rows = LlvmRows(context, (axis,), keeps=True)
        self.dtype = f64 if anchor.dtype == f64 else f32
        self.logarithm = logarithm
        rows = self.rows
        self.order = [] if rows.empty else rows.elements.plan((rows.operand,), rows.at)
        plain = rows.operand in rows.elements.inputs and anchor.dtype == self.dtype
        self.read_again = plain and not rows.unrolled

    def emit(self) -> Kernel:
        if not self.rows.empty:
            self.rows.run(self._row)
        return self.rows.kernel()

    def _row(self, place: RowPosition) -> None:
        s = self.rows.scalars
        lowest = Scalar(s.constant(-math.inf, self.dtype).reg, self.dtype)
        nothing = Scalar(s.constant(0.0, self.dtype).reg, self.dtype)
        largest = self.rows.fold(place, [lowest], self._read, self._larger)
        tops = [t[0] for t in largest]
        halving = self.dtype == f32

        def weigh(point: Point, stream: int, totals: Totals) -> Totals:
            # The difference comes first: it is exact near the maximum, whatever its size.
            x = s.sub(self._again(point, stream), self._of(tops, stream))
            if halving:
                t = s.mul(x, s.constant(LOG2_E, self.dtype))
                e = Scalar(power_below_one(s.a, t.reg), self.dtype)
            else:
                e = s.exp(x)
            self.rows.keep(point, stream, x if self.logarithm else e)
            return [s.add(totals[0], e)]

        sums = self.rows.fold(place, [nothing], weigh, lambda x, y: [s.add(x[0], y[0])])
        one = s.constant(1.0, self.dtype)
        scales = [s.log(t[0]) if self.logarithm else s.div(one, t[0]) for t in sums]

        def write(point: Point, stream: int) -> None:
            x, scale = self.rows.kept_at(point, stream, self.dtype), self._of(scales, stream)
            y = s.sub(x, scale) if self.logarithm else s.mul(x, scale)
            self.rows.finish(point, Scalar(y.reg, self.rows.anchor.dtype))

        self.rows.each(place, write)

    def _of(self, totals: list[Scalar], stream: int) -> Scalar:
        """Return the total of an element's row: along a row there is only one."""
        return totals[stream] if self.rows.across else totals[0]

    def _read(self, point: Point, stream: int, totals: Totals) -> Totals:
        x = Scalar(self.rows.operand_at(point, self.order).reg, self.dtype)
        if not self.read_again:
            self.rows.keep(point, stream, x)
        return self._larger(totals, [x])

    def _again(self, point: Point, stream: int) -> Scalar:
        """Return an element in the second pass: from memory if it is stored there."""
        if not self.read_again:
            return self.rows.kept_at(point, stream, self.dtype)
        return self.rows.operand_at(point, self.order)

    def _larger(self, x: Totals, y: Totals) -> Totals:
        # NaN may be ignored here: the sum contains it.
        a = self.rows.scalars.a
        p, q = self.rows.scalars.splat(x[0], y[0].reg.lanes), y[0]
        return [Scalar(a.select(a.compare("ogt", q.reg, p.reg), q.reg, p.reg), self.dtype)]


@kernel_for(LayerNorm, RmsNorm, readable=any_view)
def norm(context: KernelContext) -> Kernel:
    """Generate a kernel for a norm, its operand and its epilogue."""
    anchor = context.anchor
    assert isinstance(anchor.op, (LayerNorm, RmsNorm))
    return _Norm(context, anchor, anchor.op).emit()


class _NormRows(LlvmRows):
    """Rows with a scale and a bias, which are read at every element of the result."""

    def parameters(self, at: Indices) -> list[Element]:
        return [Element(v, aligned(at, v.tensor.static)) for v in self.anchor.inputs[1:]]

    def parameter_order(self, at: Indices) -> list[Resolved]:
        return resolve(self.parameters(at), lambda v: v in self.elements.inputs, is_view)


class _Norm:
    def __init__(self, context: KernelContext, anchor: Value, op: LayerNorm | RmsNorm) -> None:
        self.rows = rows = _NormRows(context, op.axes, keeps=True)
        self.op = op
        self.dtype = f64 if anchor.dtype == f64 else f32
        shape = rows.operand.tensor.static
        self.length = math.prod(shape[a] for a in op.axes)
        self.order = [] if rows.empty else rows.elements.plan((rows.operand,), rows.at)

    @lazy
    def parameters(self) -> list[Resolved]:
        return self.rows.parameter_order(self.rows.at)

    def emit(self) -> Kernel:
        if not self.rows.empty:
            self.rows.run(self._row)
        return self.rows.kernel()

    def _share(self) -> Scalar:
        """One over the length of a row."""
        s = self.rows.scalars
        if not is_open(self.length):
            return s.constant(1 / max(self.length, 1), self.dtype)
        count = self.rows.b.number(self.length, register(self.dtype))
        return s.div(s.constant(1.0, self.dtype), Scalar(count, self.dtype))

    def _row(self, place: RowPosition) -> None:
        """Emit the passes over a row.

        A mean that is large beside the deviations is rounded coarsely: the remaining mean of the
        deviations is summed with their squares, and subtracted with the scaling.
        """
        s = self.rows.scalars
        one, zero = (s.constant(n, self.dtype) for n in (1.0, 0.0))
        share, epsilon = self._share(), s.constant(self.op.epsilon, self.dtype)
        sums = self.rows.fold(place, [self._nothing], self._read, self._add)
        means = squares = [s.mul(t[0], share) for t in sums]
        rests = [zero] * len(sums)
        if isinstance(self.op, LayerNorm):

            def deviate(point: Point, stream: int, totals: Totals) -> Totals:
                x = s.sub(self.rows.kept_at(point, stream, self.dtype), self._of(means, stream))
                self.rows.keep(point, stream, x)
                return [s.fma(x, x, totals[0]), s.add(totals[1], x)]

            both = self.rows.fold(place, [self._nothing, self._nothing], deviate, self._add)
            rests = [s.mul(t[1], share) for t in both]
            squares = [
                s.sub(s.mul(t[0], share), s.mul(r, r)) for t, r in zip(both, rests, strict=True)
            ]
            # Rounding may make the variance of equal elements negative.
            squares = [s.max(q, zero) for q in squares]
        scales = [s.div(one, s.sqrt(s.add(q, epsilon))) for q in squares]
        shifts = [s.neg(s.mul(r, c)) for r, c in zip(rests, scales, strict=True)]

        def write(point: Point, stream: int) -> None:
            x, scale = self.rows.kept_at(point, stream, self.dtype), self._of(scales, stream)
            if isinstance(self.op, LayerNorm):
                self._write(point, s.fma(x, scale, self._of(shifts, stream)))
            else:
                self._write(point, s.mul(x, scale))

        self.rows.each(place, write)

    @property
    def _nothing(self) -> Scalar:
        return Scalar(self.rows.scalars.constant(0.0, self.dtype).reg, self.dtype)

    def _add(self, x: Totals, y: Totals) -> Totals:
        return [self.rows.scalars.add(p, q) for p, q in zip(x, y, strict=True)]

    def _read(self, point: Point, stream: int, totals: Totals) -> Totals:
        """Sum elements for the mean, or their squares if there is no mean to subtract."""
        s = self.rows.scalars
        x = Scalar(self.rows.operand_at(point, self.order).reg, self.dtype)
        self.rows.keep(point, stream, x)
        return [s.add(totals[0], x) if isinstance(self.op, LayerNorm) else s.fma(x, x, totals[0])]

    def _of(self, totals: list[Scalar], stream: int) -> Scalar:
        """Return the total of an element's row: along a row there is only one."""
        return totals[stream] if self.rows.across else totals[0]

    def _write(self, point: Point, y: Scalar) -> None:
        rows, s = self.rows, self.rows.scalars
        made = rows.elements.emit(self.parameters, point)
        given = [Scalar(made[e].reg, self.dtype) for e in rows.parameters(rows.at)]
        if len(given) == 2:
            y = s.fma(y, given[0], given[1])
        elif given:
            y = s.mul(y, given[0])
        rows.finish(point, Scalar(y.reg, rows.anchor.dtype))
