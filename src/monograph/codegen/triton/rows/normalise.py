"""LayerNorm, RMSNorm, softmax and log-softmax: rows in registers, or read twice.

Deviations of a LayerNorm are from a pivot, a mean of some elements of a row. They are small beside
it, so that neither a large mean nor its rounding affects their squares. With n elements, a pivot p,
S = sum(x - p) and Q = sum((x - p)^2), the mean is p + S / n and the variance Q / n - (S / n)^2.
Parts of a row have their own pivots: relative to another pivot that is d lower, S becomes S + n d
and Q becomes Q + 2 d S + n d^2.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, TritonScratch, kernel_for
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.rows.reduce import LARGEST, SUM, total
from monograph.codegen.triton.rows.row_tiling import RowTiling
from monograph.codegen.triton.rows.rows import RowBlock, RowWork, row_candidates
from monograph.ir.sizes import is_open
from monograph.ops.composite import LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.scalar import Scalar


@kernel_for(LayerNorm, RmsNorm, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return row_candidates(context, _Norm)


class _Norm(RowWork):
    def __init__(self, context: GpuContext) -> None:
        op = context.anchor.op
        assert isinstance(op, (LayerNorm, RmsNorm))
        super().__init__(context, op.axes)
        self.op, self.centred = op, isinstance(op, LayerNorm)
        self.totals = 3 if self.centred else 1

    # Kernels

    def alone(self, cut: RowTiling) -> Launch:
        """Generate a kernel whose programs have whole rows: in registers, or read twice."""
        self.rows.begin(cut)
        self._write_all(self.totals_of_rows())
        return self.rows.launch()

    def from_parts(self, cut: RowTiling, memory: list[TritonScratch]) -> Launch:
        rows, s = self.rows, self.rows.s
        rows.begin(cut)
        found = [rows.parts(m, cut.split, 0.0) for m in memory]
        if not self.centred:
            self._write_all([total(rows, SUM, found[0])])
            return rows.launch()
        sums, squares, pivots = found
        sizes = self._sizes(cut)
        pivot = s.mul(total(rows, SUM, pivots), self._number(1 / cut.split))
        # Beyond the last part pivot and size are 0.
        d = s.sub(pivots, pivot)
        moved = s.fma(sizes, d, sums)
        squares = s.fma(d, s.add(sums, moved), squares)
        self._write_all([total(rows, SUM, moved), total(rows, SUM, squares), pivot])
        return rows.launch()

    def _sizes(self, cut: RowTiling) -> Scalar:
        """Return the number of elements of each part of a row."""
        rows = self.rows
        part, chunk = rows.across(power(cut.split)), rows.chunk
        left = f"tl.maximum({rows.length} - {part} * {chunk}, 0)"
        kind = "tl.float64" if self.dtype.bits == 64 else "tl.float32"
        return rows.named(rows.w.let(f"tl.minimum({left}, {chunk}).to({kind})"), self.dtype)

    # Steps

    def _number(self, value: float) -> Scalar:
        return self.rows.s.constant(value, self.dtype)

    def totals_of_rows(self) -> list[Scalar]:
        """Return each row's sum of squares; centred: of deviations, with their sum and pivot."""
        rows, s = self.rows, self.rows.s
        zero = self._number(0.0)
        if not self.centred:
            (block,) = rows.fold(
                [zero],
                lambda b: [s.mul(x := self._read(b), x)],
                lambda x, y: [s.add(x[0], y[0])],
            )
            return [total(rows, SUM, block)]
        pivot = self._pivot()

        def deviate(block: RowBlock) -> list[Scalar]:
            d = rows.masked(s.sub(self._read(block), pivot), block, 0.0)
            return [d, s.mul(d, d)]

        both = rows.fold([zero, zero], deviate, lambda x, y: [s.add(x[0], y[0]), s.add(x[1], y[1])])
        return [*(total(rows, SUM, x) for x in both), pivot]

    def _pivot(self) -> Scalar:
        """Return the mean of the first block, or of the whole row if it is one block."""
        rows, s = self.rows, self.rows.s
        block = rows.block("0")
        sums = total(rows, SUM, self._read(block))
        if rows.cut.split == 1:
            return s.mul(sums, self._first_share())
        left = f"{rows.length} - {rows.part} * {rows.chunk}"
        kind = "tl.float64" if self.dtype.bits == 64 else "tl.float32"
        size = rows.w.let(f"tl.minimum({left}, {rows.cut.block}).to({kind})")
        return s.div(sums, rows.named(size, self.dtype))

    def _first_share(self) -> Scalar:
        """Return 1 / the number of elements of the first block of a row."""
        rows = self.rows
        if not is_open(rows.length):
            return self._number(1 / min(rows.cut.block, rows.length))
        kind = "tl.float64" if self.dtype.bits == 64 else "tl.float32"
        size = rows.w.let(f"tl.minimum({rows.length}, {rows.cut.block}).to({kind})")
        return rows.s.div(self._number(1.0), rows.named(size, self.dtype))

    def _read(self, block: RowBlock) -> Scalar:
        return self.rows.read(block, self.dtype, 0.0)

    def _write_all(self, totals: list[Scalar]) -> None:
        rows, s = self.rows, self.rows.s
        share, epsilon = rows.inverse(rows.length, self.dtype), self._number(self.op.epsilon)
        if self.centred:
            rest, squares = (s.mul(t, share) for t in totals[:2])
            # Rounding may make the variance of equal elements negative.
            spread = s.max(s.sub(squares, s.mul(rest, rest)), self._number(0.0))
        else:
            spread = s.mul(totals[0], share)
        scale = s.div(self._number(1.0), s.sqrt(s.add(spread, epsilon)))
        rows.k.trigger()

        def step(block: RowBlock, _: list[str]) -> list[str]:
            x = self._read(block)
            if self.centred:
                x = s.sub(s.sub(x, totals[2]), rest)
            self._write(block, s.mul(x, scale))
            return []

        rows.loop([], step)

    def _write(self, block: RowBlock, y: Scalar) -> None:
        s = self.rows.s
        given = self.rows.parameters_at(block, self.dtype)
        if len(given) == 2:
            y = s.fma(y, given[0], given[1])
        elif given:
            y = s.mul(y, given[0])
        self.rows.finish(y, block.point)


@kernel_for(Softmax, LogSoftmax, readable=any_view)
def softmax_candidates(context: GpuContext) -> list[Candidate]:
    return row_candidates(context, _Softmax)


class _Softmax(RowWork):
    totals = 2

    def __init__(self, context: GpuContext) -> None:
        op = context.anchor.op
        assert isinstance(op, (Softmax, LogSoftmax))
        super().__init__(context, (op.axis,))
        self.logarithm = isinstance(op, LogSoftmax)

    # Kernels

    def alone(self, cut: RowTiling) -> Launch:
        """Generate a kernel that reads rows once if its blocks hold them, else twice."""
        rows, s = self.rows, self.rows.s
        rows.begin(cut)
        if not rows.held:
            self._write_all(*self.totals_of_rows())
            return rows.launch()
        block = rows.block("0")
        x = self._read(block)
        # NaN may be ignored here: the sum contains it.
        below = s.sub(x, total(rows, LARGEST, x, nan=False))
        weights = self._exp(below)
        sums = total(rows, SUM, weights)
        rows.k.trigger()
        self._write(block, below if self.logarithm else weights, self._scale(sums))
        return rows.launch()

    def from_parts(self, cut: RowTiling, memory: list[TritonScratch]) -> Launch:
        rows, s = self.rows, self.rows.s
        rows.begin(cut)
        tops = rows.parts(memory[0], cut.split, -math.inf)
        sums = rows.parts(memory[1], cut.split, 0.0)
        top = total(rows, LARGEST, tops, nan=False)
        sums = s.mul(sums, self._exp(s.sub(tops, self._finite(top))))
        self._write_all(top, total(rows, SUM, sums))
        return rows.launch()

    # Steps

    def _read(self, block: RowBlock) -> Scalar:
        return self.rows.read(block, self.dtype, -math.inf)

    def totals_of_rows(self) -> list[Scalar]:
        """Return the maximum, and the sum of e^(x - maximum), rescaled at each larger maximum."""
        rows, s = self.rows, self.rows.s
        lowest, nothing = (s.constant(n, self.dtype) for n in (-math.inf, 0.0))
        wide_zero = f"tl.broadcast_to({nothing.reg}, {rows.shape(rows.cut.block)})"

        def step(block: RowBlock, names: list[str]) -> list[str]:
            top, sums = (rows.named(n, self.dtype) for n in names)
            x = self._read(block)
            here = total(rows, LARGEST, x, nan=False)
            new = s.select(s.less(top, here), here, top)
            base = self._finite(new)
            weights = self._exp(s.sub(x, base))
            shrunk = s.mul(sums, self._exp(s.sub(top, base)))
            return [str(new.reg), str(s.add(shrunk, weights).reg)]

        top, sums = rows.loop([rows.for_each_row(lowest), wide_zero], step)
        return [rows.named(top, self.dtype), total(rows, SUM, rows.named(sums, self.dtype))]

    def _finite(self, top: Scalar) -> Scalar:
        """Return the subtrahend: if all elements so far are -inf, they must not become NaN yet."""
        s = self.rows.s
        lowest = s.constant(-math.inf, self.dtype)
        return s.select(s.equal(top, lowest), s.constant(0.0, self.dtype), top)

    def _write_all(self, top: Scalar, sums: Scalar) -> None:
        rows, s = self.rows, self.rows.s
        scale = self._scale(sums)
        rows.k.trigger()

        def step(block: RowBlock, _: list[str]) -> list[str]:
            below = s.sub(self._read(block), top)
            self._write(block, below if self.logarithm else self._exp(below), scale)
            return []

        rows.loop([], step)

    def _scale(self, sums: Scalar) -> Scalar:
        s = self.rows.s
        if self.logarithm:
            return Scalar(s.log(self._rough(sums)).reg, self.dtype)
        return s.div(s.constant(1.0, self.dtype), sums)

    def _write(self, block: RowBlock, x: Scalar, scale: Scalar) -> None:
        s = self.rows.s
        self.rows.finish(s.sub(x, scale) if self.logarithm else s.mul(x, scale), block.point)

    def _exp(self, x: Scalar) -> Scalar:
        """e^x for numbers below the maximum.

        An operand that is a product may be subtracted from before it is rounded: numbers beyond
        2^24 can then exceed the maximum by so much that e^x is infinite.
        """
        s = self.rows.s
        zero = s.constant(0.0, self.dtype)
        x = s.select(s.less(zero, x), zero, x)
        return Scalar(s.exp(self._rough(x)).reg, self.dtype)

    def _rough(self, x: Scalar) -> Scalar:
        """Return a number whose functions need no more bits than the result has."""
        return Scalar(x.reg, self.rows.anchor.dtype)
