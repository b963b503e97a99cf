"""Helpers that several families of converters share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.sizes import size_value
from monograph.ir import DType, Value, constant, known
from monograph.ir.dtype import bf16, f16, f32
from monograph.ir.sizes import is_open
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.cast import Cast
from monograph.ops.deferred import deferred
from monograph.ops.reduce import ReduceMax, ReduceSum


def scalar(number: float, like: Value) -> Value:
    """A constant of another value's element type."""
    return constant(np.asarray(number), like.dtype)


def zeros(shape: tuple[int, ...], dtype: DType) -> Value:
    """Return zeros as a broadcast, because a file can state any size; few zeros are a constant."""
    return fold(sh.Broadcast(shape)(constant(0, dtype)))


def as_scalar(x: Value) -> Value:
    """Return a value of one element as a scalar: exporters write [1] where ONNX requires []."""
    if x.tensor.shape == ():
        return x
    data = known(x)
    if data is not None and data.size == 1:
        return constant(data.reshape(()))
    return sh.Reshape(())(x)


def cast(x: Value, to: DType) -> Value:
    """Cast x; return x itself if it has that element type."""
    return x if x.dtype == to else Cast(to)(x)


def widened(x: Value) -> Value:
    """x in the type that sums of its elements are computed in: 16-bit floats in f32."""
    return cast(x, f32) if x.dtype in (f16, bf16) else x


def reshape_like(x: Value, like: Value) -> Value:
    """Reshape x to the shape of another value, whose sizes may be known at run time only."""
    if like.tensor.is_static:
        return sh.Reshape(like.tensor.static)(x)
    return deferred(sh.Reshape, (x,), {"shape": sh.ShapeOf()(like)})


def broadcast_like(x: Value, like: Value) -> Value:
    """Broadcast x to the shape of another value."""
    if like.tensor.is_static:
        return sh.Broadcast(like.tensor.static)(x)
    return deferred(sh.Broadcast, (x,), {"shape": sh.ShapeOf()(like)})


def per_channel(x: Value, rank: int) -> Value:
    """A vector as [C, 1, ...], so that it broadcasts along axis 1 of a tensor of this rank."""
    return sh.Unsqueeze(tuple(range(1, rank - 1)))(x) if rank > 2 else x


def count_along(x: Value, axes: Iterable[int], dtype: DType) -> Value:
    """Return the number of elements of x along axes, as a scalar of an element type."""
    fixed, open_axes = 1, []
    for a in axes:
        size = x.tensor.dim(a)
        if isinstance(size, int):
            fixed *= size
        else:
            open_axes.append(a)
    if not open_axes:
        return cast(constant(fixed), dtype) if is_open(fixed) else constant(fixed, dtype)
    count = constant(fixed)
    for a in open_axes:
        count = ew.Mul()(count, size_value(x, a))
    return cast(count, dtype)


def mean(x: Value, axes: tuple[int, ...], keep: bool = True) -> Value:
    """The mean along axes, in x's own element type."""
    return ew.Div()(ReduceSum(axes, keep)(x), count_along(x, axes, x.dtype))


def softmax(x: Value, axes: tuple[int, ...]) -> Value:
    """exp(x - max) / sum, over the axes together; 16-bit floats are computed in f32."""
    wide = widened(x)
    e = ew.Exp()(ew.Sub()(wide, ReduceMax(axes, keep=True)(wide)))
    return cast(ew.Div()(e, ReduceSum(axes, keep=True)(e)), x.dtype)
