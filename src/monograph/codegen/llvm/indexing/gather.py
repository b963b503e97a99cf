"""Gathers: reads at positions that are data, and their epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import ElementMaker, each_element, follows, moved_dtype
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    kernel_for,
    report,
)
from monograph.ir import Value
from monograph.ir.dtype import i64
from monograph.ir.sizes import is_open
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Indices
from monograph.program.index import Index, flatten


@dataclass(frozen=True)
class Coordinate:
    """An index that is data: its position among the indices, and its factor in x."""

    position: Index
    size: int
    stride: int


@dataclass(frozen=True)
class Access:
    """The address of a read: a position from the loops, moved by coordinates."""

    fixed: Index
    coordinates: tuple[Coordinate, ...]


def serves(value: Value) -> bool:
    """Return True if the gather's shapes are valid; otherwise the reference raises the error."""
    if isinstance(value.op, GatherElements):
        x, indices = (v.tensor.static for v in value.inputs)
        axis = value.op.axis
        return all(b <= a for k, (a, b) in enumerate(zip(x, indices, strict=True)) if k != axis)
    if isinstance(value.op, GatherNd):
        x, indices = (v.tensor.static for v in value.inputs)
        return x[: value.op.batch_dims] == indices[: value.op.batch_dims]
    return isinstance(value.op, Gather)


@kernel_for(Gather, GatherElements, GatherNd, when=serves)
def gather(context: KernelContext) -> Kernel:
    """Generate a kernel for a gather and its epilogue."""
    sizes = dict.fromkeys(_sizes(context.anchor))
    faults = [out_of_range(size) for size in sizes]
    first = len(context.step.region.inputs) + len(context.step.region.outputs)
    numbers = {size: first + i for i, size in enumerate(sizes)}
    return each_element(context, partial(_Gathered, context, numbers), faults)


def out_of_range(size: int) -> LlvmFault:
    """Return the fault of an index into a dimension of this size."""
    return LlvmFault("an index is out of range", f"{-size}..{size - 1}")


def _sizes(anchor: Value) -> tuple[int, ...]:
    """Return the dimensions of x that are indexed."""
    x, indices = (v.tensor.static for v in anchor.inputs)
    op = anchor.op
    if isinstance(op, GatherNd):
        return x[op.batch_dims : op.batch_dims + indices[-1]]
    assert isinstance(op, (Gather, GatherElements))
    return (x[op.axis],)


class _Gathered(ElementMaker):
    """Elements of x at positions given by indices."""

    def __init__(
        self, context: KernelContext, faults: dict[int, int], elements: LlvmElements, at: Indices
    ) -> None:
        anchor = context.anchor
        super().__init__(elements, at)
        self.faults = faults
        self.x, self.indices = anchor.inputs
        self.dtype = moved_dtype(context)
        self.access = self._access(anchor, at)
        self.base: Int = 0
        moved = [(c.size, c.stride) for c in self.access.coordinates]
        self.extent = elements.unproven_moved(self.x, self.access.fixed, moved)

    def _access(self, anchor: Value, at: Indices) -> Access:
        op = anchor.op
        x, index = self.e.storage[self.x], self.e.storage[self.indices]
        sizes, steps = self.x.tensor.static, x.strides
        if isinstance(op, GatherElements):
            k = op.axis
            others = tuple(Index() if i == k else a for i, a in enumerate(at))
            place = flatten(at, index.strides, index.offset)
            coordinate = Coordinate(place, sizes[k], steps[k])
            return Access(flatten(others, steps, x.offset), (coordinate,))
        if isinstance(op, Gather):
            k, rank = op.axis, len(index.strides)
            place = flatten(at[k : k + rank], index.strides, index.offset)
            others = (*at[:k], Index(), *at[k + rank :])
            coordinate = Coordinate(place, sizes[k], steps[k])
            return Access(flatten(others, steps, x.offset), (coordinate,))
        assert isinstance(op, GatherNd)
        batch, (*count, depth) = op.batch_dims, self.indices.tensor.static
        own = at[: len(count)]
        place = flatten(own, index.strides[:-1], index.offset)
        coordinates = tuple(
            Coordinate(place + i * index.strides[-1], sizes[batch + i], steps[batch + i])
            for i in range(depth)
        )
        others = (*at[:batch], *(Index(),) * depth, *at[len(count) :])
        return Access(flatten(others, steps, x.offset), coordinates)

    def positions(self) -> list[Index]:
        return [self.access.fixed, *(c.position for c in self.access.coordinates)]

    def _waits(self, coordinate: Coordinate, point: Point) -> bool:
        """Return True if a coordinate changes within a row."""
        return any(c not in point.values for c in coordinate.position.counters)

    def enter(self, point: Point) -> None:
        self.base = 0
        self.within = []
        for coordinate in self.access.coordinates:
            if self._waits(coordinate, point):
                self.within.append(coordinate)
            else:
                self.base = self.b.add(self.base, self._moved(coordinate, point))

    def _moved(self, coordinate: Coordinate, point: Point) -> Int:
        """Return the offset of a coordinate in x."""
        position = coordinate.position
        extent = self.e.unproven(self.indices, position)
        where = self.e.number(position, Point(point.values), extent)
        index = self._index(where)
        fault = self.faults[coordinate.size]
        return self.b.mul(checked_index(self.b, index, coordinate.size, fault), coordinate.stride)

    def _index(self, where: Int) -> Reg:
        return load_index(self.e, self.indices, where)

    def element(self, point: Point) -> Scalar:
        if 0 in self.x.tensor.static:
            return self._nothing(point)
        fixed = self.access.fixed
        if not point.lanes or (not self.within and point.lane not in fixed.counters):
            one = self._load(self._place(Point(point.values)), 0)
            return self.e.scalars.splat(one, point.lanes)
        if not self.within and follows(fixed, point):
            return self._load(self._place(point), point.lanes)
        if self._adjacent(point):
            return self._by_vectors(point)
        return self._lane_by_lane(point)

    def _lane_by_lane(self, point: Point) -> Scalar:
        """Return the elements of all lanes, each index checked on its own."""
        lanes = (point.lane_at(self.b, k) for k in range(point.lanes))
        return self.e.scalars.gathered([self._load(self._place(p), 0) for p in lanes])

    def _adjacent(self, point: Point) -> bool:
        """Return True if lanes have indices, adjacent in memory, and all is proven."""
        proven = bool(self.within) and not self.extent
        return proven and all(
            follows(c.position, point)
            and not self.e.unproven(self.indices, c.position)
            and (self.indices.dtype == i64 or (not is_open(c.size) and c.size < 1 << 31))
            for c in self.within
        )

    def _by_vectors(self, point: Point) -> Scalar:
        """Return the elements of all lanes, whose indices are checked together.

        Only where one of them is negative or out of range, each is checked on its own.
        """
        b = self.b
        usual, rare, done = b.new_label("usual"), b.new_label("rare"), b.new_label("done")
        b.branch(self._any_rare(point), rare, usual)
        b.label(usual)
        lanes = [point.lane_at(b, k) for k in range(point.lanes)]
        fast = self.e.scalars.gathered([self._load(self._unchecked(p), 0) for p in lanes])
        fast_end = b.block
        b.jump(done)
        b.label(rare)
        kind = fast.reg.type

        def one(k: Int, made: list[Reg]) -> list[Reg]:
            assert point.lane is not None
            values = {**point.values, point.lane: b.add(point.values[point.lane], k)}
            found = self._load(self._place(Point(values)), 0).reg
            text = f"insertelement {kind} {made[0]}, {found.type} {found}, i64 {k}"
            return [b.set(kind, text)]

        (slow,) = b.loop(0, point.lanes, 1, one, [Reg("poison", kind)])
        slow_end = b.block
        b.jump(done)
        b.label(done)
        return Scalar(
            b.set(kind, f"phi {kind} [ {fast.reg}, %{fast_end} ], [ {slow}, %{slow_end} ]"),
            fast.dtype,
        )

    def _any_rare(self, point: Point) -> Reg:
        """Return whether an index of any lane is negative or out of range."""
        b, scalars, dtype = self.b, self.e.scalars, self.indices.dtype
        rare = []
        for coordinate in self.within:
            where = self.b.mul(self.e.integer(coordinate.position, point), dtype.itemsize)
            pointer = b.offset(self.e.pointers[self.indices], where)
            found = scalars.load(dtype, pointer, point.lanes).reg
            size = b.number(coordinate.size, found.element, point.lanes)
            # Unsigned, so that a negative index is beyond the end.
            rare.append(scalars.a.any(b.compare("uge", found, size)))
        return reduce(lambda x, y: b.set("i1", f"or i1 {x}, {y}"), rare)

    def _unchecked(self, point: Point) -> Int:
        """Return the place of an element whose indices are known to be in range."""
        place = self.b.add(self.base, self.e.integer(self.access.fixed, point))
        for coordinate in self.within:
            index = self._index(self.e.integer(coordinate.position, point))
            place = self.b.add(place, self.b.mul(index, coordinate.stride))
        return place

    def _nothing(self, point: Point) -> Scalar:
        """Report every index of an empty x, and read nothing."""
        for k in range(max(point.lanes, 1)):
            self._place(point.lane_at(self.b, k) if point.lanes else point)
        return self.e.scalars.literal(0, self.dtype, point.lanes)

    def _place(self, point: Point) -> Int:
        place = self.b.add(self.base, self.e.integer(self.access.fixed, point))
        for coordinate in self.within:
            place = self.b.add(place, self._moved(coordinate, point))
        return place

    def _load(self, place: Int, lanes: int) -> Scalar:
        if self.extent:
            place = self.b.guarded(place, self.extent, lanes)
        pointer = self.b.offset(self.e.pointers[self.x], self.b.mul(place, self.dtype.itemsize))
        return self.e.scalars.load(self.dtype, pointer, lanes)


def load_index(elements: LlvmElements, indices: Value, where: Int) -> Reg:
    """An index from memory, as an i64."""
    b, dtype = elements.b, indices.dtype
    pointer = b.offset(elements.pointers[indices], b.mul(where, dtype.itemsize))
    index = elements.scalars.load(dtype, pointer).reg
    how = "sext" if dtype.is_signed else "zext"
    widened: Reg = elements.scalars.a.convert(how, index, "i64")
    return widened


def checked_index(b: Builder, index: Reg, size: int, fault: int) -> Reg:
    """Return an index counted from the front; one out of range is reported and replaced by 0."""
    negative = b.compare("slt", index, Reg("0", "i64"))
    from_end = b.set("i64", f"add i64 {index}, {size}")
    wrapped = b.set("i64", f"select i1 {negative}, i64 {from_end}, i64 {index}")
    wrong = b.compare("uge", wrapped, Reg(str(size), "i64"))
    report(b, fault, wrong, index)
    return b.set("i64", f"select i1 {wrong}, i64 0, i64 {wrapped}")
