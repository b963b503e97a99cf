"""Inputs that a graph rounds before it does anything else with them.

Whoever brings them may round them on the way: what is rounded already is not changed by rounding.
"""

from __future__ import annotations

from monograph.ir import DType, Graph, Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.cast import Cast
from monograph.program.fusion.op_classes import Copy, is_join, is_view

HALVES = (f16, bf16)


def cast_first(graph: Graph) -> dict[Value, DType]:
    """The inputs of f32 whose every element is cast to one type of 16 bits, wherever it is used.

    Behind what only moves elements the cast counts, too. What a graph returns is used as it is,
    and memory that is donated has to hold all of it.
    """
    users: dict[Value, list[Value]] = {}
    for value in graph.values:
        for operand in value.inputs:
            users.setdefault(operand, []).append(value)
    returned = {value for _, value in graph.outputs}
    becomes: dict[Value, DType | None] = {}
    for value in reversed(graph.values):  # users before what they use
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
    """What a user makes of every element of an operand of f32; None where it needs all of it."""
    if isinstance(user.op, Cast):
        wide = user.inputs[0].dtype == f32
        return user.dtype if wide and user.dtype in HALVES else None
    return becomes[user] if is_view(user) or is_join(user) or isinstance(user.op, Copy) else None
