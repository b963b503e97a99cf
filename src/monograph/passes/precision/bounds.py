"""Bounds on the magnitudes of values that hold for all inputs.

Infinity means that nothing is proved. Constants and integers have a bound. An op states the bound
of its result from those of its operands (`Op.bound`): results of ops that saturate (sigmoid, tanh,
clip, softmax) or normalise are bounded, and so are sums and products of bounded values; layers by
the norms of their weights. No bound covers NaN and infinities in the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from monograph.ir import Constant, Graph, TensorType, Value, known
from monograph.ir.dtype import BOOL

BYTE = 8


def find_bounds(graph: Graph) -> dict[Value, float]:
    """Return the bound of every value of a graph that has one."""
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
    return value.op.bound(value, [bounds.get(v, math.inf) for v in value.inputs])


def _of_constant(value: Value) -> float:
    data = known(value)
    if value.dtype.is_integer and value.dtype.bits < BYTE:
        return 2.0**value.dtype.bits
    numbers = value.dtype.is_float or value.dtype.is_integer
    if data is None or not numbers or not data.size:
        return math.inf
    low, high = float(data.min()), float(data.max())
    # NaN bounds nothing.
    return math.inf if math.isnan(low + high) else max(abs(low), abs(high))
