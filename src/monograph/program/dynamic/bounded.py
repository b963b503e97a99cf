"""Ops whose result size depends on data, compiled with room for the largest result.

A bounded op returns results of the largest size, and the number of valid rows. The rest is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from monograph.ir import (
    Array,
    Graph,
    Op,
    TensorType,
    TupleType,
    Type,
    Value,
    from_numpy,
    known,
)
from monograph.ir.dtype import COMPLEX, STRING, i64
from monograph.ops.control import Loop
from monograph.ops.subgraph import is_pure

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
    most = max(int(trips.reshape(-1)[0]), 0)
    sizes = [t.size for t in collected if isinstance(t, TensorType)]
    if most * max((*sizes, 1)) > MAX_BOUND:
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
