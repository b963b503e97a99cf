"""Arithmetic, comparison and logic, one element at a time.

The functions of one number live in `functions`; users find all of them here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from monograph.ir import Array, Op, TensorType, broadcast, sample
from monograph.ir.dtype import BOOL, COMPLEX, INT, STRING, UINT
from monograph.ops.base import (
    INTEGRAL,
    NUMERIC,
    Binary,
    Comparison,
    Predicate,
    Unary,
    check_kinds,
    same_dtype,
)
from monograph.ops.functions import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Cos,
    Cosh,
    Erf,
    Exp,
    Floor,
    Log,
    Round,
    Sigmoid,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
)
from monograph.ops.scalar import Scalar, ScalarBuilder

__all__ = [
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan",
    "Atanh", "Ceil", "Clip", "Cos", "Cosh", "Div", "Equal", "Erf",
    "Exp", "Floor", "IsInf", "IsNan", "Less", "LessEqual", "Log", "Max",
    "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Round",
    "ShiftLeft", "ShiftRight", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Sub",
    "Tan", "Tanh", "Where", "Xor",
]  # fmt: skip


@dataclass(frozen=True)
class Neg(Unary):
    """-x; integers wrap."""

    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample("i8[5]"))

    def compute(self, x: Array) -> Array:
        return np.negative(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.neg(x)


@dataclass(frozen=True)
class Abs(Unary):
    """|x|; the smallest integer stays as it is."""

    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample("i32[5]"))

    def compute(self, x: Array) -> Array:
        return np.abs(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.abs(x)


@dataclass(frozen=True)
class Sign(Unary):
    """-1, 0 or 1; NaN stays NaN."""

    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample([0.0, -0.0, inf, -inf]), sample("i64[5]"))

    def compute(self, x: Array) -> Array:
        return np.sign(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.sign(x)


@dataclass(frozen=True)
class Not(Unary):
    """Every bit flipped; of a bool, its negation."""

    kinds = INTEGRAL
    samples = (sample("bool[4]"), sample("u8[4]"))

    def compute(self, x: Array) -> Array:
        return np.invert(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.not_(x)


@dataclass(frozen=True)
class IsNan(Predicate):
    """Whether x is not a number."""

    samples = (sample([1.0, float("nan"), inf]),)

    def compute(self, x: Array) -> Array:
        return np.isnan(x)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.is_nan(x)


@dataclass(frozen=True)
class IsInf(Predicate):
    """Whether x is infinite, of the signs asked for."""

    positive: bool = True
    negative: bool = True

    samples = (sample([1.0, float("nan"), inf, -inf]), sample([inf, -inf], negative=False))

    def compute(self, x: Array) -> Array:
        return (np.isposinf(x) & self.positive) | (np.isneginf(x) & self.negative)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.is_inf(x, self.positive, self.negative)


@dataclass(frozen=True)
class Clip(Unary):
    """min(max(x, lo), hi), elementwise; NaN propagates. Floats only: integers use min and max."""

    lo: float = -inf
    hi: float = inf

    samples = (sample("f32[4, 3]", lo=0.0, hi=6.0), sample([float("nan"), 9.0], hi=1.0))

    def compute(self, x: Array) -> Array:
        return np.minimum(np.maximum(x, self.lo), self.hi)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        y = x if self.lo == -inf else b.max(x, b.constant(self.lo, x.dtype))
        return y if self.hi == inf else b.min(y, b.constant(self.hi, x.dtype))


@dataclass(frozen=True)
class Add(Binary):
    """x + y; integers wrap."""

    kinds = (*NUMERIC, COMPLEX)
    commutative = True
    samples = (
        sample("f32[4, 3]", "f32[3]"),
        sample("f32[4, 1]", "f32[1, 5]"),
        sample("i8[3]", "i8[3]"),
    )

    def compute(self, x: Array, y: Array) -> Array:
        return np.add(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.add(x, y)


@dataclass(frozen=True)
class Sub(Binary):
    """x - y; integers wrap."""

    kinds = (*NUMERIC, COMPLEX)
    samples = (sample("f32[4, 3]", "f32[3]"), sample("u8[3]", "u8[3]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.subtract(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.sub(x, y)


@dataclass(frozen=True)
class Mul(Binary):
    """x * y; integers wrap."""

    kinds = (*NUMERIC, COMPLEX)
    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample("f16[4]", "f16[]"), sample("i32[3]", "i32[3]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.multiply(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.mul(x, y)


@dataclass(frozen=True)
class Div(Binary):
    """x / y; of integers, the quotient rounded towards zero."""

    kinds = (*NUMERIC, COMPLEX)
    samples = (sample("f32[4, 3]", "f32[3]"), sample([7, -7, 7, -7], [2, 2, -2, -2]))

    def compute(self, x: Array, y: Array) -> Array:
        if x.dtype.kind not in "iu":
            return np.divide(x, y)
        quotient: Array = np.floor_divide(x, y)
        # Floor division rounds down: one too low where a remainder is left and signs differ.
        inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
        return np.asarray(quotient + inexact.astype(quotient.dtype))

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.div(x, y)


@dataclass(frozen=True)
class Mod(Binary):
    """The remainder of x / y: with the sign of y, or with `truncated` that of x (C's fmod)."""

    truncated: bool = False

    samples = (
        sample([7, -7, 7, -7], [2, 2, -2, -2]),
        sample("f32[4, 3]", "f32[3] in 1..3", truncated=True),
    )

    def compute(self, x: Array, y: Array) -> Array:
        return np.fmod(x, y) if self.truncated else np.mod(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.mod(x, y, self.truncated)


@dataclass(frozen=True)
class Pow(Binary):
    """x to the power y."""

    samples = (sample("f32[4, 3] in 0.1..3", "f32[3]"), sample([2, -1, 4], [0, -3, 5]))

    def compute(self, x: Array, y: Array) -> Array:
        if x.dtype.kind not in "iu":
            return np.power(x, y)
        # numpy refuses negative integer powers; the result truncates towards zero instead.
        powers = np.power(x, np.maximum(y, 0))
        if x.dtype.kind == "u":
            return powers
        negative = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0))
        return np.where(y < 0, negative, powers)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.pow(x, y)


@dataclass(frozen=True)
class Min(Binary):
    """The smaller of two; NaN if either is."""

    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample([float("nan"), 1.0], [1.0, 2.0]))

    def compute(self, x: Array, y: Array) -> Array:
        return np.minimum(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.min(x, y)


@dataclass(frozen=True)
class Max(Binary):
    """The larger of two; NaN if either is."""

    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample([float("nan"), 1.0], [1.0, 2.0]))

    def compute(self, x: Array, y: Array) -> Array:
        return np.maximum(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.max(x, y)


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
    """Whether x = y; NaN equals nothing."""

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
    """Whether x < y."""

    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.less(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.less(x, y)


@dataclass(frozen=True)
class LessEqual(Comparison):
    """Whether x <= y."""

    samples = (sample("f32[4, 3]", "f32[3]"), sample("i64[4]", "i64[4]"))

    def compute(self, x: Array, y: Array) -> Array:
        return np.less_equal(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.less_equal(x, y)


@dataclass(frozen=True)
class Where(Op):
    """x where the condition holds, y elsewhere."""

    samples = (sample("bool[4, 1]", "f32[4, 3]", "f32[3]"), sample("bool[2]", "i64[2]", "i64[]"))

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        check_kinds(condition.dtype, (BOOL,))
        return TensorType(same_dtype(x, y), broadcast(condition.shape, x.shape, y.shape))

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def scalar(self, b: ScalarBuilder, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        return b.select(condition, x, y)
