"""Running sums and products along an axis: block by block, with the earlier total carried."""

from __future__ import annotations

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.writer import literal
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    Launch,
    TritonScratch,
    Work,
    kernel_for,
)
from monograph.codegen.triton.rows.block_reduce import PRODUCT, SUM, joined, total
from monograph.codegen.triton.rows.row_tiling import RowTiling, cuts
from monograph.codegen.triton.rows.rows import RowBlock, TritonRows, field, scratch, wide
from monograph.ir import Value
from monograph.ir.dtype import COMPLEX
from monograph.ops.reduce import CumSum, Cumulative
from monograph.ops.scalar import Scalar
from monograph.program.index import Index, counter


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Cumulative) and anchor.dtype.kind != COMPLEX


@kernel_for(Cumulative, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    rows = _Scan(context).rows
    return [
        Candidate(f"rows {c}", lambda c=c: _kernels(context, c))  # type: ignore[misc]
        for c in cuts(field(rows))
    ]


def _kernels(context: GpuContext, cut: RowTiling) -> tuple[Work, ...]:
    work = _Scan(context)
    if cut.split == 1:
        return (work.alone(cut),)
    memory = scratch(work.rows, cut.split, work.dtype)
    return (work.parts(cut, memory), _Scan(context).from_parts(cut, memory))


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


class _Scan:
    def __init__(self, context: GpuContext) -> None:
        anchor = context.step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Cumulative)
        self.op = anchor.op
        self.how = SUM if isinstance(self.op, CumSum) else PRODUCT
        self.rows = _ScanRows(context, (self.op.axis,))
        self.dtype = wide(anchor.dtype)

    def alone(self, cut: RowTiling) -> Launch:
        """Generate a kernel whose programs have whole rows."""
        self.rows.begin(cut)
        start = self.rows.s.constant(self.op.neutral, self.dtype)
        self._run(self.rows.for_each_row(start))
        return self.rows.launch()

    def parts(self, cut: RowTiling, memory: TritonScratch) -> Launch:
        """Generate the totals of parts of rows."""
        rows = self.rows
        rows.begin(cut)
        (block,) = rows.fold(
            [rows.s.constant(self.op.neutral, self.dtype)],
            lambda b: [self._read(b)],
            lambda x, y: [joined(rows, self.how, x[0], y[0])],
        )
        rows.k.trigger()
        rows.put_part(memory, total(rows, self.how, block))
        return rows.launch()

    def from_parts(self, cut: RowTiling, memory: TritonScratch) -> Launch:
        """Generate running totals of parts of rows, which start at the end of the parts before."""
        rows = self.rows
        rows.begin(cut)
        every = rows.parts(memory, cut.split, self.op.neutral)
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
