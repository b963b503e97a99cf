"""Long reductions in two steps: work for all threads if results are few, and accurate sums.

The graph fixes the order of the sum, whatever the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import replace

from monograph.ir import Graph, TensorType, Value
from monograph.ops.reduce import ReduceSum, Reduction
from monograph.ops.shape import Reshape

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
    some = replace(op, axes=(first + 1,), keep=False)(parts)  # type: ignore[type-var]
    total: Value = replace(op, axes=(first,), keep=False)(some)  # type: ignore[type-var]
    return Reshape(value.tensor.static)(total) if op.keep else total
