"""Casts that change nothing, or that another cast makes superfluous."""

from __future__ import annotations

from functools import cache

import numpy as np

from monograph.ir import DType, Value
from monograph.ir.dtype import BOOL, COMPLEX, FLOAT, bf16, c64, c128, f16, f32, f64
from monograph.ops.cast import BitCast, Cast
from monograph.rewrite import ANY, Reject, rewrite, variables

x, a, b = variables("x a b")

SIGNIFICAND = {f16: 11, bf16: 8, f32: 24, f64: 53, c64: 24, c128: 53}
"""Bits of precision of the types that hold infinities, NaN and both zeros."""
ENUMERABLE_BITS = 16


@rewrite(Cast(a, ANY, ANY)(x), exact=True)
def drop_cast(x: Value, a: DType) -> Value | Reject:
    """cast(x) -> x where x has the type already"""
    return x if x.dtype == a else Reject("the element type changes", x.dtype, a)


@rewrite(BitCast(a)(x), exact=True)
def drop_bit_cast(x: Value, a: DType) -> Value | Reject:
    """bit_cast(x) -> x where x has the type already"""
    return x if x.dtype == a else Reject("the element type changes", x.dtype, a)


@rewrite(Cast(ANY, ANY, ANY)(Cast(a, ANY, ANY)(x)), exact=True)
def merge_casts(x: Value, a: DType, root: Value) -> Value | Reject:
    """cast(cast(x, a), b) -> cast(x, b), where a holds every value of x"""
    to = root.dtype
    if x.dtype.is_string or a.is_string or to.is_string:
        return Reject("text forms depend on the type between", given=f"{x.dtype} to {a} to {to}")
    if not holds(a, x.dtype):
        return Reject("the type between does not hold every value", x.dtype, a)
    if x.dtype.is_integer and a.kind == FLOAT and to.is_integer and not holds(to, x.dtype):
        return Reject("a float out of an integer's range is not specified", x.dtype, to)
    return root.op(x)


@cache
def holds(wide: DType, narrow: DType) -> bool:
    """Return True if `wide` holds every value of `narrow`, zeros and infinities included."""
    if wide == narrow:
        return True
    if narrow.kind == BOOL:
        return wide.is_integer or wide in SIGNIFICAND
    if narrow.is_integer:
        return _holds_integers(wide, narrow)
    if narrow.kind == COMPLEX:
        return wide == c128
    if wide not in SIGNIFICAND or narrow.kind != FLOAT:
        return False
    if wide.kind == COMPLEX:
        return holds(f32 if wide == c64 else f64, narrow)
    if narrow.bits > ENUMERABLE_BITS:
        return SIGNIFICAND[wide] >= SIGNIFICAND[narrow]
    return _holds_floats(wide, narrow)


def _holds_integers(wide: DType, narrow: DType) -> bool:
    magnitude = narrow.bits - (narrow.kind == "int")
    if wide in SIGNIFICAND:
        # f16 ends at 65504; the other types reach as far as their precision.
        return magnitude <= SIGNIFICAND[wide]
    if not wide.is_integer:
        return False
    signed_fits = wide.kind == "int" or narrow.kind == "uint"
    return signed_fits and magnitude <= wide.bits - (wide.kind == "int")


def _holds_floats(wide: DType, narrow: DType) -> bool:
    """Return True if every bit pattern of a short float survives the wide type."""
    codes = np.arange(2**narrow.bits, dtype=np.uint16 if narrow.bits > 8 else np.uint8)
    with np.errstate(all="ignore"):
        values = codes.view(narrow.numpy).astype(np.float64)
        there = values.astype(wide.numpy).astype(np.float64)
    same = (values == there) & (np.signbit(values) == np.signbit(there))
    return bool((same | np.isnan(values)).all())
