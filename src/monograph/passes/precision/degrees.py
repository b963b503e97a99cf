"""Degrees: how the numbers of a value grow when those of the inputs grow.

A value has degree d if inputs that are k times as large make it about k^d times as large. Inputs
have degree 1; sums, layers of constant weights and activations such as ReLU keep the degree;
products add degrees, quotients subtract them, powers multiply them. What saturates or is
normalised has degree 0, as have constants: its size does not depend on the size of the inputs.

How large numbers become is estimated on drawn inputs (`rehearsal`). An estimate serves up to degree
1, with room for other inputs. Beyond, it says nothing: audio may come at amplitude 1 or 32768, and
its power spectrum is then 1 or a billion. Integers of more than 8 bits are drawn as 0 or 1 and may
be anything, so they count as degree 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_

import numpy as np

from monograph.ir import Constant, Graph, Input, Item, TensorType, Value, known
from monograph.ir.dtype import BOOL
from monograph.ops import composite
from monograph.ops import elementwise as ew
from monograph.ops.attention import Attention
from monograph.ops.base import Comparison
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.linear import Det, Dot
from monograph.ops.pad_tile import Iota
from monograph.ops.quant import Dequantize
from monograph.ops.recurrent import Gru, Lstm, Rnn
from monograph.ops.reduce import ArgMax, ArgMin, CumProd, ReduceProd
from monograph.ops.shape import ShapeOf
from monograph.ops.sort import NonZero
from monograph.passes.base import users_of
from monograph.passes.precision.precision_rules import MOVES, NARROW_INTEGER_BITS

TRUSTED = 1.0
"""The largest degree at which an estimate on drawn inputs serves."""
COUNTED = 2.0
"""What integers of unknown size count as."""
MOST = 64.0
"""Degrees beyond this are not told apart."""
LEVEL = (
    Comparison, Gru, Iota, Lstm, NonZero, Rnn, ShapeOf, ArgMax, ArgMin, composite.LayerNorm,
    composite.RmsNorm, composite.Softmax, ew.Acos, ew.Asin, ew.Atan, ew.Cos, ew.Erf, ew.Exp, ew.Log,
    ew.Sigmoid, ew.Sign, ew.Sin, ew.Tanh,
)  # fmt: skip
"""Ops whose results do not grow with their operands, or stay in f32 and are bounded by what reads
them: an exponential, unless a layer reads it."""
LARGEST = 65504.0
"""The largest finite number of f16."""
FIRST = (Gather, GatherElements, GatherNd)
"""Ops whose first operand is what they give elements of."""
LAYERS = (Dot, Conv, ConvTranspose)
"""Ops that square what they read where both operands come from one input; weights that are fed keep
the degree, as constant ones do."""
SCORES = (ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Where, ew.Clip, *MOVES)
"""What stands between a product of queries with keys and its softmax."""

Degrees = Mapping[Value, float]


def find_degrees(graph: Graph, bounded: Callable[[Value], bool]) -> dict[Value, float]:
    """The degree of every value of a graph; 0 where `bounded` proves that its numbers fit."""
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
        elif isinstance(value.op, LAYERS):
            pair = [MOST if _is_steep(v, bounded) else found[v] for v in value.inputs[:2]]
            squares = own[0] & own[1] and not _feeds_softmax(value, users)
            found[value] = sum(pair) if squares else _peak(pair)
        else:
            found[value] = _degree(value, found)
    return found


def _is_steep(operand: Value, bounded: Callable[[Value], bool]) -> bool:
    """Tell whether a layer reads an exponential that nothing bounds, through moves or not."""
    while isinstance(operand.op, MOVES) and not bounded(operand):
        operand = operand.inputs[0]
    return isinstance(operand.op, ew.Exp) and not bounded(operand)


def is_trusted(degree: float) -> bool:
    """Tell whether an estimate on drawn inputs serves for a value of a degree."""
    return abs(degree) <= TRUSTED


def _degree(value: Value, found: Degrees) -> float:
    op, kind = value.op, value.type
    if isinstance(op, (Constant, *LEVEL)):
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
    given = [found[v] for v in value.inputs]
    for kinds, rule in _RULES:
        if isinstance(op, kinds):
            return max(-MOST, min(MOST, rule(value, given)))
    return _peak([d for v, d in zip(value.inputs, given, strict=True) if _is_data(v, value)])


def _peak(degrees: Sequence[float]) -> float:
    """The degree of a sum: the one that is furthest from 0."""
    return max(degrees, key=lambda d: (abs(d), d), default=0.0)


def _is_data(operand: Value, value: Value) -> bool:
    """Tell indices, lengths and conditions from what a value is made of."""
    if not isinstance(value.type, TensorType) or not isinstance(operand.type, TensorType):
        return True
    return operand.dtype.is_float == value.dtype.is_float


def _feeds_softmax(value: Value, users: Mapping[Value, list[Value]]) -> bool:
    """Tell whether nothing but a softmax reads a value: scores of an attention."""
    stack, seen = [value], {value}
    while stack:
        readers = users.get(stack.pop(), [])
        if not readers:
            return False
        for user in readers:
            if isinstance(user.op, (composite.Softmax, composite.LogSoftmax)) or user in seen:
                continue
            if not isinstance(user.op, SCORES):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _clip(value: Value, given: list[float]) -> float:
    assert isinstance(value.op, ew.Clip)
    return 0.0 if max(abs(value.op.lo), abs(value.op.hi)) <= LARGEST else given[0]


def _power(value: Value, given: list[float]) -> float:
    exponent = known(value.inputs[1])
    if exponent is None or not exponent.size:
        return MOST if any(given) else 0.0
    return given[0] * float(np.max(np.abs(exponent.astype(np.float64))))


Rule = Callable[[Value, list[float]], float]
_RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    (FIRST, lambda value, given: given[0]),
    (ew.Where, lambda value, given: _peak(given[1:])),
    (ew.Clip, _clip),
    (ew.Mul, lambda value, given: sum(given)),
    (ew.Div, lambda value, given: given[0] - given[1]),
    (ew.Pow, _power),
    (ew.Sqrt, lambda value, given: given[0] / 2),
    ((CumProd, Det, ReduceProd), lambda value, given: given[0] * MOST),
    (Cast, lambda value, given: given[0]),
    (Dequantize, lambda value, given: sum(given[:2])),
    # Attention gives means of its values.
    (Attention, lambda value, given: given[2]),
)
