"""Numbers to try elementwise kernels with, and how results compare with what is expected."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, from_numpy
from monograph.ir.dtype import ALL, COMPLEX, STRING, boolean, f8e8m0

SMALLEST = 1.5 * 2.0**-126
"""Results below this may be zero, and zero may be anything below this."""

NATIVE = [d for d in ALL if d.kind not in (STRING, COMPLEX)]
NUMBERS = [d for d in NATIVE if d != f8e8m0]
"""All but the type that holds powers of two only, which nothing is computed in."""


def edges(dtype: DType, seed: int = 0) -> Array:
    """Numbers where things go wrong, and some at random."""
    generator = np.random.default_rng(seed)
    if dtype == boolean:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = limits(dtype)
        picked = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, -1, -2, -3, 63, 64]
        picked += [
            int(v) for v in generator.integers(low, high, 6, endpoint=True, dtype=_widest(dtype))
        ]
        return np.array(sorted({v for v in picked if low <= v <= high}), _widest(dtype)).astype(
            dtype.numpy
        )
    info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    numbers = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 0.3, 9.7, 100.0, 1e-3, 3e4, math.inf]
    numbers += [
        float(info.max),
        float(info.smallest_normal),
        float(info.eps),
        *generator.normal(size=4),
    ]
    with np.errstate(all="ignore"):
        return np.array([*numbers, *(-v for v in numbers), math.nan]).astype(dtype.numpy)


def limits(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def _widest(dtype: DType) -> Any:
    return np.uint64 if dtype.kind == "uint" else np.int64


def codes(dtype: DType) -> Array:
    """Every number of a type of at most 16 bits."""
    raw = np.arange(2**dtype.bits, dtype=np.uint16)
    return raw.astype(f"u{dtype.itemsize}").view(dtype.numpy)


def floats(low: float, high: float, count: int) -> Array:
    """f32 numbers of both signs, spread evenly over their bits, between two magnitudes."""
    ends = np.array([low, high], np.float32).view(np.uint32)
    positive = np.linspace(*ends, count).astype(np.uint32).view(np.float32)
    return np.concatenate([positive, -positive])


def spread_out(low: float, high: float, count: int = 100_000) -> Array:
    return np.linspace(low, high, count).astype(np.float32)


def errors(given: Array, exact: Array) -> Array:
    """Return the error of results in units of the last place; infinite where a kind is wrong."""
    dtype = given.dtype
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    wide = given.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
        exponent = np.floor(np.log2(np.maximum(np.abs(exact), float(info.smallest_normal))))
        unit = 2.0 ** (exponent - int(info.nmant))
        off = np.abs(wide - exact) / unit
    least = max(SMALLEST, float(info.smallest_normal)) if dtype != np.float64 else 0.0
    fine = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
    fine |= (np.abs(exact) < least) & (np.abs(wide) < least)
    return np.where(fine, 0.0, np.where(np.isnan(off) | np.isinf(rounded), np.inf, off))


def same(given: Array, expected: Array) -> bool:
    """Equal, and NaN where the other is."""
    if given.dtype.kind in "biu" or from_numpy(given.dtype).is_integer:
        return bool((given == expected).all())
    with np.errstate(invalid="ignore"):  # signalling NaNs
        a, b = given.astype(np.float64), expected.astype(np.float64)
    return bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())
