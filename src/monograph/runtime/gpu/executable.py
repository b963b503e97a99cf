"""A program bound to a device: its memory, its kernels, run in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monograph.codegen.triton.control.subprograms import host_reason
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import (
    Argument,
    Branch,
    BufferView,
    Call,
    Candidate,
    GpuContext,
    RepeatWork,
    Work,
)
from monograph.codegen.triton.module.launch import ARENA, Arch, stored
from monograph.codegen.triton.module.layout import Bound, GpuModule, lay_out
from monograph.codegen.triton.module.select import GpuTarget
from monograph.errors import UnsupportedError
from monograph.ir import Graph, Input, Value
from monograph.ir.evaluate import apply
from monograph.program.fusion.op_classes import is_native
from monograph.program.fusion.region import Region
from monograph.program.launch_regions import kind_of, step_name
from monograph.program.lowering import lower
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY
from monograph.program.program import Program, Step
from monograph.program.work import warn_of_expansion
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.executable import Feeds, Outputs
from monograph.runtime.gpu.bound_program import (
    DevicePort,
    EnqueueLaunches,
    GpuProgram,
)
from monograph.runtime.gpu.build.launch_trees import nest_of
from monograph.runtime.gpu.build.layouts import is_whole, layout_of
from monograph.runtime.gpu.capture.control import ConditionalLaunch
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.library_record import LibraryRecord, TensorView
from monograph.runtime.gpu.memory import DeviceConstants, states_on
from monograph.runtime.gpu.tensors import TORCH, from_numpy, raw, to_numpy, torch_type, typed

if TYPE_CHECKING:
    from monograph.runtime.gpu.artefact import GpuArtefact

MAX_STREAMS = 6
"""Streams that independent steps may run on side by side."""
Chooser = Callable[[Step, list[Candidate]], Candidate]
"""Picks one of the ways to compute a step."""


def first(step: Step, found: list[Candidate]) -> Candidate:
    """The default way, without a measurement."""
    return found[0]


def lower_for_gpu(graph: Graph) -> Program:
    """Return the program of an optimised graph that is one program for GPUs."""
    return lower(graph, GpuTarget()).whole


def only_host(region: Region) -> bool:
    """Return True if no device holds the data of a region: strings, sequences, sizes in data."""
    return bool(host_reason(region))


def check_served(program: Program) -> None:
    """Refuses a program with numbers that no kernel computes."""
    for step in program.steps:
        region = step.region
        if not only_host(region) and not select.serves(region):
            raise UnsupportedError(
                "no GPU kernel computes this op",
                op=region.kind,
                node=step.origin or None,
                given=", ".join(str(v.type) for v in region.inputs),
                hint='load the model with target="cpu"',
            )


def compile_for_gpu(
    graph: Graph,
    arch: Arch,
    choose: Chooser = first,
    *,
    tf32: bool = False,
    streams: int = MAX_STREAMS,
) -> GpuModule:
    """The chosen works of a graph's program and their places; no device is needed."""
    return compile_program(lower_for_gpu(graph), arch, choose, tf32=tf32, streams=streams)


def compile_program(
    program: Program,
    arch: Arch,
    choose: Chooser = first,
    *,
    tf32: bool = False,
    streams: int = MAX_STREAMS,
) -> GpuModule:
    """The chosen works of a program and their places; no device is needed."""
    check_served(program)
    warn_of_expansion(program)
    chosen: list[tuple[Step, tuple[Work, ...]]] = []
    host: list[tuple[int, Step]] = []
    for step in program.steps:
        works: tuple[Work, ...] = ()
        if only_host(step.region):
            host.append((sum(len(w) for _, w in chosen), step))
        else:
            context = GpuContext(program, step, arch, tf32, lambda _, s, ways: choose(s, ways))
            found = select.candidates(context)
            works = choose(step, found).make()
        chosen.append((step, works))
    # What the host does, it does in the program's order.
    return replace(lay_out(program, chosen, 1 if host else streams), host=tuple(host))


def views_of(program: Program, call: Call) -> tuple[TensorView, ...]:
    """Return how a library's function sees its arguments."""
    return tuple(_view(program, argument) for argument in call.arguments)


def _view(program: Program, argument: Argument) -> TensorView:
    """The shape and the strides in which a library's function sees an argument; None for flat."""
    if isinstance(argument, BufferView):
        return None if argument.shape is None else (argument.shape, argument.strides)
    if not isinstance(argument, Value):
        return None
    return argument.tensor.static, program.places.storage[argument].strides


@dataclass(frozen=True)
class _PartialRun:
    """State that the host steps of one run share."""

    ports: Mapping[str, torch.Tensor]
    feeds: Feeds
    held: dict[Value, Any] = field(default_factory=dict)
    """Values without memory in the program, which the host computed."""


class GpuExecutable(GpuProgram):
    """Kernels, constants and memory of one program on one device, with what the host does."""

    def __init__(
        self,
        module: GpuModule,
        device: Device,
        constants: DeviceConstants | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        """choices: the measured winner of each problem that a measurement decided."""
        self.module = module
        self.choices = choices or {}
        self.program = module.program
        self.works = module.works
        self.whole = is_whole(module)
        super().__init__(
            layout_of(module),
            lambda: [self._record(b) for b in module.every],
            device,
            module.constants,
            constants,
            states_on(device, module.program),
        )
        # They are on the device now.
        self.module = replace(module, constants=np.zeros(0, np.uint8))

    def _record(self, bound: Bound) -> Record:
        if isinstance(bound.work, (Branch, RepeatWork)):
            return ConditionalLaunch(nest_of(bound))
        if isinstance(bound.work, Call):
            dtypes = [a.dtype for a in bound.arguments]
            return LibraryRecord(bound.work.function, dtypes, views_of(self.program, bound.work))
        return self.device.record(bound.work, bound.arguments, bound.step.region.kind)

    @property
    def programs(self) -> list[Program]:
        return [self.program]

    def artefact(self) -> GpuArtefact | None:
        """Return what a file can hold; None if the host has steps or the device keeps no code."""
        from monograph.runtime.gpu.build.stored_programs import make_artefact

        if not self.device.keeps_code:
            return None
        constants = self._constants
        digests = constants.digests if self.layout.pieces else ()
        found = constants.weights
        return make_artefact(
            self.module,
            self.device.code,
            digests,
            lambda wanted: {d: found[d] for d in wanted},
            self.choices,
        )

    @property
    def host_steps(self) -> list[Step]:
        return [step for _, step in self.module.host]

    @property
    def host_kinds(self) -> tuple[str, ...]:
        return tuple(map(step_name, self.host_steps))

    @property
    def host_reasons(self) -> dict[str, str]:
        return {kind_of(s.region): host_reason(s.region) for s in self.host_steps}

    def _run(self, feeds: Feeds, out: Feeds) -> Outputs:
        return super()._run(feeds, out) if self.whole else self.run_parts(feeds, out)

    def run_parts(
        self, feeds: Feeds, out: Feeds, enqueue: EnqueueLaunches | None = None
    ) -> Outputs:
        """Run with steps on the host, or with outputs that have no memory of their own.

        enqueue: enqueues the launches between two host steps; one by one by default.
        """
        enqueue = enqueue or self._enqueue_each
        as_tensors = any(isinstance(x, torch.Tensor) for x in feeds.values())
        with self.lock:
            inputs = {s.name: self.input_tensor(feeds[s.name], s) for s in self.layout.inputs}
            outputs = self.output_tensors(feeds, inputs, out)
            ports = {f"input:{n}": raw(t) for n, t in inputs.items()}
            ports |= {f"output:{n}": raw(t) for n, t in outputs.items()} | self.held
            run = _PartialRun(ports, feeds)
            stream, done = self.begin(ports), 0
            for before, step in self.module.host:
                enqueue(done, before, ports, stream)
                done = before
                self._host(step, run)
            enqueue(done, len(self.records), ports, stream)
            self.runs += 1
            self.check()
            made = {s.name: self.result(s, outputs[s.name], out, as_tensors) for s in self._slots}
            return [
                made.pop(n) if n in made else self._elsewhere(v, run, as_tensors)
                for n, v in self.program.graph.outputs
            ]

    @property
    def _slots(self) -> Sequence[DevicePort]:
        return self.layout.outputs

    def _enqueue_each(
        self, start: int, stop: int, ports: Mapping[str, torch.Tensor], stream: int
    ) -> None:
        for record in self.records[start:stop]:
            record.launch(stream)

    def _host(self, step: Step, run: _PartialRun) -> None:
        """Runs a step by its reference, when everything before it is done."""
        self.device.synchronise()
        known = {v: self._read(v, run) for v in step.region.inputs}
        for v in step.region.body:
            known[v] = apply(v, [known[i] for i in v.inputs])
        for v in step.region.outputs:
            if v in self.program.places.storage:
                data = np.asarray(known[v], dtype=v.dtype.numpy)
                flat = from_numpy(data).view(TORCH[stored(v.dtype)])
                self._view(v, run.ports).copy_(flat.reshape(v.tensor.static))
            else:
                run.held[v] = known[v]

    def _read(self, value: Value, run: _PartialRun) -> Any:
        """A value as numpy has it."""
        if value in run.held:
            return run.held[value]
        place = self.program.places.storage.get(value)
        if isinstance(value.op, Input) and place is None:
            return run.feeds[value.op.label]
        # A constant of strings has no memory of its own.
        if place is None or place.buffer.kind == CONSTANT:
            return apply(value, [])
        found = self._view(value, run.ports).contiguous()
        return to_numpy(found, value.dtype, value.tensor.static)

    def _view(self, value: Value, ports: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A stored value on the device."""
        place = self.program.places.storage[value]
        start = place.offset * place.buffer.dtype.itemsize
        if place.buffer.kind == TEMPORARY:
            memory = self.buffers[ARENA]
            start += self.module.offsets[place.buffer.id]
        else:
            memory = ports[f"{place.buffer.kind}:{place.buffer.name}"]
        flat = typed(memory, start, value.dtype)
        return flat.as_strided(value.tensor.static, place.strides)

    def _elsewhere(self, value: Value, run: _PartialRun, as_tensor: bool) -> Any:
        """An output that has no memory of its own: the host made it, or it has two names."""
        found = fresh(self._read(value, run))
        if not as_tensor or not is_native(value):
            return found
        tensor = from_numpy(found).to(self.device.place)
        return tensor.view(torch_type(value.dtype)).reshape(value.tensor.static)
