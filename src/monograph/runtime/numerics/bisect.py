"""Checks what passes make of a graph, and finds the rewrite that broke it.

A pass is run again with a limit on its rewrites, and the limit is bisected. Rewrites happen in the
same order each time, so the last one within the smallest limit that breaks the graph is at fault.

Graphs that differ by exact rewrites must agree bit for bit. Others may differ by rounding. How far
is derived from both graphs (see `runtime.numerics.tolerance`), and measured where that leaves an
element unexplained (see `runtime.numerics.spread`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from monograph.errors import ExecutionError, FeedError, VerifyError
from monograph.ir import Array, Graph, evaluate, verify
from monograph.ir.types import accepts
from monograph.passes.base import Environment, Pass, RulePass, run_pass
from monograph.passes.precision.convert_precision import ConvertPrecision
from monograph.passes.precision.precision_plan import CONVERT
from monograph.program.legalise.lower_random import random_op_names
from monograph.rewrite import CostModel, Fired, Trace
from monograph.runtime.feeds import Port
from monograph.runtime.input_ranges import input_ranges
from monograph.runtime.inputs import make_inputs
from monograph.runtime.numerics.compare import Difference, OutputPath, compare_outputs, flatten
from monograph.runtime.numerics.spread import tolerances
from monograph.runtime.numerics.tolerance import EXACT, RUNS, Reach, Tolerance

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

    def reach(
        self, place: OutputPath, any_row: bool = False, runs: Sequence[int] = RUNS
    ) -> Iterator[Array]:
        for found in zip(*(s.reach(place, any_row, runs) for s in self.sides), strict=False):
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


Problem: TypeAlias = tuple[str, Difference | None]
"""The problem, and the output that differs where the graph is well formed."""


@dataclass(frozen=True)
class BrokenPass:
    """A pass that broke a graph, and the rewrite in it that did."""

    stage: str
    step: str
    problem: str
    rewrite: Fired | None
    """The first rewrite after which the graph is wrong; None where that cannot be told."""
    number: int
    """The number of the rewrite in the pass, from 1; 0 where the pass cannot stop half-way."""
    difference: Difference | None
    """The output that differs; None where the graph is malformed."""


class PassError(VerifyError):
    """A pass made a malformed graph, or one that computes other numbers."""

    def __init__(self, fault: BrokenPass) -> None:
        self.fault = fault
        done, wrong = fault.rewrite, fault.difference
        rule = f", rule {done.rule}" if done is not None and done.rule != fault.step else ""
        super().__init__(
            f"pass {fault.step}{rule}: {fault.problem}",
            node=(done.origin or None) if done else None,
            op=f"{done.before}  ->  {done.after}" if done else None,
            expected=wrong.expected if wrong else None,
            given=wrong.given if wrong else None,
        )


def is_exact(step: Pass, fired: Sequence[Fired]) -> bool:
    """Return True if every rewrite of a pass keeps every bit."""
    if not isinstance(step, RulePass):
        return step.exact
    exact = {r.name: r.exact for r in step.rules}
    return all(exact.get(f.rule, False) for f in fired)


class NumericCheck:
    """Compares numbers on one set of inputs, and keeps those of the graph so far."""

    def __init__(
        self,
        graph: Graph,
        given: Mapping[str, Any] | None = None,
        seed: int = 0,
        any_order: Collection[str] = (),
    ) -> None:
        self.any_order = any_order
        """Outputs whose rows may come in another order."""
        self.trial = make_trial(graph, given, seed)
        self.drawn = random_op_names(graph)
        """Random ops of the graph: it computes other numbers each time, so none are compared."""
        self._graph: Graph | None = None
        self._outputs: dict[str, Any] = {}

    def difference(self, before: Graph, after: Graph, exact: bool) -> Difference | None:
        if self.drawn:
            return None
        if self._graph is None or self._graph != before:
            self._graph, self._outputs = before, run(before, self.trial.feeds)
        return first_difference(
            before,
            after,
            self.trial.feeds,
            exact=exact,
            expected=self._outputs,
            any_order=self.any_order,
        )


def check_pass(
    stage: str,
    step: Pass,
    before: Graph,
    after: Graph,
    fired: Sequence[Fired],
    cost: CostModel,
    numbers: NumericCheck | None,
) -> None:
    """Raises PassError unless a pass has made a right graph of another."""
    problem = _problem(before, after, is_exact(step, fired), numbers, _converts(step))
    if problem is not None:
        raise PassError(_locate(stage, step, before, cost, numbers, problem))


def _converts(step: Pass) -> bool:
    """Return True if the options of a pass change the types of outputs."""
    return isinstance(step, ConvertPrecision) and step.inputs_outputs == CONVERT


def _problem(
    before: Graph,
    after: Graph,
    exact: bool,
    numbers: NumericCheck | None,
    step_may_convert: bool = False,
) -> Problem | None:
    """Return the problem of a graph that a pass made; None without one."""
    if after == before:
        return None
    try:
        verify(after)
    except VerifyError as e:
        return str(e), None
    if after.input_names != before.input_names or after.output_names != before.output_names:
        return "the inputs or outputs are not those of the graph before", None
    for name, old, new in zip(
        before.output_names, before.output_types, after.output_types, strict=True
    ):
        if not step_may_convert and not accepts(old, new):
            return f"output {name!r} has another type: {old} before, {new} after", None
    if numbers is None:
        return None
    try:
        difference = numbers.difference(before, after, exact)
    except ExecutionError as e:
        return f"the graph no longer runs: {e}", None
    if difference is None:
        return None
    return f"output {difference.name}: {difference.problem}", difference


def _locate(
    stage: str,
    step: Pass,
    before: Graph,
    cost: CostModel,
    numbers: NumericCheck | None,
    problem: Problem,
) -> BrokenPass:
    """Return the first rewrite of a pass after which the graph is wrong."""

    def attempt(limit: int | None) -> tuple[list[Fired], Problem | None]:
        environment = Environment(cost, Trace(), limit)
        after = run_pass(step, before, environment)
        fired = environment.trace.fired
        problem = _problem(before, after, is_exact(step, fired), numbers, _converts(step))
        return fired, problem

    every = attempt(None)[0]
    right, wrong = 0, len(every)
    if wrong == 0 or attempt(0)[1] is not None:
        return BrokenPass(
            stage, step.name, problem[0], every[0] if wrong == 1 else None, 0, problem[1]
        )
    while wrong - right > 1:
        middle = (right + wrong) // 2
        found = attempt(middle)[1]
        if found is None:
            right = middle
        else:
            wrong, problem = middle, found
    return BrokenPass(stage, step.name, problem[0], every[wrong - 1], wrong, problem[1])
