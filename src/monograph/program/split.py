"""Long reductions to few results, in two steps: all threads have work, and sums stay accurate.

The order of the sum is that of the graph, whatever the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import replace

from monograph.ir import Graph, TensorType, Value
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Reshape

LONG = 1 << 15
"""Elements from which a row is split."""
FEW = 16
"""Results up to which rows are split: more are shared out whole."""
PART = 4096


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
    if length < LONG or x.tensor.size // length > FEW:
        return None
    part = next((n for n in range(PART, 0, -1) if length % n == 0), 1)
    if part < PART // 16:
        return None
    parts = Reshape((*shape[:first], length // part, part, *shape[last:]))(x)
    some = replace(op, axes=(first + 1,), keep=False)(parts)  # type: ignore[type-var]
    total: Value = replace(op, axes=(first,), keep=False)(some)  # type: ignore[type-var]
    return Reshape(value.tensor.static)(total) if op.keep else total
