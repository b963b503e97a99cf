"""Kernels that compute elements from their indices: padding, counting, turns of random ops.

Constant padding of bytes with any fill, or with zeros around any numbers, is copies and fills of
contiguous memory; all other padding is computed element by element.
"""

from __future__ import annotations

import math
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import ElementMaker, each_element, follows, moved_dtype
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, share
from monograph.ir import Value
from monograph.ir.dtype import i64
from monograph.ir.sizes import is_one, is_open, proven
from monograph.ops.pad_tile import Iota, Pad
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Indices
from monograph.program.index import Counter, Index, flatten, strides_of
from monograph.program.legalise.lower_random import TakeTurn
from monograph.program.memory.buffer_assignment import Storage


def serves(value: Value) -> bool:
    if isinstance(value.op, Pad):
        # An empty operand has nothing to repeat: the reference raises the error.
        return value.op.fills(value.inputs[0].tensor.static)
    return isinstance(value.op, (Iota, TakeTurn))


@kernel_for(Iota, Pad, TakeTurn, when=serves)
def generated(context: KernelContext) -> Kernel:
    """Generate a kernel for an op whose elements follow from their indices, and its epilogue."""
    anchor = context.anchor
    if isinstance(anchor.op, Pad):
        return each_element(context, partial(_Padded, context, anchor))
    if isinstance(anchor.op, TakeTurn):
        return each_element(context, partial(_Turn, anchor.inputs[0]), vectors=False)
    return each_element(context, _Counted)


class _Counted(ElementMaker):
    """0, 1, 2, ..."""

    def element(self, point: Point) -> Scalar:
        return self.e.count(self.at[0], point)


class _Turn(_Counted):
    """The number in an RNG state, which is counted up."""

    def __init__(self, state: Value, elements: LlvmElements, at: Indices) -> None:
        super().__init__(elements, (Index(),))
        self.state = state

    def element(self, point: Point) -> Scalar:
        turn = self.e.load(self.state, self.at, point)
        following = self.e.scalars.add(turn, self.e.scalars.constant(1, i64))
        self.e.store(self.state, self.at, following, point)
        return turn


class _Padded(ElementMaker):
    """x inside, and padding by the mode around it."""

    def __init__(
        self, context: KernelContext, anchor: Value, elements: LlvmElements, at: Indices
    ) -> None:
        assert isinstance(anchor.op, Pad)
        super().__init__(elements, at)
        self.op = anchor.op
        self.x, *self.fill = anchor.inputs
        self.dtype = moved_dtype(context)
        self.sizes = self.op.kept(anchor.inputs[0].tensor.static)
        shape = anchor.tensor.static
        place = elements.storage[self.x]
        # Removed elements are skipped once; from here on only added ones matter.
        start = [max(-n, 0) for n in self.op.before]
        self.strides = place.strides
        self.offset = place.offset + sum(n * s for n, s in zip(start, self.strides, strict=True))
        self.axes = [i for i, d in enumerate(shape) if d != self.sizes[i]]
        others = [Index() if i in self.axes else a for i, a in enumerate(at)]
        self.fixed = flatten(others, self.strides, self.offset)
        moved = [(self.sizes[i], self.strides[i]) for i in self.axes]
        self.extent = elements.unproven_moved(self.x, self.fixed, moved)

    def positions(self) -> list[Index]:
        # A padded dimension is not merged with others.
        return [self.fixed, *(self.at[i] for i in self.axes)]

    def _lane_axis(self, lane: Counter | None) -> int | None:
        found = (i for i in self.axes if lane is not None and lane in self.at[i].counters)
        return next(found, None)

    def enter(self, point: Point) -> None:
        """Compute the position of the row in x, and whether it is inside."""
        self.base: Int = 0
        self.inside: Reg | None = None
        self.waiting = [i for i in self.axes if not self.at[i].counters <= set(point.values)]
        for i in self.axes:
            if i not in self.waiting:
                self._move(i, self.e.integer(self.at[i], point))

    def _move(self, axis: int, index: Int) -> None:
        place, inside = self._source(axis, self.b.sub(index, max(self.op.before[axis], 0)))
        self.base = self.b.add(self.base, self.b.mul(place, self.strides[axis]))
        self.inside = self._both(self.inside, inside)

    def _both(self, x: Reg | None, y: Reg | None) -> Reg | None:
        if x is None or y is None:
            return y if x is None else x
        return self.e.scalars.a.op("and", x, y)

    def _source(self, axis: int, index: Int) -> tuple[Int, Reg | None]:
        """Return the position along an axis that an index reads, and whether it is inside x.

        The index may be negative. Only constant padding has an outside.
        """
        b, size = self.b, self.sizes[axis]
        reach = max(self.op.before[axis], 0)
        if self.op.mode == "wrap":
            return b.mod(b.add(index, -(-reach // size) * size), size), None
        if self.op.mode == "reflect" and size > 1:
            period = 2 * (size - 1)
            if max(reach, self.op.after[axis]) < size:
                place = b.maximum(index, b.sub(0, index))  # one reflection suffices
            else:
                place = b.mod(b.add(index, -(-reach // period) * period), period)
            return b.minimum(place, b.sub(period, place)), None
        near = b.maximum(b.minimum(index, size - 1), 0)
        if self.op.mode != "constant":
            return near, None
        return near, b.compare("eq", b.i64(near), b.i64(index))

    def element(self, point: Point) -> Scalar:
        if 0 in self.x.tensor.static or 0 in self.sizes:
            return self._filling(point.lanes)
        axis = self._lane_axis(point.lane)
        if axis is None and not point.lanes:
            return self._one(point)
        if axis is None:
            return self._chosen(self.inside, self._row(point), point.lanes)
        return self._across(axis, point)

    def _one(self, point: Point) -> Scalar:
        """Compute a single element, the innermost dimension included."""
        base, inside = self.base, self.inside
        for i in self.waiting:
            self._move(i, self.e.integer(self.at[i], point))
        found = self._load(self.b.add(self.base, self.e.integer(self.fixed, point)), 0)
        chosen = self._chosen(self.inside, found, 0)
        self.base, self.inside = base, inside
        return chosen

    def _row(self, point: Point) -> Scalar:
        place = self.b.add(self.base, self.e.integer(self.fixed, point))
        if point.lane not in self.fixed.counters:
            return self.e.scalars.splat(self._load(place, 0), point.lanes)
        if follows(self.fixed, point):
            return self._load(place, point.lanes)
        lanes = (point.lane_at(self.b, k) for k in range(point.lanes))
        places = [self.b.add(self.base, self.e.integer(self.fixed, p)) for p in lanes]
        return self.e.scalars.gathered([self._load(p, 0) for p in places])

    def _across(self, axis: int, point: Point) -> Scalar:
        """Compute lanes along a padded dimension: vectors inside, single elements at edges."""
        b, size = self.b, self.sizes[axis]

        def single() -> Reg:
            lanes = [self._one(point.lane_at(b, k)) for k in range(point.lanes)]
            reg: Reg = self.e.scalars.gathered(lanes).reg
            return reg

        if size < point.lanes or self.strides[axis] != 1:
            return Scalar(single(), self.dtype)
        index = b.sub(self.e.integer(self.at[axis], point), max(self.op.before[axis], 0))
        start = b.maximum(b.minimum(index, size - point.lanes), 0)
        place = b.add(b.add(self.base, start), self.e.integer(self.fixed, point))
        whole = self._chosen(self.inside, self._load(place, point.lanes), point.lanes)
        beyond = b.compare("ne", b.i64(start), b.i64(index))
        return Scalar(self.e.scalars.a.unless(beyond, whole.reg, single), self.dtype)

    def _chosen(self, inside: Reg | None, found: Scalar, lanes: int) -> Scalar:
        if inside is None:
            return found
        filling = self._filling(lanes)
        return Scalar(self.e.scalars.a.select(inside, found.reg, filling.reg), self.dtype)

    def _filling(self, lanes: int) -> Scalar:
        scalars = self.e.scalars
        if not self.fill:
            return scalars.literal(0, self.dtype, lanes)
        place = self.e.storage[self.fill[0]].offset * self.dtype.itemsize
        pointer = self.b.offset(self.e.pointers[self.fill[0]], place)
        return scalars.splat(scalars.load(self.dtype, pointer), lanes)

    def _load(self, place: Int, lanes: int) -> Scalar:
        if self.extent:
            place = self.b.guarded(place, self.extent, lanes)
        pointer = self.b.offset(self.e.pointers[self.x], self.b.mul(place, self.dtype.itemsize))
        return self.e.scalars.load(self.dtype, pointer, lanes)


def adds_equal_bytes(value: Value) -> bool:
    """Return True if elements are only added, and equal bytes fill them."""
    op = value.op
    if not isinstance(op, Pad) or op.mode != "constant" or 0 in value.inputs[0].tensor.dims:
        return False
    whole = min((*op.before, *op.after), default=0) >= 0
    return whole and (len(value.inputs) == 1 or value.dtype.itemsize == 1)


@kernel_for(Pad, when=adds_equal_bytes, first=True)
def pad(context: KernelContext) -> Kernel:
    """Generate a kernel for padding and its epilogue."""
    anchor, region = context.anchor, context.step.region
    storage = context.program.places.storage
    last = _last(anchor)
    stretch = all(_runs_on(v, storage[v], last) for v in (anchor.inputs[0], region.root))
    if region.epilogue or not stretch:
        return generated(context)
    return _Stretches(context, anchor, last).emit()


def _last(value: Value) -> int:
    """Return the last padded axis; it and the inner ones are contiguous memory."""
    op = value.op
    assert isinstance(op, Pad)
    padded = [i for i, n in enumerate(zip(op.before, op.after, strict=True)) if any(n)]
    return padded[-1] if padded else 0


def _runs_on(value: Value, place: Storage, last: int) -> bool:
    """Return True if everything from an axis inwards is contiguous."""
    shape = value.tensor.static[last:]
    steps = zip(shape, place.strides[last:], strides_of(shape), strict=True)
    return all(is_one(d) or proven(a, "==", b) for d, a, b in steps)


class _Stretches:
    def __init__(self, context: KernelContext, anchor: Value, last: int) -> None:
        assert isinstance(anchor.op, Pad)
        self.context, self.anchor, self.op, self.last = context, anchor, anchor.op, last
        self.size = anchor.dtype.itemsize
        self.x = anchor.inputs[0]
        storage = context.program.places.storage
        self.source, self.target = storage[self.x], storage[context.step.region.root]

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        b = self.b = context.builder()
        self.given, self.made = (
            b.arguments[f"p{context.argument(v)}"] for v in (self.x, region.root)
        )
        self.fill = self._fill()
        shape = self.anchor.tensor.static
        if self.anchor.tensor.size:
            count = math.prod(shape[: self.last])
            b.loop(*share(b, count, context.threads), 1, self._stretch)
        return context.finish(b)

    def _fill(self) -> Reg:
        """Return the fill byte."""
        if len(self.anchor.inputs) == 1:
            return Reg("0", "i8")
        b, value = self.b, self.anchor.inputs[1]
        place = self.context.program.places.storage[value]
        pointer = b.arguments[f"p{self.context.argument(value)}"]
        return b.load("i8", b.offset(pointer, place.offset), 1)

    def _stretch(self, i: Int, _: list[Reg]) -> None:
        """Process one index of the axes before the last padded one."""
        b, op, last = self.b, self.op, self.last
        shape, given = self.anchor.tensor.static, self.x.tensor.static
        to: Int = self.target.offset
        at: Int = self.source.offset
        inside: Reg | None = None
        for axis, step in enumerate(strides_of(shape[:last])):
            index = b.mod(b.div(i, step), shape[axis])
            to = b.add(to, b.mul(index, self.target.strides[axis]))
            own = b.sub(index, op.before[axis])
            at = b.add(at, b.mul(own, self.source.strides[axis]))
            if op.before[axis] or op.after[axis]:
                within = b.compare("ult", b.i64(own), b.i64(given[axis]))
                inside = within if inside is None else b.set("i1", f"and i1 {inside}, {within}")
        inner = math.prod(shape[last + 1 :])
        start = b.offset(self.made, b.mul(to, self.size))
        parts = [n * inner * self.size for n in (op.before[last], given[last], op.after[last])]
        body = partial(self._row, start, at, parts)
        if inside is None:
            body()
        else:
            _either(b, inside, body, partial(self._filled, start, sum(parts)))

    def _row(self, start: Reg, at: Int, parts: list[int]) -> None:
        """Write a range that contains a part of x."""
        b, (before, own, after) = self.b, parts
        self._filled(start, before)
        given = b.offset(self.given, b.mul(at, self.size))
        no, count = Reg("false", "i1"), Reg(str(own), "i64")
        b.call("llvm.memcpy.p0.p0.i64", "void", b.offset(start, before), given, count, no)
        self._filled(b.offset(start, before + own), after)

    def _filled(self, start: Reg, count: int) -> None:
        if is_open(count) or count:
            no, length = Reg("false", "i1"), Reg(str(count), "i64")
            self.b.call("llvm.memset.p0.i64", "void", start, self.fill, length, no)


def _either(b: Builder, condition: Reg, yes: partial[None], no: partial[None]) -> None:
    """Run one body if a condition holds, else the other."""
    then, other, done = b.new_label("then"), b.new_label("else"), b.new_label("done")
    b.branch(condition, then, other)
    for label, body in ((then, yes), (other, no)):
        b.label(label)
        body()
        b.jump(done)
    b.label(done)
