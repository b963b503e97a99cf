"""Functions of one real number, one element at a time: exponentials, circular ones, rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from monograph.ir import Array, Narrowing, Value, sample
from monograph.ir.traits import Known
from monograph.ops.base import Unary

STEEP = "it is steep"
OVERFLOWS = "it is steep: it overflows and magnifies errors"
TURNS = "the error of a large angle is a large part of a turn"
STEPS = "a small error becomes a whole step"
"""Reasons why functions stay in f32."""


@dataclass(frozen=True)
class Exp(Unary):
    """e to the power x."""

    function = np.exp
    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = level = exponential = True
    samples = (sample("f32[4, 3]"), sample("f16[7]"))


@dataclass(frozen=True)
class Log(Unary):
    """The natural logarithm."""

    function = np.log
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = logarithm = True
    samples = (sample("f32[4, 3] in 0.1..9"),)


@dataclass(frozen=True)
class Sqrt(Unary):
    """The square root; NaN below zero."""

    function = np.sqrt
    narrowing = Narrowing.ARITHMETIC
    keeps_small = True
    samples = (sample("f32[4, 3] in 0..9"), sample("bf16[5] in 0..9"))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return math.sqrt(given[0])

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] / 2


@dataclass(frozen=True)
class Sin(Unary):
    """The sine of an angle in radians."""

    function = np.sin
    narrowing = Narrowing.KEPT
    kept_reason = TURNS
    within_one = level = reads_angles = True
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Cos(Unary):
    """The cosine of an angle in radians."""

    function = np.cos
    narrowing = Narrowing.KEPT
    kept_reason = TURNS
    within_one = level = reads_angles = True
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Tan(Unary):
    """The tangent of an angle in radians."""

    function = np.tan
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    reads_angles = True
    samples = (sample("f32[4, 3] in -1..1"),)


@dataclass(frozen=True)
class Asin(Unary):
    """The angle whose sine is x."""

    function = np.arcsin
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3] in -1..1"),)


@dataclass(frozen=True)
class Acos(Unary):
    """The angle whose cosine is x."""

    function = np.arccos
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3] in -1..1"),)


@dataclass(frozen=True)
class Atan(Unary):
    """The angle whose tangent is x."""

    function = np.arctan
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Sinh(Unary):
    """The hyperbolic sine."""

    function = np.sinh
    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = True
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Cosh(Unary):
    """The hyperbolic cosine."""

    function = np.cosh
    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = True
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Tanh(Unary):
    """The hyperbolic tangent."""

    function = np.tanh
    narrowing = Narrowing.ARITHMETIC
    within_one = saturates = level = True
    samples = (sample("f32[4, 3]"), sample("f16[7]"))


@dataclass(frozen=True)
class Asinh(Unary):
    """The inverse hyperbolic sine."""

    function = np.arcsinh
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Acosh(Unary):
    """The inverse hyperbolic cosine."""

    function = np.arccosh
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3] in 1..9"),)


@dataclass(frozen=True)
class Atanh(Unary):
    """The inverse hyperbolic tangent."""

    function = np.arctanh
    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3] in -1..1"),)


@dataclass(frozen=True)
class Erf(Unary):
    """The error function."""

    narrowing = Narrowing.ARITHMETIC
    within_one = saturates = level = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


@dataclass(frozen=True)
class Sigmoid(Unary):
    """1 / (1 + e^-x)."""

    narrowing = Narrowing.ARITHMETIC
    within_one = saturates = level = True
    samples = (sample("f32[4, 3]"), sample([-200.0, 200.0, inf, -inf]))

    def compute(self, x: Array) -> Array:
        # e^-|x| cannot overflow, whichever the sign.
        e = np.exp(-np.abs(x))
        return np.where(x >= 0, 1.0, e) / (1.0 + e)


class Rounding(Unary, abstract=True):
    """The base of ops that round to whole numbers."""

    narrowing = Narrowing.KEPT
    kept_reason = STEPS

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return tuple(a.moved(-1, 1) for a in given[0])


@dataclass(frozen=True)
class Floor(Rounding):
    """The largest whole number not above x."""

    function = np.floor
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Ceil(Rounding):
    """The smallest whole number not below x."""

    function = np.ceil
    samples = (sample("f32[4, 3]"),)


@dataclass(frozen=True)
class Round(Rounding):
    """The nearest whole number; a half goes to the even one."""

    function = np.rint
    samples = (sample("f32[4, 3]"), sample([0.5, 1.5, 2.5, -0.5, -1.5]))
