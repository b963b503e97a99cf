"""Holds every step of a run to the reference.

Two questions are asked of a step. Given what it really read, did it compute what the reference
computes from that (its own error)? And how far is its result from that of a run in which the
reference does everything (the accumulated error)? Only the first can be a step's own fault; the
second shows where errors of many steps add up, or where one of them is amplified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monograph.ir import Constant, Input, Value
from monograph.ir.evaluate import apply
from monograph.ir.graph import topological
from monograph.program.legalise.lower_random import draws
from monograph.program.program import Program, Step
from monograph.runtime.cpu.instrumented import SteppedRun, stored_parts
from monograph.runtime.numerics.compare import Difference, compare_outputs
from monograph.runtime.numerics.spread import Spread
from monograph.runtime.numerics.tolerance import tolerance_for, variances

ON_HOST = "runs on the host by the reference itself"
DRAWS = "draws random numbers"


@dataclass(frozen=True)
class StepCheck:
    """The result of one step."""

    number: int
    """The number of the step in the run; for a model of one program, in the program."""
    stage: int
    """The number of its program in the run: 1 where data decide no shapes."""
    step: Step
    own: tuple[Difference, ...]
    """Each result against the reference, given what the step read; none where that says nothing."""
    accumulated: tuple[Difference, ...]
    """Each result against that of the reference from the program's inputs on."""
    overwritten: tuple[int, ...] = ()
    """Steps whose results this one reads, and which others have written over before it did."""
    not_compared: str | None = None
    """The reason why the step's own error is not known."""

    @property
    def ok(self) -> bool:
        return all(d.ok for d in self.own) and not self.overwritten

    @property
    def drifted(self) -> bool:
        """Return True if roundings do not explain the accumulated error."""
        return not all(d.ok for d in self.accumulated)

    @property
    def used(self) -> float:
        """The largest share of its own tolerance that an element uses up; without end if none."""
        if self.overwritten or not all(d.ok or d.worst is not None for d in self.own):
            return float("inf")
        shares = (d.used if d.ok else max(d.used, 1.0) for d in self.own)
        return max(shares, default=0.0)


class StepChecker:
    """Checks steps in the order in which they run."""

    def __init__(self) -> None:
        self.checks: list[StepCheck] = []
        self.stages = 0
        self._stage: _Stage | None = None

    def observe(self, seen: SteppedRun) -> None:
        """Checks a step that has just run."""
        # A turn of a loop may be the same program again, on other feeds.
        if self._stage is None or self._stage.feeds is not seen.feeds:
            self._stage = _Stage(seen.program, seen.feeds, self.stages, len(self.checks))
            self.stages += 1
        self.checks.append(self._stage.check(seen))


class _Stage:
    """The reference beside one program: it keeps only what is needed yet."""

    def __init__(self, program: Program, feeds: Mapping[str, Any], stage: int, first: int) -> None:
        self.program = program
        self.feeds = feeds
        self._stage = stage
        self._first = first
        self._right: dict[Value, Any] = {}
        """The results of the reference for the program's inputs."""
        self._variance: dict[Value, float] = {}
        self._drifts = False
        """True from the first accumulated error on that roundings do not explain."""
        self._made_by: dict[Value, int] = {}
        self._last: dict[Value, int] = {}
        self._stored = {v for step in program.steps for v in step.region.outputs}
        for step in program.steps:
            for value in step.region.inputs:
                self._last |= dict.fromkeys(stored_parts(value, self._stored), step.index)

    def check(self, seen: SteppedRun) -> StepCheck:
        region, number = seen.step.region, self._first + seen.step.index
        from_feeds = {v: self._reference(v) for v in region.inputs}
        spread = {v: self._spread(v) for v in region.inputs}
        reason = None if seen.native else ON_HOST
        if draws(region.body):
            # Everything behind is compared on what the target has drawn.
            reason, right = DRAWS, dict(seen.outputs)
        else:
            right = _computed(seen.step, from_feeds)
        own: tuple[Difference, ...] = ()
        if reason is None:
            expected = _computed(seen.step, seen.inputs)
            none = dict.fromkeys(region.inputs, 0.0)
            own = _compared(number, seen.step, seen.inputs, seen.outputs, expected, none)
        accumulated: tuple[Difference, ...] = ()
        if reason != DRAWS:
            accumulated = _compared(number, seen.step, from_feeds, seen.outputs, right, spread)
            if not self._drifts and not all(d.ok for d in accumulated):
                accumulated = self._measured(seen, right, accumulated)
                self._drifts = not all(d.ok for d in accumulated)
        overwritten = sorted({self._first + self._made_by[v] for v in seen.overwritten})
        self._keep(seen.step, right, spread)
        return StepCheck(
            number, self._stage, seen.step, own, accumulated, tuple(overwritten), reason
        )

    def _measured(
        self, seen: SteppedRun, right: Mapping[Value, Any], found: Sequence[Difference]
    ) -> tuple[Difference, ...]:
        """Compare again, with the roundings of all steps up to this one measured together.

        By how much an operand is off is one number elsewhere, relative to each of its elements:
        too little for those that are what is left of larger ones.
        """
        results = seen.step.region.outputs
        values = topological(results)
        known = {v: self.feeds[v.op.label] for v in values if isinstance(v.op, Input)}
        names = dict(zip(results, (d.name for d in found), strict=True))
        spread = Spread(values, known, [(n, v) for v, n in names.items()])
        allowed = {
            d.name: replace(d.tolerance, spread=spread) if d.tolerance.rtol else d.tolerance
            for d in found
        }
        left, given = ({n: side[v] for v, n in names.items()} for side in (seen.outputs, right))
        return tuple(compare_outputs(left, given, allowed))

    def _keep(self, step: Step, right: Mapping[Value, Any], spread: Mapping[Value, float]) -> None:
        """Remembers the right results for the steps that read them, and forgets what none does."""
        found = variances(step.region.body, spread)
        for value in step.region.outputs:
            self._made_by[value] = step.index
            self._right[value], self._variance[value] = right[value], found[value]
        for value in [v for v in self._right if self._last.get(v, -1) <= step.index]:
            del self._right[value]

    def _reference(self, value: Value) -> Any:
        """A value as the reference has it: fed, constant, made by a step, or joined of such."""
        for part in reversed([*stored_parts(value, self._right)]):
            if part in self._right:
                continue
            if isinstance(part.op, Input):
                self._right[part] = self.feeds[part.op.label]
            else:
                # A constant, or a join or a view whose parts are there.
                self._right[part] = apply(part, [self._right[v] for v in part.inputs])
        return self._right[value]

    def _spread(self, value: Value) -> float:
        """Return the expected squared relative difference of a stored value."""
        parts = [*stored_parts(value, self._variance)]
        leaves = [p for p in parts if isinstance(p.op, (Input, Constant))]
        known = {p: v for p in parts if (v := self._variance.get(p)) is not None}
        missing = [p for p in reversed(parts) if p not in known]
        return variances(missing, {**dict.fromkeys(leaves, 0.0), **known})[value]


def _computed(step: Step, given: Mapping[Value, Any]) -> dict[Value, Any]:
    """Return the results of the reference for a step's inputs."""
    known = dict(given)
    for value in step.region.body:
        known[value] = apply(value, [known[v] for v in value.inputs])
    return {v: known[v] for v in step.region.outputs}


def _compared(
    number: int,
    step: Step,
    inputs: Mapping[Value, Any],
    given: Mapping[Value, Any],
    expected: Mapping[Value, Any],
    incoming: Mapping[Value, float],
) -> tuple[Difference, ...]:
    """The results of a step against others, within what its roundings and its inputs' explain."""
    results = step.region.outputs
    many = len(results) > 1
    names = {v: f"{number}.{i}" if many else str(number) for i, v in enumerate(results)}
    found = variances(step.region.body, incoming)
    off = {v: math.sqrt(variance) for v, variance in incoming.items()}
    spread = Spread(step.region.body, inputs, [(n, v) for v, n in names.items()], given=off)
    allowed = {n: tolerance_for(v.type, found[v]) for v, n in names.items()}
    allowed = {n: replace(t, spread=spread) if t.rtol else t for n, t in allowed.items()}
    left, right = ({name: side[v] for v, name in names.items()} for side in (given, expected))
    return tuple(compare_outputs(left, right, allowed))
