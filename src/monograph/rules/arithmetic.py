"""Unit and zero laws, and elementwise ops that cancel or merge."""

from __future__ import annotations

import math

import numpy as np

from monograph.ir import Value, known
from monograph.ops.elementwise import Abs, Add, Clip, Div, Mul, Neg, Not, Sub
from monograph.ops.shape import Broadcast
from monograph.rewrite import Reject, const, number, rewrite, variables
from monograph.rules.rounding import rounded

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
