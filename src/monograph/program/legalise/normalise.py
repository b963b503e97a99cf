"""Prepares a graph for lowering: copies stand where a kernel needs a value in its own place.

After this, the operands of kernels and joins lie in memory in a form that those can read, parts
of joins are free to be written straight into them, and outputs of the graph are stored values of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import count

from monograph.ir import Graph, Item, Value
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
from monograph.program.memory.output_views import no_ends

Readable = Callable[[Value, int, Value], bool]
"""Whether a kernel can read operand i where and as it is."""
Padded = Callable[[Value, int], object]
"""What a kernel wants around operand i; None for nothing."""


def normalise(
    graph: Graph,
    readable: Readable,
    halo: Padded = lambda user, index: None,
    ends: Callable[[Graph], Container[Value]] = no_ends,
) -> Graph:
    """The graph with copies inserted where memory demands them.

    `ends` says which outputs may stay views, because what they show is written into them.
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
                # Beside other parts there is no room for a halo, unless they are other channels.
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
    """What a part of a join is a mere reshape of: that can lie in the join as well."""
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
    """Values that some kernel expects a halo around."""
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
    """Whether parts of a join have the spatial edges of the whole: other images or channels."""
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
    """Outputs that are inputs, constants, views, joined parts, padded or named twice are copied."""
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
