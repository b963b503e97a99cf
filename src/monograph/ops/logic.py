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

    function = np.invert
    kinds = INTEGRAL
    samples = (sample("bool[4]"), sample("u8[4]"))

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.not_(x)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(0, MASK)]


@dataclass(frozen=True)
class IsNan(Predicate):
    """True for NaN."""

    function = np.isnan
    samples = (sample([1.0, float("nan"), inf]),)


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


class Bitwise(Binary, abstract=True):
    """The base of ops on the bits of two operands; of bools, they are logic."""

    kinds = INTEGRAL
    commutative = True

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))]


@dataclass(frozen=True)
class And(Bitwise):
    """Bitwise and; of bools, whether both hold."""

    function = np.bitwise_and
    samples = (sample("bool[4]", "bool[4]"), sample("u8[4]", "u8[4]"))

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.and_(x, y)


@dataclass(frozen=True)
class Or(Bitwise):
    """Bitwise or; of bools, whether either holds."""

    function = np.bitwise_or
    samples = (sample("bool[4]", "bool[4]"), sample("u8[4]", "u8[4]"))

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.or_(x, y)


@dataclass(frozen=True)
class Xor(Bitwise):
    """Bitwise exclusive or; of bools, whether they differ."""

    function = np.bitwise_xor
    samples = (sample("bool[4]", "bool[4]"), sample("i16[4]", "i16[4]"))


@dataclass(frozen=True)
class ShiftLeft(Binary):
    """x * 2^y, without the bits that leave at the top."""

    function = np.left_shift
    kinds = (UINT, INT)
    samples = (sample("u8[4]", "u8[4] in 0..7"),)


@dataclass(frozen=True)
class ShiftRight(Binary):
    """x / 2^y, rounded down."""

    function = np.right_shift
    kinds = (UINT, INT)
    samples = (sample("u8[4]", "u8[4] in 0..7"),)


@dataclass(frozen=True)
class Equal(Comparison):
    """x = y; NaN equals nothing."""

    function = np.equal
    kinds = (*NUMERIC, BOOL, STRING)
    commutative = True
    samples = (
        sample("i32[8] in 0..2", "i32[8] in 0..2"),
        sample([0.0, float("nan")], [-0.0, float("nan")]),
    )


@dataclass(frozen=True)
class Less(Comparison):
    """x < y."""

    function = np.less
    limit_above = 1
    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))


@dataclass(frozen=True)
class LessEqual(Comparison):
    """x <= y."""

    function = np.less_equal
    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))
