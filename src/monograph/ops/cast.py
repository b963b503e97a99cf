"""Conversions between element types: by value (`Cast`) and by bits (`BitCast`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, DType, Narrowing, Op, TensorType, Type, Value, from_numpy, sample
from monograph.ir.dtype import (
    BOOL,
    COMPLEX,
    STRING,
    boolean,
    c64,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    i4,
    i8,
    i32,
    i64,
    string,
    u2,
    u4,
    u8,
)
from monograph.ir.traits import MASK, NARROW_INTEGER_BITS, NOTHING, Demand, IntRange, Known, RangeOf
from monograph.ops.base import Elementwise, as_tensor
from monograph.ops.scalar import Scalar, ScalarBuilder

SATURATING = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0)
UP, DOWN, NEAREST = "up", "down", "nearest"


@dataclass(frozen=True)
class Cast(Elementwise):
    """The same value in another element type.

    - To a float: the nearest, a half to even; infinite where out of range. To an 8-bit float, out
      of range (infinities included) is the largest finite value with `saturate`, and infinite or
      NaN without. f8e8m0 holds powers of two: `rounding` chooses the one above ("up"), below
      ("down") or nearest (a half goes up), zero is the smallest with `saturate` and NaN without,
      and a negative number is NaN.
    - To an integer: a float is truncated towards zero, and unspecified where out of range or NaN;
      an integer keeps its low bits.
    - To bool: whether it is not zero (NaN is not).
    - Strings: numbers are written in their shortest form that reads back, special ones as NaN, INF
      and -INF; reading takes what C's strtod takes in decimal, in any case.

    `saturate` and `rounding` are normalised to their defaults where the type does not use them.
    """

    to: DType
    saturate: bool = True
    rounding: str = UP

    narrowing = Narrowing.CONVERSION
    wide_range = linear = True
    samples = (
        sample("f32[4, 3]", to=f16),
        sample("f32[4, 3]", to=i8),
        sample("f64[3]", to=f32),
        sample("i32[5] in -300..300", to=u8),
        sample("bool[4]", to=f32),
        sample([0.0, -0.0, 0.5, float("nan")], to=boolean),
        sample([1e9, -1e9, float("inf"), float("nan"), 0.3], to=f8e4m3fn),
        sample([1e9, -1e9, float("inf"), float("nan"), 0.3], to=f8e5m2, saturate=False),
        sample([0.0, 0.7, 3.0, float("inf")], to=f8e8m0, rounding=NEAREST),
        sample([0.3, 2.5, -9.0], to=f4e2m1),
        sample("i32[6] in -20..20", to=i4),
        sample("i8[3]", to=u2),
        sample("f32[3]", to=c64),
        sample("f32[3]", to=string),
        sample(np.array(["1.5", "-INF", "nan", "2e3"], object), to=f32),
        sample(np.array(["12", "-7"], object), to=i64),
    )

    def canonical(self, *types: Type) -> Op:
        return replace(
            self,
            saturate=self.saturate or self.to not in SATURATING,
            rounding=self.rounding if self.to == f8e8m0 else UP,
        )

    def infer(self, x: TensorType) -> TensorType:
        given = as_tensor(x).dtype
        if self.rounding not in (UP, DOWN, NEAREST):
            raise InferError("no such rounding", expected="up, down, nearest", given=self.rounding)
        if given.kind == COMPLEX and self.to.kind != COMPLEX:
            raise InferError("a complex number has no real value", expected=COMPLEX, given=self.to)
        if STRING in (given.kind, self.to.kind) and COMPLEX in (given.kind, self.to.kind):
            raise InferError("complex numbers have no text form", given=f"{given} to {self.to}")
        return x.with_dtype(self.to)

    def reference(self, x: Array) -> Array:
        given = from_numpy(x.dtype)
        if given == self.to:
            return x
        if given.is_string:
            x = _parse(x, self.to)
            given = from_numpy(x.dtype)
        if self.to.is_string:
            return _elementwise(_format, x)
        if self.to.kind == BOOL:
            return np.asarray(_plain(x) != 0)
        if self.to.is_integer:
            return _to_integer(_plain(x), self.to)
        if self.to == f8e8m0:
            return _to_power_of_two(_plain(x).astype(np.float64), self.saturate, self.rounding)
        wide = x.astype(np.float64) if given.is_float else _plain(x)
        if self.to in SATURATING and self.saturate:
            limit = float(ml_dtypes.finfo(self.to.numpy).max)  # type: ignore[no-untyped-call]
            wide = np.clip(wide.astype(np.float64), -limit, limit)
        return wide.astype(self.to.numpy)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.cast(x, self.to, self.saturate, self.rounding)

    def f32_reason(self, value: Value, to: DType) -> str | None:
        given = value.inputs[0].dtype
        if self.to.is_integer and given == f32:
            return "whole numbers are taken of it"
        small = given.is_integer and given.bits <= NARROW_INTEGER_BITS
        if self.to != f32 or given.kind == BOOL or given == to or small:
            return None
        return f"numbers of type {given} need not fit {to}"

    def bound(self, value: Value, given: Sequence[float]) -> float:
        given_type = value.inputs[0].dtype
        number = given_type.is_float or given_type.is_integer or given_type.kind == BOOL
        return given[0] if number else math.inf

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0]

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        return of(value.inputs[0])

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return NOTHING if self.to.kind == BOOL else given[0]

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return [Demand(i, MASK) for i in range(len(given))] if self.to.kind == BOOL else []


def _plain(x: Array) -> Array:
    """Return the same values in a type that numpy itself has."""
    given = from_numpy(x.dtype)
    return x.astype(given.compute) if given.is_float or given.bits < 8 else x


def _to_integer(x: Array, to: DType) -> Array:
    if x.dtype.kind == "f":
        # numpy leaves a float below zero undefined as an unsigned; a signed detour wraps it.
        big = (x >= 2.0**63) & (to.kind == "uint")
        x = np.where(big, x - 2.0**64, x).astype(np.int32 if _fits_i32(to) else np.int64)
    if to.bits >= 8:
        return x.astype(to.numpy)
    low = x.astype(np.int64) & ((1 << to.bits) - 1)
    if to.kind == "int":
        low = low - ((low >> (to.bits - 1)) << to.bits)
    return low.astype(to.numpy)


def _fits_i32(to: DType) -> bool:
    return to.bits < 32 or to == i32


def _to_power_of_two(x: Array, saturate: bool, rounding: str) -> Array:
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    threshold = {UP: np.nextafter(0.5, 1), DOWN: 1.0, NEAREST: 0.75}[rounding]
    power = np.where(mantissa >= threshold, exponent, exponent - 1)
    power = np.where(x == 0, -128, np.where(np.isposinf(x), 128, power))
    outside = (power < -127) | (power > 127)
    bad = np.isnan(x) | (x < 0) | (outside & (not saturate))
    code = np.where(bad, 255, np.clip(power, -127, 127) + 127)
    return np.asarray(code).astype(np.uint8).view(f8e8m0.numpy)


def _elementwise(function: Any, x: Array) -> Array:
    result = np.empty(x.shape, object)
    result.reshape(-1)[:] = [function(v) for v in x.reshape(-1)]
    return result


def _format(v: Any) -> str:
    if isinstance(v, np.bool_):
        return str(int(v))
    if from_numpy(v.dtype).is_integer:
        return str(int(v))
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "INF" if v > 0 else "-INF"
    # Types narrower than f32 print as the f32 of the same value, which numpy can shorten.
    v = v if v.dtype in (np.float64, np.float32, np.float16) else np.float32(v)
    if v == 0 or 1e-4 <= abs(float(v)) < 1e16:
        return np.format_float_positional(v, trim="-")
    return np.format_float_scientific(v, trim="-", exp_digits=2)


def _parse(x: Array, to: DType) -> Array:
    """Texts as numbers: integers exactly where an integer is asked for, else as f64."""
    texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else str(t) for t in x.flat]
    result: list[Any] = []
    for text in texts:
        try:
            if "_" in text:
                raise ValueError
            result.append(_whole(text) if to.is_integer else float(text))
        except ValueError:
            raise ExecutionError("not a number", expected=to, given=repr(text[:80])) from None
    wide = (np.uint64 if to.kind == "uint" else np.int64) if to.is_integer else np.float64
    try:
        return np.array(result, wide).reshape(x.shape)
    except OverflowError:
        raise ExecutionError("a number in a text is too large", expected=to) from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not np.isfinite(number):
            raise
        return int(number)


@dataclass(frozen=True)
class BitCast(Elementwise):
    """The same bits read as another element type of the same width."""

    to: DType

    samples = (
        sample("f32[3]", to=i32),
        sample("u16[3]", to=f16),
        sample("i4[5]", to=u4),
        sample("f4e2m1[3]", to=u4),
        sample("bool[3]", to=u8),
    )

    def infer(self, x: TensorType) -> TensorType:
        given = as_tensor(x).dtype
        if STRING in (given.kind, self.to.kind):
            raise InferError("a string has no bits to read", given=f"{given} to {self.to}")
        if given.bits != self.to.bits:
            raise InferError(
                "the widths differ", expected=f"{given.bits} bits", given=f"{self.to.bits} bits"
            )
        return x.with_dtype(self.to)

    def reference(self, x: Array) -> Array:
        if self.to.kind == BOOL:
            # Only 0 and 1 are bools to numpy: any other byte reads as true.
            return np.asarray(x.view(np.uint8) != 0)
        if self.to.bits < 8:
            # The storage's upper bits are not part of the value.
            x = x.view(np.uint8) & ((1 << self.to.bits) - 1)
        return x.view(self.to.numpy)

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.bitcast(x, self.to)


__all__ = ["DOWN", "NEAREST", "SATURATING", "UP", "BitCast", "Cast"]
