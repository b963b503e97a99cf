"""Checks what passes make of a graph, and finds the rewrite that broke it.

A pass is run again with a limit on its rewrites, and the limit is bisected. Rewrites happen in the
same order each time, so the last one within the smallest limit that breaks the graph is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from monograph.errors import ExecutionError, VerifyError
from monograph.ir import Graph, verify
from monograph.ir.types import accepts
from monograph.passes.base import Environment, Pass, RulePass, run_pass
from monograph.program.legalise.lower_random import random_op_names
from monograph.rewrite import CostModel, Fired, Trace
from monograph.runtime.numerics.compare import Difference
from monograph.runtime.numerics.numeric_equivalence import first_difference, make_trial, run

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
    return getattr(step, "inputs_outputs", "") == "convert"


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
