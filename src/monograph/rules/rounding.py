"""Rounding of constants that rules compute. It defines no rules."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, Value, constant
from monograph.rewrite import Reject


def rounded(data: Array, dtype: DType, *, factors: bool = False) -> Value | Reject:
    """Return the data as a float constant, unless rounding changes more than the last bits.

    No element may overflow. Elements below the normal range lose bits: for the terms of a sum that
    matters only if the largest is there, for factors if any is.
    """
    with np.errstate(all="ignore"):
        kept = np.asarray(data).astype(dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    sizes = np.abs(data)
    lost = np.isfinite(data) & ~np.isfinite(kept.astype(np.float64))
    if lost.any():
        return Reject("the joint constant overflows", float(limits.max), sizes[lost].max())
    normal = float(limits.smallest_normal)
    counted = sizes[sizes > 0]
    if counted.size and (least := counted.min() if factors else counted.max()) < normal:
        return Reject("the joint constant loses bits", normal, least)
    return constant(kept)
