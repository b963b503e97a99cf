"""Applies an op to arrays, and a slow, plain convolution to compare with."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from monograph.ir import Graph, Input, Op, TensorType, Value, dtype, evaluate, from_numpy


def apply(op: Op, *data: Any) -> Any:
    """The result of an op on arrays; Python floats stand for f32."""
    arrays = [np.asarray(d) for d in data]
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
    inputs = tuple(
        Input(f"x{i}", TensorType(from_numpy(a.dtype), a.shape))() for i, a in enumerate(arrays)
    )
    (result,) = evaluate(Graph(inputs, (("y", op(*inputs)),)), arrays)
    return result


def typed(op: Op, *types: str) -> Value:
    """An op on inputs of these types: "f32 N 3 5" has a symbol and two sizes."""
    inputs = []
    for i, text in enumerate(types):
        name, *dims = text.split()
        shape = tuple(int(d) if d.isdigit() else d for d in dims)
        inputs.append(Input(f"x{i}", TensorType(dtype(name), shape))())
    return op(*inputs)


def naive_conv(
    x: Any, w: Any, strides: Any, begin: Any, end: Any, dilations: Any, groups: int
) -> Any:
    """A convolution by its definition, one product at a time."""
    spatial = x.ndim - 2
    sizes = [
        (x.shape[2 + a] + begin[a] + end[a] - (w.shape[2 + a] - 1) * dilations[a] - 1) // strides[a]
        + 1
        for a in range(spatial)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_group = w.shape[0] // groups
    for n, o in itertools.product(range(x.shape[0]), range(w.shape[0])):
        first = o // per_group * w.shape[1]
        for place in np.ndindex(*sizes):
            for c in range(w.shape[1]):
                for k in np.ndindex(*w.shape[2:]):
                    at = [
                        place[a] * strides[a] + k[a] * dilations[a] - begin[a]
                        for a in range(spatial)
                    ]
                    if all(0 <= at[a] < x.shape[2 + a] for a in range(spatial)):
                        y[(n, o, *place)] += float(x[(n, first + c, *at)]) * float(w[(o, c, *k)])
    return y
