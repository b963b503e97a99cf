"""Whether two graphs over the same inputs compute the same numbers.

Graphs that differ by exact rewrites must agree bit for bit. Others may differ by rounding. How far
is derived from both graphs (see `runtime.numerics.tolerance`). The derivation does not see what
amplifies a difference: sums that cancel, steep curves, ties that an argmax or a sort decides. So
where it is exceeded, it is measured: both graphs run again with every result disturbed by its own
rounding, and an element may differ by as much as that moves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, FeedError, MonographError
from monograph.ir import Array, Graph, TensorType, Value, evaluate
from monograph.ir.evaluate import apply
from monograph.runtime.feeds import Port
from monograph.runtime.inputs.input_ranges import input_ranges
from monograph.runtime.inputs.inputs import make_inputs
from monograph.runtime.numerics.compare import Difference, OutputPath, compare_outputs, flatten
from monograph.runtime.numerics.tolerance import (
    EXACT,
    MARGIN,
    Tolerance,
    contraction,
    derive,
    own_variance,
)
from monograph.runtime.walk import STRUCTURE

SIZES_TRIED = (2, 1)
"""Sizes for dimensions that nothing fixes: 1 hides what broadcasting gets wrong."""
DISTURBED_RUNS = 6


@dataclass(frozen=True)
class Trial:
    """Inputs, and what was assumed to make them."""

    feeds: Mapping[str, Any]
    random: tuple[str, ...] = ()
    assumed: tuple[tuple[str, int], ...] = ()


def make_trial(graph: Graph, given: Mapping[str, Any] | None = None, seed: int = 0) -> Trial:
    """Inputs on which a graph runs: given ones, the others random."""
    ports = [Port(n, t) for n, t in zip(graph.input_names, graph.input_types, strict=True)]
    for size in SIZES_TRIED:
        made = make_inputs(ports, given or {}, seed, size, analyse=lambda _: input_ranges(graph))
        trial = Trial(made.feeds, tuple(made.random), tuple(made.assumed.items()))
        try:
            evaluate(graph, trial.feeds)
        except ExecutionError as e:
            if not made.random:
                raise  # on inputs that were given, that is the answer
            if size == SIZES_TRIED[-1] or not made.assumed:
                raise FeedError(
                    f"the graph does not run on random inputs: {e.message}",
                    node=e.node,
                    op=e.op,
                    hint="give inputs, or sizes for its open dimensions",
                ) from e
            continue
        break
    return trial


def run(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's outputs by name."""
    return dict(zip(graph.output_names, evaluate(graph, feeds), strict=True))


def first_difference(
    before: Graph,
    after: Graph,
    feeds: Mapping[str, Any],
    *,
    exact: bool,
    expected: Mapping[str, Any] | None = None,
    any_order: Collection[str] = (),
) -> Difference | None:
    """The first output in which two graphs differ, or None where they agree.

    `expected` are the outputs of `before`, where they have been computed. Rows of the outputs in
    `any_order` are matched to each other before they are compared, unless all is exact.
    """
    if expected is None:
        expected = run(before, feeds)
    given = run(after, feeds)
    if exact:
        found = [d for d in _compare_bits(given, expected) if not d.ok]
        return found[0] if found else None
    left, right = derive(before), derive(after)
    tolerances = {n: _sum(left[n], right.get(n, EXACT)) for n in left}
    beyond = [d for d in compare_outputs(given, expected, tolerances, any_order) if not d.ok]
    if not beyond:
        return None
    spreads = [_Spread(before, feeds, expected), _Spread(after, feeds, given)]
    return _first_unexplained(beyond, given, expected, spreads)


def first_wrong(
    graph: Graph, feeds: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any]
) -> Difference | None:
    """The first output that a target computed wrongly, or None; `expected`: the reference's."""
    beyond = [d for d in compare_outputs(given, expected, derive(graph)) if not d.ok]
    if not beyond:
        return None
    return _first_unexplained(beyond, given, expected, [_Spread(graph, feeds, expected)])


def _first_unexplained(
    beyond: Sequence[Difference],
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    spreads: Sequence[_Spread],
) -> Difference | None:
    """The first of some differences that is larger than what rounding moves."""
    tensors, wanted = flatten(given), flatten(expected)
    for difference in beyond:
        place = difference.place
        if place not in tensors or place not in wanted:
            return difference
        a, b = np.asarray(tensors[place]), np.asarray(wanted[place])
        moved = [s.moved(place) for s in spreads]
        if not _explained(a, b, difference.tolerance, moved):
            return difference
    return None


def _sum(a: Tolerance, b: Tolerance) -> Tolerance:
    """Both sides round."""
    return Tolerance(a.rtol + b.rtol, max(a.atol, b.atol))


def _compare_bits(given: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Difference]:
    """Every output of two sides, zeros of different signs told apart."""
    found = compare_outputs(given, expected, {})
    left, right = flatten(given), flatten(expected)
    return [d if not d.ok else _compare_signs(d, left[d.place], right[d.place]) for d in found]


def _compare_signs(found: Difference, given: Any, expected: Any) -> Difference:
    a, b = np.asarray(given), np.asarray(expected)
    if a.dtype.kind not in "fV" or a.dtype.itemsize == 0:
        return found
    x, y = a.astype(np.float64), b.astype(np.float64)
    wrong = np.argwhere((np.signbit(x) != np.signbit(y)) & ~np.isnan(x))
    if len(wrong) == 0:
        return found
    at = tuple(map(int, wrong[0]))
    problem = f"{len(wrong)} of {a.size} have another sign"
    return replace(found, problem=problem, worst=at, given=float(x[at]), expected=float(y[at]))


class _Spread:
    """How far rounding moves each element of a graph's outputs, measured."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self.outputs = flatten(outputs)
        self.runs: list[dict[OutputPath, Any]] = []
        with_nan = _values_with_nan(graph, feeds)
        for seed in range(DISTURBED_RUNS):
            try:
                self.runs.append(flatten(_run_disturbed(graph, feeds, seed, with_nan)))
            except (MonographError, ValueError, LookupError, ArithmeticError):
                # A disturbed size or index is out of range, or a disturbed number is outside the
                # domain of a function. That run tells nothing, and excuses nothing: what the
                # others move is all that is allowed.
                continue

    def moved(self, place: OutputPath) -> Array | None:
        """The largest distance by element; None where even the shape is not the same."""
        base = np.asarray(self.outputs[place])
        others = [np.asarray(r[place]) for r in self.runs if place in r]
        if not others or any(o.shape != base.shape for o in others):
            return None
        if base.dtype.kind in "OUST":
            return np.where(np.any([o != base for o in others], axis=0), np.inf, 0.0)
        moved = np.max([_distance(o, base) for o in others], axis=0)
        # Integers do not round: what rounding can change at all may become anything.
        return np.where(moved > 0, np.inf, 0.0) if base.dtype.kind in "iub" else moved


def _explained(a: Array, b: Array, tolerance: Tolerance, moved: Sequence[Array | None]) -> bool:
    """Whether rounding may have made `a` of `b`, if it moves them so far."""
    reach = [m for m in moved if m is not None]
    if len(reach) < len(moved):
        # Rounding changes even the shape, or whether the graph runs: nothing can be said.
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "OUST":
        return bool(np.all((a == b) | (np.max(reach, axis=0) > 0)))
    if not np.array_equal(np.isnan(_wide(a)), np.isnan(_wide(b))):
        return False  # rounding makes no NaN of a number
    magnitude = np.where(np.isfinite(_wide(b)), np.abs(_wide(b)), 0.0)
    largest = float(magnitude.max(initial=0.0))
    bound = tolerance.bound(magnitude, largest)  # type: ignore[arg-type]
    return bool(np.all(_distance(a, b) <= bound + MARGIN * np.sum(reach, axis=0)))


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _distance(a: Array, b: Array) -> Array:
    """|a - b|; 0 for equal infinities and two NaNs, inf where one side only is not finite."""
    x, y = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        distance = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return np.where(np.isnan(distance), np.inf, distance)


def _values_with_nan(graph: Graph, feeds: Mapping[str, Any]) -> set[Value]:
    """The values of a run in which there is a NaN."""
    found: set[Value] = set()
    for value, result in _results(graph, feeds, lambda value, exact: exact):
        if _has_nan(result):
            found.add(value)
    return found


def _has_nan(result: Any) -> bool:
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "fcV":
        return False
    return result.dtype.itemsize > 0 and bool(np.isnan(_wide(result)).any())


def _run_disturbed(
    graph: Graph, feeds: Mapping[str, Any], seed: int, with_nan: Collection[Value]
) -> dict[str, Any]:
    """The outputs where every result has been moved by its own rounding.

    A NaN where the undisturbed run has none is an ArithmeticError.
    """
    generator = np.random.default_rng(seed)
    outputs = {v for _, v in graph.outputs}
    kept: dict[Value, Any] = {}
    for value, result in _results(graph, feeds, lambda v, exact: _disturb(v, exact, generator)):
        if value not in with_nan and _has_nan(result):
            raise ArithmeticError(f"{value.op.name} of disturbed operands is NaN")
        if value in outputs:
            kept[value] = result
    return {name: kept[v] for name, v in graph.outputs}


def _results(
    graph: Graph, feeds: Mapping[str, Any], change: Callable[[Value, Any], Any]
) -> Iterator[tuple[Value, Any]]:
    """Every value with its result, which `change` has gone over; freed after its last use."""
    results: dict[Value, Any] = dict(
        zip(graph.inputs, [feeds[n] for n in graph.input_names], strict=True)
    )
    remaining = dict(graph.uses)
    for value in graph.values:
        if value not in results:
            results[value] = change(value, apply(value, [results[v] for v in value.inputs]))
        yield value, results[value]
        for v in value.inputs:
            remaining[v] -= 1
            if remaining[v] == 0:
                del results[v]


def _disturb(value: Value, result: Any, generator: np.random.Generator) -> Any:
    """A result moved by as much as rounding may; a sum, at the scale of what is summed."""
    if not isinstance(result, np.ndarray) or not isinstance(value.type, TensorType):
        return result
    if not value.type.dtype.is_float or isinstance(value.op, STRUCTURE):
        return result
    wide = result.astype(np.float64)
    scale = np.abs(wide)
    if contraction(value) > 1 and not value.op.same_signs:
        # Terms of different signs cancel; the others are off by a factor, at their own scale.
        scale = scale + np.max(scale[np.isfinite(scale)], initial=0.0)
    noise = generator.standard_normal(wide.shape)
    with np.errstate(all="ignore"):
        moved = wide + math.sqrt(own_variance(value)) * scale * noise
    if wide.min(initial=0.0) >= 0:
        moved = np.maximum(moved, 0.0)  # a sum of squares stays one
    elif wide.max(initial=0.0) <= 0:
        moved = np.minimum(moved, 0.0)
    return np.where(np.isfinite(wide), moved, wide).astype(result.dtype)
