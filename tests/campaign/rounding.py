"""Tells whether rounding explains a difference that the derived tolerances do not.

`runtime.numerics.numeric_equivalence` derives a tolerance relative to the largest element of an
output, and measures how far the rounding of results moves it. Neither sees a sum that cancels: its
error has the scale of its operands. So every operand is moved as well, by a unit in its last place.
The derived figure is a number of such units; an element may differ by as many times what one moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Graph, Item, TensorType, Value
from monograph.ir.evaluate import apply
from monograph.runtime.numerics.tolerance import derive, epsilon

RUNS = 6


def explains(graph: Graph, feeds: Mapping[str, Any], name: str, given: Any, expected: Any) -> bool:
    """Whether an output may differ as it does because operands are rounded."""
    a, b = np.asarray(given), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in "fV" or a.size == 0:
        return False
    if b.dtype.kind == "V" and b.dtype.names:
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    odd = ~np.isfinite(x) | ~np.isfinite(y)
    if not np.array_equal(x[odd], y[odd], equal_nan=True):
        return False  # rounding makes no number of a NaN or an infinity, and none of a number
    value = dict(graph.outputs)[name]
    assert isinstance(value.type, TensorType)
    tolerance = derive(graph)[name]
    units = tolerance.rtol / epsilon(value.type.dtype)
    magnitude = np.where(np.isfinite(y), np.abs(y), 0.0)
    bound = tolerance.bound(magnitude, float(magnitude.max()))  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        error = np.where(odd | (x == y), 0.0, np.abs(x - y))
        moved = _moved(graph, feeds, name, y)
    return bool(np.all(error <= bound + units * moved))


def _moved(graph: Graph, feeds: Mapping[str, Any], name: str, base: np.ndarray) -> np.ndarray:
    """How far a unit in the last place of every operand moves an output."""
    furthest = np.zeros_like(base)
    for seed in range(RUNS):
        try:
            made = _run(graph, feeds, np.random.default_rng(seed))[name].astype(np.float64)
        except (MonographError, ValueError, LookupError, ArithmeticError):
            continue  # a size or an index that was moved: that run excuses nothing
        if made.shape != base.shape:
            continue
        furthest = np.fmax(furthest, np.where(made == base, 0.0, np.abs(made - base)))
    return furthest


def _run(graph: Graph, feeds: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    results: dict[Value, Any] = {}
    named = dict(zip(graph.inputs, graph.input_names, strict=True))
    for value in graph.values:
        if value in named:
            exact = feeds[named[value]]
        else:
            exact = apply(value, [results[v] for v in value.inputs])
        results[value] = _disturbed(value, exact, generator)
    return {name: results[v] for name, v in graph.outputs}


def _disturbed(value: Value, result: Any, generator: np.random.Generator) -> Any:
    if not isinstance(value.type, TensorType) or not isinstance(result, np.ndarray):
        return result
    if not value.type.dtype.is_float or isinstance(value.op, Item):
        return result
    wide = result.astype(np.float64)
    if wide.ndim == 0 and wide == np.round(wide):
        return result  # a size, mostly: those are exact
    moved = wide * (1 + epsilon(value.type.dtype) * generator.standard_normal(wide.shape))
    return np.where(np.isfinite(wide), moved, wide).astype(result.dtype)
