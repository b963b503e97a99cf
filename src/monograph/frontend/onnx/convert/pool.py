"""Pools over windows, and global pools as reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monograph.frontend.onnx.convert.common import cast, mean, widened
from monograph.frontend.onnx.convert.conv import geometry
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value, constant
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops.deferred import deferred
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool
from monograph.ops.unpool import MaxUnpool


def _window(n: Node) -> dict[str, Any]:
    """Return the fields that every pool has."""
    kernel = n.attr_ints("kernel_shape")
    g = geometry(n, len(kernel))
    return {"kernel": kernel, "ceil": n.attr_flag("ceil_mode"), **vars(g)}


@converter("MaxPool")
def max_pool(n: Node) -> Sequence[Value | None]:
    window = _window(n)
    y = MaxPool(**window)(n.input(0))
    if not n.wants(1):
        return (y,)
    column_major = n.attr_flag("storage_order")
    return (y, ArgMaxPool(**window, column_major=column_major)(n.input(0)))


@converter("AveragePool")
def average_pool(n: Node) -> Value:
    return AveragePool(**_window(n), include_pad=n.attr_flag("count_include_pad"))(n.input(0))


@converter("LpPool", since=2)
def lp_pool(n: Node) -> Value:
    return LpPool(**_window(n), p=n.attr_int("p", 2))(n.input(0))


@converter("LpPool")
def lp_pool_1(n: Node) -> Value:
    """Convert LpPool version 1, whose p may be fractional."""
    p = n.attr_float("p", 2.0)
    if p != int(p):
        n.unsupported("an LpPool whose p is not a whole number")
    return LpPool(**_window(n), p=int(p))(n.input(0))


@converter("MaxUnpool")
def max_unpool(n: Node) -> Value:
    kernel = n.attr_ints("kernel_shape")
    g = geometry(n, len(kernel)).fixed
    del g["dilations"]
    x, indices, sizes = n.input(0), n.input(1), n.optional(2)
    if sizes is None:
        return MaxUnpool(kernel, **g)(x, indices)
    return deferred(MaxUnpool, (x, indices), {"sizes": sizes}, kernel=kernel, **g)


def _spatial_axes(n: Node) -> tuple[int, ...]:
    rank = n.rank(0)
    if rank < 3:
        n.fail("the input of a global pool must be x[N, C, *spatial]", given=n.input(0).type)
    return tuple(range(2, rank))


@converter("GlobalMaxPool")
def global_max_pool(n: Node) -> Value:
    return rd.ReduceMax(_spatial_axes(n), keep=True)(n.input(0))


@converter("GlobalAveragePool")
def global_average_pool(n: Node) -> Value:
    x = widened(n.input(0))
    return cast(mean(x, _spatial_axes(n)), n.input(0).dtype)


@converter("GlobalLpPool")
def global_lp_pool(n: Node) -> Value:
    axes = _spatial_axes(n)
    x = n.input(0)
    p = n.attr_int("p", 2) if n.opset >= 2 else n.attr_float("p", 2.0)
    if p <= 0:
        n.fail("the order of a norm must be positive", given=p)
    powers = ew.Pow()(ew.Abs()(x), constant(p, x.dtype))
    total = rd.ReduceSum(axes, keep=True)(powers)
    return ew.Pow()(total, constant(1.0 / p, x.dtype))
