"""Work that goes row by row through a size that data decide: done on all the room there is.

An op states that it goes row by row (`Op.row_axis`); one that states nothing waits for the size.
What lies behind the rows that count is computed too and means nothing, so it must be harmless and
little; where all rows become one, it is masked. Then the size need not be known while compiling,
and any number of rows is one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import Array, Item, TensorType, Value, constant
from monograph.ir.dtype import i64
from monograph.ops.elementwise import Less, Max, Sub, Where
from monograph.ops.index import Gather, ScatterNd
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Iota
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Concat, Reshape, ShapeOf
from monograph.program.fusion.op_classes import is_pointwise, is_view

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
    if 0 in held[0].value.tensor.static[:1]:
        return x
    if not _has_places(x):
        return None
    some = Less()(constant(np.int64(0)), held[0].count)
    places, rows = map(_repeated, held)
    # Where none counts, the row that is repeated means nothing, and may be no place in x.
    places = Where()(some, places, constant(np.array(0, places.dtype.numpy)))
    return Where()(some, op(x, places, rows), x)


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
    """Return whether rows along this axis of a value come from those of what is counted.

    An op states that itself (`Op.row_axis`); what states nothing has to wait for the size.
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
    """Return whether counted indices say what is read: those behind them are made zeros."""
    return value.op.looks_up and value.inputs[1] in rooms


def _has_places(x: Value) -> bool:
    """Return whether the first place of a tensor is always there to be read."""
    return x.tensor.is_static and 0 not in x.tensor.static


def _aligned(operand: Value, room: Room | None, rank: int, axis: int) -> bool:
    """Whether an operand of work on single elements has the counted rows, or one for all."""
    if room is not None:
        return room.axis - operand.tensor.rank == axis - rank
    if not operand.tensor.is_static:
        return False
    own = axis - rank + operand.tensor.rank
    return own < 0 or operand.tensor.static[own] == 1
