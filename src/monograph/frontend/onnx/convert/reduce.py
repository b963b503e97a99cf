"""Reductions of all opsets, softmax, log-softmax and hardmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from monograph.frontend.onnx.convert.common import (
    as_scalar,
    cast,
    count_along,
    reshape_like,
    scalar,
    softmax,
    widened,
)
from monograph.frontend.onnx.convert.index import along
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, size_of
from monograph.ir import Op, Value, constant
from monograph.ir.dtype import f64
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather

Axes: TypeAlias = tuple[int, ...] | Value


def _axes(n: Node) -> Axes:
    """Return the axes from an attribute or input; if empty, all (none with the no-op flag)."""
    everything = tuple(range(n.rank(0)))
    if_empty = () if n.attr_flag("noop_with_empty_axes") else everything
    given = n.attr_ints("axes") if n.has("axes") else n.known_ints(1)
    if given is not None:
        return tuple(given) or if_empty
    late = n.optional(1)
    if late is None:
        return if_empty
    if late.tensor.rank != 1:
        n.fail("axes must be a vector", given=late.type)
    length = late.tensor.dim(0)
    if isinstance(length, int):
        return late if length else if_empty
    return late if not if_empty else _all_if_empty(late, everything)


def _all_if_empty(axes: Value, everything: tuple[int, ...]) -> Value:
    """Append all axes to axes that may turn out to be empty at run time."""
    none = ew.Equal()(sh.ShapeOf()(axes), constant([0]))
    stop = ew.Where()(none, constant([len(everything)]), constant([0]))
    rest = constant(np.array(everything, axes.dtype.numpy))
    taken = deferred(sh.Slice, (rest,), {"stops": stop}, starts=(0,), steps=(1,))
    return sh.Concat(0)(axes, taken)


def _reduce(op: type[rd.Reduction], x: Value, axes: Axes, keep: bool) -> Value:
    if isinstance(axes, Value):
        return deferred(op, (x,), {"axes": axes}, keep=keep)
    return op(axes, keep)(x)


def _drop(x: Value, axes: Axes, keep: bool) -> Value:
    """Drop the axes that a reduction kept, unless `keep`."""
    if keep:
        return x
    return (
        deferred(sh.Squeeze, (x,), {"axes": axes})
        if isinstance(axes, Value)
        else sh.Squeeze(axes)(x)
    )


_PLAIN: dict[str, type[rd.Reduction]] = {
    "ReduceSum": rd.ReduceSum,
    "ReduceProd": rd.ReduceProd,
    "ReduceMax": rd.ReduceMax,
    "ReduceMin": rd.ReduceMin,
}


@converter(*_PLAIN)
def plain(n: Node) -> Value:
    return _reduce(_PLAIN[n.op_type], n.input(0), _axes(n), n.attr_flag("keepdims", True))


def _mean(x: Value, axes: Axes, keep: bool) -> Value:
    total = _reduce(rd.ReduceSum, x, axes, keep)
    if isinstance(axes, Value):
        sizes = Gather(0)(sh.ShapeOf()(x), axes)
        return ew.Div()(total, cast(rd.ReduceProd((0,))(sizes), x.dtype))
    return ew.Div()(total, count_along(x, axes, x.dtype))


def _l1(x: Value, axes: Axes, keep: bool) -> Value:
    return _reduce(rd.ReduceSum, ew.Abs()(x), axes, keep)


def _sum_square(x: Value, axes: Axes, keep: bool) -> Value:
    return _reduce(rd.ReduceSum, ew.Mul()(x, x), axes, keep)


def _l2(x: Value, axes: Axes, keep: bool) -> Value:
    return ew.Sqrt()(_sum_square(x, axes, keep))


def _log_sum(x: Value, axes: Axes, keep: bool) -> Value:
    return ew.Log()(_reduce(rd.ReduceSum, x, axes, keep))


def _log_sum_exp(x: Value, axes: Axes, keep: bool) -> Value:
    """max + log(sum(exp(x - max))); an infinite maximum is not subtracted."""
    top = _reduce(rd.ReduceMax, x, axes, True)
    top = ew.Where()(ew.IsInf()(top), scalar(0, top), top)
    total = _reduce(rd.ReduceSum, ew.Exp()(ew.Sub()(x, top)), axes, True)
    return _drop(ew.Add()(ew.Log()(total), top), axes, keep)


_COMPOSED: dict[str, Callable[[Value, Axes, bool], Value]] = {
    "ReduceMean": _mean,
    "ReduceL1": _l1,
    "ReduceSumSquare": _sum_square,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}
_TRANSCENDENTAL = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@converter(*_COMPOSED)
def composed(n: Node) -> Value:
    """Compute 16-bit floats in f32, and roots and logarithms of integers in f64."""
    x = n.input(0)
    wide = widened(x)
    if n.op_type in _TRANSCENDENTAL and not x.dtype.is_float:
        wide = cast(x, f64)
    result = _COMPOSED[n.op_type](wide, _axes(n), n.attr_flag("keepdims", True))
    return cast(result, x.dtype)


@converter("ArgMax", "ArgMin")
def arg_extreme(n: Node) -> Value:
    op = rd.ArgMax if n.op_type == "ArgMax" else rd.ArgMin
    keep, last = n.attr_flag("keepdims", True), n.attr_flag("select_last_index")
    return op(n.attr_int("axis", 0), keep, last)(n.input(0))


@converter("CumSum", "CumProd")
def cumulative(n: Node) -> Value:
    op: type[Op] = rd.CumSum if n.op_type == "CumSum" else rd.CumProd
    return deferred(
        op,
        (n.input(0),),
        {"axis": as_scalar(n.input(1))},
        exclusive=n.attr_flag("exclusive"),
        reverse=n.attr_flag("reverse"),
    )


def _softmax_axes(n: Node) -> tuple[int, ...]:
    """Return the axes of a softmax: before opset 13 all axes from the given one on."""
    rank = n.rank(0)
    axis = normalise_axis(n.attr_int("axis", -1 if n.opset >= 13 else 1), max(rank, 1))
    return (axis,) if n.opset >= 13 else tuple(range(axis, rank))


@converter("Softmax")
def softmax_node(n: Node) -> Value:
    return softmax(n.input(0), _softmax_axes(n))


@converter("LogSoftmax")
def log_softmax(n: Node) -> Value:
    """(x - max) - log(sum(exp(x - max)))."""
    x, axes = n.input(0), _softmax_axes(n)
    wide = widened(x)
    shifted = ew.Sub()(wide, rd.ReduceMax(axes, keep=True)(wide))
    total = rd.ReduceSum(axes, keep=True)(ew.Exp()(shifted))
    return cast(ew.Sub()(shifted, ew.Log()(total)), x.dtype)


@converter("Hardmax")
def hardmax(n: Node) -> Value:
    """1 at the first of the largest elements, 0 elsewhere."""
    x, axes = n.input(0), _softmax_axes(n)
    flat, axis = x, axes[0] if axes else 0
    if len(axes) != 1:
        flat = sh.Reshape((*(sh.COPY for _ in range(axis)), sh.INFER))(x)
    if flat.tensor.dim(axis) == 0:
        return x
    places = along(iota(size_of(flat, axis)), axis, flat.tensor.rank)
    first = ew.Equal()(places, rd.ArgMax(axis, keep=True)(flat))
    result = cast(first, x.dtype)
    return result if flat is x else reshape_like(result, x)
