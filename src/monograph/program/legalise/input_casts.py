"""Inputs that a graph casts to 16 bits before any other use.

The upload may cast them: casting again changes nothing.
"""

from __future__ import annotations

from monograph.ir import DType, Graph, Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.cast import Cast
from monograph.program.fusion.op_classes import Copy, is_join, is_view

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
