"""A program bound to a device: its memory, its kernels, run in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from monograph.codegen.triton import select
from monograph.codegen.triton.kernel import Arch, Call, Candidate, GpuContext, Work
from monograph.codegen.triton.layout import (
    ARENA,
    CONSTANTS,
    KEPT,
    PORT,
    Bound,
    GpuModule,
    Where,
    lay_out,
)
from monograph.codegen.triton.select import GpuTarget
from monograph.errors import ExecutionError, UnsupportedError
from monograph.ir import Graph, Value
from monograph.program.expand import expand
from monograph.program.program import Program, Step, lower
from monograph.runtime.gpu.devices import Device, Record
from monograph.runtime.gpu.tensors import from_numpy, raw, to_numpy, torch_type, typed

LANES = 6
"""Streams that independent steps may run on side by side."""
SLACK = 256
"""Bytes that nothing lies in behind each memory, so that none is empty."""
Chooser = Callable[[Step, list[Candidate]], Candidate]
"""Picks one of the ways to compute a step."""


def first(step: Step, found: list[Candidate]) -> Candidate:
    """The default way, without a measurement."""
    return found[0]


def lower_for_gpu(graph: Graph) -> Program:
    """The program of a graph for GPUs."""
    return lower(expand(graph), GpuTarget())


def compile_for_gpu(
    graph: Graph, arch: Arch, choose: Chooser = first, *, tf32: bool = False, lanes: int = LANES
) -> GpuModule:
    """The chosen works of a graph's program and their places; no device is needed."""
    program = lower_for_gpu(graph)
    chosen: list[tuple[Step, tuple[Work, ...]]] = []
    for step in program.steps:
        if not select.serves(step.region):
            raise UnsupportedError(
                "no GPU kernel computes this op", op=step.region.kind, node=step.origin
            )
        found = select.candidates(GpuContext(program, step, arch, tf32))
        chosen.append((step, choose(step, found).make()))
    return lay_out(program, chosen, lanes)


class _LibraryRecord:
    """A library's function and the tensors it works on."""

    def __init__(self, program: Program, call: Call, places: tuple[Where, ...]) -> None:
        self._function = call.function
        self._dtypes = [w.dtype for w in places]
        self._values = [a if isinstance(a, Value) else None for a in call.arguments]
        self._storage = program.places.storage
        self._tensors: list[torch.Tensor | None] = [None] * len(places)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        flat = typed(memory, offset, self._dtypes[position])
        value = self._values[position]
        if value is not None:
            flat = flat.as_strided(value.tensor.static, self._storage[value].strides)
        self._tensors[position] = flat

    def launch(self, stream: int) -> None:
        self._function(*self._tensors)


class GpuExecutable:
    """Kernels, constants and memory of one program on one device."""

    def __init__(self, module: GpuModule, device: Device) -> None:
        self.module = module
        self.program = module.program
        self.device = device
        self.runs = 0
        self._lock = threading.Lock()
        place = device.place
        self._memory = {
            ARENA: torch.empty(module.arena_bytes + SLACK, dtype=torch.uint8, device=place),
            CONSTANTS: from_numpy(module.constants).to(place),
            KEPT: torch.zeros(module.kept_bytes + SLACK, dtype=torch.uint8, device=place),
        }
        self._records = [self._record(b) for b in module.works]
        self._ports: list[tuple[str, Record, int, int]] = []
        for record, bound in zip(self._records, module.works, strict=True):
            for position, where in enumerate(bound.arguments):
                if where.memory == PORT:
                    self._ports.append((where.port, record, position, where.offset))
                else:
                    record.point(position, self._memory[where.memory], where.offset)

    def _record(self, bound: Bound) -> Record:
        if isinstance(bound.work, Call):
            return _LibraryRecord(self.program, bound.work, bound.arguments)
        return self.device.record(bound.work, bound.arguments, bound.step.region.kind)

    @property
    def kernels(self) -> int:
        """Pieces of work that one run launches."""
        return len(self.module.works)

    @property
    def device_bytes(self) -> int:
        """Device memory that the executable holds on to."""
        return sum(m.numel() for m in self._memory.values())

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for some feeds: numpy arrays for numpy arrays, else torch tensors."""
        graph = self.program.graph
        tensors = {
            f"input:{n}": self._given(feeds[n], v)
            for n, v in zip(graph.input_names, graph.inputs, strict=True)
        }
        outputs = [self._fresh(v) for _, v in graph.outputs]
        for (name, _), tensor in zip(graph.outputs, outputs, strict=True):
            tensors[f"output:{name}"] = tensor
        self.launch({n: raw(t) for n, t in tensors.items()})
        if any(isinstance(x, torch.Tensor) for x in feeds.values()):
            return outputs
        self.check()
        types = [v.tensor for _, v in graph.outputs]
        return [to_numpy(t, k.dtype, k.static) for t, k in zip(outputs, types, strict=True)]

    def fill(self, numbers: Callable[[int, torch.device], torch.Tensor]) -> None:
        """Puts some numbers into the arena, for measurements of single steps."""
        arena = self._memory[ARENA]
        arena.copy_(numbers(arena.numel(), self.device.place)[: arena.numel()])

    def check(self) -> None:
        """Waits for the device, and fails where a kernel found data that do not fit."""
        if not self.module.faults:
            return
        notes = self._memory[KEPT].cpu()
        for step, fault, at in self.module.faults:
            came, data = notes[at : at + 16].view(torch.int64).tolist()
            if came:
                self._memory[KEPT][at : at + 16] = 0
                raise ExecutionError(
                    fault.message,
                    node=step.origin,
                    op=step.region.kind,
                    expected=fault.expected or None,
                    given=data,
                )

    def launch(self, ports: Mapping[str, torch.Tensor]) -> None:
        """Enqueues every piece of work once, on the current stream."""
        with self._lock:
            for port, record, position, offset in self._ports:
                record.point(position, ports[port], offset)
            stream = self.device.stream()
            for record in self._records:
                record.launch(stream)
            self.runs += 1

    def launch_side_by_side(
        self, ports: Mapping[str, torch.Tensor], streams: Sequence[torch.cuda.Stream]
    ) -> None:
        """Enqueues every piece of work once, each lane on a stream; the first one waits for all."""
        with self._lock:
            for port, record, position, offset in self._ports:
                record.point(position, ports[port], offset)
            main = streams[0]
            begun = main.record_event()
            for stream in streams[1:]:
                stream.wait_event(begun)
            ended: dict[int, torch.cuda.Event] = {}
            awaited = {i for b in self.module.works for i in b.waits}
            for record, bound in zip(self._records, self.module.works, strict=True):
                stream = streams[bound.lane]
                for other in bound.waits:
                    if other in ended:  # not for a step without work
                        stream.wait_event(ended[other])
                with torch.cuda.stream(stream):
                    record.launch(stream.cuda_stream)
                if bound.position in awaited:
                    ended[bound.position] = stream.record_event()
            for stream in streams[1:]:
                main.wait_event(stream.record_event())
            self.runs += 1

    def _given(self, data: Any, value: Value) -> torch.Tensor:
        if isinstance(data, torch.Tensor):
            return data.to(self.device.place).contiguous()
        array = np.ascontiguousarray(data, dtype=value.dtype.numpy)
        return from_numpy(array).to(self.device.place)

    def _fresh(self, value: Value) -> torch.Tensor:
        kind = value.tensor
        return torch.empty(kind.static, dtype=torch_type(kind.dtype), device=self.device.place)
