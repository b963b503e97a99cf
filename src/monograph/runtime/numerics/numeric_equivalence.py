"""The comparison of two graphs over the same inputs.

Graphs that differ by exact rewrites must agree bit for bit. Others may differ by rounding. How far
is derived from both graphs (see `runtime.numerics.tolerance`), and measured where that leaves an
element unexplained (see `runtime.numerics.spread`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, FeedError
from monograph.ir import Array, Graph, evaluate
from monograph.runtime.feeds import Port
from monograph.runtime.inputs.input_ranges import input_ranges
from monograph.runtime.inputs.inputs import make_inputs
from monograph.runtime.numerics.compare import Difference, OutputPath, compare_outputs, flatten
from monograph.runtime.numerics.spread import tolerances
from monograph.runtime.numerics.tolerance import EXACT, Reach, Tolerance

SIZES_TRIED = (2, 1)
"""Sizes for dimensions that nothing fixes: 1 hides what broadcasting gets wrong."""


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
    """Return the reference's outputs by name."""
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
    """Return the first output in which two graphs differ, or None where they agree.

    `expected` are the outputs of `before`, where they have been computed. Rows of the outputs in
    `any_order` are matched to each other before they are compared, unless all is exact.
    """
    if expected is None:
        expected = run(before, feeds)
    given = run(after, feeds)
    if exact:
        found = [d for d in _compare_bits(given, expected) if not d.ok]
        return found[0] if found else None
    left, right = (tolerances(g, feeds, ties=True) for g in (before, after))
    both = {n: _sum(t, right.get(n, EXACT)) for n, t in left.items()}
    found = compare_outputs(given, expected, both, any_order)
    return next((d for d in found if not d.ok), None)


def first_wrong(
    graph: Graph, feeds: Mapping[str, Any], given: Mapping[str, Any], expected: Mapping[str, Any]
) -> Difference | None:
    """The first output that a target computed wrongly, or None; `expected`: the reference's."""
    found = compare_outputs(given, expected, tolerances(graph, feeds, ties=True))
    return next((d for d in found if not d.ok), None)


@dataclass(frozen=True)
class _Both:
    """The reach of two sides that both round."""

    sides: tuple[Reach, ...]

    def reach(self, place: OutputPath, any_row: bool = False) -> Iterator[Array]:
        for found in zip(*(s.reach(place, any_row) for s in self.sides), strict=False):
            if len({x.shape for x in found}) > 1:
                return
            yield np.sum(found, axis=0)


def _sum(a: Tolerance, b: Tolerance) -> Tolerance:
    """Both sides round."""
    sides = tuple(t.spread for t in (a, b) if t.spread is not None)
    return Tolerance(a.rtol + b.rtol, max(a.atol, b.atol), _Both(sides) if sides else None)


def _compare_bits(given: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Difference]:
    """Return every output of two sides, zeros of different signs told apart."""
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
