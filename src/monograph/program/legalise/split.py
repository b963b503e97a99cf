"""Long reductions in two steps: threads have work where results are few, and sums stay accurate.

The order of the sum is that of the graph, whatever the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import replace

from monograph.ir import Graph, TensorType, Value
from monograph.ops.reduce import ReduceSum, Reduction
from monograph.ops.shape import Reshape

LONG = 1 << 15
"""Elements from which a row is split."""
FEW = 16
"""Results up to which rows are split: more are shared out whole."""
PART = 4096
LONG_SUM = 4096
"""Terms from which a sum down columns is split: one total for each, and nothing to even it out."""


def split_reductions(graph: Graph) -> Graph:
    """The graph with long reductions replaced by reductions of their parts."""

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
            return None  # along rows, the lanes of a vector add up parts
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
