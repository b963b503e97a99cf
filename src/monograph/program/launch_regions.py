"""Launch regions: maximal sequences of steps without the host. Each is one launch.

On a GPU a launch region becomes one graph, on the CPU one native function. A host step stands by
itself between two of them. (The values of one kernel are a `region.Region`.)

A size that depends on data ends a program; the rest is another program (`dynamic.stages`). The
reasons of such splits are stated here, for runs, reports and errors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from monograph.errors import VerifyError, some_of
from monograph.ir import (
    Graph,
    Item,
    MapType,
    Op,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    Value,
    subgraphs,
)
from monograph.ir.dtype import COMPLEX, STRING
from monograph.ops.control import If, Loop
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.dynamic.stages import StageSplit
from monograph.program.fusion.region import Region
from monograph.program.program import Program, Step

NO_CONDITIONS = "it is decided on the device, and graphs here have no conditional nodes"
_HELD = {SequenceType: "sequences", OptionalType: "optional values", MapType: "maps"}

HostReason: TypeAlias = Callable[[Region], str]
"""A function that returns why a step runs on the host; "" if the target computes it."""


@dataclass(frozen=True)
class GraphStep:
    """Consecutive steps that the host launches together, and waits for at most once."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        first, last = self.steps[0].index, self.steps[-1].index
        return f"region of {_count(len(self.steps), 'step')} ({first}-{last})"


@dataclass(frozen=True)
class HostStep:
    """A step that runs on the host, or whose condition the host reads."""

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
    """Return the op that names a host step."""
    return region.root.op.name if region.anchor is None else region.kind


def step_name(step: Step) -> str:
    """Return the op of a host step, and its ONNX nodes."""
    return f"{kind_of(step.region)} ({step.origin})" if step.origin else kind_of(step.region)


def held_by_host(region: Region) -> str:
    """Return why no device can hold the values of a region; "" if one can."""
    for value in (*region.body, *region.inputs):
        if why := why_held(value.type):
            return why
    return ""


def why_held(type_: Type) -> str:
    """Return why no device can hold values of a type; "" if one can."""
    if isinstance(type_, TupleType):
        return next(filter(None, map(why_held, type_.items)), "")
    if not isinstance(type_, TensorType):
        return _HELD[type(type_)]
    if type_.dtype.kind in (STRING, COMPLEX):
        return "strings" if type_.dtype.kind == STRING else "complex numbers"
    return "" if type_.is_static else "data decide a size that nothing bounds"


def is_decided(step: Step) -> bool:
    """Return True if a condition on the device decides what of a step runs, or how often.

    A Scan is not decided: its iterations are counted beforehand. Its body may contain one.
    """
    anchor = step.region.anchor
    return anchor is not None and _is_decided(anchor.op)


def _is_decided(op: Op) -> bool:
    if isinstance(op, (If, Loop, BoundedLoop)):
        return True
    return any(_is_decided(v.op) for graph in subgraphs(op) for v in graph.values)


@dataclass(frozen=True)
class SplitAtHost:
    """Splits a program into launch regions and host steps."""

    host_reason: HostReason = held_by_host
    """The reason of each region that the target leaves to the host."""
    conditional_nodes: bool = True
    """True if graphs of the target support conditional nodes."""
    decided: Callable[[Step], bool] = is_decided
    """Returns True for steps that need a conditional node; a target may know more trip counts."""

    def run(self, program: Program) -> Program:
        """Return the same program with its launches."""
        split = replace(program, launches=tuple(self._launches(program)))
        self.verify(split)
        return split

    def reason(self, step: Step) -> str:
        """Return why a step runs on the host; "" if it does not."""
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
        """Verify that every step is launched once, in order, and no region holds a host step."""
        launched = [step for launch in program.launches for step in launch.steps]
        if launched != list(program.steps):
            raise VerifyError(
                "launches must cover the steps of a program once and in order",
                expected=[s.index for s in program.steps],
                given=[s.index for s in launched],
            )
        before: Launch | None = None
        for launch in program.launches:
            if isinstance(launch, GraphStep):
                self._verify_region(launch, before)
            elif not self.reason(launch.step):
                raise VerifyError("a host step must have a reason", node=launch.name)
            before = launch

    def _verify_region(self, region: GraphStep, before: Launch | None) -> None:
        if not region.steps:
            raise VerifyError("a launch region must have steps")
        if isinstance(before, GraphStep):
            raise VerifyError(
                "two launch regions must have a host step between them", given=str(region)
            )
        for step in region.steps:
            if why := self.reason(step):
                raise VerifyError(
                    f"a launch region must not hold a host step: {why}",
                    node=step.origin or None,
                    op=kind_of(step.region),
                )


def summary(
    launches: tuple[Launch, ...],
    kernels: Callable[[Step], int] = lambda step: 1,
    ends: tuple[str, ...] = (),
) -> str:
    """Summarise the launches in one line: regions, kernels, and what splits them.

    ends: the reason why the program ends before the model, if data decide the rest.
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


def stops(parts: StageSplit) -> tuple[str, ...]:
    """Return the ops where the host takes part, with their ONNX nodes and the reasons.

    These are the ops that wait for sizes and the host loops. If there are none: the ops that find
    sizes in data, because the host reads these sizes to return results of that size.
    """
    found = []
    if waits := [v for v in parts.waiting if v in parts.reasons]:
        found.append(f"{_where(parts.whole, waits[0])}: {parts.reasons[waits[0]]}")
    found += [f"{_where(parts.whole, v)}: a host loop" for v in parts.host_loops]
    if not found:
        sized = [_origin_of_size(v) for v in parts.sources if _is_open(v.type)]
        found = [f"{_where(parts.whole, v)}: data decide its size" for v in dict.fromkeys(sized)]
    return tuple(found)


def _origin_of_size(value: Value) -> Value:
    """Return the op that finds the size of a value in its data."""
    while later := [v for v in value.inputs if _is_open(v.type)]:
        value = later[0]
    return value


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.items))
    return isinstance(type_, TensorType) and not type_.is_static


def _where(graph: Graph, value: Value) -> str:
    """Return the op and its ONNX nodes, as for host steps."""
    op = value.inputs[0].op if isinstance(value.op, Item) else value.op
    origin = graph.origin(value)
    return f"{op.name} ({origin})" if origin else op.name
