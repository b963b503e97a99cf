"""Arithmetic, one element at a time.

Functions of one number live in `functions`, comparisons in `logic`; this module exports all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod

import numpy as np

from monograph.ir import Array, Narrowing, TensorType, Value, broadcast, known, sample
from monograph.ir.dtype import BOOL, COMPLEX
from monograph.ir.traits import (
    LARGEST_F16,
    MASK,
    MOST_DEGREE,
    Affine,
    Demand,
    IntRange,
    Known,
    peak,
    united,
)
from monograph.ops.base import (
    NUMERIC,
    Binary,
    BinaryArithmetic,
    Elementwise,
    Unary,
    check_kinds,
    same_dtype,
)
from monograph.ops.functions import (
    OVERFLOWS,
    STEPS,
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
from monograph.ops.logic import (
    And,
    Equal,
    IsInf,
    IsNan,
    Less,
    LessEqual,
    Not,
    Or,
    ShiftLeft,
    ShiftRight,
    Xor,
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
HIDING = 1e3
"""A factor from which on a product with a mask moves scores out of sight."""


@dataclass(frozen=True)
class Neg(Unary):
    """-x; integers wrap."""

    function = np.negative
    narrowing = Narrowing.ARITHMETIC
    never_larger = linear = makes_angles = True
    rounds = False
    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample("i8[5]"))

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return tuple(a.times(-1) for a in given[0])


@dataclass(frozen=True)
class Abs(Unary):
    """|x|; the smallest integer stays as it is."""

    function = np.abs
    narrowing = Narrowing.ARITHMETIC
    never_larger = keeps_small = True
    rounds = False
    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample("i32[5]"))

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]


@dataclass(frozen=True)
class Sign(Unary):
    """-1, 0 or 1; NaN stays NaN."""

    function = np.sign
    narrowing = Narrowing.ARITHMETIC
    within_one = level = True
    rounds = False
    kinds = NUMERIC
    samples = (sample("f32[4, 3]"), sample([0.0, -0.0, inf, -inf]), sample("i64[5]"))

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        found = []
        for a in given[0]:
            if a.source is None:
                low, high = (float((x > 0) - (x < 0)) for x in (a.low, a.high))
                found.append(replace(a, low=low, high=high))
        return tuple(found)


@dataclass(frozen=True)
class Clip(Unary):
    """min(max(x, lo), hi), elementwise; NaN propagates. Floats only: integers use min and max."""

    lo: float = -inf
    hi: float = inf

    narrowing = Narrowing.ARITHMETIC
    makes_angles = keeps_small = makes_scores = True
    rounds = False
    samples = (sample("f32[4, 3]", lo=0.0, hi=6.0), sample([float("nan"), 9.0], hi=1.0))

    def compute(self, x: Array) -> Array:
        return np.minimum(np.maximum(x, self.lo), self.hi)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        y = x if self.lo == -inf else b.max(x, b.constant(self.lo, x.dtype))
        return y if self.hi == inf else b.min(y, b.constant(self.hi, x.dtype))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        ends = max(abs(self.lo), abs(self.hi))
        return ends if ends < inf else max(given[0], self.lo, -self.hi)

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return 0.0 if max(abs(self.lo), abs(self.hi)) <= LARGEST_F16 else given[0]

    def floor(self, value: Value, of: Callable[[Value], float]) -> float:
        return max(0.0, self.lo)

    def shows_small(self, value: Value, floor: Callable[[Value], float]) -> bool:
        """Return True for a positive lower limit; from 0 on the op is an activation."""
        return self.lo > 0

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]


@dataclass(frozen=True)
class Add(BinaryArithmetic):
    """x + y; integers wrap."""

    function = np.add
    narrowing = Narrowing.ARITHMETIC
    adds_terms = linear = makes_angles = makes_scores = True
    kinds = (*NUMERIC, COMPLEX)
    commutative = True
    samples = (
        sample("f32[4, 3]", "f32[3]"),
        sample("f32[4, 1]", "f32[1, 5]"),
        sample("i8[3]", "i8[3]"),
    )

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return sum(given)

    def floor(self, value: Value, of: Callable[[Value], float]) -> float:
        return max(0.0, *map(of, value.inputs))

    def passes_infinity(self, value: Value, operand: Value, alone: bool) -> bool:
        """Return True unless infinities of two operands may cancel to NaN."""
        return alone and value.inputs.count(operand) == 1

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        return a.moved(b.low, b.high) if b.source is None else None

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return x[0] + y[0], x[1] + y[1]


@dataclass(frozen=True)
class Sub(BinaryArithmetic):
    """x - y; integers wrap."""

    function = np.subtract
    narrowing = Narrowing.ARITHMETIC
    adds_terms = linear = makes_angles = makes_scores = True
    kinds = (*NUMERIC, COMPLEX)
    samples = (sample("f32[4, 3]", "f32[3]"), sample("u8[3]", "u8[3]"))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return sum(given)

    def passes_infinity(self, value: Value, operand: Value, alone: bool) -> bool:
        """Return True unless infinities of two operands may cancel to NaN."""
        return alone and value.inputs.count(operand) == 1

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        if b.source is None:
            return a.moved(-b.high, -b.low)
        return b.times(-1).moved(a.low, a.high) if a.source is None else None

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return x[0] - y[1], x[1] - y[0]


@dataclass(frozen=True)
class Mul(BinaryArithmetic):
    """x * y; integers wrap."""

    function = np.multiply
    narrowing = Narrowing.ARITHMETIC
    scaling = makes_angles = makes_scores = True
    kinds = (*NUMERIC, COMPLEX)
    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample("f16[4]", "f16[]"), sample("i32[3]", "i32[3]"))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return 0.0 if 0.0 in given else prod(given)

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return sum(given)

    def passes_infinity(self, value: Value, operand: Value, alone: bool) -> bool:
        """Return True if all other operands are constants without zeros."""
        others = [known(v) for v in value.inputs if v is not operand]
        return all(c is not None and bool(np.all(c != 0)) for c in others)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        """Return masks: what is multiplied by a large number moves scores out of sight."""
        found = []
        for mine, others in ((0, given[1]), (1, given[0])):
            if any(a.source is None and max(abs(a.low), abs(a.high)) >= HIDING for a in others):
                # Integers are as well multiplied to become addresses.
                found.append(Demand(mine, MASK, negated_only=True))
        return found

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        if a.source is None and b.source is None:
            ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
            return Affine(None, 0.0, min(ends), max(ends))
        if b.source is not None or b.low != b.high or not isfinite(b.low):
            return None
        return a.times(b.low)

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        products = [a * b for a in x for b in y]
        return min(products), max(products)


@dataclass(frozen=True)
class Div(BinaryArithmetic):
    """x / y; of integers, the quotient rounded towards zero."""

    narrowing = Narrowing.ARITHMETIC
    divisors = (1,)
    scaling = makes_angles = makes_scores = True
    kinds = (*NUMERIC, COMPLEX)
    samples = (sample("f32[4, 3]", "f32[3]"), sample([7, -7, 7, -7], [2, 2, -2, -2]))

    def compute(self, x: Array, y: Array) -> Array:
        if x.dtype.kind not in "iu":
            return np.divide(x, y)
        quotient: Array = np.floor_divide(x, y)
        # Floor division rounds down: one too low where a remainder is left and signs differ.
        inexact = (quotient * y != x) & ((x < 0) != (y < 0)) & (y != 0)
        return np.asarray(quotient + inexact.astype(quotient.dtype))

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] - given[1]

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        if b.source is not None or b.low != b.high or not b.low:
            return None
        made = a.times(1 / b.low)
        return made.moved(-1, 0) if whole and abs(b.low) != 1 else made

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return (x[0] // y[1], x[1] // y[0]) if x[0] >= 0 and y[0] > 0 else None


@dataclass(frozen=True)
class Mod(BinaryArithmetic):
    """The remainder of x / y: with the sign of y, or with `truncated` that of x (C's fmod)."""

    truncated: bool = False

    narrowing = Narrowing.KEPT
    kept_reason = STEPS
    samples = (
        sample([7, -7, 7, -7], [2, 2, -2, -2]),
        sample("f32[4, 3]", "f32[3] in 1..3", truncated=True),
    )

    def compute(self, x: Array, y: Array) -> Array:
        return np.fmod(x, y) if self.truncated else np.mod(x, y)

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        return b.mod(x, y, self.truncated)

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        """Return the range of the remainder, which does not depend on the dividend."""
        if b.source is not None or b.low <= 0:
            return None
        return Affine(None, 0.0, 0.0, b.high - 1)

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return (0, min(x[1], y[1] - 1)) if x[0] >= 0 and y[0] > 0 else None


@dataclass(frozen=True)
class Pow(Binary):
    """x to the power y."""

    narrowing = Narrowing.KEPT
    kept_reason = OVERFLOWS
    wide_range = keeps_small = True
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

    def degree(self, value: Value, given: Sequence[float]) -> float:
        exponent = known(value.inputs[1])
        if exponent is None or not exponent.size:
            return MOST_DEGREE if any(given) else 0.0
        return given[0] * float(np.max(np.abs(exponent.astype(np.float64))))


@dataclass(frozen=True)
class Min(BinaryArithmetic):
    """The smaller of two; NaN if either is."""

    function = np.minimum
    narrowing = Narrowing.ARITHMETIC
    adds_terms = makes_angles = keeps_small = True
    rounds = False
    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample([float("nan"), 1.0], [1.0, 2.0]))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return max(given)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(*given[-2:])

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return min(x[0], y[0]), min(x[1], y[1])


@dataclass(frozen=True)
class Max(BinaryArithmetic):
    """The larger of two; NaN if either is."""

    function = np.maximum
    narrowing = Narrowing.ARITHMETIC
    adds_terms = makes_angles = keeps_small = True
    rounds = False
    commutative = True
    samples = (sample("f32[4, 3]", "f32[3]"), sample([float("nan"), 1.0], [1.0, 2.0]))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return max(given)

    def floor(self, value: Value, of: Callable[[Value], float]) -> float:
        return max(0.0, *map(of, value.inputs))

    def shows_small(self, value: Value, floor: Callable[[Value], float]) -> bool:
        return any(floor(v) > 0 for v in value.inputs)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(*given[-2:])

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        return max(x[0], y[0]), max(x[1], y[1])


@dataclass(frozen=True)
class Where(Elementwise):
    """x where the condition holds, y elsewhere."""

    narrowing = Narrowing.ARITHMETIC
    adds_terms = linear = makes_angles = makes_scores = True
    rounds = False
    samples = (sample("bool[4, 1]", "f32[4, 3]", "f32[3]"), sample("bool[2]", "i64[2]", "i64[]"))

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        check_kinds(condition.dtype, (BOOL,))
        return TensorType(same_dtype(x, y), broadcast(condition.shape, x.shape, y.shape))

    def reference(self, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    def scalar(self, b: ScalarBuilder, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        return b.select(condition, x, y)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return max(given[1:])

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return peak(given[1:])

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(*given[-2:])

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(0, MASK)]
