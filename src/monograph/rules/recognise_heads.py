"""Views of queries, keys and values, for the recognition of attention."""

from __future__ import annotations

import math

import numpy as np

from monograph.ir import Dim, Op, Value, known
from monograph.ops.elementwise import Div, Mul
from monograph.ops.index import Gather
from monograph.ops.shape import Broadcast, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.rules.recognise import uniform

VIEWS = (Transpose, Reshape, Squeeze, Unsqueeze)
MAX_STEPS = 8
"""The longest chain of views and factors that is followed."""
HEADS = 1


def swapped(value: Value) -> Value:
    """Swap the last two axes of a value, with at most one transpose."""
    order = [*range(value.tensor.rank)]
    order[-2:] = order[-1], order[-2]
    if isinstance(value.op, Transpose):
        order = [value.op.permutation[i] for i in order]
        value = value.inputs[0]
    return value if order == sorted(order) else Transpose(tuple(order))(value)


def is_swap(value: Value) -> bool:
    """Return True if a value is a transpose that swaps the last two axes."""
    if not isinstance(value.op, Transpose) or value.tensor.rank < 2:
        return False
    *order, a, b = range(value.tensor.rank)
    return value.op.permutation == (*order, b, a)


def unscaled(value: Value) -> tuple[Value, float]:
    """Return a value without its constant factors, and their product."""
    scale = 1.0
    for _ in range(MAX_STEPS):
        if not isinstance(value.op, (Mul, Div)):
            break
        x, y = value.inputs
        if isinstance(value.op, Mul) and uniform(y) is None:
            x, y = y, x
        number = uniform(y)
        if not number or not math.isfinite(number) or x.type != value.type:
            break
        scale = scale / number if isinstance(value.op, Div) else scale * number
        value = x
    return value, scale


def unscaled_below(value: Value) -> tuple[Value, float]:
    """As `unscaled`, also if views stand between the value and the factors."""
    views: list[Op] = []
    inner = value
    while isinstance(inner.op, VIEWS) and len(views) < MAX_STEPS:
        views.append(inner.op)
        inner = inner.inputs[0]
    inner, scale = unscaled(inner)
    if scale == 1.0:
        return value, scale
    for view in reversed(views):
        inner = view(inner)
    return inner, scale


def without_repeats(k: Value, v: Value) -> tuple[Value, Value]:
    """Return keys and values before each of their heads was repeated for several query heads."""
    a, b = _before_repeat(k), _before_repeat(v)
    if a is None or b is None or a[1] != b[1]:
        return k, v
    return a[0], b[0]


def _before_repeat(value: Value) -> tuple[Value, int] | None:
    """Return a value before its heads were repeated one by one, and the number of repeats."""
    axis = HEADS
    transposes: list[Transpose] = []
    while isinstance(value.op, Transpose) and len(transposes) < MAX_STEPS:
        transposes.append(value.op)
        axis = value.op.permutation[axis]
        value = value.inputs[0]
    found = _repeated_by_gather(value, axis) or _repeated_by_broadcast(value, axis)
    if found is None:
        return None
    result, count = found
    for op in reversed(transposes):
        result = op(result)
    return result, count


def _repeated_by_gather(value: Value, axis: int) -> tuple[Value, int] | None:
    if not isinstance(value.op, Gather) or value.op.axis != axis:
        return None
    x, indices = value.inputs
    places, heads = known(indices), x.tensor.dims[axis]
    if places is None or places.ndim != 1 or not isinstance(heads, int) or not heads:
        return None
    count = places.size // heads
    same = np.array_equal(places, np.repeat(np.arange(heads), count))
    return (x, count) if same else None


def _repeated_by_broadcast(value: Value, axis: int) -> tuple[Value, int] | None:
    """Undo [.., G, ..] -> [.., G, 1, ..] -> [.., G, n, ..] -> [.., G n, ..]."""
    if not isinstance(value.op, Reshape):
        return None
    wide = value.inputs[0]
    if not isinstance(wide.op, Broadcast) or not isinstance(
        wide.inputs[0].op, (Unsqueeze, Reshape)
    ):
        return None
    x = wide.inputs[0].inputs[0]
    if x.tensor.rank != value.tensor.rank or wide.tensor.rank != x.tensor.rank + 1:
        return None
    before, after = x.tensor.dims[: axis + 1], x.tensor.dims[axis + 1 :]
    heads, count = x.tensor.dims[axis], wide.tensor.dims[axis + 1]
    if not isinstance(heads, int) or not isinstance(count, int):
        return None
    steps: tuple[tuple[Dim, ...], ...] = (
        wide.inputs[0].tensor.dims,
        wide.tensor.dims,
        value.tensor.dims,
    )
    expected = (
        (*before, 1, *after),
        (*before, count, *after),
        (*before[:-1], heads * count, *after),
    )
    return (x, count) if steps == expected else None
