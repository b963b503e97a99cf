"""Judges what the sides of a case gave: agreement, a documented difference, or a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import monograph
from monograph.runtime.numerics.bisect import first_wrong
from monograph.runtime.numerics.compare import Difference
from tests.campaign.case import Case, Feeds
from tests.campaign.sides import Outcome, run_side

REFERENCE, RUNTIME = "reference", "onnxruntime"


@dataclass(frozen=True)
class Problem:
    """A fault of a case."""

    side: str
    sort: str
    """wrong, refused, ran, fault, crash or hang."""
    text: str
    run: int = 0
    output: str = ""
    """The output that differs, where one does."""
    reason: str = ""
    """The documented difference that explains it; "" for none."""

    @property
    def key(self) -> tuple[str, str]:
        """Return what stays the same while a case is made smaller."""
        return self.side.split(" ")[0], self.sort


@dataclass(frozen=True)
class Verdict:
    """The result of a case: outcomes to count, and problems."""

    counts: dict[str, int]
    problems: tuple[Problem, ...] = ()

    @property
    def findings(self) -> list[Problem]:
        return [p for p in self.problems if not p.reason]


def judge(
    case: Case, sides: Sequence[str], turn: int, begin: Callable[[str], None] = lambda side: None
) -> Verdict:
    """Runs a case on some sides and compares each with the reference.

    `begin` is told each side before it runs, so that the one that ends the process is known.
    """
    from tests.campaign.differences import explain

    begin(REFERENCE)
    (_, expected), *_ = run_side(REFERENCE, case, turn)
    counts = {"refused" if all(o.outputs is None for o in expected) else "ran": 1}
    problems = [Problem(REFERENCE, "fault", o.error, i) for i, o in enumerate(expected) if o.fault]
    for side in sides:
        if side == REFERENCE:
            continue
        begin(side)
        for name, given in run_side(side, case, turn):
            if side == RUNTIME and any(o.unable or o.outputs is None for o in given):
                counts["no second opinion"] = 1
            found = compare(case, name, given, expected)
            if found is not None:
                reason = explain(case, found, given[found.run], expected[found.run])
                problems.append(replace(found, reason=reason))
                if reason:
                    counts["documented"] = 1
    return Verdict(counts, tuple(problems))


def compare(
    case: Case, side: str, given: Sequence[Outcome], expected: Sequence[Outcome]
) -> Problem | None:
    """The first run on which a side differs from the reference."""
    for i, (ours, wanted) in enumerate(zip(given, expected, strict=True)):
        if ours.fault:
            return Problem(side, "fault", ours.error, i)
        if wanted.fault or ours.unable:
            continue
        if ours.outputs is None and wanted.outputs is None:
            continue
        if ours.outputs is None:
            if side == RUNTIME:
                continue  # it may lack what we have
            return Problem(side, "refused", ours.error, i)
        if wanted.outputs is None:
            return Problem(side, "ran", f"ran, where the reference says: {wanted.error}", i)
        wrong = difference(case, case.runs[i], ours.outputs, wanted.outputs)
        if wrong is not None:
            return Problem(side, "wrong", describe(wrong), i, wrong.place.output)
    return None


def difference(
    case: Case, feeds: Feeds, given: dict[str, Any], expected: dict[str, Any]
) -> Difference | None:
    """The first output that differs by more than rounding explains."""
    session = monograph.load(case.model.SerializeToString(), REFERENCE)
    with np.errstate(all="ignore"):
        # With its sizes: a sum over an open dimension would count as one term.
        graph = session.bound_graph(dict(feeds))
        return first_wrong(graph, feeds, given, expected)


def describe(found: Difference) -> str:
    where = "" if found.worst is None else f" at {found.worst}: {found.given} for {found.expected}"
    return f"{found.name}: {found.problem}{where}"
