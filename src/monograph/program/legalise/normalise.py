"""Inserts the copies that kernels need before lowering.

Afterwards kernels and joins can read their operands from memory, parts of joins can be written
directly into them, and each output of the graph is a stored value of its own.
Long reductions become two steps: work for all threads if results are few, and accurate sums.
Also finds inputs that a graph casts to 16 bits before any other use (`cast_first`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import replace
from itertools import count

from monograph.ir import DType, Graph, Item, TensorType, Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.cast import Cast
from monograph.ops.reduce import ReduceSum, Reduction
from monograph.ops.shape import Concat, Reshape, Squeeze, Unsqueeze
from monograph.program.fusion.op_classes import (
    Copy,
    is_join,
    is_kernel,
    is_leaf,
    is_native,
    is_view,
    reads_expressions,
)
from monograph.program.index import split_strides, strides_of

Readable = Callable[[Value, int, Value], bool]
"""A function that returns True if a kernel can read operand i as it is."""
Padded = Callable[[Value, int], object]
"""A function that returns the halo that a kernel needs around operand i; None for none."""


def normalise(
    graph: Graph,
    readable: Readable,
    halo: Padded,
    ends: Callable[[Graph], Container[Value]],
) -> Graph:
    """Insert copies where memory requires them.

    `ends` returns the outputs that may stay views, because their sources are written into them.
    """
    places = count(1)
    taken: set[Value] = set()
    outputs = {v for _, v in graph.outputs}
    padded = _padded(graph, halo)

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if is_leaf(old):
            return old
        if is_join(old) and is_native(old):
            parts = []
            for before, part in zip(old.inputs, inputs, strict=True):
                source, stored = _reshaped(part), _reshaped(before)
                free = (
                    not is_leaf(source) and not is_view(source) and not isinstance(source.op, Item)
                )
                # A part has no room for a halo beside other parts, unless these are other channels.
                crowded = stored in padded and (source is not part or not _leaves_edges(old))
                used = source in taken or stored in outputs or before in outputs
                if not free or used or not is_native(part) or crowded:
                    source = part = Copy(next(places))(part)
                taken.add(source)
                parts.append(part)
            return old.op(*parts)
        if is_kernel(old) and is_native(old):
            inputs = tuple(_readable(old, i, v, places, readable) for i, v in enumerate(inputs))
        return old.op(*inputs)

    made = graph.rebuild(rebuilt)
    return _own_outputs(made, places, _padded(made, halo), ends(made))


def _reshaped(part: Value) -> Value:
    """Return the source of a part of a join that only reshapes it: it can be stored in the join."""
    source = part
    while isinstance(source.op, (Reshape, Squeeze, Unsqueeze)) and is_native(source):
        source = source.inputs[0]
    if source is part or not is_native(source):
        return part
    steps = strides_of(part.tensor.static)
    return (
        part if split_strides(part.tensor.static, steps, source.tensor.static) is None else source
    )


def _padded(graph: Graph, halo: Padded) -> set[Value]:
    """Return the values around which some kernel needs a halo."""
    found = set()
    for user in graph.values:
        if not is_kernel(user) or not is_native(user):
            continue
        for i, operand in enumerate(user.inputs):
            if halo(user, i) is None:
                continue
            while is_view(operand):
                operand = operand.inputs[0]
            found.add(operand)
    return found


def _leaves_edges(join: Value) -> bool:
    """Return True if parts of a join have the spatial edges of the whole: images or channels."""
    assert isinstance(join.op, Concat)
    return join.op.axis in (0, join.tensor.rank - 1)


def _readable(
    user: Value, index: int, operand: Value, places: count[int], readable: Readable
) -> Value:
    if reads_expressions(user) and index == 0:
        return operand
    return operand if readable(user, index, operand) else Copy(next(places))(operand)


def _own_outputs(
    graph: Graph, places: count[int], padded: set[Value], ends: Container[Value]
) -> Graph:
    """Copy outputs that are inputs, constants, views, joined parts, padded, or named twice."""
    joined = {v for value in graph.values if is_join(value) for v in value.inputs}
    seen: set[Value] = set()
    outputs = []
    for name, value in graph.outputs:
        shown = is_view(value) and value not in ends
        own = not is_leaf(value) and not shown and value not in joined | padded
        if (not own or value in seen) and is_native(value):
            value = Copy(next(places))(value)
        seen.add(value)
        outputs.append((name, value))
    return Graph(graph.inputs, tuple(outputs), graph.name, graph.origins, graph.donations)


LONG = 1 << 15
"""Rows of this many elements or more are split."""
FEW = 16
"""Rows are split only for this many results or fewer; more are divided whole."""
PART = 4096
LONG_SUM = 4096
"""Sums of this many terms or more down a column are split, because a column has one total."""


def split_reductions(graph: Graph) -> Graph:
    """Replace long reductions by reductions of their parts."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if not inputs:
            return old
        if isinstance(old.op, Reduction) and isinstance(old.type, TensorType):
            return _split(old, inputs[0]) or old.op(*inputs)
        return old.op(*inputs)

    return graph.rebuild(rebuilt)


def _split_by_axes(value: Value, x: Value, length: int) -> Value | None:
    """Reduce the last axis first, where no part of an open length is known to divide it."""
    op = value.op
    assert isinstance(op, Reduction)
    if len(op.axes) < 2 or not isinstance(op, ReduceSum) or length < LONG_SUM:
        return None
    *outer, inner = sorted(op.axes)
    some = replace(op, axes=(inner,), keep=True)(x)
    return Reshape(value.tensor.static)(replace(op, axes=tuple(outer), keep=True)(some))


def _split(value: Value, x: Value) -> Value | None:
    op = value.op
    assert isinstance(op, Reduction)
    if not x.tensor.is_static or not op.axes or 0 in x.tensor.static:
        return None
    shape, dtype = x.tensor.static, x.dtype
    first, last = min(op.axes), max(op.axes) + 1
    if last - first != len(op.axes) or (dtype.is_float and dtype.bits < 32):
        return None
    length = math.prod(shape[first:last])
    if is_open(length):
        return _split_by_axes(value, x, hint_of(length))
    if length >= LONG and x.tensor.size // length <= FEW:
        part = next((n for n in range(PART, 0, -1) if length % n == 0), 1)
        least = PART // 16
    elif isinstance(op, ReduceSum) and dtype.is_float and length >= LONG_SUM:
        if math.prod(shape[last:]) == 1:
            return None  # along rows, the lanes of a vector hold partial sums
        part = next(n for n in range(math.isqrt(length), 0, -1) if length % n == 0)
        least = 16
    else:
        return None
    if part < least:
        return None
    parts = Reshape((*shape[:first], length // part, part, *shape[last:]))(x)
    some = replace(op, axes=(first + 1,), keep=False)(parts)
    total: Value = replace(op, axes=(first,), keep=False)(some)
    return Reshape(value.tensor.static)(total) if op.keep else total


HALVES = (f16, bf16)


def cast_first(graph: Graph) -> dict[Value, DType]:
    """Return the f32 inputs that every use casts to one 16-bit type.

    Casts behind views and joins count too. An input that the graph returns, or whose memory is
    donated, is needed in full.
    """
    users: dict[Value, list[Value]] = {}
    for value in graph.values:
        for operand in value.inputs:
            users.setdefault(operand, []).append(value)
    returned = {value for _, value in graph.outputs}
    becomes: dict[Value, DType | None] = {}
    for value in reversed(graph.values):  # users before their operands
        found = {_rounded_by(user, becomes) for user in users.get(value, ())}
        becomes[value] = found.pop() if len(found) == 1 and value not in returned else None
    donated = {name for _, name in graph.donations}
    named = zip(graph.input_names, graph.inputs, strict=True)
    return {
        value: kind
        for name, value in named
        if name not in donated and (kind := becomes.get(value)) is not None
    }


def _rounded_by(user: Value, becomes: dict[Value, DType | None]) -> DType | None:
    """Return the type that a user casts an f32 operand to; None if it needs the f32 values."""
    if isinstance(user.op, Cast):
        wide = user.inputs[0].dtype == f32
        return user.dtype if wide and user.dtype in HALVES else None
    return becomes[user] if is_view(user) or is_join(user) or isinstance(user.op, Copy) else None
