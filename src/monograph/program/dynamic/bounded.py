"""Ops whose result size depends on data, compiled with room for the largest result.

A bounded op returns results of the largest size, and the number of valid rows. The rest is zero.

Row-wise work on such results runs on all rows, valid or not. An op states that it works row by row
(`Op.row_axis`); any other op waits for the size. Rows beyond the count are computed too; their
values mean nothing, so this work must be harmless and small. Reductions over rows mask them. The
size need not be known at compile time, and one program serves any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import (
    Array,
    Graph,
    Item,
    Op,
    TensorType,
    TupleType,
    Type,
    Value,
    constant,
    from_numpy,
    known,
)
from monograph.ir.dtype import COMPLEX, STRING, i64
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.control import If, Loop, Scan
from monograph.ops.elementwise import Less, Max, Sub, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Iota
from monograph.ops.reduce import Reduction
from monograph.ops.scatter import ScatterNd
from monograph.ops.shape import Concat, Reshape, ShapeOf
from monograph.ops.subgraph import is_pure, state_donated
from monograph.program.fusion.op_classes import is_pointwise, is_view
from monograph.program.legalise.expand import trip_count

MAX_BOUND = 1 << 27
"""The most elements of a bounded result; room for more would be wasteful."""


@dataclass(frozen=True)
class Counted(Op):
    """The results of an op in full length, and the count of valid rows."""

    of: Op

    def infer(self, *types: TensorType) -> TupleType:
        most = bound(self.of, types)
        assert most is not None
        made = self.of.infer(*types)
        items = made.items if isinstance(made, TupleType) else (made,)
        return TupleType((*(_filled(t, most) for t in items), TensorType(i64, ())))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        made = self.of.reference(*arrays)
        results = made if isinstance(made, tuple) else (made,)
        inner = self.of.infer(*(_type_of(x) for x in arrays))
        types = inner.items if isinstance(inner, TupleType) else (inner,)
        most = bound(self.of, tuple(_type_of(x) for x in arrays))
        count, full = 0, []
        for x, t in zip(results, types, strict=True):
            axis = counted_axis(t)
            if axis is None:
                full.append(x)
                continue
            count = x.shape[axis]
            room = np.zeros((*x.shape[:axis], most, *x.shape[axis + 1 :]), x.dtype)
            room[(slice(None),) * axis + (slice(0, count),)] = x
            full.append(room)
        return (*full, np.array(count, np.int64))


@dataclass(frozen=True)
class BoundedLoop(Op):
    """A loop that runs at most `most` times, with room for that many collected results.

    Operands as of `Loop`. Results: the last state, the collected results, the iterations run.
    """

    body: Graph
    carried: int
    most: int

    @property
    def pure(self) -> bool:  # type: ignore[override]
        return is_pure(self.body)

    def infer(self, *types: TensorType) -> TupleType:
        made = Loop(self.body, self.carried).infer(*types)
        return TupleType((*(_filled(t, self.most) for t in made.items), TensorType(i64, ())))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        made = Loop(self.body, self.carried).reference(*arrays)
        state, collected = made[: self.carried], made[self.carried :]
        count = len(collected[0])
        full = [_padded(x, self.most) for x in collected]
        return (*state, *full, np.array(count, np.int64))


def _padded(data: Array, most: int) -> Array:
    room = np.zeros((most, *data.shape[1:]), data.dtype)
    room[: len(data)] = data
    return room


def bounded_loop(value: Value) -> Value | None:
    """Return a loop with a known trip count as a bounded one, with room for all it collects."""
    op = value.op
    assert isinstance(op, Loop)
    trips, collected = known(value.inputs[0]), op.body.output_types[1 + op.carried :]
    # State may change its type in an iteration; the operand of the first one is a result too.
    types = (*op.body.input_types[2 : 2 + op.carried], *op.body.output_types)
    if trips is None or not collected or not all(map(_is_static, types)):
        return None
    most = trip_count(trips)
    most = most if is_open(most) else max(most, 0)
    sizes = [hint_of(t.size) for t in collected if isinstance(t, TensorType)]
    if hint_of(most) * max((*sizes, 1)) > MAX_BOUND:
        return None
    return BoundedLoop(op.body, op.carried, most)(*value.inputs)


def _is_static(type_: Type) -> bool:
    return isinstance(type_, TensorType) and _is_number(type_)


def _type_of(data: Array) -> TensorType:
    return TensorType(from_numpy(data.dtype), data.shape)


def counted_axis(type_: Type) -> int | None:
    """Return the dimension that depends on data; None if all are known."""
    assert isinstance(type_, TensorType)
    open_ = [i for i, d in enumerate(type_.dims) if isinstance(d, str)]
    return open_[0] if open_ else None


def _filled(type_: Type, most: int) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_.with_shape(most if isinstance(d, str) else d for d in type_.dims)


def bound(op: Op, types: tuple[Type, ...]) -> int | None:
    """Return the largest count; None if the op has no bounded form."""
    tensors = [t for t in types if isinstance(t, TensorType)]
    if len(tensors) != len(types) or not all(_is_number(t) for t in tensors):
        return None
    most = op.most_rows(*tensors)
    if most is None:
        return None
    # The limit is on the elements of the results, not on their lengths.
    width = max((math.prod(t.static) for t in tensors), default=1)
    return most if max(most, width) <= MAX_BOUND else None


def _is_number(type_: TensorType) -> bool:
    return type_.is_static and type_.dtype.kind not in (STRING, COMPLEX)


def counted(value: Value, compiles: Callable[[Value], bool]) -> Value | None:
    """Return the bounded form of a value whose size depends on data; None if it has none."""
    if isinstance(value.op, Loop):
        made = bounded_loop(value)
        return made if made is not None and compiles(made) else None
    if bound(value.op, tuple(v.type for v in value.inputs)) is None:
        return None
    return Counted(value.op)(*value.inputs)


def is_counted(value: Value, kind: type[Op]) -> bool:
    """Return True if a value is an op of a kind in its bounded form."""
    return isinstance(value.op, Counted) and isinstance(value.op.of, kind)


MOST_ELEMENTS = 1 << 22
MOST_TERMS = 1 << 26
"""The most elements, or terms of products, of padded work. Beyond it the program is compiled for
the exact size: that takes some tenths of a second, and most rows of a large result may be invalid.
"""


@dataclass(frozen=True)
class Room:
    """A bounded value: its full-length form, the count of valid rows, and the axis of the rows."""

    value: Value
    count: Value
    axis: int


def carry(value: Value, rooms: Mapping[Value, Room], made: Mapping[Value, Value]) -> Room | None:
    """Return the full-length form of a value with full-length operands; None if it has none.

    made: the replacements of operands of known size.
    """
    held = [rooms[v] for v in value.inputs if v in rooms]
    if not isinstance(value.type, TensorType) or len({r.count for r in held}) != 1:
        return None
    open_ = [i for i, d in enumerate(value.type.shape or ()) if isinstance(d, str)]
    if len(open_) != 1 or not _keeps_rows(value, rooms, open_[0]):
        return None
    inputs = [rooms[v].value if v in rooms else made.get(v, v) for v in value.inputs]
    filling = value.op.row_filling(held[0].axis)
    if filling is not None:
        inputs[0] = _masked(held[0], np.array(filling))
    if _reads_places(value, rooms):
        inputs[1] = _as_indices(rooms[value.inputs[1]])
    full = value.op(*inputs)
    return Room(full, held[0].count, open_[0]) if _is_little(full) else None


def _is_little(made: Value) -> bool:
    if not made.tensor.is_static or made.tensor.size > MOST_ELEMENTS:
        return False
    terms = made.inputs[0].tensor.static[-1] if isinstance(made.op, Dot) else 1
    return made.tensor.size * terms <= MOST_TERMS


def close(value: Value, rooms: Mapping[Value, Room], made: Mapping[Value, Value]) -> Value | None:
    """Return a value of known size: the shape of a bounded value, or a reduction over its rows."""
    if isinstance(value.op, ScatterNd):
        return _scattered(value.op, value.inputs, rooms, made)
    room = rooms.get(value.inputs[0])
    if room is None:
        return None
    if isinstance(value.op, ShapeOf):
        parts = [constant([d], i64) for d in room.value.tensor.static]
        parts[room.axis] = Reshape((1,))(room.count)
        return Concat(0)(*parts)
    if isinstance(value.op, Reduction) and room.axis in value.op.axes:
        nothing = np.zeros(0, room.value.dtype.numpy)
        neutral = replace(value.op, axes=(0,), keep=False).reference(nothing)
        whole: Value = value.op(_masked(room, neutral))
        return whole if whole.tensor.is_static else None
    return None


def _scattered(
    op: ScatterNd,
    inputs: tuple[Value, ...],
    rooms: Mapping[Value, Room],
    made: Mapping[Value, Value],
) -> Value | None:
    """Scatter the valid rows; the invalid ones repeat the last valid row, if there is one.

    A scatter that adds would add it twice, so that has to wait for the size.
    """
    x, indices, updates = inputs
    if x in rooms or not x.tensor.is_static or op.reduction not in ("none", "max", "min"):
        return None
    held = [rooms[v] for v in (indices, updates) if v in rooms]
    if len(held) < 2 or held[0].count is not held[1].count or any(r.axis for r in held):
        return None
    x = made.get(x, x)
    if 0 in held[0].value.tensor.static[:1]:
        return x
    if not _has_places(x):
        return None
    some = Less()(constant(np.int64(0)), held[0].count)
    places, rows = map(_repeated, held)
    # If no row is valid, the repeated index may be out of range, so it becomes 0.
    places = Where()(some, places, constant(np.array(0, places.dtype.numpy)))
    return Where()(some, op(x, places, rows), x)


def _repeated(room: Room) -> Value:
    """Return the valid rows, followed by repeats of the last one."""
    last = Max()(Sub()(room.count, constant(np.int64(1))), constant(np.int64(0)))
    row = Gather(0)(room.value, Reshape((1,))(last))
    shape = room.value.tensor.static
    along = (shape[0], *(1,) * (len(shape) - 1))
    return Where()(Less()(Reshape(along)(Iota(shape[0])()), room.count), room.value, row)


def _as_indices(room: Room) -> Value:
    """Return bounded indices with zeros beyond the count: zeros are always in range."""
    source = room.value
    while is_view(source):
        source = source.inputs[0]
    found = isinstance(source.op, Item)  # zeros, as the counting op left them
    return room.value if found else _masked(room, np.array(0))


def _masked(room: Room, filling: Array) -> Value:
    """Fill the rows beyond the count with a neutral element."""
    shape = room.value.tensor.static
    along = (shape[room.axis], *(1,) * (len(shape) - room.axis - 1))
    counts = Less()(Reshape(along)(Iota(shape[room.axis])()), room.count)
    return Where()(counts, room.value, constant(filling.astype(room.value.dtype.numpy)))


def _keeps_rows(value: Value, rooms: Mapping[Value, Room], axis: int) -> bool:
    """Return True if rows along this axis of a value come from the counted rows.

    An op states that itself (`Op.row_axis`); any other op waits for the size.
    """
    types = [v.tensor for v in value.inputs if isinstance(v.type, TensorType)]
    if len(types) != len(value.inputs):
        return False
    pointwise = is_pointwise(value)
    for i, operand in enumerate(value.inputs):
        room = rooms.get(operand)
        if pointwise:
            fits = _aligned(operand, room, value.tensor.rank, axis)
        elif room is None:
            fits = operand.tensor.is_static
        else:
            filled = value.op.row_filling(room.axis) is not None
            fits = axis == (room.axis if filled else value.op.row_axis(i, room.axis, *types))
        if not fits:
            return False
    return not _reads_places(value, rooms) or _has_places(value.inputs[0])


def _reads_places(value: Value, rooms: Mapping[Value, Room]) -> bool:
    """Return True if a value reads by bounded indices: those beyond the count become zeros."""
    return value.op.looks_up and value.inputs[1] in rooms


def _has_places(x: Value) -> bool:
    """Return True if index 0 of a tensor always exists."""
    return x.tensor.is_static and 0 not in x.tensor.static


def _aligned(operand: Value, room: Room | None, rank: int, axis: int) -> bool:
    """Return True if a pointwise operand has the counted rows, or one row for all."""
    if room is not None:
        return room.axis - operand.tensor.rank == axis - rank
    if not operand.tensor.is_static:
        return False
    own = axis - rank + operand.tensor.rank
    return own < 0 or operand.tensor.static[own] == 1


CONTROL = (If, Loop, BoundedLoop, Scan)
"""Ops that run sub-graphs."""


def graphs_of(value: Value) -> list[Graph]:
    """Return the sub-graphs of a branch or a loop, whose state is updated in place."""
    op = value.op
    assert isinstance(op, CONTROL)
    if isinstance(op, (Loop, BoundedLoop)):
        return [state_donated(op.body, op.carried)]
    return [op.then, op.orelse] if isinstance(op, If) else [op.body]
