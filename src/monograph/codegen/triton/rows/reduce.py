"""Reductions along axes, of operands in memory or computed on the fly: totals and arguments."""

from __future__ import annotations

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.block_sizes import power
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    Launch,
    TritonScratch,
    Work,
    kernel_for,
)
from monograph.codegen.triton.rows.block_reduce import (
    LARGEST,
    PRODUCT,
    SMALLEST,
    SUM,
    joined,
    neutral,
    total,
)
from monograph.codegen.triton.rows.row_tiling import RowTiling, cuts, joining
from monograph.codegen.triton.rows.rows import RowBlock, TritonRows, field, scratch, wide
from monograph.ir import Value
from monograph.ir.dtype import COMPLEX, i32
from monograph.ops.reduce import (
    ArgMax,
    ArgReduction,
    ReduceMax,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    Reduction,
)
from monograph.ops.scalar import Scalar

_HOW: dict[type, str] = {
    ReduceSum: SUM,
    ReduceProd: PRODUCT,
    ReduceMax: LARGEST,
    ReduceMin: SMALLEST,
}


def serves(anchor: Value) -> bool:
    if type(anchor.op) in _HOW:
        return anchor.dtype.kind != COMPLEX
    return isinstance(anchor.op, ArgReduction)


@kernel_for(Reduction, ArgReduction, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    rows = _rows(context)
    if rows.empty:
        return [Candidate("nothing to reduce", lambda: (_empty(context),))]
    return [
        Candidate(f"rows {c}", lambda c=c: _kernels(context, c))  # type: ignore[misc]
        for c in cuts(field(rows))
    ]


def _rows(context: GpuContext) -> TritonRows:
    anchor = context.step.region.anchor
    assert anchor is not None
    op = anchor.op
    if isinstance(op, ArgReduction):
        return TritonRows(context, (op.axis,))
    assert isinstance(op, Reduction)
    return TritonRows(context, op.axes)


def _empty(context: GpuContext) -> Launch:
    """Return the neutral element for every row."""
    rows = _rows(context)
    rows.begin(RowTiling(min(power(rows.count), 128), 1, 1))
    how, dtype = _HOW[type(rows.anchor.op)], rows.anchor.dtype
    rows.k.trigger()
    rows.finish(rows.s.constant(neutral(how, dtype), dtype), rows.rows)
    return rows.launch()


def _kernels(context: GpuContext, cut: RowTiling) -> tuple[Work, ...]:
    rows = _rows(context)
    work = _work(rows)
    rows.begin(cut)
    totals = work.along()
    rows.k.trigger()
    if cut.split == 1:
        rows.finish(totals[-1], rows.rows)
        return (rows.launch(),)
    memory = [scratch(rows, cut.split, t.dtype) for t in totals]
    for place, t in zip(memory, totals, strict=True):
        rows.put_part(place, t)
    return (rows.launch(), _join(context, memory, cut.split))


def _join(context: GpuContext, memory: list[TritonScratch], parts: int) -> Launch:
    """Generate a kernel that combines the totals of the parts of rows."""
    rows = _rows(context)
    work = _work(rows)
    rows.begin(joining(field(rows), parts))
    totals = work.joined_parts(memory, parts)
    rows.k.trigger()
    rows.finish(totals[-1], rows.rows)
    return rows.launch()


def _work(rows: TritonRows) -> _Total | _Argument:
    return _Argument(rows) if isinstance(rows.anchor.op, ArgReduction) else _Total(rows)


class _Total:
    """A sum, a product or an extreme."""

    def __init__(self, rows: TritonRows) -> None:
        self.rows, self.how = rows, _HOW[type(rows.anchor.op)]
        self.dtype = wide(rows.operand.dtype)
        self.nothing = neutral(self.how, self.dtype)

    def along(self) -> list[Scalar]:
        """Return the total of each row, or of the program's part of it."""
        rows = self.rows
        (block,) = rows.fold(
            [rows.s.constant(self.nothing, self.dtype)],
            lambda b: [rows.read(b, self.dtype, self.nothing)],
            lambda x, y: [joined(rows, self.how, x[0], y[0])],
        )
        return [total(rows, self.how, block)]

    def joined_parts(self, memory: list[TritonScratch], parts: int) -> list[Scalar]:
        """The total of each row from those of its parts."""
        return [total(self.rows, self.how, self.rows.parts(memory[0], parts, self.nothing))]


class _Argument:
    """ArgMax or ArgMin: values and indices are carried side by side."""

    def __init__(self, rows: TritonRows) -> None:
        op = rows.anchor.op
        assert isinstance(op, ArgReduction)
        self.rows, self.last = rows, op.last
        self.how = LARGEST if isinstance(op, ArgMax) else SMALLEST
        self.dtype = wide(rows.operand.dtype)
        self.nothing = neutral(self.how, self.dtype)
        # Beyond the row's end: the worst value, and a larger index than any.
        self.never = -1 if op.last else 2**31 - 1

    def along(self) -> list[Scalar]:
        s = self.rows.s
        starts = [s.constant(self.nothing, self.dtype), s.constant(self.never, i32)]
        best, place = self.rows.fold(starts, self._read, self._better)
        return self._chosen(best, place)

    def joined_parts(self, memory: list[TritonScratch], parts: int) -> list[Scalar]:
        best = self.rows.parts(memory[0], parts, self.nothing)
        return self._chosen(best, self.rows.parts(memory[1], parts, self.never))

    def _read(self, block: RowBlock) -> list[Scalar]:
        place = self.rows.masked(self.rows.named(block.number, i32), block, self.never)
        return [self.rows.read(block, self.dtype, self.nothing), place]

    def _better(self, x: list[Scalar], y: list[Scalar]) -> list[Scalar]:
        s = self.rows.s
        (best, where), (other, there) = x, y
        better = s.less(best, other) if self.how == LARGEST else s.less(other, best)
        if self.dtype.is_float:
            # NaN precedes everything.
            better = s.or_(better, s.and_(s.is_nan(other), s.not_(s.is_nan(best))))
        nearer = s.less(where, there) if self.last else s.less(there, where)
        take = s.or_(better, s.and_(self._same(best, other), nearer))
        return [s.select(take, other, best), s.select(take, there, where)]

    def _same(self, x: Scalar, y: Scalar) -> Scalar:
        """Return True if two values are equal, or both NaN."""
        s = self.rows.s
        equal = s.equal(x, y)
        return s.or_(equal, s.and_(s.is_nan(x), s.is_nan(y))) if x.dtype.is_float else equal

    def _chosen(self, best: Scalar, place: Scalar) -> list[Scalar]:
        """Return the best of each row, and its first or last index."""
        rows, s = self.rows, self.rows.s
        top = total(rows, self.how, best)
        # Broadcast first: the interpreter cannot broadcast the result of a comparison.
        every = rows.named(rows.w.let(f"tl.broadcast_to({top.reg}, {best.reg}.shape)"), self.dtype)
        there = s.select(self._same(best, every), place, s.constant(self.never, i32))
        return [top, total(rows, LARGEST if self.last else SMALLEST, there)]
