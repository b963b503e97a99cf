"""Rows: the common base of reductions, softmax and norms.

Some axes of an operand are kept and some are reduced; a row is the elements along the reduced axes,
at one index of the kept ones. Vectors run along the contiguous axis: inside a row, whose lanes are
combined at the end, or across rows, with one row per lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Point, elements_of, part, pieces
from monograph.codegen.llvm.matmul.tiles import split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, LlvmScratch, share
from monograph.ir import DType, Value
from monograph.ir.sizes import hint_of, is_one, is_open, largest, proven, same_sizes
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import (
    Element,
    Indices,
    Resolved,
    positions_read,
    result_index,
    row_nest,
)
from monograph.program.index import Counter, Index, flatten

STREAMS = 4
"""Vectors in flight, so that they need not wait for each other."""
HELD = 8
"""Vectors of a row that stay in registers between passes; longer rows go to memory."""
BLOCK = 64
"""Elements per partial sum if each lane is a row: long sums stay accurate."""
LINE = 64

Totals: TypeAlias = list[Scalar]
Step: TypeAlias = Callable[[Point, int, Totals], Totals]
"""New totals, from a point of the row, the number of its stream, and the totals so far."""
Join: TypeAlias = Callable[[Totals, Totals], Totals]


@dataclass(frozen=True)
class RowPosition:
    """Some positions along the kept axes: one, or the lanes of neighbouring vectors."""

    points: tuple[Point, ...]

    @property
    def lanes(self) -> int:
        return self.points[0].lanes


class LlvmRows:
    """Loops over the rows of an anchor's first operand, and over the elements of each."""

    def __init__(
        self,
        context: KernelContext,
        axes: Sequence[int],
        keeps: bool = False,
        others: Sequence[Value] = (),
    ) -> None:
        """others: further reductions of the same rows."""
        region = context.step.region
        self.context, self.anchor, self.outputs = context, context.anchor, region.outputs
        self.operand: Value = context.anchor.inputs[0]
        self.axes = tuple(axes)
        self.keeps = keeps
        context.add(*region.inputs, *region.outputs)
        self._scratch = len(context.arguments)
        # One additional pointer: rows may have to be kept in memory.
        self.b = b = context.builder(spare=1)
        self.elements = elements_of(context, b)
        self.scalars = self.elements.scalars
        self.results = (self.anchor, *others)
        for value in self.results:
            self.elements.given[value] = Scalar(Reg("", ""), value.dtype)
        self._nest()
        widest = max(v.dtype.bits for v in (*region.inputs, *region.body))
        self.lanes = context.features.lanes(max(widest, 32))
        self._choose_lane()
        self._held: dict[tuple[object, ...], Scalar] = {}
        self._bytes = 0

    # The nest

    def _nest(self) -> None:
        """Compute the indices of the operand and the result, in as few counters as possible."""
        shape = self.operand.tensor.static
        self.empty = 0 in shape
        nest = row_nest(shape, self.axes, self._positions)
        self.at, self.kept, self.reduced = nest.at, nest.kept, nest.reduced
        self.out_at = self._result_index(self.at)

    def _result_index(self, at: Indices) -> Indices:
        return result_index(self.operand, self.anchor, self.axes, at)

    def _positions(self, at: Indices) -> list[Index]:
        """Every position in memory that the kernel reads or writes."""
        storage, out = self.elements.storage, self._result_index(at)
        orders = [self.elements.plan(self.outputs, out), self.parameter_order(at)]
        written = [flatten(out, storage[v].strides) for v in self.outputs]
        read = self._read_by(self.elements.plan((self.operand,), at))
        return read + [p for order in orders for p in self._read_by(order)] + written

    def _read_by(self, order: list[Resolved]) -> list[Index]:
        return positions_read(order, self.elements.storage)

    def parameter_order(self, at: Indices) -> list[Resolved]:
        """Return the elements of the anchor's other operands at an element; none by default."""
        return []

    def _choose_lane(self) -> None:
        """Run vectors along the counter of most accesses, the innermost of equal ones."""
        every = sorted([*self.kept, *self.reduced], key=lambda c: (len(c.name), c.name))
        positions = []
        if not self.empty:
            # Stores of one result per row are rare; only accesses per element count.
            positions = self._read_by(self.elements.plan((self.operand,), self.at))
            if same_sizes(self.anchor.tensor.static, self.operand.tensor.static):
                positions = self._positions(self.at)

        def use(c: Counter) -> tuple[bool, int, int]:
            runs = sum(is_one(p.factor(c)) for p in positions)
            return hint_of(c.extent) >= self.lanes // 2, runs, every.index(c)

        self.lane = max(every, key=use, default=None)
        self.across = self.lane is not None and self.lane in self.kept
        reduced = math.prod(c.extent for c in self.reduced)
        vectors = reduced if self.across else -(-reduced // self.lanes)
        few = not is_open(vectors) and vectors <= HELD
        self.unrolled = few and (self.across or len(self.reduced) <= 1)

    # Loops over rows

    def run(self, body: Callable[[RowPosition], None], streams: int = STREAMS) -> None:
        """Run a body for all rows: one at a time, or a few vectors of neighbouring ones."""
        self._own = self._own_memory()
        outer = [c for c in self.kept if c is not self.lane]
        count = math.prod(c.extent for c in outer)
        if self.empty and 0 in self.anchor.tensor.static:
            return
        if not self.across:
            self._spread(count, lambda i: body(RowPosition((Point(self._values(outer, i)),))))
            return
        assert self.lane is not None
        start = 0
        extent = self.lane.extent
        # Fewer vectors at once if some threads would have no work otherwise.
        rows, along = hint_of(count), hint_of(extent)
        while streams > 1 and rows * (along // (streams * self.lanes)) < self.context.threads:
            streams //= 2
        groups = [(streams, self.lanes), (1, self.lanes)] if streams > 1 else [(1, self.lanes)]
        for vectors, lanes in groups:
            width = vectors * lanes
            blocks = (extent - start) // width
            self._blocks(body, outer, count, start, blocks, vectors, lanes)
            start += blocks * width
        if is_open(extent):
            for run in split(extent - start, self.lanes // 2):
                self._blocks(body, outer, count, start + run.start, run.count, 1, run.size)
            return
        for at, lanes in pieces(extent - start):
            self._blocks(body, outer, count, start + at, 1, 1, lanes)

    def _blocks(
        self,
        body: Callable[[RowPosition], None],
        outer: list[Counter],
        count: int,
        start: int,
        blocks: int,
        vectors: int,
        lanes: int,
    ) -> None:
        """Run a body for `blocks` of vectors along the lanes, at all outer positions."""
        b, lane = self.b, self.lane
        assert lane is not None

        def one(i: Int) -> None:
            values = self._values(outer, b.div(i, blocks))
            first = b.add(b.mul(b.mod(i, blocks), vectors * lanes), start)
            points = []
            for k in range(vectors):
                at = values | {lane: b.add(first, k * lanes)}
                points.append(Point(at, lane, lanes) if lanes > 1 else Point(at))
            body(RowPosition(tuple(points)))

        if is_open(blocks) or blocks:
            self._spread(count * blocks, one)

    def _spread(self, count: int, body: Callable[[Int], None]) -> None:
        """Emit a loop that the threads divide."""
        b = self.b

        def one(i: Int, _: list[Reg]) -> None:
            self._held.clear()
            body(i)

        if proven(count, "==", 1):
            b.on_thread(0, lambda: one(0, []))
            return
        b.loop(*share(b, count, self.context.threads), 1, one)

    def _values(self, nest: Sequence[Counter], i: Int) -> dict[Counter, Int]:
        """Return the counters of a nest from the number of an iteration."""
        values: dict[Counter, Int] = {}
        for c in reversed(nest):
            values[c] = self.b.mod(i, c.extent) if c is not nest[0] else i
            i = self.b.div(i, c.extent)
        return values

    # Loops along rows

    def fold(self, place: RowPosition, start: Totals, step: Step, join: Join) -> list[Totals]:
        """Return totals over the rows of a position: a list for each of its points."""
        if self.empty:
            return [self._spread_totals(start, p.lanes) for p in place.points]
        if self.across or not self.reduced:
            return self._fold_across(place, start, step, join)
        return [self._fold_along(place.points[0], start, step, join)]

    def _loop(
        self, count: int, step: int, body: Callable[[Int, list[Reg]], list[Reg]], carried: list[Reg]
    ) -> list[Reg]:
        """Emit a loop, or its iterations one by one if the row stays in registers."""
        if not self.unrolled:
            return self.b.loop(0, count, step, body, carried)
        for i in range(0, count, step):
            carried = body(i, carried)
        return carried

    def _fold_across(
        self, place: RowPosition, start: Totals, step: Step, join: Join | None = None
    ) -> list[Totals]:
        """Return totals carried from element to element, or in blocks that are combined."""
        size = len(start)
        first = [r for p in place.points for r in _regs(self._spread_totals(start, p.lanes))]

        def trip(i: Int, carried: list[Reg]) -> list[Reg]:
            values = self._values(self.reduced, i)
            made: list[Reg] = []
            for k, p in enumerate(place.points):
                point = Point({**p.values, **values}, p.lane, p.lanes)
                totals = _totals(carried[k * size : (k + 1) * size], start)
                made += _regs(step(point, k, totals))
            return made

        count = math.prod(c.extent for c in self.reduced)
        every = range(len(place.points))

        def parts(regs: list[Reg]) -> list[Totals]:
            return [_totals(regs[k * size : (k + 1) * size], start) for k in every]

        def block(i: Int, carried: list[Reg]) -> list[Reg]:
            assert join is not None
            made = self.b.loop(i, self.b.minimum(self.b.add(i, BLOCK), count), 1, trip, first)
            pairs = zip(parts(carried), parts(made), strict=True)
            return [r for x, y in pairs for r in _regs(join(x, y))]

        short = not is_open(count) and count <= BLOCK
        if join is None or not start or self.unrolled or short:
            return parts(self._loop(count, 1, trip, first))
        return parts(self.b.loop(0, count, BLOCK, block, first))

    def _fold_along(self, row: Point, start: Totals, step: Step, join: Join) -> Totals:
        lane, lanes, size = self.lane, self.lanes, len(start)
        assert lane is not None
        outer = [c for c in self.reduced if c is not lane]
        whole = lane.extent // lanes
        streams = min(STREAMS, max(hint_of(whole), 1))
        bulk = whole // streams * streams * lanes
        wide = _regs(self._spread_totals(start, lanes))
        single = _regs(self._spread_totals(start, 0))

        def vectors(values: dict[Counter, Int], count: int, i: Int, regs: list[Reg]) -> list[Reg]:
            made: list[Reg] = []
            for k in range(count):
                at = {**row.values, **values, lane: self.b.add(i, k * lanes)}
                totals = _totals(regs[k * size : (k + 1) * size], start)
                made += _regs(step(Point(at, lane, lanes), k, totals))
            return made + regs[count * size :]

        def rest_of(values: dict[Counter, Int], regs: list[Reg]) -> list[Reg]:
            """Add the vectors and elements that are left of a row of open length."""
            stop = whole * lanes
            regs = self.b.loop(bulk, stop, lanes, lambda i, c: vectors(values, 1, i, c), regs)

            def one(i: Int, carried: list[Reg]) -> list[Reg]:
                point = Point({**row.values, **values, lane: i})
                return _regs(step(point, 0, _totals(carried, start)))

            rest = self.b.loop(stop, lane.extent, 1, one, regs[streams * size :])
            return regs[: streams * size] + rest

        def trip(o: Int, regs: list[Reg]) -> list[Reg]:
            values = self._values(outer, o)
            regs = self._loop(
                bulk, streams * lanes, lambda i, c: vectors(values, streams, i, c), regs
            )
            if is_open(whole):
                return rest_of(values, regs)
            for v in range(bulk, whole * lanes, lanes):
                regs = vectors(values, 1, v, regs)
            rest = regs[streams * size :]
            for at, width in pieces(lane.extent - whole * lanes):
                place = {**row.values, **values, lane: whole * lanes + at}
                point = Point(place, lane, width) if width > 1 else Point(place)
                fresh = step(point, 0, self._spread_totals(start, point.lanes))
                rest = _regs(join(_totals(rest, start), self._narrowed(fresh, join)))
            return regs[: streams * size] + rest

        count = math.prod(c.extent for c in outer)
        regs = self._loop(count, 1, trip, wide * streams + single)
        total = _totals(regs[:size], start)
        if not is_open(whole) and not whole:
            return _totals(regs[streams * size :], start)
        for k in range(1, streams):
            total = join(total, _totals(regs[k * size : (k + 1) * size], start))
        total = self._narrowed(total, join)
        if not is_open(whole) and lane.extent % lanes == 0:
            return total
        return join(total, _totals(regs[streams * size :], start))

    def _narrowed(self, totals: Totals, join: Join) -> Totals:
        """Combine the totals of all lanes, in halves."""
        while totals and totals[0].reg.lanes:
            half = totals[0].reg.lanes // 2
            low, high = (
                [Scalar(part(self.b, t.reg, at, half), t.dtype) for t in totals] for at in (0, half)
            )
            totals = join(low, high)
        return totals

    def _spread_totals(self, start: Totals, lanes: int) -> Totals:
        return [self.scalars.splat(t, lanes) for t in start]

    def each(self, place: RowPosition, body: Callable[[Point, int], None]) -> None:
        """Runs a body at every element of the rows of a place."""

        def step(point: Point, stream: int, _: Totals) -> Totals:
            body(point, stream)
            return []

        self.fold(place, [], step, lambda x, y: x)

    # Elements

    def operand_at(self, point: Point, order: list[Resolved]) -> Scalar:
        """Return an element of the operand, computed if it is an expression."""
        found: Scalar = self.elements.emit(order, point)[Element(self.operand, self.at)]
        return found

    def finish(self, point: Point, *results: Scalar) -> None:
        """Emit the epilogue, and the stores; the anchor's result is the first."""
        self.elements.given.update(zip(self.results, results, strict=True))
        order = self.elements.plan(self.outputs, self.out_at)
        made = self.elements.emit(order, point)
        for value in self.outputs:
            found = made[Element(value, self.out_at)]
            self.elements.store(value, self.out_at, self.scalars.splat(found, point.lanes), point)

    # Rows kept from pass to pass

    def keep(self, point: Point, stream: int, x: Scalar) -> None:
        """Keep an element for the next pass: in a register, or in this thread's memory."""
        if self.unrolled:
            self._held[self._key(point, stream)] = x
            return
        self.b.store(self.scalars.splat(x, point.lanes).reg, self._kept(point, stream, x.dtype), 4)

    def kept_at(self, point: Point, stream: int, dtype: DType) -> Scalar:
        """Return the kept element."""
        if self.unrolled:
            return self._held[self._key(point, stream)]
        kind = vector(point.lanes, register(dtype))
        return Scalar(self.b.load(kind, self._kept(point, stream, dtype), 4), dtype)

    def _key(self, point: Point, stream: int) -> tuple[object, ...]:
        # Along a row the index identifies elements; across rows the row does too.
        return (stream if self.across else 0, *(point.values[c] for c in self.reduced))

    def _kept(self, point: Point, stream: int, dtype: DType) -> Reg:
        b = self.b
        number: Int = 0
        for c in self.reduced:
            number = b.add(b.mul(number, c.extent), point.values[c])
        if self.across:
            number = b.mul(b.add(b.mul(number, STREAMS), stream), self.lanes)
        return b.offset(self._own, b.mul(number, max(dtype.itemsize, 4)))

    def _own_memory(self) -> Reg:
        """Return the memory in which this thread may keep a row."""
        if self.unrolled or not self.keeps:
            return self.b.arguments[f"p{self._scratch}"]
        count = math.prod(c.extent for c in self.reduced)
        count *= STREAMS * self.lanes if self.across else 1
        size = max(self.anchor.dtype.itemsize, 4)
        self._bytes = -(-count * size // LINE) * LINE
        own = self.b.mul(self.b.arguments["tid"], self._bytes)
        return self.b.offset(self.b.arguments[f"p{self._scratch}"], own)

    def kernel(self) -> Kernel:
        """The finished kernel."""
        self.context.arguments.append(LlvmScratch(largest((self._bytes, 1)) * self.context.threads))
        return self.context.finish(self.b)


def _regs(totals: Totals) -> list[Reg]:
    return [t.reg for t in totals]


def _totals(regs: Sequence[Reg], like: Totals) -> Totals:
    return [Scalar(r, t.dtype) for r, t in zip(regs, like, strict=True)]
