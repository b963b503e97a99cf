"""Comparisons and logic, one element at a time; `elementwise` exports them too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from monograph.ir import Array, Value, sample
from monograph.ir.dtype import BOOL, INT, STRING, UINT
from monograph.ir.traits import MASK, Demand, Known
from monograph.ops.base import (
    INTEGRAL,
    NUMERIC,
    Binary,
    Comparison,
    Predicate,
    Unary,
)
from monograph.ops.scalar import Scalar, ScalarBuilder


@dataclass(frozen=True)
class Not(Unary):
    """Every bit flipped; of a bool, its negation."""

    kinds = INTEGRAL
    samples = (sample("bool[4]"), sample("u8[4]"))

    def compute(self, x: Array) -> Array:
        return np.invert(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.not_(x)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))]


@dataclass(frozen=True)
class IsNan(Predicate):
    """True for NaN."""

    samples = (sample([1.0, float("nan"), inf]),)

    def compute(self, x: Array) -> Array:
        return np.isnan(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.is_nan(x)


@dataclass(frozen=True)
class IsInf(Predicate):
    """True for the infinities of the chosen signs."""

    positive: bool = True
    negative: bool = True

    samples = (sample([1.0, float("nan"), inf, -inf]), sample([inf, -inf], negative=False))

    def compute(self, x: Array) -> Array:
        return (np.isposinf(x) & self.positive) | (np.isneginf(x) & self.negative)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.is_inf(x, self.positive, self.negative)


@dataclass(frozen=True)
class And(Binary):
    """Bitwise and; of bools, whether both hold."""

    kinds = INTEGRAL
    commutative = True
    samples = (sample("bool[4]", "bool[4]"), sample("u8[4]", "u8[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.bitwise_and(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.and_(x, y)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))]


@dataclass(frozen=True)
class Or(Binary):
    """Bitwise or; of bools, whether either holds."""

    kinds = INTEGRAL
    commutative = True
    samples = (sample("bool[4]", "bool[4]"), sample("u8[4]", "u8[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.bitwise_or(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.or_(x, y)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))]


@dataclass(frozen=True)
class Xor(Binary):
    """Bitwise exclusive or; of bools, whether they differ."""

    kinds = INTEGRAL
    commutative = True
    samples = (sample("bool[4]", "bool[4]"), sample("i16[4]", "i16[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.bitwise_xor(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.xor(x, y)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))]


@dataclass(frozen=True)
class ShiftLeft(Binary):
    """x * 2^y, without the bits that leave at the top."""

    kinds = (UINT, INT)
    samples = (sample("u8[4]", "u8[4] in 0..7"),)

    def compute(self, x: Array, y: Array) -> Array:
        return np.left_shift(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.shift_left(x, y)


@dataclass(frozen=True)
class ShiftRight(Binary):
    """x / 2^y, rounded down."""

    kinds = (UINT, INT)
    samples = (sample("u8[4]", "u8[4] in 0..7"),)

    def compute(self, x: Array, y: Array) -> Array:
        return np.right_shift(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.shift_right(x, y)


@dataclass(frozen=True)
class Equal(Comparison):
    """x = y; NaN equals nothing."""

    kinds = (*NUMERIC, BOOL, STRING)
    commutative = True
    samples = (
        sample("i32[8] in 0..2", "i32[8] in 0..2"),
        sample([0.0, float("nan")], [-0.0, float("nan")]),
    )

    def compute(self, x: Array, y: Array) -> Array:
        return np.equal(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.equal(x, y)


@dataclass(frozen=True)
class Less(Comparison):
    """x < y."""

    limit_above = 1
    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.less(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.less(x, y)


@dataclass(frozen=True)
class LessEqual(Comparison):
    """x <= y."""

    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.less_equal(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.less_equal(x, y)
