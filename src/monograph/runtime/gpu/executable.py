"""A program bound to a device: its memory, its kernels, run in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from monograph.codegen.triton import select
from monograph.codegen.triton.kernel import Arch, Call, Candidate, GpuContext, Launch, Work
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
from monograph.errors import UnsupportedError
from monograph.ir import Graph, Value
from monograph.program.expand import expand
from monograph.program.program import Program, Step, lower
from monograph.runtime.gpu.devices import Device
from monograph.runtime.gpu.tensors import from_numpy, raw, to_numpy, torch_type, typed

Chooser = Callable[[Step, list[Candidate]], Candidate]
"""Picks one of the ways to compute a step."""


def first(step: Step, found: list[Candidate]) -> Candidate:
    """The default way, without a measurement."""
    return found[0]


def lower_for_gpu(graph: Graph) -> Program:
    """The program of a graph for GPUs."""
    return lower(expand(graph), GpuTarget())


def compile_for_gpu(
    graph: Graph, arch: Arch, choose: Chooser = first, *, tf32: bool = False
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
    return lay_out(program, chosen)


class GpuExecutable:
    """Kernels, constants and memory of one program on one device."""

    def __init__(self, module: GpuModule, device: Device) -> None:
        self.module = module
        self.program = module.program
        self.device = device
        self._lock = threading.Lock()
        place = device.place
        self._memory = {
            ARENA: torch.empty(module.arena_bytes + 256, dtype=torch.uint8, device=place),
            CONSTANTS: from_numpy(module.constants).to(place),
            KEPT: torch.zeros(module.kept_bytes + 256, dtype=torch.uint8, device=place),
        }
        self._kernels = [self._prepared(b) for b in module.works]
        self.runs = 0

    def _prepared(self, bound: Bound) -> Any:
        if isinstance(bound.work, Call):
            return None
        return self.device.prepare(bound.work, bound.arguments, bound.step.region.kind)

    @property
    def kernels(self) -> int:
        """Pieces of work that one run launches."""
        return len(self.module.works)

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
        with self._lock:
            self.launch({n: raw(t) for n, t in tensors.items()})
            self.runs += 1
        if any(isinstance(x, torch.Tensor) for x in feeds.values()):
            return outputs
        types = [v.tensor for _, v in graph.outputs]
        return [to_numpy(t, k.dtype, k.static) for t, k in zip(outputs, types, strict=True)]

    def launch(self, ports: Mapping[str, torch.Tensor]) -> None:
        """Runs every piece of work once, on the current stream."""
        for bound, kernel in zip(self.module.works, self._kernels, strict=True):
            memories = [self._at(a, ports) for a in bound.arguments]
            if isinstance(bound.work, Launch):
                self.device.launch(kernel, bound.work, memories)
            else:
                self._call(bound.work, bound.arguments, memories)

    def _call(self, call: Call, places: tuple[Where, ...], memories: list[torch.Tensor]) -> None:
        storage = self.program.places.storage
        tensors = []
        for argument, where, memory in zip(call.arguments, places, memories, strict=True):
            flat = typed(memory, 0, where.dtype)
            if isinstance(argument, Value):
                shape, strides = argument.tensor.static, storage[argument].strides
                flat = flat.as_strided(shape, strides)
            tensors.append(flat)
        call.function(*tensors)

    def _at(self, where: Where, ports: Mapping[str, torch.Tensor]) -> torch.Tensor:
        memory = ports[where.port] if where.memory == PORT else self._memory[where.memory]
        return memory[where.offset :]

    def _given(self, data: Any, value: Value) -> torch.Tensor:
        if isinstance(data, torch.Tensor):
            return data.to(self.device.place).contiguous()
        array = np.ascontiguousarray(data, dtype=value.dtype.numpy)
        return from_numpy(array).to(self.device.place)

    def _fresh(self, value: Value) -> torch.Tensor:
        kind = value.tensor
        return torch.empty(kind.static, dtype=torch_type(kind.dtype), device=self.device.place)
