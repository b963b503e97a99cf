"""Compares what two sides computed, output by output."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from monograph.ir import Array
from monograph.runtime.numerics.tolerance import EXACT, MORE_RUNS, NEAR, RUNS, Tolerance

ALL_NAN = "every element is NaN on both sides: nothing was compared"
EMPTY = "empty on both sides: nothing was compared"
_LOWEST = 128 * 2.0**-126
CONSTANT = "every element is {} on both sides: that shows nothing"


class OutputPath(NamedTuple):
    """A tensor among outputs: which one, and where in it if it is a sequence or a map."""

    output: str
    path: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.output + "".join(f"[{key}]" for key in self.path)


@dataclass(frozen=True)
class Difference:
    """One tensor on two sides. `problem` is None when they agree."""

    place: OutputPath
    problem: str | None
    tolerance: Tolerance
    max_abs: float = 0.0
    max_rel: float = 0.0
    """The largest difference, relative to the largest expected element."""
    used: float = 0.0
    """The largest share of the tolerance that an element uses up; above 1 it fails."""
    worst: tuple[int, ...] | None = None
    """The index of that element; None if the elements could not be compared or are all equal."""
    given: Any = None
    expected: Any = None
    warning: str | None = None
    """The reason why an agreement may say little."""

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def name(self) -> str:
        return str(self.place)


def flatten(named: Mapping[str, Any]) -> dict[OutputPath, Any]:
    """Outputs as tensors; those in sequences and maps by index and key."""
    result: dict[OutputPath, Any] = {}
    stack = [(OutputPath(name), value) for name, value in reversed([*named.items()])]
    while stack:
        place, value = stack.pop()
        if isinstance(value, (list, tuple)):
            items = list(enumerate(value))
        elif isinstance(value, Mapping):
            items = list(value.items())
        else:
            result[place] = value
            continue
        stack.extend((OutputPath(place.output, (*place.path, k)), v) for k, v in reversed(items))
    return result


def compare_outputs(
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    tolerances: Mapping[str, Tolerance],
    any_order: Collection[str] = (),
) -> list[Difference]:
    """Every output of `expected` against `given`; one that is on one side only is a mismatch.

    Rows of the outputs named in `any_order` are matched to each other before they are compared.
    """
    left, right = flatten(given), flatten(expected)
    result = []
    for place in [*right, *(p for p in left if p not in right)]:
        tolerance = tolerances.get(place.output, EXACT)
        if place not in left or place not in right:
            where = "expected side" if place not in left else "given side"
            result.append(Difference(place, f"only on the {where}", tolerance))
        else:
            ours, theirs = left[place], right[place]
            any_row = place.output in any_order
            if any_row:
                ours = match_rows(ours, theirs)
            result.append(compare(place, ours, theirs, tolerance, any_row))
    return result


def match_rows(given: Any, expected: Any) -> Any:
    """`given` with its rows (vectors along the last axis) in the order of `expected`'s.

    Detections sorted by score change places where scores tie but for rounding. Each expected row
    takes the nearest row that is still free, distances relative to each column's largest element.
    """
    a, b = np.asarray(given), np.asarray(expected)
    if a.shape != b.shape or a.ndim < 2 or a.dtype.kind not in "fiub" or a.size == 0:
        return given
    rows = a.reshape(-1, *a.shape[-2:])
    wanted = b.reshape(rows.shape)
    result = np.empty_like(rows)
    for block, mine, theirs in zip(result, rows, wanted, strict=True):
        scale = np.maximum(np.abs(theirs).max(axis=0), np.finfo(np.float64).tiny)
        free = np.ones(len(mine), dtype=bool)
        for i, row in enumerate(theirs.astype(np.float64)):
            distance = np.where(free, (np.abs(mine - row) / scale).max(axis=-1), np.inf)
            nearest = int(np.argmin(distance))
            free[nearest] = False
            block[i] = mine[nearest]
    return result.reshape(a.shape)


def compare(
    place: OutputPath | str,
    given: Any,
    expected: Any,
    tolerance: Tolerance,
    any_row: bool = False,
) -> Difference:
    """One tensor on two sides; with `any_row` the rows of `given` have been matched."""
    place = OutputPath(place) if isinstance(place, str) else place
    if given is None or expected is None:
        same = given is None and expected is None
        return Difference(place, None if same else "absent on one side", tolerance)
    a, b = np.asarray(given), np.asarray(expected)
    if _kind(a) != _kind(b):
        return Difference(place, f"dtype: expected {_kind(b)}, given {_kind(a)}", tolerance)
    if a.shape != b.shape:
        text = f"shape: expected {[*b.shape]}, given {[*a.shape]}"
        return Difference(place, text, tolerance)
    if a.dtype.kind in "OUST":
        a, b = a.astype(str), b.astype(str)
    # Differences of 64-bit integers do not fit a float: equality decides, not a subtraction.
    exact = a.dtype.kind in "US" or (a.dtype.kind in "iu" and a.dtype.itemsize == 8)
    numbers = _compare_exactly if exact else _compare_numbers
    found = numbers(place, a, b, tolerance, any_row)
    return found if not found.ok or found.warning else replace(found, warning=_says_little(a, b))


def _says_little(a: Array, b: Array) -> str | None:
    """Return why an agreement of two arrays shows nothing: they are empty, or constant."""
    if b.size == 0:
        return EMPTY
    first = b.reshape(-1)[0]
    if b.size < 2 or not (np.all(b == first) and np.all(a == a.reshape(-1)[0])):
        return None
    number = first.item() if hasattr(first, "item") else first
    return CONSTANT.format(f"{number:.6g}" if isinstance(number, float) else number)


def _kind(x: Array) -> str:
    return "str" if x.dtype.kind in "OUST" else str(x.dtype)


def _compare_exactly(
    place: OutputPath, a: Array, b: Array, tolerance: Tolerance, any_row: bool
) -> Difference:
    unequal = a != b
    if tolerance.spread is not None and unequal.any():
        for runs in (RUNS, MORE_RUNS):
            for reach in tolerance.spread.reach(place, any_row, runs):
                unequal = (a != b) & (reach == 0 if reach.shape == a.shape else True)
                if not unequal.any():
                    break
            if not _few(unequal):
                break
    wrong = np.argwhere(unequal)
    if len(wrong) == 0:
        return Difference(place, None, tolerance)
    at = tuple(map(int, wrong[0]))
    return Difference(
        place, f"{len(wrong)} of {a.size} differ", tolerance, worst=at, given=a[at], expected=b[at]
    )


def _few(wrong: Array) -> bool:
    """Tell whether so few steps differ that few disturbed runs may have missed them by chance."""
    return 0 < int(np.count_nonzero(wrong)) <= max(1, wrong.size // 100)


def _compare_numbers(
    place: OutputPath, a: Array, b: Array, tolerance: Tolerance, any_row: bool
) -> Difference:
    x, y = wide(a), wide(b)
    error = distance(a, b)
    magnitude = np.where(np.isfinite(y), np.abs(y), 0.0)
    bound = tolerance.rtol * magnitude + _absolute(a, tolerance)
    share = _share(error, bound)
    if tolerance.spread is not None and share.max(initial=0.0) > 1:
        # Rounding makes no NaN of a number; it makes an infinity of the largest ones.
        numbers = ~np.isnan(x) & ~np.isnan(y)
        for runs in (RUNS, MORE_RUNS):
            for reach in tolerance.spread.reach(place, any_row, runs):
                if reach.shape != share.shape:
                    break
                share = np.where(np.isinf(reach) & numbers, 0.0, _share(error, bound + reach))
                if share.max() <= 1:
                    break
            rare = a.dtype.kind in "iub" and _few(share > 1)
            if not (rare or 1 < share.max() <= NEAR):
                break
    if share.size == 0 or error.max() == 0:
        empty = x.size > 0 and bool(np.isnan(x).all())
        return Difference(place, None, tolerance, warning=ALL_NAN if empty else None)
    at = tuple(map(int, np.unravel_index(int(np.argmax(share)), share.shape)))
    max_abs, largest = float(error.max()), float(magnitude.max())
    failing = int(np.count_nonzero(share > 1))
    problem = None if failing == 0 else f"{failing} of {a.size} beyond the tolerance"
    if failing and not np.array_equal(np.isnan(x), np.isnan(y)):
        problem = f"NaN in different places; {problem}"
    return Difference(
        place,
        problem,
        tolerance,
        max_abs=max_abs,
        max_rel=max_abs / largest if largest > 0 else float("inf"),
        used=float(share[at]),
        worst=at,
        given=a[at].item() if a.dtype.kind != "V" else float(x[at].real),
        expected=b[at].item() if b.dtype.kind != "V" else float(y[at].real),
    )


def _absolute(a: Array, tolerance: Tolerance) -> float:
    """The absolute part: denormals may be zeros, or off by a step, wherever roundings count.

    x e^x is a denormal times its operand of about 100, so 128 times the smallest normal number is
    the limit.
    """
    if tolerance.rtol == 0 or a.dtype.kind not in "fcV":
        return tolerance.atol
    limits = ml_dtypes.finfo(a.dtype)  # type: ignore[no-untyped-call]
    floor = max(float(limits.smallest_subnormal), min(128 * float(limits.tiny), _LOWEST))
    return tolerance.atol + floor


def _share(error: Array, bound: Array) -> Array:
    """Return the share of its bound that each error uses; an infinite error fails every bound."""
    with np.errstate(all="ignore"):
        share = np.where(error == 0, 0.0, error / bound)
    return np.where(np.isnan(share) | np.isinf(error), np.inf, share)


def wide(x: Array) -> Array:
    """The same numbers in f64, or c128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def distance(a: Array, b: Array) -> Array:
    """|a - b|; 0 for equal infinities and two NaNs, inf where one side only is not finite."""
    x, y = wide(a), wide(b)
    with np.errstate(all="ignore"):
        found = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return np.where(np.isnan(found), np.inf, found)


def has_nan(result: Any) -> bool:
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "fcV":
        return False
    return result.dtype.itemsize > 0 and bool(np.isnan(wide(result)).any())
