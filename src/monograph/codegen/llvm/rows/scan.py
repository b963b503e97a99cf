"""Running sums and products along an axis."""

from __future__ import annotations

from monograph.codegen.common.registry import any_view
from monograph.codegen.llvm.emit.elements import Point
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for
from monograph.codegen.llvm.rows.rows import Join, LlvmRows, RowPosition, Step, Totals
from monograph.ir import Value
from monograph.ir.dtype import COMPLEX, f64
from monograph.ops.reduce import CumSum, Cumulative
from monograph.ops.scalar import Scalar
from monograph.program.index import Index


def serves(value: Value) -> bool:
    """Return True if a value is a running total."""
    return isinstance(value.op, Cumulative) and value.dtype.kind != COMPLEX


@kernel_for(Cumulative, when=serves, readable=any_view)
def scan(context: KernelContext) -> Kernel:
    """Generate a kernel for a running total; rows are in lanes, or one by one."""
    anchor = context.step.region.anchor
    assert anchor is not None
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
        rows.finish(s.cast(totals[0] if op.exclusive else total, anchor.dtype), point)
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
            wide = self.kept and self.kept[-1].extent >= self.lanes
            self.lane = self.kept[-1] if wide else None
            self.across = self.lane is not None
        self.unrolled = False

    def fold(self, place: RowPosition, start: Totals, step: Step, join: Join) -> list[Totals]:
        return self._fold_across(place, start, step)
