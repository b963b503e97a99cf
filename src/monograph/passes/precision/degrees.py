"""Degrees: the growth of values with the inputs.

A value has degree d if inputs that are k times as large make it about k^d times as large. Inputs
have degree 1; sums, layers of constant weights and activations such as ReLU keep the degree;
products add degrees, quotients subtract them, powers multiply them. Constants and results of ops
that saturate or normalise have degree 0: their size does not depend on the size of the inputs. An
op states the degree of its result (`Op.degree`).

`range_probe` estimates magnitudes on drawn inputs. An estimate serves up to degree 1, with room for
other inputs. Beyond that it says nothing: audio may come at amplitude 1 or 32768, and its power
spectrum is then 1 or a billion. Integers of more than 8 bits are drawn as 0 or 1 and may be any
number, so they count as degree 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_

from monograph.ir import Constant, Graph, Input, Item, Op, TensorType, Value
from monograph.ir.dtype import BOOL
from monograph.ir.traits import MOST_DEGREE, NARROW_INTEGER_BITS, peak
from monograph.passes.base import users_of
from monograph.passes.precision.precision_rules import is_move

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
