"""Norms of rows that the kernel of a product of few rows computes itself."""

from __future__ import annotations

import math

import numpy as np

from monograph.ir import Array, Value, known
from monograph.ops.composite import RmsNorm
from monograph.ops.shape import Reshape, Squeeze, Unsqueeze
from monograph.program.fusion.region import Region


def norm_of(rows: Value) -> Value | None:
    """Return the norm of whole rows that an operand is, behind reshapes that keep rows."""
    while isinstance(rows.op, (Reshape, Squeeze, Unsqueeze)):
        source = rows.inputs[0]
        if not source.tensor.static or source.tensor.static[-1] != rows.tensor.static[-1]:
            return None
        rows = source
    if not isinstance(rows.op, RmsNorm) or rows.op.axes != (rows.tensor.rank - 1,):
        return None
    scales = rows.inputs[1:]
    # With another shape than a row's, a scale may differ from row to row.
    whole = all(math.prod(g.tensor.static) in (1, g.tensor.static[-1]) for g in scales)
    return rows if whole and all(g.tensor.static for g in scales) else None


def inner_norm(region: Region) -> Value | None:
    """Return the norm that a region's product computes itself."""
    assert region.anchor is not None
    norm = norm_of(region.anchor.inputs[0])
    return norm if norm in region.body else None


def norm_gains(norm: Value | None) -> Array | None:
    """Return the known scales of a norm in a row; None if it has none or they are unknown."""
    if norm is None or len(norm.inputs) == 1:
        return None
    data = known(norm.inputs[1])
    return None if data is None else data.astype(np.float64).reshape(-1)


def gains_fit(norm: Value | None) -> bool:
    """Return True if a norm's scales, if there are any, are known and finite."""
    if norm is None or len(norm.inputs) == 1:
        return True
    data = norm_gains(norm)
    return data is not None and bool(np.isfinite(data).all())


def scaled_gains(data: Array, length: int) -> tuple[Array, int]:
    """Return scales over a power of two that makes them at most 1, padded; and its exponent."""
    given = np.zeros(length, np.float64)
    given[: data.size] = data
    largest = np.abs(given).max(initial=0)
    exponent = math.frexp(largest)[1] if largest else 0
    return np.ldexp(given, -exponent), exponent


def root_mean_square(norm: Value, squares: str) -> str:
    """Return the factor of normalised sums, from the squares of a row."""
    assert isinstance(norm.op, RmsNorm)
    length = norm.tensor.static[-1]
    return f"1.0 / tl.sqrt_rn({squares} / {length} + {norm.op.epsilon!r})"
