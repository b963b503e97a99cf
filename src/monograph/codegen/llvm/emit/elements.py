"""Fused pointwise work (loads through views, the ops, stores), and the epilogue of a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.scalars import Walk
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import KernelContext, pointers
from monograph.ir import DType, Value, known
from monograph.ir.dtype import i64
from monograph.ir.sizes import is_one, is_open
from monograph.ops.elementwise import Abs, Add, Clip, Max, Min, Mul, Neg, Sub
from monograph.ops.scalar import Scalar
from monograph.program.fusion.index_bounds import inside
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, counters
from monograph.program.index import Counter, Index, Quotient, counter, flatten
from monograph.program.memory.buffer_assignment import Storage, described


@dataclass(frozen=True)
class Point:
    """A point of a loop nest: the value of each counter, and the counter of the lanes."""

    values: Mapping[Counter, Int]
    lane: Counter | None = None
    lanes: int = 0

    def lane_at(self, b: Builder, offset: int) -> Point:
        """Return the point of a single lane."""
        assert self.lane is not None
        moved = dict(self.values)
        moved[self.lane] = b.add(moved[self.lane], offset)
        return Point(moved)


@dataclass
class LlvmElements(Walk[Point]):
    """Emits elements of a region's values at points of a loop nest."""

    b: Builder
    scalars: LlvmScalars
    storage: Mapping[Value, Storage]
    pointers: Mapping[Value, Reg]
    inputs: frozenset[Value]
    given: dict[Value, Scalar] = field(default_factory=dict)

    def load(self, value: Value, at: Indices, point: Point) -> Scalar:
        """An element from memory, or a literal."""
        data = known(value)
        if data is not None and data.size == 1:
            return self._only(data.reshape(-1)[0], value.dtype, point.lanes)
        place = self.storage[value]
        position = flatten(at, place.strides, place.offset)
        extent = self.unproven(value, position)
        pointer = self.pointers[value]
        if point.lane is None or point.lane not in position.counters:
            scalar = self.load_at(pointer, value.dtype, position, Point(point.values), extent)
            return self.scalars.splat(scalar, point.lanes)
        if is_one(position.factor(point.lane)) and _follows(position, point.lane):
            return self.load_at(pointer, value.dtype, position, point, extent)
        return self.scalars.gathered(
            [
                self.load_at(pointer, value.dtype, position, point.lane_at(self.b, k), extent)
                for k in range(point.lanes)
            ]
        )

    def _only(self, number: Any, dtype: DType, lanes: int) -> Scalar:
        """The only element of a constant: a literal, or an open size."""
        if is_open(number):
            return self.scalars.splat(Scalar(self.b.i64(number), i64), lanes)
        return self.scalars.literal(number.item(), dtype, lanes)

    def load_at(
        self, pointer: Reg, dtype: DType, position: Index, point: Point, extent: int = 0
    ) -> Scalar:
        """Load elements at a position; one without proof has the extent of its buffer."""
        where = self.b.mul(self.number(position, point, extent), dtype.itemsize)
        return self.scalars.load(dtype, self.b.offset(pointer, where), point.lanes)

    def unproven(self, value: Value, position: Index) -> int:
        """Return 0 if a position is proven to be in a value's buffer, else the buffer's extent."""
        buffer = self.storage[value].buffer
        extent = math.prod(buffer.padded)
        return 0 if inside(position, extent, described(buffer)) else extent

    def unproven_moved(
        self, value: Value, position: Index, moved: Iterable[tuple[int, int]]
    ) -> int:
        """The same for a position that the kernel moves further: (size, stride) along axes.

        The kernel must keep its own indices below those sizes.
        """
        for k, (size, stride) in enumerate(moved):
            position = position + counter(f"moved{k}", size) * stride
        return self.unproven(value, position)

    def number(self, position: Index, point: Point, extent: int) -> Int:
        """Return a position as a number, checked at run time if it is not proven."""
        number = self.integer(position, point)
        return self.b.guarded(number, extent, point.lanes) if extent else number

    def store(self, value: Value, at: Indices, scalar: Scalar, point: Point) -> None:
        """Store an element."""
        place = self.storage[value]
        position = flatten(at, place.strides, place.offset)
        extent = self.unproven(value, position)
        pointer = self.pointers[value]
        if point.lane is None or (
            is_one(position.factor(point.lane)) and _follows(position, point.lane)
        ):
            where = self.b.mul(self.number(position, point, extent), value.dtype.itemsize)
            self.scalars.store(scalar, self.b.offset(pointer, where))
            return
        for k in range(point.lanes):
            one = point.lane_at(self.b, k)
            where = self.b.mul(self.number(position, one, extent), value.dtype.itemsize)
            lane = self.scalars.lane(scalar, k)
            self.scalars.store(lane, self.b.offset(pointer, where))

    def count(self, index: Index, point: Point) -> Scalar:
        """An index as a number, an i64."""
        if point.lane is None or point.lane not in index.counters:
            first = Scalar(self.b.i64(self.integer(index, Point(point.values))), i64)
            return self.scalars.splat(first, point.lanes)
        lanes = range(point.lanes)
        if not _follows(index, point.lane):
            each = (self.integer(index, point.lane_at(self.b, k)) for k in lanes)
            return self.scalars.gathered([Scalar(self.b.i64(n), i64) for n in each])
        first = Scalar(self.b.i64(self.integer(index, point)), i64)
        steps = [self.scalars.constant(k * index.factor(point.lane), i64) for k in lanes]
        return self.scalars.add(
            self.scalars.splat(first, point.lanes), self.scalars.gathered(steps)
        )

    def integer(self, index: Index, point: Point) -> Int:
        """An index as a number, at a point."""
        total: Int = index.constant
        for atom, factor in index.terms:
            if isinstance(atom, Counter):
                term = point.values[atom]
            elif isinstance(atom, Quotient):
                term = self.b.div(self.integer(atom.index, point), atom.by)
            else:
                term = self.b.mod(self.integer(atom.index, point), atom.by)
            total = self.b.add(total, self.b.mul(term, factor))
        return total


def elements_of(context: KernelContext, b: Builder) -> LlvmElements:
    """Return the element emitter of a kernel whose arguments are fixed."""
    scalars, storage = LlvmScalars(b, context.features), context.program.places.storage
    inputs = frozenset(context.step.region.inputs)
    return LlvmElements(b, scalars, storage, pointers(b, context.arguments), inputs)


def _follows(position: Index, lane: Counter) -> bool:
    """Return True if a position depends on a counter only linearly."""
    return all(
        lane not in a.index.counters for a, _ in position.terms if not isinstance(a, Counter)
    )


LIGHT = (Abs, Add, Clip, Max, Min, Mul, Neg, Sub)
"""Ops of one or two instructions. A longer epilogue is emitted as a loop, for code size."""
SIDE_BY_SIDE = 4


class Epilogue:
    """Finishes elements of an anchor's result, a vector along the last dimension at a time."""

    def __init__(self, context: KernelContext, b: Builder) -> None:
        region = context.step.region
        self.b = b
        self.anchor = context.anchor
        self.outputs = region.outputs
        self.elements = elements_of(context, b)
        self.at = counters(region.root.tensor.static)
        # The anchor's result is in registers, so resolution stops there.
        self.elements.given[self.anchor] = Scalar(Reg("", ""), self.anchor.dtype)
        self.order = self.elements.plan(self.outputs, self.at)
        computed = [r.element.value for r in self.order if r.operands]
        self.heavy = any(not is_view(v) and not isinstance(v.op, LIGHT) for v in computed)
        self.stack: Reg | None = None

    def reserve(self, vectors: int, lanes: int) -> None:
        """Reserve room for `store_rows`; the builder must be in the function's first block."""
        if self.heavy:
            kind = vector(lanes, "float")
            self.stack = self.b.set("ptr", f"alloca [{vectors} x {kind}], align 64")

    def store_rows(
        self, sums: Sequence[Reg], rows: int, store: Callable[[Int, int, Reg], None]
    ) -> None:
        """Call `store` with (row, number in the row, vector) for accumulators in equal rows.

        A long epilogue is a loop over the rows, through memory.
        """
        b, width = self.b, len(sums) // rows
        if self.stack is None or len(sums) <= SIDE_BY_SIDE:
            for k, total in enumerate(sums):
                store(k // width, k % width, total)
            return
        size = max(sums[0].lanes, 1) * 4
        for k, total in enumerate(sums):
            b.store(total, b.offset(self.stack, k * size), 4)

        # Enough vectors at a time to hide their latency.
        step = next(g for g in range(1, rows + 1) if rows % g == 0 and g * width >= SIDE_BY_SIDE)

        def some(r: Int, _: list[Reg]) -> None:
            assert self.stack is not None
            start = b.offset(self.stack, b.mul(r, width * size))
            for k in range(step * width):
                total = b.load(sums[0].type, b.offset(start, k * size), 4)
                store(b.add(r, k // width), k % width, total)

        b.loop(0, rows, step, some)

    def store(self, at: Sequence[Int], total: Reg, lanes: int) -> None:
        """Finishes and stores the first `lanes` lanes of a vector at an index."""
        for start, width in pieces(lanes):
            self._store(at, start, width, part(self.b, total, start, width))

    def _store(self, at: Sequence[Int], start: int, lanes: int, total: Reg) -> None:
        values: dict[Counter, Int] = {}
        for index, number in zip(self.at, at, strict=True):
            values |= dict.fromkeys(index.counters, number)
        lane = next(iter(self.at[-1].counters), None)
        point = Point(values)
        if lane is not None:
            values[lane] = self.b.add(at[-1], start)
            point = Point(values, lane, lanes) if lanes > 1 else Point(values)
        self.elements.given[self.anchor] = Scalar(total, self.anchor.dtype)
        made = self.elements.emit(self.order, point)
        for value in self.outputs:
            self.elements.store(value, self.at, made[Element(value, self.at)], point)


def pieces(lanes: int) -> list[tuple[int, int]]:
    """(start, width) of vectors whose widths are powers of two, covering so many lanes."""
    found = []
    start = 0
    while start < lanes:
        width = 1 << ((lanes - start).bit_length() - 1)
        found.append((start, width))
        start += width
    return found


def part(b: Builder, whole: Reg, start: int, lanes: int) -> Reg:
    """Some lanes of a vector; a scalar for one of them."""
    if lanes == whole.lanes or not whole.lanes:
        return whole
    if lanes == 1:
        return b.extract(whole, start)
    return b.shuffle(whole, Reg("poison", whole.type), range(start, start + lanes))
