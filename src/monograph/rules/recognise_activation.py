"""Recognises SiLU and GELU."""

from __future__ import annotations

import math

from monograph.ir import Op, Value, constant
from monograph.ops.composite import GELU_CUBE, Gelu, Silu
from monograph.ops.elementwise import Add, Div, Erf, Exp, Mul, Neg, Sigmoid, Tanh
from monograph.rewrite import ANY, Context, Reject, const, number, rewrite, variables
from monograph.rules.recognise import (
    Polynomial,
    inside,
    is_close,
    polynomial,
    reject_shared,
    uniform,
)

x = variables("x")[0]
a, b = const("a"), const("b")
ROOT = math.sqrt(2 / math.pi)
ERF_ARGUMENT: Polynomial = {(1,): math.sqrt(0.5)}
TANH_ARGUMENT: Polynomial = {(1,): ROOT, (3,): ROOT * GELU_CUBE}


@rewrite(Mul()(x, Sigmoid()(x)), exact=False)
def recognise_silu(x: Value, root: Value, context: Context) -> Value | Reject:
    """x * sigmoid(x) -> Silu(x)"""
    return reject_shared(root, (x,), context) or Silu()(x)


@rewrite(Div()(x, Add()(number(1.0), Exp()(Neg()(x)))), exact=False)
def recognise_silu_by_exp(x: Value, root: Value, context: Context) -> Value | Reject:
    """x / (1 + e^-x) -> Silu(x)"""
    if root.type != x.type:
        return Reject("the constant is larger than the value", x.type, root.type)
    return reject_shared(root, (x,), context) or Silu()(x)


@rewrite(Mul, exact=False)
def recognise_gelu(value: Value, context: Context) -> Value | Reject:
    """c x (1 + erf(x / sqrt(2))) -> 2 c Gelu(x), in any order of its factors and terms"""
    return _gelu(value, Erf, ERF_ARGUMENT, Gelu(), context)


@rewrite(Mul, exact=False)
def recognise_gelu_by_tanh(value: Value, context: Context) -> Value | Reject:
    """c x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) -> 2 c Gelu(x, approximate)"""
    return _gelu(value, Tanh, TANH_ARGUMENT, Gelu(approximate=True), context)


@rewrite(Mul()(Mul()(Gelu(ANY)(x), a), b), exact=False)
def merge_gelu_scales(a: Value, b: Value, root: Value) -> Value | Reject:
    """(Gelu(x) * a) * b -> Gelu(x) * (a * b), for numbers a and b"""
    first, second = uniform(a), uniform(b)
    if first is None or second is None:
        return Reject("a factor is not one number", "equal elements", b.type)
    scaled = next(v for v in root.inputs if isinstance(v.op, Mul))
    gelu = next(v for v in scaled.inputs if isinstance(v.op, Gelu))
    if gelu.type != root.type:
        return Reject("a factor is larger than the value", gelu.type, root.type)
    if not math.isfinite(first * second):
        return Reject("the factors overflow", "a finite product", first * second)
    return _times(gelu, first * second)


def _times(value: Value, factor: float) -> Value:
    """Return value * factor; the value alone if the factor is one, up to rounding."""
    if is_close(factor, 1.0, value.dtype):
        return value
    return Mul()(value, constant(factor, value.dtype))


def _gelu(
    root: Value, inner: type[Op], wanted: Polynomial, op: Gelu, context: Context
) -> Value | Reject:
    """Search x below an `inner` of root such that root is c x (1 + inner(wanted of x))."""
    if not root.dtype.is_float:
        return root
    near: Value | Reject = root
    for t in inside(root):
        if not isinstance(t.op, inner):
            continue
        for candidate in inside(t.inputs[0]):
            outer = polynomial(root, (candidate, t))
            argument = polynomial(t.inputs[0], (candidate,))
            if outer is None or argument is None or {*outer} != {(1, 0), (1, 1)}:
                continue
            reason = _differs(outer, argument, wanted, root)
            if isinstance(reason, Reject):
                near = reason
                continue
            if root.type != candidate.type:
                return Reject("a constant is larger than x", candidate.type, root.type)
            refused = reject_shared(root, (candidate,), context)
            return refused or _times(op(candidate), 2 * outer[(1, 0)])
    return near


def _differs(
    outer: Polynomial, argument: Polynomial, wanted: Polynomial, root: Value
) -> Reject | None:
    """Return why x (outer) with inner(argument) is no multiple of GELU; None if it is."""
    if {*argument} != {*wanted}:
        return Reject("the argument has other powers of x", sorted(wanted), sorted(argument))
    for powers, coefficient in wanted.items():
        given = argument[powers]
        if not is_close(given, coefficient, root.dtype):
            return Reject(f"the argument has another factor of x^{powers[0]}", coefficient, given)
    if not is_close(outer[(1, 1)], outer[(1, 0)], root.dtype):
        return Reject("the two terms have different weights", outer[(1, 0)], outer[(1, 1)])
    return None
