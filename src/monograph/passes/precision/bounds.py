"""Bounds that the numbers of a value are proved to keep, whatever the inputs are.

A bound is on the magnitude; infinity says that nothing is proved. Constants have one, and so has
what saturates (sigmoid, tanh, clip, softmax), is normalised, or is made from integers; sums and
products of what is bounded have one too, layers by the norms of their weights. NaN and infinities
that come in from outside are nobody's bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from monograph.ir import Constant, Graph, TensorType, Value, known
from monograph.ir.dtype import BOOL
from monograph.ops import composite
from monograph.ops import elementwise as ew
from monograph.ops.attention import Attention
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.quant import Dequantize
from monograph.ops.reduce import ReduceMax, ReduceMin, ReduceSum
from monograph.ops.resize import CUBIC, Resize
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze

UNITS = (ew.Sigmoid, ew.Tanh, ew.Erf, ew.Sign, ew.Sin, ew.Cos, composite.Softmax)
"""Ops whose results lie between -1 and 1."""
KEEPERS = (
    AveragePool, Broadcast, Gather, GatherElements, GatherNd, MaxPool, ReduceMax, ReduceMin,
    Reshape, Slice, Squeeze, Tile, Transpose, Unsqueeze, composite.Gelu, composite.Silu, ew.Abs,
    ew.Neg,
)  # fmt: skip
"""Ops that give nothing larger than what their first operand holds."""
LARGEST = (Concat, Pad, ew.Max, ew.Min)
"""Ops whose results are no larger than the largest of their operands."""
BYTE = 8
NORMS = (composite.LayerNorm, composite.RmsNorm)


def find_bounds(graph: Graph) -> dict[Value, float]:
    """The bound of every value of a graph that has one."""
    bounds: dict[Value, float] = {}
    for value in graph.values:
        if isinstance(value.type, TensorType) and (found := _bound(value, bounds)) < math.inf:
            bounds[value] = found
    return bounds


def _bound(value: Value, bounds: Mapping[Value, float]) -> float:
    if isinstance(value.op, Constant):
        return _of_constant(value)
    if value.dtype.is_integer:
        # Integers wrap: their arithmetic proves nothing that their type does not.
        return 2.0**value.dtype.bits
    if not value.dtype.is_float:
        return 1.0 if value.dtype.kind == BOOL else math.inf
    given = [bounds.get(v, math.inf) for v in value.inputs]
    if isinstance(value.op, UNITS):
        return 1.0
    if isinstance(value.op, KEEPERS):
        return given[0]
    if isinstance(value.op, LARGEST):
        return max(given)
    for kinds, rule in _RULES:
        if isinstance(value.op, kinds):
            return rule(value, given)
    return math.inf


def _of_constant(value: Value) -> float:
    data = known(value)
    if value.dtype.is_integer and value.dtype.bits < BYTE:
        return 2.0**value.dtype.bits
    numbers = value.dtype.is_float or value.dtype.is_integer
    if data is None or not numbers or not data.size:
        return math.inf
    return _largest(data.min(), data.max())


def _largest(low: Any, high: Any) -> float:
    """The larger magnitude of two; NaN bounds nothing."""
    largest = max(abs(float(low)), abs(float(high)))
    return math.inf if math.isnan(float(low) + float(high)) else largest


def _average(value: Value, given: list[float]) -> float:
    """Values between elements; a cubic kernel overshoots them."""
    assert isinstance(value.op, Resize)
    if value.op.mode == CUBIC:
        return math.inf
    return max(given[0], abs(value.op.extrapolation))


def _clipped(value: Value, given: list[float]) -> float:
    assert isinstance(value.op, ew.Clip)
    ends = max(abs(value.op.lo), abs(value.op.hi))
    return ends if ends < math.inf else max(given[0], value.op.lo, -value.op.hi)


def _times(value: Value, given: list[float]) -> float:
    return 0.0 if 0.0 in given else math.prod(given)


def _cast(value: Value, given: list[float]) -> float:
    source = value.inputs[0].dtype
    return given[0] if source.is_float or source.is_integer or source.kind == BOOL else math.inf


def _dequantized(value: Value, given: list[float]) -> float:
    """(x - zero_point) * scale: two integers of a type are no further apart than it is wide."""
    kind = value.inputs[0].dtype
    if not kind.is_integer or given[1] == math.inf:
        return math.inf
    zero = given[2] if len(given) > 2 and value.inputs[2].dtype.is_float else 0.0
    return (2.0**kind.bits + zero) * given[1]


def _sum(value: Value, given: list[float]) -> float:
    (x,) = value.inputs
    static = x.tensor.is_static and value.tensor.is_static
    if not static or not value.tensor.size or given[0] == math.inf:
        return math.inf
    return given[0] * (x.tensor.size // value.tensor.size)


def _layer(value: Value, given: list[float]) -> float:
    """The largest sum of the magnitudes of the weights that make one element."""
    weights = known(value.inputs[1])
    if weights is None or given[0] == math.inf or not weights.size:
        return math.inf
    axes = -2 if isinstance(value.op, Dot) else tuple(range(1, weights.ndim))
    norms = np.abs(weights.astype(np.float64)).sum(axis=axes)
    return given[0] * _largest(norms.min(), norms.max())


def _norm(value: Value, given: list[float]) -> float:
    """One element of n takes at most all of their squares: sqrt(n), scaled and moved."""
    assert isinstance(value.op, NORMS)
    dims = [value.inputs[0].tensor.dims[a] for a in value.op.axes]
    if not all(isinstance(d, int) for d in dims):
        return math.inf
    root = math.sqrt(math.prod(int(d) for d in dims))
    scale, bias = [*given[1:], *(1.0, 0.0)[len(given) - 1 :]][:2]
    return root * scale + bias


Rule = Callable[[Value, list[float]], float]
_RULES: tuple[tuple[type | tuple[type, ...], Rule], ...] = (
    ((ew.Add, ew.Sub), lambda value, given: sum(given)),
    (ew.Mul, _times),
    (ew.Where, lambda value, given: max(given[1:])),
    (ew.Sqrt, lambda value, given: math.sqrt(given[0])),
    (ew.Clip, _clipped),
    (Resize, _average),
    (Cast, _cast),
    (Dequantize, _dequantized),
    (ReduceSum, _sum),
    ((Dot, Conv), _layer),
    (NORMS, _norm),
    # Attention gives means of its values.
    (Attention, lambda value, given: given[2]),
)
