"""The activations of recurrent cells, element by element."""

from __future__ import annotations

from collections.abc import Callable

from monograph.ops.scalar import Scalar, ScalarBuilder

_Function = Callable[[ScalarBuilder, Scalar, float, float], Scalar]


def _at_least(s: ScalarBuilder, x: Scalar, low: float) -> Scalar:
    return s.max(x, s.constant(low, x.dtype))


def _affine(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    return s.fma(x, s.constant(a, x.dtype), s.constant(b, x.dtype))


def _leaky(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    below = s.less(x, s.constant(0, x.dtype))
    return s.select(below, s.mul(x, s.constant(a, x.dtype)), x)


def _thresholded(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    above = s.less(s.constant(a, x.dtype), x)
    return s.select(above, x, s.constant(0, x.dtype))


def _scaled_tanh(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    return s.mul(s.tanh(s.mul(x, s.constant(b, x.dtype))), s.constant(a, x.dtype))


def _hard_sigmoid(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    return s.min(_at_least(s, _affine(s, x, a, b), 0), s.constant(1, x.dtype))


def _elu(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    zero, half, one = (s.constant(c, x.dtype) for c in (0, 0.5, 1))
    y = s.min(x, zero)
    # e^y - 1 would cancel near 0.
    grown = s.mul(s.tanh(s.mul(y, half)), s.add(s.exp(y), one))
    return s.select(s.less(x, zero), s.mul(grown, s.constant(a, x.dtype)), x)


def _softsign(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    return s.div(x, s.add(s.abs(x), s.constant(1, x.dtype)))


def _softplus(s: ScalarBuilder, x: Scalar, a: float, b: float) -> Scalar:
    one = s.constant(1, x.dtype)
    small = s.exp(s.neg(s.abs(x)))
    # log(1 + small), times what the sum has lost of small; where the sum is 1, small itself.
    total = s.add(small, one)
    kept = s.sub(total, one)
    rest = s.div(s.mul(s.log(total), small), kept)
    rest = s.select(s.less(s.constant(0, x.dtype), kept), rest, small)
    return s.add(_at_least(s, x, 0), rest)


_FUNCTIONS: dict[str, _Function] = {
    "relu": lambda s, x, a, b: _at_least(s, x, 0),
    "tanh": lambda s, x, a, b: s.tanh(x),
    "sigmoid": lambda s, x, a, b: s.sigmoid(x),
    "affine": _affine,
    "leaky_relu": _leaky,
    "thresholded_relu": _thresholded,
    "scaled_tanh": _scaled_tanh,
    "hard_sigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": _softsign,
    "softplus": _softplus,
}


def activate(s: ScalarBuilder, name: str, x: Scalar, alpha: float, beta: float) -> Scalar:
    """An activation by the name that recurrent cells give it."""
    return _FUNCTIONS[name](s, x, alpha, beta)
