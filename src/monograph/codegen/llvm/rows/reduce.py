"""Reductions along axes (totals and arguments), and running sums and products along one axis.

Operands are in memory or computed on the fly.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.registry import any_view, is_real
from monograph.codegen.llvm.emit.elements import Point
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for
from monograph.codegen.llvm.rows.rows import Join, LlvmRows, RowPosition, Step, Totals
from monograph.ir import DType, Op, Value
from monograph.ir.dtype import BOOL, COMPLEX, UINT, f64, i32, i64
from monograph.ir.sizes import hint_of
from monograph.ops.reduce import (
    ArgMax,
    ArgReduction,
    CumSum,
    Cumulative,
    ReduceMax,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    Reduction,
)
from monograph.ops.scalar import Scalar
from monograph.program.fusion.siblings import siblings
from monograph.program.index import Index


def serves(value: Value) -> bool:
    """Return True if a value is a reduction that these kernels compute."""
    if isinstance(value.op, (ReduceSum, ReduceProd, ReduceMax, ReduceMin)):
        return value.dtype.kind != COMPLEX
    return isinstance(value.op, ArgReduction)


@kernel_for(Reduction, ArgReduction, when=serves, readable=any_view)
def reduction(context: KernelContext) -> Kernel:
    """Generate a kernel for a reduction, its operand and its epilogue."""
    anchor = context.anchor
    if isinstance(anchor.op, ArgReduction):
        return _argument(context, anchor.op)
    op = anchor.op
    assert isinstance(op, Reduction)
    rows = LlvmRows(context, op.axes, others=siblings(context.step.region))
    order = [] if rows.empty else rows.elements.plan((rows.operand,), rows.at)
    ops = [v.op for v in rows.results]

    def join(x: Totals, y: Totals) -> Totals:
        return [_joined(rows, *each) for each in zip(ops, x, y, strict=True)]

    def step(point: Point, _: int, totals: Totals) -> Totals:
        return join(totals, [rows.operand_at(point, order)] * len(ops))

    def one(place: RowPosition) -> None:
        starts = [rows.scalars.constant(_start(op, anchor.dtype), anchor.dtype) for op in ops]
        plain = [Scalar(start.reg, start.dtype) for start in starts]
        totals = rows.fold(place, plain, step, join)
        for point, total in zip(place.points, totals, strict=True):
            rows.finish(point, *total)

    rows.run(one)
    return rows.kernel()


def _start(op: Op, dtype: DType) -> float | int:
    """Return the neutral element."""
    if isinstance(op, (ReduceSum, ReduceProd)):
        return int(isinstance(op, ReduceProd))
    return lowest(dtype) if isinstance(op, ReduceMax) else highest(dtype)


def lowest(dtype: DType) -> float | int:
    if dtype.kind in (BOOL, UINT):
        return 0
    return -math.inf if dtype.is_float else -(1 << (dtype.bits - 1))


def highest(dtype: DType) -> float | int:
    if dtype.kind == BOOL:
        return 1
    if dtype.is_float:
        return math.inf
    return (1 << (dtype.bits - (dtype.kind != UINT))) - 1


def _joined(rows: LlvmRows, op: Op, x: Scalar, y: Scalar) -> Scalar:
    s = rows.scalars
    if isinstance(op, ReduceSum):
        return s.add(x, y)
    if isinstance(op, ReduceProd):
        return s.mul(x, y)
    largest = isinstance(op, ReduceMax)
    if x.dtype.kind == BOOL:
        return s.or_(x, y) if largest else s.and_(x, y)
    return s.max(x, y) if largest else s.min(x, y)


def _argument(context: KernelContext, op: ArgReduction) -> Kernel:
    """Generate ArgMax or ArgMin: values and indices are carried side by side."""
    rows = LlvmRows(context, (op.axis,))
    order = rows.elements.plan((rows.operand,), rows.at)
    s = rows.scalars
    dtype = rows.operand.dtype
    largest = isinstance(op, ArgMax)

    def join(x: Totals, y: Totals) -> Totals:
        (best, where), (other, there) = x, y
        better = s.less(best, other) if largest else s.less(other, best)
        same = s.equal(best, other)
        if dtype.is_float:
            # NaN precedes everything, and equals NaN.
            nan, fine = s.is_nan(other), s.not_(s.is_nan(best))
            better = s.or_(better, s.and_(nan, fine))
            same = s.or_(same, s.and_(nan, s.not_(fine)))
        nearer = s.less(where, there) if op.last else s.less(there, where)
        take = s.or_(better, s.and_(same, nearer))
        return [s.select(take, other, best), s.select(take, there, where)]

    def step(point: Point, _: int, totals: Totals) -> Totals:
        return join(totals, [rows.operand_at(point, order), _place(rows, op.axis, point)])

    def one(place: RowPosition) -> None:
        start = s.constant(lowest(dtype) if largest else highest(dtype), dtype)
        never = s.constant(-1 if op.last else 2**31 - 1, i32)
        plain = [Scalar(t.reg, t.dtype) for t in (start, never)]
        for point, total in zip(place.points, rows.fold(place, plain, step, join), strict=True):
            rows.finish(point, s.cast(total[1], i64))

    rows.run(one)
    return rows.kernel()


def _place(rows: LlvmRows, axis: int, point: Point) -> Scalar:
    """The index along an axis, in every lane."""
    b = rows.b
    index = rows.at[axis]
    number = b.i64(rows.elements.integer(index, point))
    narrow = Reg(b.set("i32", f"trunc i64 {number} to i32").name, "i32")
    whole = Scalar(narrow, i32)
    if point.lane is None or point.lane not in index.counters:
        return rows.scalars.splat(whole, point.lanes)
    kind = vector(point.lanes, "i32")
    steps = ", ".join(f"i32 {k}" for k in range(point.lanes))
    return rows.scalars.add(
        rows.scalars.splat(whole, point.lanes), Scalar(Reg(f"<{steps}>", kind), i32)
    )


@kernel_for(Cumulative, when=is_real, readable=any_view)
def scan(context: KernelContext) -> Kernel:
    """Generate a kernel for a running total; rows are in lanes, or one by one."""
    anchor = context.anchor
    assert isinstance(anchor.op, Cumulative)
    op = anchor.op
    rows = _ScanRows(context, (op.axis,))
    s = rows.scalars
    # Floats are accumulated in f64, so that long sums are rounded once too.
    wide = f64 if anchor.dtype.is_float else anchor.dtype
    if rows.empty:
        return rows.kernel()
    order = rows.elements.plan((rows.operand,), rows.at)

    def step(point: Point, _: int, totals: Totals) -> Totals:
        x = s.cast(rows.operand_at(point, order), wide)
        total = s.add(totals[0], x) if isinstance(op, CumSum) else s.mul(totals[0], x)
        rows.finish(point, s.cast(totals[0] if op.exclusive else total, anchor.dtype))
        return [total]

    def one(place: RowPosition) -> None:
        start = s.constant(op.neutral, wide)
        rows.fold(place, [Scalar(start.reg, wide)], step, lambda x, _: x)

    rows.run(one)
    return rows.kernel()


class _ScanRows(LlvmRows):
    """Rows that are processed in order: lanes never run along them; they may be reversed."""

    def _nest(self) -> None:
        super()._nest()
        op = self.anchor.op
        assert isinstance(op, Cumulative)
        if op.reverse and self.reduced:
            (along,) = self.reduced
            backwards = Index(along.extent - 1, ((along, -1),))
            self.at = tuple(backwards if k == op.axis else i for k, i in enumerate(self.at))
            self.out_at = self.at

    def _choose_lane(self) -> None:
        super()._choose_lane()
        if not self.across:
            wide = self.kept and hint_of(self.kept[-1].extent) >= self.lanes
            self.lane = self.kept[-1] if wide else None
            self.across = self.lane is not None
        self.unrolled = False

    def fold(self, place: RowPosition, start: Totals, step: Step, join: Join) -> list[Totals]:
        return self._fold_across(place, start, step)
