"""Stretches of a Program that need nothing of the host: each is launched as one.

On a GPU such a stretch becomes one graph, on the CPU one native function. A step that only the host
can do stands between two of them, by itself. (What one kernel computes is a `region.Region`.)

Sizes that data decide end a whole Program: what follows is another one (`program.stages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from monograph.errors import VerifyError, some_of
from monograph.ir import (
    MapType,
    Op,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    subgraphs,
)
from monograph.ir.dtype import COMPLEX, STRING
from monograph.ops.control import If, Loop
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.region import Region
from monograph.program.program import Program, Step

NO_CONDITIONS = "it is decided on the device, and graphs here have no conditional nodes"
_HELD = {SequenceType: "sequences", OptionalType: "optional values", MapType: "maps"}

HostReason: TypeAlias = Callable[[Region], str]
"""Why a step runs on the host; "" for one that the target computes."""


@dataclass(frozen=True)
class GraphStep:
    """Steps in a row that the host starts together, and waits for at most once."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        first, last = self.steps[0].index, self.steps[-1].index
        return f"region of {_count(len(self.steps), 'step')} ({first}-{last})"


@dataclass(frozen=True)
class HostStep:
    """A step that the host has to do, or to decide, between two regions."""

    step: Step
    reason: str

    @property
    def steps(self) -> tuple[Step, ...]:
        return (self.step,)

    @property
    def name(self) -> str:
        return step_name(self.step)

    def __str__(self) -> str:
        return f"on the host, {self.reason}: {kind_of(self.step.region)}"


Launch: TypeAlias = GraphStep | HostStep


def kind_of(region: Region) -> str:
    """The op that a step on the host is called after."""
    return region.root.op.name if region.anchor is None else region.kind


def step_name(step: Step) -> str:
    """The op of a step on the host, and the ONNX nodes it came from."""
    return f"{kind_of(step.region)} ({step.origin})" if step.origin else kind_of(step.region)


def held_by_host(region: Region) -> str:
    """Why no device can hold what a region works on; "" where one can."""
    for value in (*region.body, *region.inputs):
        if why := why_held(value.type):
            return why
    return ""


def why_held(type_: Type) -> str:
    """Why no device can hold values of a type; "" where one can."""
    if isinstance(type_, TupleType):
        return next(filter(None, map(why_held, type_.items)), "")
    if not isinstance(type_, TensorType):
        return _HELD[type(type_)]
    if type_.dtype.kind in (STRING, COMPLEX):
        return "strings" if type_.dtype.kind == STRING else "complex numbers"
    return "" if type_.is_static else "data decide a size that nothing bounds"


def is_decided(step: Step) -> bool:
    """Whether a condition that a device computes says what of a step runs, or how often.

    A Scan is not: its turns are counted beforehand. What is in one may be.
    """
    anchor = step.region.anchor
    return anchor is not None and _is_decided(anchor.op)


def _is_decided(op: Op) -> bool:
    if isinstance(op, (If, Loop, BoundedLoop)):
        return True
    return any(_is_decided(v.op) for graph in subgraphs(op) for v in graph.values)


@dataclass(frozen=True)
class SplitAtHost:
    """Splits a Program into maximal stretches with no host dependence."""

    host_reason: HostReason = held_by_host
    """What the target leaves to the host, and why."""
    conditional_nodes: bool = True
    """Whether launches of the target can look at a condition themselves."""
    decided: Callable[[Step], bool] = is_decided
    """Which steps would have to: a target may know of more loops how often they turn."""

    def run(self, program: Program) -> Program:
        """The same Program, which now says how its steps are launched."""
        split = replace(program, launches=tuple(self._launches(program)))
        self.verify(split)
        return split

    def reason(self, step: Step) -> str:
        """Why the host comes in at a step; "" where it does not."""
        why = self.host_reason(step.region)
        if not why and not self.conditional_nodes and self.decided(step):
            return NO_CONDITIONS
        return why

    def _launches(self, program: Program) -> Iterator[Launch]:
        run: list[Step] = []
        for step in program.steps:
            why = self.reason(step)
            if not why:
                run.append(step)
                continue
            if run:
                yield GraphStep(tuple(run))
            yield HostStep(step, why)
            run = []
        if run:
            yield GraphStep(tuple(run))

    def verify(self, program: Program) -> None:
        """Every step is launched once and in order, none of the host's in a region of others."""
        launched = [step for launch in program.launches for step in launch.steps]
        if launched != list(program.steps):
            raise VerifyError(
                "launches do not cover the steps of a program once and in order",
                expected=[s.index for s in program.steps],
                given=[s.index for s in launched],
            )
        before: Launch | None = None
        for launch in program.launches:
            if isinstance(launch, GraphStep):
                self._verify_region(launch, before)
            elif not self.reason(launch.step):
                raise VerifyError("a step is left to the host without need", node=launch.name)
            before = launch

    def _verify_region(self, region: GraphStep, before: Launch | None) -> None:
        if not region.steps:
            raise VerifyError("a region without steps")
        if isinstance(before, GraphStep):
            raise VerifyError("two regions follow each other: they are one", given=str(region))
        for step in region.steps:
            if why := self.reason(step):
                raise VerifyError(
                    f"a region holds a step of the host: {why}",
                    node=step.origin or None,
                    op=kind_of(step.region),
                )


def summary(
    launches: tuple[Launch, ...],
    kernels: Callable[[Step], int] = lambda step: 1,
    ends: tuple[str, ...] = (),
) -> str:
    """In a line: how many regions of how many kernels, and what splits them.

    ends: why the program ends before the model does, where data decide what follows.
    """
    regions = [x for x in launches if isinstance(x, GraphStep)]
    count = sum(kernels(step) for x in regions for step in x.steps)
    text = f"{_count(len(regions), 'region')}, {_count(count, 'kernel')}"
    reasons: dict[str, list[str]] = {}
    for launch in launches:
        if isinstance(launch, HostStep):
            reasons.setdefault(launch.reason, []).append(launch.name)
    splits = [f"{why}: {some_of(names)}" for why, names in reasons.items()]
    if not splits and not ends:
        return f"{text}; no host steps"
    steps = sum(isinstance(x, HostStep) for x in launches)
    host = f"; {_count(steps, 'host step')} ({'; '.join(splits)})" if splits else "; no host steps"
    return text + host + "".join(f"; {end}" for end in ends)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
