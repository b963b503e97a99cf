"""A program with open sizes for the run that it was compiled for: all sizes are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from monograph.ir import Constant, Value
from monograph.ir.sizes import hint_of
from monograph.program.dynamic.resize import resized_op
from monograph.program.fusion.region import Region
from monograph.program.program import Program, Step


@dataclass(frozen=True)
class ProgramAtHints:
    """The steps and values of a program, and those with numbers that stand for them."""

    program: Program
    steps: Mapping[Step, Step]
    values: Mapping[Value, Value]

    def shown(self, found: Mapping[Value, Any]) -> dict[Value, Any]:
        """Return the data of values by the values with numbers."""
        made = {self.values.get(v, v): x for v, x in found.items()}
        return {v: v.op.reference() if isinstance(v.op, Constant) else x for v, x in made.items()}


def program_at_hints(program: Program) -> ProgramAtHints:
    """Return a program with the hint of each open size in its place."""
    if program.scope is None:
        return ProgramAtHints(program, {s: s for s in program.steps}, {})
    made: dict[Value, Value] = {}

    def at_hints(value: Value) -> Value:
        stack = [value]
        while stack:
            v = stack[-1]
            missing = [i for i in v.inputs if i not in made]
            if not missing:
                made[stack.pop()] = resized_op(v.op, hint_of)(*(made[i] for i in v.inputs))
            stack += missing
        return made[value]

    def region(old: Region) -> Region:
        anchor = None if old.anchor is None else at_hints(old.anchor)
        outputs, inputs, body = (
            tuple(map(at_hints, values)) for values in (old.outputs, old.inputs, old.body)
        )
        return Region(outputs, inputs, body, anchor)

    steps = {s: replace(s, region=region(s.region)) for s in program.steps}
    return ProgramAtHints(replace(program, steps=tuple(steps.values())), steps, made)
