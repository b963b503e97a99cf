"""Front ends: what a logarithm, a square or a sine reads stays in f32, back to the inputs.

A logarithm shows the digits of small numbers. Small results of a Fourier transform are sums of
large terms that cancel, so the terms need their digits too: a signal that is rounded to f16 has
noise 66 dB below it, which fills the quiet bands of its spectrum. So all linear work behind a
logarithm stays, squares and roots included, back to an activation or an input. Where there is no
logarithm, the linear work that is squared stays, where it starts at the inputs: its range is as
little known as that of the square; but not where the square only normalises. An angle keeps the
arithmetic that makes it: its error is a part of a turn.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from monograph.ir import Constant, Graph, Input, Item, Value, known
from monograph.ops import elementwise as ew
from monograph.ops.cast import Cast
from monograph.ops.control import Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.linear import Dot
from monograph.ops.pool import AveragePool, LpPool
from monograph.ops.reduce import Cumulative, ReduceSum
from monograph.ops.resize import Resize
from monograph.ops.signal import Dft, Frames
from monograph.passes.base import users_of
from monograph.passes.precision.degrees import is_trusted
from monograph.passes.precision.precision_rules import MOVES, is_f32

LOGGED = "a logarithm reads it, which shows the digits of small numbers"
SQUARED = "it is made of inputs and squared, and no bound is proved"
ANGLE = "a sine or cosine reads it: its error is a part of a turn"
FLOOR = 0.1
"""What is added to at least so much may be small without showing it in a logarithm."""
LINEAR = (
    AveragePool, Cast, Conv, ConvTranspose, Cumulative, Dft, Dot, Frames, ReduceSum, Resize,
    ew.Add, ew.Neg, ew.Sub, ew.Where, *MOVES,
)  # fmt: skip
SCALES = (ew.Mul, ew.Div)
"""Ops that are linear where the other operand is constant."""
EXACT = (ew.Add, ew.Clip, ew.Div, ew.Max, ew.Min, ew.Mul, ew.Neg, ew.Sub, ew.Where, *MOVES)
"""Ops that an angle is made by; a layer is no such op."""
TURNS = (ew.Sin, ew.Cos, ew.Tan)
POWERS = (LpPool, ew.Abs, ew.Clip, ew.Max, ew.Min, ew.Pow, ew.Sqrt, Item, Loop, Scan)
"""Ops that a logarithm sees small numbers through."""


def find_front_ends(graph: Graph, degrees: Mapping[Value, float]) -> dict[Value, str]:
    """The values that stay in f32 for what reads them; without degrees, for logarithms only."""
    found: dict[Value, str] = {}
    raw, users = _linear_in_inputs(graph), users_of(graph)
    for value in reversed(graph.values):
        reason = _reads(value, found.get(value), degrees)
        if reason == SQUARED and value not in found and _normalises(value, users):
            continue
        for v in value.inputs:
            if isinstance(v.op, (Input, Constant)) or not (is_f32(v.type) or _has_parts(v)):
                continue
            stays = v in raw if reason == SQUARED else isinstance(v.op, EXACT)
            if reason == LOGGED or (reason is not None and stays and v not in found):
                found[v] = reason
    return found


def _normalises(square: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Tell whether all that comes of a square is divided by."""
    stack, seen = [square], {square}
    while stack:
        value = stack.pop()
        if not users.get(value):
            return False
        for user in users[value]:
            divides = isinstance(user.op, ew.Div) and value is not user.inputs[0]
            if divides or user in seen:
                continue
            if not isinstance(user.op, (*LINEAR, *SCALES, *POWERS)):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _has_parts(value: Value) -> bool:
    return isinstance(value.op, (Loop, Scan))


def _reads(value: Value, reason: str | None, degrees: Mapping[Value, float]) -> str | None:
    """Why the operands of a value stay; None where they need not."""
    op = value.op
    if isinstance(op, ew.Log):
        return None if _floor(value.inputs[0]) >= FLOOR else LOGGED
    if reason == LOGGED:
        return LOGGED if _passes(value) else None
    if reason == SQUARED:
        return SQUARED
    if reason == ANGLE:
        return ANGLE if isinstance(op, EXACT) else None
    if isinstance(op, TURNS):
        return ANGLE
    grown = degrees.get(value, 0.0)
    least = max((abs(degrees.get(v, 0.0)) for v in value.inputs), default=0.0)
    return SQUARED if not is_trusted(grown) and abs(grown) > least > 0 else None


def _passes(value: Value) -> bool:
    """Tell whether small numbers of a value are small numbers, or differences, of its operands."""
    if isinstance(value.op, ew.Clip):
        # From 0 on it is an activation, as it is between -1 and 1.
        return value.op.lo > 0
    if isinstance(value.op, ew.Max):
        return any(_floor(v) > 0 for v in value.inputs)
    return isinstance(value.op, (*LINEAR, *SCALES, *POWERS))


def _floor(value: Value) -> float:
    """What a value is at least for what is added to it, or what it is cut at; else 0."""
    while isinstance(value.op, MOVES) and len(value.inputs) == 1:
        value = value.inputs[0]
    data = known(value)
    if data is not None:
        return float(data.min()) if data.size and not np.isnan(data).any() else 0.0
    if isinstance(value.op, ew.Clip):
        return max(0.0, value.op.lo)
    if isinstance(value.op, (ew.Add, ew.Max)):
        return max(0.0, *(_floor(v) for v in value.inputs))
    return 0.0


def _linear_in_inputs(graph: Graph) -> set[Value]:
    """The values that are linear in the inputs, with constant weights."""
    found: set[Value] = {v for v in graph.inputs if is_f32(v.type)}
    for value in graph.values:
        data = [v for v in value.inputs if is_f32(v.type) and known(v) is None]
        if not data or not is_f32(value.type) or not all(v in found for v in data):
            continue
        one = len(data) == 1 and (not isinstance(value.op, ew.Div) or data[0] is value.inputs[0])
        weighted = isinstance(value.op, (Conv, ConvTranspose, Dot, *SCALES))
        if (one and isinstance(value.op, SCALES)) or (
            isinstance(value.op, LINEAR) and (one or not weighted)
        ):
            found.add(value)
    return found
