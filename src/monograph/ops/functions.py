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
from monograph.ops.scalar import Scalar, ScalarBuilder

STEEP = "it is steep"
OVERFLOWS = "it is steep: it overflows and magnifies errors"
TURNS = "the error of a large angle is a large part of a turn"
STEPS = "a small error becomes a whole step"
"""Reasons why functions stay in f32."""


@dataclass(frozen=True)
class Exp(Unary):
    """e to the power x."""

    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = level = exponential = True
    samples = (sample("f32[4, 3]"), sample("f16[7]"))

    def compute(self, x: Array) -> Array:
        return np.exp(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.exp(x)


@dataclass(frozen=True)
class Log(Unary):
    """The natural logarithm."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = logarithm = True
    samples = (sample("f32[4, 3] in 0.1..9"),)

    def compute(self, x: Array) -> Array:
        return np.log(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.log(x)


@dataclass(frozen=True)
class Sqrt(Unary):
    """The square root; NaN below zero."""

    narrowing = Narrowing.ARITHMETIC
    keeps_small = True
    samples = (sample("f32[4, 3] in 0..9"), sample("bf16[5] in 0..9"))

    def compute(self, x: Array) -> Array:
        return np.sqrt(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.sqrt(x)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return math.sqrt(given[0])

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] / 2


@dataclass(frozen=True)
class Sin(Unary):
    """The sine of an angle in radians."""

    narrowing = Narrowing.KEPT
    kept_reason = TURNS
    within_one = level = reads_angles = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.sin(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.sin(x)


@dataclass(frozen=True)
class Cos(Unary):
    """The cosine of an angle in radians."""

    narrowing = Narrowing.KEPT
    kept_reason = TURNS
    within_one = level = reads_angles = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.cos(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.cos(x)


@dataclass(frozen=True)
class Tan(Unary):
    """The tangent of an angle in radians."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    reads_angles = True
    samples = (sample("f32[4, 3] in -1..1"),)

    def compute(self, x: Array) -> Array:
        return np.tan(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.tan(x)


@dataclass(frozen=True)
class Asin(Unary):
    """The angle whose sine is x."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3] in -1..1"),)

    def compute(self, x: Array) -> Array:
        return np.arcsin(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.asin(x)


@dataclass(frozen=True)
class Acos(Unary):
    """The angle whose cosine is x."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3] in -1..1"),)

    def compute(self, x: Array) -> Array:
        return np.arccos(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.acos(x)


@dataclass(frozen=True)
class Atan(Unary):
    """The angle whose tangent is x."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    level = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.arctan(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.atan(x)


@dataclass(frozen=True)
class Sinh(Unary):
    """The hyperbolic sine."""

    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.sinh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.sinh(x)


@dataclass(frozen=True)
class Cosh(Unary):
    """The hyperbolic cosine."""

    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.cosh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.cosh(x)


@dataclass(frozen=True)
class Tanh(Unary):
    """The hyperbolic tangent."""

    narrowing = Narrowing.ARITHMETIC
    within_one = saturates = level = True
    samples = (sample("f32[4, 3]"), sample("f16[7]"))

    def compute(self, x: Array) -> Array:
        return np.tanh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.tanh(x)


@dataclass(frozen=True)
class Asinh(Unary):
    """The inverse hyperbolic sine."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.arcsinh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.asinh(x)


@dataclass(frozen=True)
class Acosh(Unary):
    """The inverse hyperbolic cosine."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3] in 1..9"),)

    def compute(self, x: Array) -> Array:
        return np.arccosh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.acosh(x)


@dataclass(frozen=True)
class Atanh(Unary):
    """The inverse hyperbolic tangent."""

    narrowing = Narrowing.KEPT
    kept_reason = STEEP
    samples = (sample("f32[4, 3] in -1..1"),)

    def compute(self, x: Array) -> Array:
        return np.arctanh(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.atanh(x)


@dataclass(frozen=True)
class Erf(Unary):
    """The error function."""

    narrowing = Narrowing.ARITHMETIC
    within_one = saturates = level = True
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.erf(x)


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

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.sigmoid(x)


@dataclass(frozen=True)
class Floor(Unary):
    """The largest whole number not above x."""

    narrowing = Narrowing.KEPT
    kept_reason = STEPS
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.floor(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.floor(x)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return tuple(a.moved(-1, 1) for a in given[0])


@dataclass(frozen=True)
class Ceil(Unary):
    """The smallest whole number not below x."""

    narrowing = Narrowing.KEPT
    kept_reason = STEPS
    samples = (sample("f32[4, 3]"),)

    def compute(self, x: Array) -> Array:
        return np.ceil(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.ceil(x)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return tuple(a.moved(-1, 1) for a in given[0])


@dataclass(frozen=True)
class Round(Unary):
    """The nearest whole number; a half goes to the even one."""

    narrowing = Narrowing.KEPT
    kept_reason = STEPS
    samples = (sample("f32[4, 3]"), sample([0.5, 1.5, 2.5, -0.5, -1.5]))

    def compute(self, x: Array) -> Array:
        return np.rint(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.round(x)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return tuple(a.moved(-1, 1) for a in given[0])
