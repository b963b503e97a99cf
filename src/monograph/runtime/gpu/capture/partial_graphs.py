"""Runs with steps on the host in between: what the device does between two of them is one graph.

Where graphs cannot look at conditions, branches and loops are such steps: the host decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from monograph.errors import some_of
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture import every_record
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph, GraphBuilder
from monograph.runtime.gpu.capture.control import needs_conditions
from monograph.runtime.gpu.capture.launches import Launches

if TYPE_CHECKING:
    from monograph.codegen.triton.module.layout import Bound

MISALIGNED = "it is misaligned for a library"
BRANCH_OR_LOOP = "a branch or a loop"


class PartialProgram:
    """Some launches of an executable in a row, as what records them sees an executable."""

    def __init__(self, executable: GpuProgram, start: int, stop: int) -> None:
        self.records = executable.records[start:stop]
        inside = [id(r) for r in every_record(self.records)]
        before = sum(1 for _ in every_record(executable.records[:start]))
        arguments = executable.layout.arguments[before : before + len(inside)]
        self.layout = replace(executable.layout, arguments=arguments, streams=(), waits=())
        known = set(inside)
        self.port_arguments = [p for p in executable.port_arguments if id(p[1]) in known]
        self.lock = executable.lock
        self.buffers = executable.buffers
        self.held = executable.held
        self.device = executable.device
        self.ports = {p[0] for p in self.port_arguments}
        self.works: Sequence[Bound] = ()


class PartialGraphs:
    """The graphs of an executable that is not one launch."""

    def __init__(self, launches: Launches, policy: CapturePolicy) -> None:
        self._launches = launches
        self._policy = policy
        self._seen: dict[tuple[int, int], tuple[PartialProgram, GraphBuilder]] = {}
        executable = launches.executable
        spans = [] if launches.graphs.conditionals else decided_by_host(executable)
        self._by_host = {span: PartialProgram(executable, *span) for span in spans}
        """Launches that the host makes as conditions say, because no graph here looks at them."""
        self.reason = ""
        """The reason why runs with conditions are not one launch, in the words of `inspect`."""
        if spans:
            from monograph.program.launch_regions import NO_CONDITIONS

            self.reason = f"{NO_CONDITIONS}: {some_of(_names(executable, spans))}"

    @property
    def launches(self) -> int:
        """Launches of a run by the host, as far as they are known."""
        made = self._launches.made
        graphs = sum(1 if s in made else s[1] - s[0] for s in self._seen)
        return graphs + sum(stop - start for start, stop in self._by_host)

    def launch(self, start: int, stop: int, ports: Mapping[str, torch.Tensor], stream: int) -> None:
        """Enqueues what lies between two steps of the host."""
        self._launches.order(stream)
        for span, part in self._by_host.items():
            if start <= span[0] and span[1] <= stop:
                self._launch(start, span[0], ports, stream)
                _launch_each(part, ports, stream)
                start = span[1]
        self._launch(start, stop, ports, stream)

    def _launch(
        self, start: int, stop: int, ports: Mapping[str, torch.Tensor], stream: int
    ) -> None:
        """Enqueues launches as one graph."""
        if start == stop:
            return
        if (start, stop) not in self._seen:
            made = PartialProgram(self._launches.executable, start, stop)
            self._seen[start, stop] = made, GraphBuilder(made, self._launches.graphs, partly=True)
        part, maker = self._seen[start, stop]
        memory = {n: t for n, t in ports.items() if n in part.ports}
        recorded = self._launches.made.get((start, stop))
        if recorded is None and self._policy.wanted():
            recorded = self._policy.attempt(lambda: maker.make(memory))
            if recorded is not None:
                self._launches.made[start, stop] = recorded
        if recorded is not None:
            launch_on(self._launches, recorded, memory, stream, in_part=True)
            return
        _launch_each(part, ports, stream)


def _launch_each(part: PartialProgram, ports: Mapping[str, torch.Tensor], stream: int) -> None:
    for port, record, position, offset in part.port_arguments:
        record.point(position, ports[port], offset)
    for record in part.records:
        record.launch(stream)


def decided_by_host(executable: GpuProgram) -> list[tuple[int, int]]:
    """From where to where launches need a graph that looks at conditions: whole steps.

    Of a package it is not known which launches are one step's: there each stands for itself.
    """
    needs = [needs_conditions(r) for r in executable.records]
    steps = _steps(executable)
    decided = {step for step, needed in zip(steps, needs, strict=True) if needed}
    found: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        if step not in decided:
            continue
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


def _steps(executable: GpuProgram) -> list[int]:
    """The step of every launch, as a number."""
    works, count = executable.works, len(executable.records)
    return [w.position for w in works] if len(works) == count else list(range(count))


def _names(executable: GpuProgram, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The ops of launches, with the ONNX nodes they came from."""
    works = executable.works
    if len(works) != len(executable.records):
        return [BRANCH_OR_LOOP]
    from monograph.program.launch_regions import step_name

    return list(dict.fromkeys(step_name(works[i].step) for span in spans for i in range(*span)))


def launch_on(
    launches: Launches,
    recorded: CapturedGraph,
    memory: Mapping[str, torch.Tensor],
    stream: int,
    in_part: bool = False,
) -> None:
    """Launches a graph on some memory; what is misaligned for it is copied to where it is not.

    in_part: another graph may have written a part of an output before.
    """
    placed = dict(memory)
    given = {t.data_ptr() for n, t in memory.items() if not n.startswith("output:")}
    back = []
    for name, tensor in memory.items():
        if not tensor.data_ptr() % recorded.aligned[name]:
            continue
        placed[name] = own = torch.empty_like(tensor)
        launches.counts.staged[f"{name.partition(':')[2]}: {MISALIGNED}"] += 1
        made = name.startswith("output:")
        # Of what is written over an input, kernels may write some rows only.
        if in_part or not made or tensor.data_ptr() in given:
            own.copy_(tensor)
        if made:
            back.append((tensor, own))
    launches.launch(recorded, [placed[n].data_ptr() for n in recorded.names], stream)
    for to, source in back:
        to.copy_(source)
