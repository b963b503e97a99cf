"""Activations, each in one canonical form of arithmetic, and Clip and Dropout."""

from __future__ import annotations

import math

import numpy as np

from monograph.frontend.onnx.convert.common import (
    as_scalar,
    broadcast_like,
    cast,
    per_channel,
    scalar,
)
from monograph.frontend.onnx.convert.creation import uniform_like
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import broadcast_onto
from monograph.ir import Value, constant, known
from monograph.ir.dtype import boolean, f64
from monograph.ops import elementwise as ew

FLOAT_MAX = float(np.finfo(np.float32).max)


def times(x: Value, factor: float) -> Value:
    return ew.Mul()(x, scalar(factor, x))


def plus(x: Value, term: float) -> Value:
    return ew.Add()(x, scalar(term, x))


def negative(x: Value) -> Value:
    """Return x < 0."""
    return ew.Less()(x, scalar(0, x))


@converter("Relu")
def relu(n: Node) -> Value:
    x = n.input(0)
    return ew.Clip(lo=0.0)(x) if x.dtype.is_float else ew.Max()(x, scalar(0, x))


@converter("LeakyRelu")
def leaky_relu(n: Node) -> Value:
    x = n.input(0)
    alpha = n.attr_float("alpha", 0.01)
    return ew.Where()(negative(x), times(x, alpha), x)


@converter("PRelu")
def prelu(n: Node) -> Value:
    """Convert PRelu. Before opset 7 a vector of slopes is per channel, not per last dimension."""
    x, slope = n.input(0), n.input(1)
    if n.opset < 7 and slope.tensor.rank == 1 and slope.tensor.dim(0) != 1:
        slope = per_channel(slope, x.tensor.rank)
    return ew.Where()(negative(x), ew.Mul()(x, broadcast_onto(slope, x)), x)


@converter("Elu")
def elu(n: Node) -> Value:
    x = n.input(0)
    below = times(plus(ew.Exp()(x), -1), n.attr_float("alpha", 1.0))
    return ew.Where()(negative(x), below, x)


@converter("Selu")
def selu(n: Node) -> Value:
    x = n.input(0)
    early = n.opset < 6
    alpha = n.attr_float("alpha", 1.6732 if early else 1.6732632423543772)
    gamma = n.attr_float("gamma", 1.0507 if early else 1.0507009873554805)
    below = times(plus(ew.Exp()(x), -1), alpha)
    return times(ew.Where()(negative(x), below, x), gamma)


@converter("Celu")
def celu(n: Node) -> Value:
    x = n.input(0)
    alpha = n.attr_float("alpha", 1.0)
    below = times(plus(ew.Exp()(ew.Div()(x, scalar(alpha, x))), -1), alpha)
    return ew.Where()(negative(x), below, x)


@converter("Gelu")
def gelu(n: Node) -> Value:
    """x * (1 + erf(x / sqrt(2))) / 2, or the approximation of this erf by tanh."""
    x = n.input(0)
    kind = n.attr_string("approximate", "none")
    if kind == "none":
        inner = ew.Erf()(times(x, math.sqrt(0.5)))
    elif kind == "tanh":
        inner = ew.Tanh()(tanh_argument(x))
    else:
        n.fail("no such approximation", expected="none or tanh", given=kind)
    return ew.Mul()(x, times(plus(inner, 1), 0.5))


def tanh_argument(x: Value) -> Value:
    """sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cube = ew.Mul()(ew.Mul()(x, x), x)
    return times(ew.Add()(x, times(cube, 0.044715)), math.sqrt(2 / math.pi))


@converter("HardSigmoid")
def hard_sigmoid(n: Node) -> Value:
    x = n.input(0)
    line = plus(times(x, n.attr_float("alpha", 0.2)), n.attr_float("beta", 0.5))
    return ew.Clip(0.0, 1.0)(line)


@converter("HardSwish")
def hard_swish(n: Node) -> Value:
    x = n.input(0)
    return ew.Mul()(x, ew.Clip(0.0, 1.0)(plus(times(x, 1 / 6), 0.5)))


@converter("Swish")
def swish(n: Node) -> Value:
    x = n.input(0)
    alpha = n.attr_float("alpha", 1.0)
    return ew.Mul()(x, ew.Sigmoid()(x if alpha == 1 else times(x, alpha)))


def softplus_of(x: Value) -> Value:
    """max(x, 0) + log(1 + e^-|x|): no exponential overflows."""
    rest = ew.Log()(plus(ew.Exp()(ew.Neg()(ew.Abs()(x))), 1))
    return ew.Add()(ew.Clip(lo=0.0)(x), rest)


@converter("Softplus")
def softplus(n: Node) -> Value:
    return softplus_of(n.input(0))


@converter("Mish")
def mish(n: Node) -> Value:
    x = n.input(0)
    return ew.Mul()(x, ew.Tanh()(softplus_of(x)))


@converter("Softsign")
def softsign(n: Node) -> Value:
    x = n.input(0)
    return ew.Div()(x, plus(ew.Abs()(x), 1))


@converter("Shrink")
def shrink(n: Node) -> Value:
    x = n.input(0)
    limit, bias = n.attr_float("lambd", 0.5), n.attr_float("bias", 0.0)
    # The limits are floats, so integers are clipped as floats.
    wide = x if x.dtype.is_float else cast(x, f64)
    above = ew.Where()(ew.Less()(scalar(limit, wide), wide), plus(wide, -bias), scalar(0, wide))
    result = ew.Where()(ew.Less()(wide, scalar(-limit, wide)), plus(wide, bias), above)
    return cast(result, x.dtype)


@converter("ThresholdedRelu")
def thresholded_relu(n: Node) -> Value:
    x = n.input(0)
    alpha = scalar(n.attr_float("alpha", 1.0), x)
    return ew.Where()(ew.Less()(alpha, x), x, scalar(0, x))


@converter("Clip")
def clip_by_attributes(n: Node) -> Value:
    unbounded = FLOAT_MAX if n.opset >= 6 else math.inf
    lo, hi = n.attr_float("min", -unbounded), n.attr_float("max", unbounded)
    return ew.Clip(lo, hi)(n.input(0))


@converter("Clip", since=11)
def clip(n: Node) -> Value:
    """Convert Clip. Both bounds are optional inputs; constant float bounds become attributes."""
    x = n.input(0)
    lo, hi = n.optional(1), n.optional(2)
    if x.dtype.is_float:
        low = -math.inf if lo is None else _number(lo)
        high = math.inf if hi is None else _number(hi)
        if low is not None and high is not None:
            return ew.Clip(low, high)(x) if (low, high) != (-math.inf, math.inf) else x
    if lo is not None:
        x = ew.Max()(x, as_scalar(lo))
    return ew.Min()(x, as_scalar(hi)) if hi is not None else x


def _number(bound: Value) -> float | None:
    data = known(bound)
    return float(data.reshape(())) if data is not None and data.size == 1 else None


@converter("Dropout")
def dropout_by_attributes(n: Node) -> tuple[Value, Value | None]:
    """Convert Dropout at inference: nothing is dropped. Before opset 10 the mask has x's type."""
    x = n.input(0)
    kind = x.dtype if n.opset < 10 else boolean
    return x, broadcast_like(constant(1, kind), x) if n.wants(1) else None


@converter("Dropout", since=12)
def dropout(n: Node) -> tuple[Value, Value | None]:
    """Convert Dropout: it drops only in training mode; mode and ratio may be run-time values."""
    x, ratio, training = n.input(0), n.optional(1), n.optional(2)
    mode = known(training)
    if training is None or (mode is not None and not mode.any()):
        return x, broadcast_like(constant(True), x) if n.wants(1) else None
    ratio = constant(0.5, f64) if ratio is None else cast(as_scalar(ratio), f64)
    seed = float(n.attr_int("seed")) if n.has("seed") else None
    kept = ew.LessEqual()(ratio, uniform_like(n, x, f64, seed))
    if mode is None:
        kept = ew.Or()(kept, ew.Not()(as_scalar(training)))
        ratio = ew.Where()(as_scalar(training), ratio, constant(0.0, f64))
    factor = cast(ew.Div()(constant(1.0, f64), ew.Sub()(constant(1.0, f64), ratio)), x.dtype)
    return ew.Where()(kept, ew.Mul()(x, factor), scalar(0, x)), kept
