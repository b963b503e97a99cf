"""Reductions along axes: totals, positions of extremes, running sums and products.

Registers hold signed integers; unsigned order reads them as unsigned. Only Triton's sum, maximum
and minimum reduce a block, which every backend does in registers. They ignore NaN, so NaN is
detected separately.
"""

from __future__ import annotations

import math
from functools import partial

from monograph.codegen.common.registry import any_view, is_real
from monograph.codegen.triton.emit.writer import TYPES, literal, power, unsigned
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.rows.row_tiling import RowTiling, joining_tiling, row_tilings
from monograph.codegen.triton.rows.rows import (
    RowBlock,
    RowWork,
    TritonRows,
    field,
    row_candidates,
    scratch,
    wide,
)
from monograph.ir import DType, Value
from monograph.ir.dtype import BOOL, COMPLEX, UINT, i32
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
from monograph.program.index import Index, counter

SUM, PRODUCT, LARGEST, SMALLEST = "sum", "product", "largest", "smallest"
_PRODUCT = "@triton.jit\ndef product(x, y):\n    return x * y\n\n\n"


def neutral(how: str, dtype: DType) -> float | int:
    """Return the neutral element."""
    if how in (SUM, PRODUCT):
        return int(how == PRODUCT)
    low, high = _range(dtype)
    return low if how == LARGEST else high


def _range(dtype: DType) -> tuple[float | int, float | int]:
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype.kind == BOOL:
        return 0, 1
    if dtype.kind == UINT:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def joined(rows: TritonRows, how: str, x: Scalar, y: Scalar) -> Scalar:
    """Combine two totals, element by element."""
    s = rows.s
    return {SUM: s.add, PRODUCT: s.mul, LARGEST: s.max, SMALLEST: s.min}[how](x, y)


def total(rows: TritonRows, how: str, x: Scalar, nan: bool = True) -> Scalar:
    """Return the total of each row of a block; `nan` if a NaN must be propagated."""
    if how in (SUM, PRODUCT):
        return _made(rows, x, along(rows, how, str(x.reg)))
    if x.dtype.kind == UINT and x.dtype.bits >= 32:
        text = along(rows, how, unsigned(x.reg))
        return _made(rows, x, f"{text}.to({TYPES[x.reg.type]}, bitcast=True)")
    best = _made(rows, x, along(rows, how, str(x.reg)))
    if not nan or not x.dtype.is_float:
        return best
    seen = rows.w.let(along(rows, LARGEST, f"({x.reg} != {x.reg}).to(tl.int32)"))
    return _made(rows, x, f"tl.where({seen} != 0, {literal(math.nan, x.reg.type)}, {best.reg})")


def along(rows: TritonRows, how: str, text: str) -> str:
    """The expression of a reduction along the elements of a block."""
    rest = "0" if rows.single else "1, keep_dims=True"
    if how == PRODUCT:
        rows.helpers["product"] = _PRODUCT
        axis, _, keep = rest.partition(", ")
        return f"tl.reduce({text}, {axis}, product{', ' + keep if keep else ''})"
    name = {SUM: "tl.sum", LARGEST: "tl.max", SMALLEST: "tl.min"}[how]
    return f"{name}({text}, {rest})"


def _made(rows: TritonRows, like: Scalar, text: str) -> Scalar:
    return Scalar(rows.w.set(like.reg.type, text), like.dtype)


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
    return variants("rows", row_tilings(field(rows)), partial(_kernels, context))


def _rows(context: GpuContext) -> TritonRows:
    op = context.anchor.op
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
    rows.begin(joining_tiling(field(rows), parts))
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


@kernel_for(Cumulative, when=is_real, readable=any_view)
def scan_candidates(context: GpuContext) -> list[Candidate]:
    return row_candidates(context, _Scan)


class _ScanRows(TritonRows):
    """Rows that may be reversed, and whose elements may be replaced by their predecessors."""

    def _nest(self) -> None:
        super()._nest()
        op = self.anchor.op
        assert isinstance(op, Cumulative)
        # The result's own index; without elements or with one there is nothing to reverse.
        self.out_at = self.at
        if not self.reduced:
            return
        (along,) = self.reduced
        size, step = along.extent, -1 if op.reverse else 1
        shift = int(op.exclusive)
        read = Index(size - 1 + shift if op.reverse else -shift, ((along, step),))
        written = Index(size - 1 if op.reverse else 0, ((along, step),))
        self.at = tuple(read if d == op.axis else i for d, i in enumerate(self.at))
        if op.exclusive:
            # The first is masked: it has no predecessor.
            later = counter(along.name, size - 1) + 1
            self.elements.narrowed[along] = later
        self.out_at = tuple(written if d == op.axis else i for d, i in enumerate(self.out_at))


class _Scan(RowWork):
    def __init__(self, context: GpuContext) -> None:
        op = context.anchor.op
        assert isinstance(op, Cumulative)
        self.op, self.how = op, SUM if isinstance(op, CumSum) else PRODUCT
        self.rows, self.dtype = _ScanRows(context, (op.axis,)), wide(context.anchor.dtype)

    def alone(self, cut: RowTiling) -> Launch:
        self.rows.begin(cut)
        start = self.rows.s.constant(self.op.neutral, self.dtype)
        self._run(self.rows.for_each_row(start))
        return self.rows.launch()

    def totals_of_rows(self) -> list[Scalar]:
        rows = self.rows
        (block,) = rows.fold(
            [rows.s.constant(self.op.neutral, self.dtype)],
            lambda b: [self._read(b)],
            lambda x, y: [joined(rows, self.how, x[0], y[0])],
        )
        return [total(rows, self.how, block)]

    def from_parts(self, cut: RowTiling, memory: list[TritonScratch]) -> Launch:
        """Generate running totals of parts of rows, which start at the end of the parts before."""
        rows = self.rows
        rows.begin(cut)
        every = rows.parts(memory[0], cut.split, self.op.neutral)
        kind = every.reg.type
        before = f"{rows.across(1 << (cut.split - 1).bit_length())} < {rows.part}"
        text = f"tl.where({before}, {every.reg}, {literal(self.op.neutral, kind)})"
        earlier = Scalar(rows.w.set(kind, text), self.dtype)
        self._run(str(total(rows, self.how, earlier).reg))
        return rows.launch()

    def _read(self, block: RowBlock) -> Scalar:
        """Load elements, or if exclusive their predecessors: none for the first."""
        rows = self.rows
        if not self.op.exclusive:
            return rows.read(block, self.dtype, self.op.neutral)
        mask = rows.w.let(f"{block.number} > 0", "m")
        if block.mask:
            mask = rows.w.let(f"{mask} & {block.mask}", "m")
        return rows.read(rows.narrowed(block, mask), self.dtype, self.op.neutral)

    def _run(self, start: str) -> None:
        rows = self.rows
        function = "tl.cumsum" if self.how == SUM else "tl.cumprod"
        axis = 0 if rows.single else 1

        def step(block: RowBlock, names: list[str]) -> list[str]:
            x = self._read(block)
            carried = rows.named(names[0], self.dtype)
            running = Scalar(rows.w.set(x.reg.type, f"{function}({x.reg}, {axis})"), self.dtype)
            after = joined(rows, self.how, carried, total(rows, self.how, x))
            rows.finish(joined(rows, self.how, running, carried), block.point)
            return [str(after.reg)]

        rows.loop([start], step)
        rows.k.trigger()
