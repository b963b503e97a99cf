"""Unit and zero laws, elementwise ops that cancel or merge, reductions that ignore the order.

It also rounds the constants that rules compute (`rounded`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, Value, constant, known
from monograph.ir.sizes import is_one
from monograph.ops.elementwise import Abs, Add, Clip, Div, Mul, Neg, Not, Sub
from monograph.ops.reduce import ReduceMax, ReduceMin
from monograph.ops.shape import Broadcast, Reshape, Transpose
from monograph.rewrite import Reject, const, number, rewrite, variables


def rounded(data: Array, dtype: DType, *, factors: bool = False) -> Value | Reject:
    """Return the data as a float constant, unless rounding changes more than the last bits.

    No element may overflow. Elements below the normal range lose bits: for the terms of a sum that
    matters only if the largest is there, for factors if any is.
    """
    with np.errstate(all="ignore"):
        kept = np.asarray(data).astype(dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    sizes = np.abs(data)
    lost = np.isfinite(data) & ~np.isfinite(kept.astype(np.float64))
    if lost.any():
        return Reject("the joint constant overflows", float(limits.max), sizes[lost].max())
    normal = float(limits.smallest_normal)
    counted = sizes[sizes > 0]
    if counted.size and (least := counted.min() if factors else counted.max()) < normal:
        return Reject("the joint constant loses bits", normal, least)
    return constant(kept)


x, y, a, b, c, d = variables("x y a b c d")
k = const("k")


def kept(value: Value, root: Value) -> Value | Reject:
    """Return `value` in place of `root`, broadcast if the other operand made the result larger."""
    if value.type == root.type:
        return value
    if not root.tensor.is_static:
        return Reject("the result may be larger than the operand", root.type, value.type)
    return Broadcast(root.tensor.static)(value)


@rewrite(Add()(x, number(-0.0)), exact=True)
def add_negative_zero(x: Value, root: Value) -> Value | Reject:
    """x + -0 -> x"""
    return kept(x, root)


@rewrite(Add()(x, number(0.0)), exact=False)
def add_zero(x: Value, root: Value) -> Value | Reject:
    """x + 0 -> x; only -0 + 0 differs, by the sign of its zero"""
    return kept(x, root)


@rewrite(Sub()(x, number(0.0)), exact=True)
def subtract_zero(x: Value, root: Value) -> Value | Reject:
    """x - 0 -> x"""
    return kept(x, root)


@rewrite(Mul()(x, number(1.0)), exact=True)
def multiply_by_one(x: Value, root: Value) -> Value | Reject:
    """x * 1 -> x"""
    return kept(x, root)


@rewrite(Div()(x, number(1.0)), exact=True)
def divide_by_one(x: Value, root: Value) -> Value | Reject:
    """x / 1 -> x"""
    return kept(x, root)


@rewrite(Neg()(Neg()(x)), exact=True)
def cancel_negations(x: Value) -> Value:
    """-(-x) -> x"""
    return x


@rewrite(Not()(Not()(x)), exact=True)
def cancel_nots(x: Value) -> Value:
    """not not x -> x"""
    return x


@rewrite(Abs()(Abs()(x)), exact=True)
def merge_abs(x: Value) -> Value:
    """||x|| -> |x|"""
    return Abs()(x)


@rewrite(Clip(c, d)(Clip(a, b)(x)), exact=True)
def merge_clips(x: Value, a: float, b: float, c: float, d: float) -> Value | Reject:
    """Clip(Clip(x, a, b), c, d) -> Clip(x, max(a, c), min(b, d))"""
    lo, hi = max(a, c), min(b, d)
    if lo > hi:
        return Reject("the ranges are disjoint", f"[{a}, {b}]", f"[{c}, {d}]")
    for inner, outer in ((a, c), (b, d)):
        if inner == outer and math.copysign(1, inner) != math.copysign(1, outer):
            return Reject("the bounds are zeros of different sign", inner, outer)
    return Clip(lo, hi)(x)


@rewrite(Div()(x, k), exact=False)
def divide_by_constant(x: Value, k: Value) -> Value | Reject:
    """x / k -> x * (1 / k)"""
    data = known(k)
    if data is None or not k.dtype.is_float:
        return Reject("the divisor is not of floats", "a float type", k.dtype)
    wide = data.astype(np.float64)
    if not wide.all():
        return Reject("the divisor has a zero")
    inverse = rounded(1.0 / wide, k.dtype, factors=True)
    return inverse if isinstance(inverse, Reject) else Mul()(x, inverse)


# Either -0.0 or 0.0 may be returned as the largest, so the bits may differ.
@rewrite(ReduceMax, exact=False)
def max_of_rearranged(value: Value) -> Value | Reject:
    """max(transpose(x)) -> max(x), along all axes"""
    return _unarranged(value)


@rewrite(ReduceMin, exact=False)
def min_of_rearranged(value: Value) -> Value | Reject:
    """min(transpose(x)) -> min(x), along all axes"""
    return _unarranged(value)


def _unarranged(value: Value) -> Value | Reject:
    """Return the reduction of the source of a chain of views."""
    op, x = value.op, value.inputs[0]
    assert isinstance(op, (ReduceMax, ReduceMin))
    if not value.tensor.is_static or not is_one(math.prod(value.tensor.static)):
        return Reject("not all elements are reduced to one", 1, value.type)
    if any(not is_one(d) for i, d in enumerate(x.tensor.dims) if i not in op.axes):
        return Reject("the reduction is not along all axes", x.tensor.rank, op.axes)
    source, turned = x, False
    while isinstance(source.op, (Reshape, Transpose)):
        turned = turned or isinstance(source.op, Transpose)
        source = source.inputs[0]
    if not turned:
        return Reject("the elements are not rearranged", "transpose", x.op.name, near=False)
    made = replace(op, axes=tuple(range(source.tensor.rank)), keep=False)(source)
    return made if value.tensor.rank == 0 else Reshape(value.tensor.static)(made)
