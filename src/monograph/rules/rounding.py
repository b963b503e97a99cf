"""Constants that rules compute, rounded to the type they are kept in. Not rules."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, Value, constant
from monograph.rewrite import Reject


def rounded(data: Array, dtype: DType, *, factors: bool = False) -> Value | Reject:
    """The data as a constant of a float type, unless that changes more than its last bits.

    No element may overflow. Below the normal range elements lose bits: to the terms of a sum that
    matters only if the largest is there, to factors if any is.
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
