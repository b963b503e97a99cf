"""Rules of the precision plan: ops, constants and ranges that must stay in f32, and the reasons.

Matrix products and convolutions read and write the narrow type and sum in f32 (every kernel does),
so they convert. Arithmetic that neither overflows nor magnifies errors converts with them. Ops that
sum many terms without a wider accumulator, are steep, count, or carry state stay in f32. An op
states its own behaviour: `Op.narrowing` and the traits beside it (`ir/traits.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, Narrowing, Op, TensorType, Type, Value, known
from monograph.ir.dtype import f32

FLEXIBLE = (Narrowing.MOVE, Narrowing.ARITHMETIC, Narrowing.COMPARISON)
"""Ops that compute in the type of their operands."""
COUNTS = 2.0**24
"""Integers below this are exact in f32: a constant of integers only may be a count."""


def is_f32(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype == f32


def is_move(op: Op) -> bool:
    """Return True if an op gives elements of its operands as they are."""
    return op.narrowing is Narrowing.MOVE


def is_layer(op: Op) -> bool:
    """Return True if an op reads a narrow type and sums in f32."""
    return op.narrowing is Narrowing.LAYER


def is_flexible(op: Op) -> bool:
    """Return True if an op computes in the type of its operands."""
    return op.narrowing in FLEXIBLE


def find_f32_reason(value: Value, to: DType) -> str | None:
    """Return why a value stays in f32 by itself; None where it may convert."""
    op = value.op
    reason = op.f32_reason(value, to)
    if reason is not None or op.narrowing is Narrowing.CONVERSION:
        return reason
    if any(not is_f32(v.type) and _is_float(v.type) for v in value.inputs):
        return "it has operands of other float types"
    for i, v in enumerate(value.inputs):
        data = known(v)
        if data is not None and is_f32(v.type):
            reason = constant_reason(data, to, _exactness(op, i))
            if reason is not None:
                return reason
    return None


def has_wide_range(value: Value, reason: str) -> bool:
    """Return True if a value in f32 may hold numbers beyond the range of the narrow type."""
    return value.op.wide_range or reason.startswith(TOO_LARGE)


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


@dataclass(frozen=True)
class Magnitude:
    """The largest number of a value: an estimate and a proved bound."""

    largest: float | None = None
    """An estimate from a run on drawn inputs; None without one."""
    bound: float = math.inf
    """A proved upper bound."""


HEADROOM = 16.0
"""The factor by which real inputs may exceed an estimate. Some of the models with recorded inputs
reach ten times their estimate, and an overflow invalidates all values after it."""
FOOTROOM = 4.0
"""The factor by which real inputs may fall below an estimate: below the smallest normal number
digits are lost one by one."""
GROWS, VANISHES = "its numbers grow too large", "its numbers are too small"


def has_range_of_f32(to: DType) -> bool:
    limits = (ml_dtypes.finfo(t) for t in (to.numpy, np.float32))  # type: ignore[no-untyped-call]
    narrow, wide = (x.maxexp for x in limits)
    return bool(narrow >= wide)


def range_reason(found: Magnitude, to: DType) -> str | None:
    """Return why a value does not fit a type; None where it fits, or nothing is known."""
    limits = ml_dtypes.finfo(to.numpy)  # type: ignore[no-untyped-call]
    top, bottom = float(limits.max), float(limits.smallest_normal)
    if found.largest is None or has_range_of_f32(to):
        return None
    if found.largest > top / HEADROOM and found.bound > top:
        return f"{GROWS} (expected at most {top / HEADROOM:.4g}, about {found.largest:.2g})"
    if 0 < found.largest < bottom * FOOTROOM:
        limit = bottom * FOOTROOM
        return f"{VANISHES} (expected at least {limit:.2g}, about {found.largest:.2g})"
    return None


TOO_LARGE = "a constant is too large"
LAYER, TERM, FACTOR = "layer", "term", "factor"
"""The scale of a constant's error: the largest weight, the largest term, or the constant."""


def _exactness(op: Op, index: int) -> str:
    if is_layer(op) or is_move(op):
        return LAYER
    return FACTOR if index in op.divisors else TERM


def constant_reason(data: Array, to: DType, role: str) -> str | None:
    """Return why a constant must stay in f32; None where the narrower type holds it."""
    finite = np.abs(data[np.isfinite(data)].astype(np.float64))
    if finite.size == 0:
        return None
    limits = ml_dtypes.finfo(to.numpy)  # type: ignore[no-untyped-call]
    largest = float(finite.max())
    with np.errstate(over="ignore"):
        fits = bool(np.isfinite(np.asarray(largest).astype(to.numpy).astype(np.float64)))
    if not fits:
        return f"{TOO_LARGE} (expected at most {float(limits.max):g}, given {largest:g})"
    smallest = float(finite[finite > 0].min(initial=np.inf))
    least = smallest if role == FACTOR else largest
    if 0 < least < float(limits.smallest_normal):
        limit = f"expected at least {float(limits.smallest_normal):.2g}, given {least:.2g}"
        return f"a constant loses its digits ({limit})"
    whole = role != LAYER and largest < COUNTS and bool((finite == np.rint(finite)).all())
    if whole and not np.array_equal(finite.astype(to.numpy).astype(np.float64), finite):
        return f"a constant counts, and {to} has no such whole number (given {largest:g})"
    return None
