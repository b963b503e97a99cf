"""Functions of elements that ops share: activations of recurrent cells, and interpolation.

Interpolation finds the neighbours of a position and their weights, in f64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from monograph.ir.dtype import f64
from monograph.ops.image import CUBIC_A, FAR, LINEAR, NEAREST, ZEROS
from monograph.ops.scalar import Scalar, ScalarBuilder

T = TypeVar("T")


def number(s: ScalarBuilder, value: float) -> Scalar:
    return s.constant(value, f64)


def tamed(s: ScalarBuilder, x: Scalar) -> Scalar:
    """Return a position that converts to an integer: no NaN, nothing out of range."""
    plain = s.select(s.is_nan(x), number(s, -1.0), x)
    return s.min(s.max(plain, number(s, -FAR)), number(s, FAR))


def neighbours(
    s: ScalarBuilder, place: Scalar, size: int, mode: str, outside: str
) -> list[tuple[Scalar, Scalar]]:
    """Return the integer positions around one on an axis, some outside, with their weights."""
    place = tamed(s, place)
    whole = s.round(place) if mode == NEAREST else s.floor(place)
    steps = {NEAREST: (0,), LINEAR: (0, 1)}.get(mode, (-1, 0, 1, 2))
    found = []
    for step in steps:
        at = s.add(whole, number(s, step))
        weight = _weight(s, s.abs(s.sub(place, at)), mode)
        if outside == ZEROS:
            below, above = s.less(at, number(s, 0)), s.less_equal(number(s, size), at)
            weight = s.select(s.or_(below, above), number(s, 0), weight)
        found.append((at, weight))
    return found


def _weight(s: ScalarBuilder, distance: Scalar, mode: str) -> Scalar:
    if mode == NEAREST:
        return number(s, 1.0)
    if mode == LINEAR:
        return s.sub(number(s, 1.0), distance)
    a, x = CUBIC_A, distance
    near = s.sub(s.mul(number(s, a + 2), x), number(s, a + 3))
    near = s.add(s.mul(near, s.mul(x, x)), number(s, 1.0))
    far = s.add(s.mul(s.sub(x, number(s, 5)), x), number(s, 8))
    far = s.sub(s.mul(s.mul(far, x), number(s, a)), number(s, 4 * a))
    outer = s.select(s.less(x, number(s, 2)), far, number(s, 0))
    return s.select(s.less_equal(x, number(s, 1)), near, outer)


def combined(
    s: ScalarBuilder,
    axes: Sequence[Sequence[tuple[T, Scalar]]],
    read: Callable[[list[T]], Scalar],
) -> Scalar:
    """The sum of weighted reads over all combinations of taps; a weight of zero drops its read."""
    total = number(s, 0)
    for chosen in itertools.product(*axes):
        weight = chosen[0][1]
        for _, part in chosen[1:]:
            weight = s.mul(weight, part)
        x = s.mul(read([place for place, _ in chosen]), weight)
        silent = s.equal(weight, number(s, 0))
        total = s.add(total, s.select(silent, number(s, 0), x))
    return total


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
