"""Rows: the common base of reductions, softmax, norms and running totals.

Some axes of an operand are kept and some are reduced; a row is the elements along the reduced axes,
at one index of the kept ones. A program holds a block of elements, [rows, elements of each], and
processes its rows block by block. The device's lanes run along the contiguous axis: inside a row,
or across rows. A long row may be split into parts, each with its own program: a first kernel then
stores totals of the parts, and a second one combines them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import register
from monograph.codegen.triton.emit.elements import BlockAxis, Point
from monograph.codegen.triton.emit.writer import literal
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, TritonScratch, variants
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.rows.row_tiling import Field, RowTiling, row_tilings
from monograph.ir import DType, Value
from monograph.ir.dtype import f32, f64, i32
from monograph.ir.sizes import divides, hint_of, is_open, proven
from monograph.ops.scalar import Scalar
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import (
    Element,
    Indices,
    Resolved,
    aligned,
    positions_read,
    resolve,
    result_index,
    row_nest,
)
from monograph.program.index import Counter, Index, flatten

NARROWEST = 8
"""The fewest neighbouring rows for which lanes run across rows."""


@dataclass(frozen=True)
class RowBlock:
    """Some elements of a program's rows: their indices, and their mask."""

    point: Point
    number: str
    """Their indices along the row."""
    mask: str | None


class TritonRows:
    """The rows of an anchor's first operand, in a kernel that is being written."""

    def __init__(self, context: GpuContext, axes: Sequence[int]) -> None:
        region = context.step.region
        self.anchor, self.outputs = context.anchor, region.outputs
        self.operand: Value = context.anchor.inputs[0]
        self.axes = tuple(axes)
        self.k = context.kernel()
        self.w = self.k.w
        self.elements = self.k.elements()
        self.s = self.elements.scalars
        self.elements.given[self.anchor] = Scalar(Reg("", ""), self.anchor.dtype)
        self.helpers: dict[str, str] = {}
        self._nest()
        self._choose_lane()

    # The nest

    def _nest(self) -> None:
        """Compute the indices of the operand and the result, in as few counters as possible."""
        shape = self.operand.tensor.static
        self.empty = 0 in shape
        nest = row_nest(shape, self.axes, self._positions)
        self.at, self.kept, self.reduced = nest.at, nest.kept, nest.reduced
        self.out_at = self._result_index(self.at)
        self.count = math.prod(c.extent for c in self.kept)
        self.length = math.prod(c.extent for c in self.reduced)

    def _result_index(self, at: Indices) -> Indices:
        return result_index(self.operand, self.anchor, self.axes, at)

    @property
    def same_shape(self) -> bool:
        """True if there is a result for every element, not only one for every row."""
        return self.anchor.tensor.static == self.operand.tensor.static

    def parameters(self, at: Indices) -> list[Element]:
        """The anchor's other operands at an element."""
        return [Element(v, aligned(at, v.tensor.static)) for v in self.anchor.inputs[1:]]

    def _parameter_order(self, at: Indices) -> list[Resolved]:
        return resolve(self.parameters(at), lambda v: v in self.elements.inputs, is_view)

    def _positions(self, at: Indices) -> list[Index]:
        """Every position in memory that the kernel reads or writes."""
        storage, out = self.elements.storage, self._result_index(at)
        orders = [
            self.elements.plan((self.operand,), at),
            self.elements.plan(self.outputs, out),
            self._parameter_order(at),
        ]
        written = [flatten(out, storage[v].strides) for v in self.outputs]
        return [p for order in orders for p in self._read_by(order)] + written

    def _read_by(self, order: list[Resolved]) -> list[Index]:
        return positions_read(order, self.elements.storage)

    def _choose_lane(self) -> None:
        """Run lanes along the counter that most accesses run along; the innermost of equal ones."""
        every = sorted([*self.kept, *self.reduced], key=lambda c: (len(c.name), c.name))
        positions = []
        if not self.empty:
            # Stores of one result per row are rare; only accesses per element count.
            positions = self._read_by(self.elements.plan((self.operand,), self.at))
            if self.same_shape:
                positions = self._positions(self.at)

        def use(c: Counter) -> tuple[bool, int, int]:
            runs = sum(_is_unit(p.factor(c)) for p in positions)
            return hint_of(c.extent) >= NARROWEST, runs, every.index(c)

        lane = max(every, key=use, default=None)
        self.lane = lane if lane in self.kept and use(lane)[1] else None
        """The kept counter that lanes run along; None if they run along rows."""
        if lane in self.reduced:
            self.reduced = [*(c for c in self.reduced if c is not lane), lane]

    # A kernel

    def begin(self, cut: RowTiling) -> None:
        """Compute the rows of a program, and its loop along them."""
        self.cut = cut
        self.single = cut.rows == 1
        self.part = self.k.program_id(1) if cut.split > 1 else "0"
        pid = self.k.program_id()
        if self.lane is None:
            self._flat_rows(pid)
        else:
            self._neighbours(pid, self.lane)
        self.k.wait()

    def _flat_rows(self, pid: str) -> None:
        """Number rows in row-major order."""
        size, w = self.cut.rows, self.w
        number = pid if size == 1 else self._down(f"{pid} * {size} + tl.arange(0, {size})")
        mask = None if divides(size, self.count) else w.let(f"{number} < {self.count}", "m")
        self.number, self.row_mask = number, mask
        self.rows = self._spread(self.kept, number, mask)

    def _neighbours(self, pid: str, lane: Counter) -> None:
        """Number contiguous rows along one counter, at one index of the others."""
        size, w = self.cut.rows, self.w
        blocks = -(-lane.extent // size)
        outer = [c for c in self.kept if c is not lane]
        place = w.let(f"{pid} // {blocks}", "q") if outer else "0"
        first = w.let(f"{pid} % {blocks}", "r") if outer else pid
        text = first if size == 1 else self._down(f"{first} * {size} + tl.arange(0, {size})")
        mask = None if divides(size, lane.extent) else w.let(f"{text} < {lane.extent}", "m")
        self.number = w.let(f"{place} * {lane.extent} + {text}", "i") if outer else text
        self.row_mask = mask
        self.rows = self._spread(outer, place, None) | {lane: BlockAxis(text, mask)}

    def _down(self, text: str) -> str:
        return self.w.let(f"({text})[:, None]", "r")

    def _spread(
        self, nest: Sequence[Counter], number: str, mask: str | None
    ) -> dict[Counter, BlockAxis]:
        """Return the counters of a nest from the number of an iteration."""
        point = {}
        step = math.prod(c.extent for c in nest)
        for place, c in enumerate(nest):
            step //= c.extent
            text = number if step == 1 else self.w.let(f"({number}) // {step}", "q")
            if place:
                text = self.w.let(f"({text}) % {c.extent}", "r")
            point[c] = BlockAxis(text, mask)
        return point

    def across(self, size: int) -> str:
        """Return the numbers below a size, along the second axis of blocks."""
        text = f"tl.arange(0, {size})"
        return self.w.let(text if self.single else f"{text}[None, :]", "k")

    def shape(self, size: int) -> str:
        """Return the shape of a block of `size` elements of each row."""
        return f"({size},)" if self.single else f"({self.cut.rows}, {size})"

    def for_each_row(self, x: Scalar) -> str:
        """Return a single number as a total of each row."""
        return str(x.reg) if self.single else f"tl.broadcast_to({x.reg}, ({self.cut.rows}, 1))"

    def launch(self) -> Launch:
        """The finished kernel."""
        size = self.cut.rows
        blocks = -(-self.count // size)
        if self.lane is not None:
            blocks = self.count // self.lane.extent * -(-self.lane.extent // size)
        made = self.k.launch((blocks, self.cut.split), self.cut.warps)
        return replace(made, source="".join([*self.helpers.values(), made.source]))

    # Along rows

    @property
    def trips(self) -> int:
        """The blocks of a row, or of a part of it, that a program processes."""
        return self.cut.trips(self.length)

    @property
    def held(self) -> bool:
        """True if a program has one block of a row; rows of an open length are looped over."""
        return not is_open(self.length) and self.trips == 1

    @property
    def chunk(self) -> int:
        """The elements of a row that a program processes, and some beyond its end."""
        return self.trips * self.cut.block

    def block(self, start: str) -> RowBlock:
        """Return elements from an offset in this program's part of the rows on."""
        steps = self.across(self.cut.block)
        if self.cut.split > 1:
            start = self.w.let(f"{self.part} * {self.chunk} + {start}", "k")
        number = steps if start == "0" else self.w.let(f"{start} + {steps}", "k")
        whole = proven(self.chunk * self.cut.split, "==", self.length)
        mask = None if whole else self.w.let(f"{number} < {self.length}", "m")
        return RowBlock(self.rows | self._spread(self.reduced, number, mask), number, mask)

    def narrowed(self, block: RowBlock, mask: str) -> RowBlock:
        """Return a block with a smaller mask."""
        along = {c: BlockAxis(block.point[c].text, mask) for c in self.reduced}
        return RowBlock({**block.point, **along}, block.number, mask)

    def loop(
        self, starts: Sequence[str], body: Callable[[RowBlock, list[str]], list[str]]
    ) -> list[str]:
        """Run a body over the blocks of the rows; it computes new carried values from the old."""
        if self.held:
            return body(self.block("0"), list(starts))
        names = [self.w.name("t") for _ in starts]
        for name, start in zip(names, starts, strict=True):
            self.w.line(f"{name} = {start}")
        with self.w.block(f"for k0 in range(0, {self.chunk}, {self.cut.block})"):
            made = [self.w.let(x) for x in body(self.block("k0"), names)]
            for name, new in zip(names, made, strict=True):
                self.w.assign(name, new)
        return names

    def fold(
        self,
        starts: Sequence[Scalar],
        make: Callable[[RowBlock], list[Scalar]],
        join: Callable[[list[Scalar], list[Scalar]], list[Scalar]],
    ) -> list[Scalar]:
        """Combine blocks of the rows element by element; one block remains."""
        if self.held:
            return make(self.block("0"))
        shape = self.shape(self.cut.block)
        first = [f"tl.broadcast_to({t.reg}, {shape})" for t in starts]

        def step(block: RowBlock, names: list[str]) -> list[str]:
            old = [self.named(n, t.dtype) for n, t in zip(names, starts, strict=True)]
            return [str(t.reg) for t in join(old, make(block))]

        names = self.loop(first, step)
        return [self.named(n, t.dtype) for n, t in zip(names, starts, strict=True)]

    def inverse(self, count: int, dtype: DType) -> Scalar:
        """Return 1 / a number of elements."""
        if not is_open(count):
            return self.s.constant(1 / count, dtype)
        return self.s.div(self.s.constant(1.0, dtype), self.s.constant(count, dtype))

    def named(self, name: str, dtype: DType) -> Scalar:
        """Return the value of a variable."""
        return Scalar(Reg(name, register(dtype)), dtype)

    # Elements

    def read(self, block: RowBlock, dtype: DType, neutral: float | int) -> Scalar:
        """Load elements of the operand in the type of totals; `neutral` beyond the row's end."""
        order = self.elements.plan((self.operand,), self.at)
        found = self.elements.emit(order, block.point)[Element(self.operand, self.at)]
        return self.masked(self._widened(found, dtype), block, neutral)

    def _widened(self, x: Scalar, dtype: DType) -> Scalar:
        # Narrow floats are computed in f32 already.
        return Scalar(x.reg, dtype) if dtype == f32 else self.s.cast(x, dtype)

    def masked(self, x: Scalar, block: RowBlock, neutral: float | int) -> Scalar:
        """Return a full block of numbers; `neutral` beyond the row's end."""
        kind = register(x.dtype)
        text = self.w.let(f"tl.broadcast_to({x.reg}, {self.shape(self.cut.block)})", "x")
        if block.mask is not None:
            text = f"tl.where({block.mask}, {text}, {literal(neutral, kind)})"
        return Scalar(self.w.set(kind, text), x.dtype)

    def parameters_at(self, block: RowBlock, dtype: DType) -> list[Scalar]:
        """Load the anchor's other operands at the elements of a block."""
        made = self.elements.emit(self._parameter_order(self.at), block.point)
        return [Scalar(made[e].reg, dtype) for e in self.parameters(self.at)]

    def finish(self, result: Scalar, point: Point) -> None:
        """Emit the epilogue, and the stores."""
        e = self.elements
        e.given[self.anchor] = self._stored(result)
        made = e.emit(e.plan(self.outputs, self.out_at), point)
        for value in self.outputs:
            if self.same_shape and proven(self.count * self.length, "==", 1):
                # Store a block of one element: its position alone would be a scalar.
                text = e.scalars.encoded(made[Element(value, self.out_at)])
                self.w.line(f"tl.store({e.pointers[value]} + tl.arange(0, 1), {text})")
            else:
                e.store(value, self.out_at, made[Element(value, self.out_at)], point)

    def _stored(self, x: Scalar) -> Scalar:
        """A result in its own type."""
        dtype = self.anchor.dtype
        return Scalar(x.reg, dtype) if x.dtype == f32 else self.s.cast(x, dtype)

    # Parts of rows

    def put_part(self, scratch: TritonScratch, total: Scalar) -> None:
        """Store the total of a part of each row for the next kernel."""
        where = f"{self.k.pointer(scratch)} + ({self.number}) * {self.cut.split} + {self.part}"
        mask = f", mask={self.row_mask}" if self.row_mask else ""
        self.w.line(f"tl.store({where}, {total.reg}{mask})")

    def parts(self, scratch: TritonScratch, count: int, neutral: float | int) -> Scalar:
        """Load the totals of the parts of each row, `neutral` beyond their count."""
        size = 1 << (count - 1).bit_length()
        number = self.across(size)
        beyond = f"({number} < {count})" if size > count else None
        masks = [m for m in (self.row_mask, beyond) if m]
        mask = self.w.let(" & ".join(masks), "m") if masks else None
        where = f"{self.k.pointer(scratch)} + ({self.number}) * {count} + {number}"
        kind = register(scratch.dtype)
        other = literal(neutral, kind)
        text = f"tl.load({where}, mask={mask}, other={other})" if mask else f"tl.load({where})"
        return Scalar(self.w.set(kind, text), scratch.dtype)


class RowWork:
    """The kernels of an op along rows: one for whole rows, or two if programs share rows."""

    totals = 1
    """The number of totals of a part that the first kernel stores."""

    def __init__(self, context: GpuContext, axes: Sequence[int]) -> None:
        self.rows = TritonRows(context, axes)
        self.dtype = wide(context.anchor.dtype)

    def alone(self, cut: RowTiling) -> Launch:
        """Generate a kernel whose programs have whole rows."""
        raise NotImplementedError

    def from_parts(self, cut: RowTiling, memory: list[TritonScratch]) -> Launch:
        """Generate the result for parts of rows, from the totals of all of them."""
        raise NotImplementedError

    def totals_of_rows(self) -> list[Scalar]:
        """Return the totals of each row, or of the program's part of it."""
        raise NotImplementedError

    def parts(self, cut: RowTiling, memory: list[TritonScratch]) -> Launch:
        """Generate the totals of parts of rows."""
        self.rows.begin(cut)
        totals = self.totals_of_rows()
        self.rows.k.trigger()
        for place, t in zip(memory, totals, strict=True):
            self.rows.put_part(place, t)
        return self.rows.launch()


def row_candidates(context: GpuContext, work: Callable[[GpuContext], RowWork]) -> list[Candidate]:
    """Return kernels along rows, the most promising first."""

    def kernels(cut: RowTiling) -> tuple[Launch, ...]:
        first = work(context)
        if cut.split == 1:
            return (first.alone(cut),)
        memory = [scratch(first.rows, cut.split, first.dtype) for _ in range(first.totals)]
        return (first.parts(cut, memory), work(context).from_parts(cut, memory))

    rows = work(context).rows
    # A part of a row of an open length may be empty: no norm has that.
    tilings = (c for c in row_tilings(field(rows)) if c.split == 1 or not is_open(rows.length))
    return variants("rows", tilings, kernels)


def _is_unit(factor: int) -> bool:
    return not is_open(factor) and abs(factor) == 1


def wide(dtype: DType) -> DType:
    """Return the type of totals of elements: exact, or rounded late."""
    if dtype.is_float:
        return f64 if dtype == f64 else f32
    return dtype if dtype.bits >= 32 else i32


def field(rows: TritonRows) -> Field:
    """Return the sizes that decide the tiling of rows; tilings serve all sizes."""
    itemsize = max(rows.operand.dtype.itemsize, 1)
    lane = hint_of(rows.lane.extent) if rows.lane else 0
    return Field(hint_of(rows.count), hint_of(rows.length), lane, itemsize)


def scratch(rows: TritonRows, parts: int, dtype: DType) -> TritonScratch:
    """Return memory for the totals of the parts of all rows."""
    return TritonScratch(rows.count * parts * dtype.itemsize, dtype)
