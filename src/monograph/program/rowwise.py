"""Work that goes row by row through a size that data decide: done on all the room there is.

What lies behind the rows that count is computed too and means nothing, so it must be harmless and
little; where all rows become one, it is masked. Then the size need not be known while compiling,
and any number of rows is one program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import Array, Item, TensorType, Value, constant
from monograph.ir.dtype import i64
from monograph.ops.composite import LogSoftmax, Softmax
from monograph.ops.elementwise import Less, Max, Sub, Where
from monograph.ops.extend import Iota
from monograph.ops.index import Gather, GatherNd, ScatterNd
from monograph.ops.linear import Dot
from monograph.ops.reduce import Cumulative, Reduction
from monograph.ops.shape import (
    Concat,
    Reshape,
    ShapeOf,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from monograph.program.kinds import is_pointwise, is_view

MOST_ELEMENTS = 1 << 22
MOST_TERMS = 1 << 26
"""Elements, and terms of products, beyond which it pays to compile for the very size: that takes
some tenths of a second, and most of a large room may not count."""


@dataclass(frozen=True)
class Room:
    """A value of a size that data decide, in full length: what counts of it, along which axis."""

    value: Value
    count: Value
    axis: int


def carry(value: Value, rooms: Mapping[Value, Room], made: Mapping[Value, Value]) -> Room | None:
    """A value whose operands are in full length, in full length too; None where it cannot be.

    made: what stands for operands of known size by now.
    """
    held = [rooms[v] for v in value.inputs if v in rooms]
    if not isinstance(value.type, TensorType) or len({r.count for r in held}) != 1:
        return None
    open_ = [i for i, d in enumerate(value.type.shape or ()) if isinstance(d, str)]
    if len(open_) != 1 or not _keeps_rows(value, rooms, open_[0]):
        return None
    inputs = [rooms[v].value if v in rooms else made.get(v, v) for v in value.inputs]
    if isinstance(value.op, (Softmax, LogSoftmax)) and value.op.axis == open_[0]:
        inputs[0] = _masked(held[0], np.array(-np.inf))
    if isinstance(value.op, (Gather, GatherNd)) and value.inputs[1] in rooms:
        inputs[1] = _as_indices(rooms[value.inputs[1]])
    full = value.op(*inputs)
    return Room(full, held[0].count, open_[0]) if _is_little(full) else None


def _is_little(made: Value) -> bool:
    if not made.tensor.is_static or made.tensor.size > MOST_ELEMENTS:
        return False
    terms = made.inputs[0].tensor.static[-1] if isinstance(made.op, Dot) else 1
    return made.tensor.size * terms <= MOST_TERMS


def close(value: Value, rooms: Mapping[Value, Room], made: Mapping[Value, Value]) -> Value | None:
    """A value that is of known size again: the shape of what is counted, or a sum of all of it."""
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
        neutral = replace(value.op, axes=(0,), keep=False).reference(nothing)  # type: ignore[type-var]
        whole: Value = value.op(_masked(room, neutral))
        return whole if whole.tensor.is_static else None
    return None


def _scattered(
    op: ScatterNd,
    inputs: tuple[Value, ...],
    rooms: Mapping[Value, Room],
    made: Mapping[Value, Value],
) -> Value | None:
    """Rows that count, scattered: behind them the last one is written again, if there is one.

    A sum would take it twice, so that has to wait.
    """
    x, indices, updates = inputs
    if x in rooms or not x.tensor.is_static or op.reduction not in ("none", "max", "min"):
        return None
    held = [rooms[v] for v in (indices, updates) if v in rooms]
    if len(held) < 2 or held[0].count is not held[1].count or any(r.axis for r in held):
        return None
    x = made.get(x, x)
    written = op(x, *map(_repeated, held))
    return Where()(Less()(constant(np.int64(0)), held[0].count), written, x)


def _repeated(room: Room) -> Value:
    """What counts, then the last row of it over and over."""
    last = Max()(Sub()(room.count, constant(np.int64(1))), constant(np.int64(0)))
    row = Gather(0)(room.value, Reshape((1,))(last))
    shape = room.value.tensor.static
    along = (shape[0], *(1,) * (len(shape) - 1))
    return Where()(Less()(Reshape(along)(Iota(shape[0])()), room.count), room.value, row)


def _as_indices(room: Room) -> Value:
    """Counted indices whose room behind them holds zeros: those are always within range."""
    source = room.value
    while is_view(source):
        source = source.inputs[0]
    found = isinstance(source.op, Item)  # as the op that counts has left it
    return room.value if found else _masked(room, np.array(0))


def _masked(room: Room, filling: Array) -> Value:
    """What counts of a value, and behind it something that changes no result."""
    shape = room.value.tensor.static
    along = (shape[room.axis], *(1,) * (len(shape) - room.axis - 1))
    counts = Less()(Reshape(along)(Iota(shape[room.axis])()), room.count)
    return Where()(counts, room.value, constant(filling.astype(room.value.dtype.numpy)))


def _keeps_rows(value: Value, rooms: Mapping[Value, Room], axis: int) -> bool:
    """Whether row i of the result comes from row i of what is counted, and from nothing else."""
    op, inputs = value.op, value.inputs
    first = rooms.get(inputs[0])
    if is_pointwise(value):
        return all(_aligned(v, rooms.get(v), value.tensor.rank, axis) for v in inputs)
    if isinstance(op, Concat):
        return op.axis != axis and all(v in rooms and rooms[v].axis == axis for v in inputs)
    if isinstance(op, Gather):
        return _gathers_rows(op, value, rooms, axis)
    if isinstance(op, GatherNd):
        indices, x = rooms.get(inputs[1]), inputs[0].tensor
        if first is not None or indices is None or op.batch_dims or not x.is_static:
            return False
        return 0 not in x.static and indices.axis == axis < len(inputs[1].tensor.dims) - 1
    if first is None:
        return False
    same = value.tensor.dims[axis] == inputs[0].tensor.dims[first.axis]
    if isinstance(op, Dot):
        return axis == first.axis < inputs[0].tensor.rank - 1 and len(inputs[1].tensor.dims) == 2
    if isinstance(op, (Softmax, LogSoftmax)):
        return True
    if isinstance(op, Cumulative):
        return not op.reverse or op.axis != first.axis
    if isinstance(op, Reduction):
        return same and first.axis not in op.axes
    if isinstance(op, Reshape):
        return _splits_alike(inputs[0].tensor, first.axis, value.tensor, axis)
    return same and isinstance(op, (Slice, Squeeze, Transpose, Unsqueeze))


def _aligned(operand: Value, room: Room | None, rank: int, axis: int) -> bool:
    """Whether an operand of work on single elements has the counted rows, or one for all."""
    if room is not None:
        return room.axis - operand.tensor.rank == axis - rank
    if not operand.tensor.is_static:
        return False
    own = axis - rank + operand.tensor.rank
    return own < 0 or operand.tensor.static[own] == 1


def _gathers_rows(op: Gather, value: Value, rooms: Mapping[Value, Room], axis: int) -> bool:
    x, indices = value.inputs
    if x in rooms:
        # Places along the counted axis would have to be checked against the count.
        return indices not in rooms and indices.tensor.is_static and rooms[x].axis != op.axis
    room = rooms[indices]
    return x.tensor.is_static and 0 not in x.tensor.static and axis == op.axis + room.axis


def _splits_alike(given: TensorType, at: int, made: TensorType, axis: int) -> bool:
    """Whether a reshape leaves as many elements before and after the counted axis."""
    a, b = given.dims, made.dims
    parts = (a[:at], b[:axis]), (a[at + 1 :], b[axis + 1 :])
    return all(_count(p) == _count(q) for p, q in parts)


def _count(dims: tuple[int | str, ...]) -> int:
    return math.prod(d for d in dims if isinstance(d, int))
