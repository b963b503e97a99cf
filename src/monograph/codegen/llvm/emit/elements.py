"""Emits fused pointwise work: loads through views, the ops, stores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalars import Walk
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.ir import DType, Value, known
from monograph.ir.dtype import i64
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Indices
from monograph.program.fusion.index_bounds import inside
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
            return self.scalars.literal(data.reshape(-1)[0].item(), value.dtype, point.lanes)
        place = self.storage[value]
        position = flatten(at, place.strides, place.offset)
        extent = self.unproven(value, position)
        pointer = self.pointers[value]
        if point.lane is None or point.lane not in position.counters:
            scalar = self.load_at(pointer, value.dtype, position, Point(point.values), extent)
            return self.scalars.splat(scalar, point.lanes)
        if position.factor(point.lane) == 1 and _follows(position, point.lane):
            return self.load_at(pointer, value.dtype, position, point, extent)
        return self.scalars.gathered(
            [
                self.load_at(pointer, value.dtype, position, point.lane_at(self.b, k), extent)
                for k in range(point.lanes)
            ]
        )

    def load_at(
        self, pointer: Reg, dtype: DType, position: Index, point: Point, extent: int = 0
    ) -> Scalar:
        """Load elements at a position; one without proof has the extent of its buffer."""
        where = self.b.mul(self.number(position, point, extent), dtype.itemsize)
        return self.scalars.load(dtype, self.b.offset(pointer, where), point.lanes)

    def unproven(self, value: Value, position: Index) -> int:
        """Return 0 for a position that is proven to be in a value's buffer, else the buffer's
        extent.
        """
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
            position.factor(point.lane) == 1 and _follows(position, point.lane)
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


def _follows(position: Index, lane: Counter) -> bool:
    """Return True if a position depends on a counter only linearly."""
    return all(
        lane not in a.index.counters for a, _ in position.terms if not isinstance(a, Counter)
    )
