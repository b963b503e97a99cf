"""Front ends: operands of logarithms, squares and sines stay in f32, back to the inputs.

The degree of a value is its growth with the inputs.

A logarithm shows the digits of small numbers. Small results of a Fourier transform are sums of
large terms that cancel, so the terms need their digits too: a signal that is rounded to f16 has
noise 66 dB below it, which fills the quiet bands of its spectrum. So all linear work behind a
logarithm stays, squares and roots included, back to an activation or an input. Where there is no
logarithm, the linear work that is squared stays, where it starts at the inputs: its range is as
little known as that of the square; but not where the square only normalises. An angle keeps the
arithmetic that makes it: its error is a part of a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_

import numpy as np

from monograph.ir import Constant, Graph, Input, Item, Op, TensorType, Value, known, subgraphs
from monograph.ir.dtype import BOOL
from monograph.ir.traits import MOST_DEGREE, NARROW_INTEGER_BITS, peak
from monograph.passes.base import users_of
from monograph.passes.precision.precision_rules import is_f32, is_move

TRUSTED = 1.0
"""The largest degree at which an estimate on drawn inputs serves."""
COUNTED = 2.0
"""The degree of integers of unknown size."""

Degrees = Mapping[Value, float]


def find_degrees(graph: Graph, bounded: Callable[[Value], bool]) -> dict[Value, float]:
    """Return the degree of every value of a graph; 0 where `bounded` proves that it fits."""
    users = users_of(graph)
    found: dict[Value, float] = {}
    sources: dict[Value, int] = {v: 1 << i for i, v in enumerate(graph.inputs)}
    for value in (*graph.inputs, *graph.values):
        if value in found:
            continue
        own = [sources[v] for v in value.inputs]
        sources.setdefault(value, reduce(or_, own, 0))
        if not isinstance(value.op, (Input, Constant)) and bounded(value):
            found[value] = 0.0
        elif value.op.contracts:
            # Two operands from one input square it. Weights that are fed keep the degree, as
            # constant ones do.
            pair = [MOST_DEGREE if _is_steep(v, bounded) else found[v] for v in value.inputs[:2]]
            squares = own[0] & own[1] and not _feeds_softmax(value, users)
            found[value] = sum(pair) if squares else peak(pair)
        else:
            found[value] = _degree(value, found)
    return found


def _is_steep(operand: Value, bounded: Callable[[Value], bool]) -> bool:
    """Return True if a layer reads an unbounded exponential, through moves or not."""
    while is_move(operand.op) and not bounded(operand):
        operand = operand.inputs[0]
    return operand.op.exponential and not bounded(operand)


def is_trusted(degree: float) -> bool:
    """Return True if an estimate on drawn inputs serves for a value of a degree."""
    return abs(degree) <= TRUSTED


def _degree(value: Value, found: Degrees) -> float:
    op, kind = value.op, value.type
    if isinstance(op, Constant):
        return 0.0
    if isinstance(kind, TensorType):
        small = kind.dtype.is_integer and kind.dtype.bits <= NARROW_INTEGER_BITS
        if kind.dtype.kind == BOOL or small:
            return 0.0
        if isinstance(op, Input):
            return 1.0 if kind.dtype.is_float else COUNTED if kind.dtype.is_integer else 0.0
        if isinstance(op, Item) and kind.dtype.is_integer:
            return 0.0
    elif isinstance(op, Input):
        return COUNTED
    stated = op.degree(value, [found[v] for v in value.inputs])
    return max(-MOST_DEGREE, min(MOST_DEGREE, stated))


def _feeds_softmax(value: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Return True if only a softmax reads a value: scores of an attention."""
    stack, seen = [value], {value}
    while stack:
        readers = users.get(stack.pop(), [])
        if not readers:
            return False
        for user in readers:
            if user.op.reads_scores or user in seen:
                continue
            if not _makes_scores(user.op):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _makes_scores(op: Op) -> bool:
    return op.makes_scores or is_move(op)


LOGGED = "a logarithm reads it, which shows the digits of small numbers"
SQUARED = "it is made of inputs and squared, and no bound is proved"
ANGLE = "a sine or cosine reads it: its error is a part of a turn"
FLOOR = 0.1
"""A logarithm does not show the digits of a term that is added to at least this."""


def find_front_ends(graph: Graph, degrees: Mapping[Value, float]) -> dict[Value, str]:
    """Return the values that stay in f32 because of a reader; without degrees, of a logarithm."""
    found: dict[Value, str] = {}
    raw, users = _linear_in_inputs(graph), users_of(graph)
    for value in reversed(graph.values):
        reason = _reads(value, found.get(value), degrees)
        if reason == SQUARED and value not in found and _normalises(value, users):
            continue
        for v in value.inputs:
            if isinstance(v.op, (Input, Constant)) or not (is_f32(v.type) or _has_parts(v)):
                continue
            stays = v in raw if reason == SQUARED else _makes_angles(v.op)
            if reason == LOGGED or (reason is not None and stays and v not in found):
                found[v] = reason
    return found


def _normalises(square: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Return True if every result of a square is a divisor."""
    stack, seen = [square], {square}
    while stack:
        value = stack.pop()
        if not users.get(value):
            return False
        for user in users[value]:
            divides = _divides_by(user, value)
            if divides or user in seen:
                continue
            if not (_is_linear(user.op) or user.op.scaling or user.op.keeps_small):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _divides_by(user: Value, value: Value) -> bool:
    """Return True if a user divides by a value, and reads it nowhere else."""
    divisors = {user.inputs[i] for i in user.op.divisors}
    return value in divisors and value is not user.inputs[0]


def _is_linear(op: Op) -> bool:
    return op.linear or is_move(op)


def _makes_angles(op: Op) -> bool:
    return op.makes_angles or is_move(op)


def _has_parts(value: Value) -> bool:
    """Return True for a loop: a logarithm sees small numbers through its sub-graphs."""
    return value.op.keeps_small and bool(subgraphs(value.op))


def _reads(value: Value, reason: str | None, degrees: Mapping[Value, float]) -> str | None:
    """Return why the operands of a value stay; None where they need not."""
    op = value.op
    if op.logarithm:
        return None if _floor(value.inputs[0]) >= FLOOR else LOGGED
    if reason == LOGGED:
        return LOGGED if op.shows_small(value, _floor) else None
    if reason == SQUARED:
        return SQUARED
    if reason == ANGLE:
        return ANGLE if _makes_angles(op) else None
    if op.reads_angles:
        return ANGLE
    grown = degrees.get(value, 0.0)
    least = max((abs(degrees.get(v, 0.0)) for v in value.inputs), default=0.0)
    return SQUARED if not is_trusted(grown) and abs(grown) > least > 0 else None


def _floor(value: Value) -> float:
    """Return the lower limit of a value by a term or a clip; 0 without one."""
    while is_move(value.op) and len(value.inputs) == 1:
        value = value.inputs[0]
    data = known(value)
    if data is not None:
        return float(data.min()) if data.size and not np.isnan(data).any() else 0.0
    return value.op.floor(value, _floor)


def _linear_in_inputs(graph: Graph) -> set[Value]:
    """Return the values that are linear in the inputs, with constant weights."""
    found: set[Value] = {v for v in graph.inputs if is_f32(v.type)}
    for value in graph.values:
        data = [v for v in value.inputs if is_f32(v.type) and known(v) is None]
        if not data or not is_f32(value.type) or not all(v in found for v in data):
            continue
        one = len(data) == 1 and not _divides_by(value, data[0])
        weighted = value.op.contracts or value.op.scaling
        if (one and value.op.scaling) or (_is_linear(value.op) and (one or not weighted)):
            found.add(value)
    return found
