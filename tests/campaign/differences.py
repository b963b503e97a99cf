"""Differences that are known, each with its rule and its reason: all that a campaign excuses.

A rule is a function under its reason; it looks at the case and at what both sides gave, and says
whether this difference is the one that it is about. Everything else is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.case import Case
from tests.campaign.judge import RUNTIME, Problem
from tests.campaign.minimise import values
from tests.campaign.sides import Outcome


@dataclass(frozen=True)
class Seen:
    """A difference: the case, the problem, and the output on both sides."""

    case: Case
    problem: Problem
    given: Any
    expected: Any

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes that the output in question comes from; all where none is named."""
        nodes = self.case.model.graph.node
        if not self.problem.output:
            return list(nodes)
        wanted, found = {self.problem.output}, []
        for node in reversed(nodes):
            if wanted & set(node.output):
                found.append(node)
                wanted |= set(node.input)
        return found[::-1]

    def has(self, *ops: str) -> bool:
        return any(n.op_type in ops for n in self.nodes)

    def attribute(self, name: str) -> list[Any]:
        """The values of an attribute of these nodes."""
        return [helper.get_attribute_value(a) for n in self.nodes for a in n.attribute
                if a.name == name]  # fmt: skip

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        """Return feeds and results of the run in question by the reference, and initialisers."""
        run = self.problem.run
        made = [x[run] for x in values(self.case).values() if len(x) > run]
        constants = [numpy_helper.to_array(t) for t in self.case.model.graph.initializer]
        return [*self.case.runs[run].values(), *made, *constants] if self.case.runs else constants

    @property
    def empty(self) -> bool:
        """Tell whether an operand has no elements."""
        return any(x.size == 0 for x in self.arrays)

    @property
    def unusual(self) -> bool:
        """Tell whether operands hold NaN, infinities, or what overflows when it is added up."""
        return any(
            x.dtype.kind in "fV"
            and not np.all(np.abs(np.nan_to_num(x.astype(np.float64), nan=np.inf)) < 6e4)
            for x in self.arrays
        )

    @property
    def only_special(self) -> bool:
        """Tell whether operands and differing elements are unusual, on one side at least."""
        a, b = np.asarray(self.given), np.asarray(self.expected)
        if not self.unusual or a.shape != b.shape or a.dtype.kind not in "fcV":
            return False
        x, y = (z.astype(np.complex128) for z in (a, b))
        differ = ~np.isclose(x, y, 1e-2, 1e-2, equal_nan=True)
        return bool(np.all(~np.isfinite(x[differ]) | ~np.isfinite(y[differ])))

    def close(self, relative: float) -> bool:
        """Tell whether both sides agree but for so much of the largest element."""
        a, b = np.asarray(self.given), np.asarray(self.expected)
        if a.shape != b.shape or a.dtype.kind not in "fiu" or a.dtype != b.dtype:
            return False
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = np.abs(y[np.isfinite(y)]).max(initial=0.0)
        return bool(np.allclose(x, y, relative, relative * scale, equal_nan=True))

    def near(self, distance: float) -> bool:
        """Tell whether both sides agree but for a distance."""
        a, b = np.asarray(self.given), np.asarray(self.expected)
        if a.shape != b.shape:
            return False
        return bool(np.all(np.abs(a.astype(np.float64) - b.astype(np.float64)) <= distance))


@dataclass(frozen=True)
class Known:
    """A documented difference."""

    reason: str
    side: str
    applies: Callable[[Seen], bool]
    sorts: tuple[str, ...]


TABLE: list[Known] = []


def difference(
    reason: str, side: str = RUNTIME, sorts: tuple[str, ...] = ("wrong",)
) -> Callable[[Callable[[Seen], bool]], Callable[[Seen], bool]]:
    """Enters a rule into the table under its reason."""

    def enter(rule: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
        TABLE.append(Known(reason, side, rule, sorts))
        return rule

    return enter


def explain(case: Case, problem: Problem, given: Outcome, expected: Outcome) -> str:
    """The reason of the documented difference that a problem is; "" where it is none."""
    # These fill the table.
    from tests.campaign import known, known_numbers, known_operands, known_values  # noqa: F401

    ours = (given.outputs or {}).get(problem.output)
    theirs = (expected.outputs or {}).get(problem.output)
    seen = Seen(case, problem, ours, theirs)
    for entry in TABLE:
        named = entry.side in (problem.side.split(" ")[0], "any")
        if named and problem.sort in entry.sorts and entry.applies(seen):
            return entry.reason
    return ""
