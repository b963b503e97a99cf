"""Interpolation: the neighbours of a position and their weights, in f64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from monograph.ir.dtype import f64
from monograph.ops.interpolate import CUBIC_A, FAR, LINEAR, NEAREST, ZEROS
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
