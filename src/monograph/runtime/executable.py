"""A compiled program bound to memory: run it, and it runs once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.codegen.llvm.barrier import BARRIER_BYTES
from monograph.codegen.llvm.compile import (
    ARENA,
    CONSTANTS,
    FAULT_BYTES,
    FIRST_PORT,
    Module,
    Segment,
    compile_program,
)
from monograph.codegen.llvm.features import Features
from monograph.codegen.llvm.select import CpuTarget
from monograph.errors import ExecutionError
from monograph.ir import Array, Graph, Value
from monograph.ir.evaluate import apply
from monograph.program.place import CONSTANT, OUTPUT, TEMPORARY
from monograph.program.program import Program, Step, lower
from monograph.runtime.native import NativeCode, compile_modules
from monograph.runtime.pool import shared_pool

_ALIGNMENT = 64


def aligned_bytes(count: int) -> Array:
    """Memory that starts on a cache line."""
    raw = np.empty(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]


class Workspace:
    """The memory of one run: arena, context, and nothing that another run could see."""

    def __init__(self, module: Module, constants: Array) -> None:
        self.arena = aligned_bytes(module.arena_bytes)
        self.arena[:] = 0
        slots = BARRIER_BYTES + 8 * (FIRST_PORT + len(module.ports))
        self.memory = aligned_bytes(slots + FAULT_BYTES * len(module.faults))
        self.memory[:] = 0
        self.slots = self.memory[BARRIER_BYTES:slots].view(np.int64)
        self.faults = self.memory[slots:].view(np.int64).reshape(-1, FAULT_BYTES // 8)
        self.address = int(self.memory.ctypes.data)
        self.slots[ARENA] = self.arena.ctypes.data
        self.slots[CONSTANTS] = constants.ctypes.data


class CpuExecutable:
    """A program's native functions, its constants, and the workspaces of runs under way."""

    def __init__(self, program: Program, module: Module, code: NativeCode, threads: int) -> None:
        self.program = program
        self.module = module
        self.threads = threads
        self._code = code
        self._pool = shared_pool()
        self._constants = aligned_bytes(module.constants.size)
        self._constants[:] = module.constants
        self._free: list[Workspace] = []
        self._lock = threading.Lock()
        self._functions = {
            s.function: code.address(s.function) for s in module.segments if isinstance(s, Segment)
        }
        if threads > 1:
            self._pool.reserve(threads)

    @property
    def host_steps(self) -> list[Step]:
        """Steps that no compiled code serves."""
        return [s for s in self.module.segments if isinstance(s, Step)]

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for some inputs, as fresh arrays."""
        workspace = self._take()
        try:
            return self._run(workspace, feeds)
        finally:
            with self._lock:
                self._free.append(workspace)

    def _take(self) -> Workspace:
        with self._lock:
            if self._free:
                return self._free.pop()
        return Workspace(self.module, self._constants)

    def _run(self, workspace: Workspace, feeds: Mapping[str, Any]) -> list[Any]:
        bound: dict[int, Array] = {}
        held: dict[Value, Any] = {}
        for slot, buffer in enumerate(self.module.ports, FIRST_PORT):
            if buffer.kind == OUTPUT:
                array = np.empty(buffer.shape, buffer.dtype.numpy)
            else:
                array = np.ascontiguousarray(feeds[buffer.name], buffer.dtype.numpy)
                array = array.reshape(buffer.shape)
            bound[buffer.id] = array
            workspace.slots[slot] = array.__array_interface__["data"][0]
        for segment in self.module.segments:
            if isinstance(segment, Segment):
                address = self._functions[segment.function]
                self._pool.launch(address, workspace.address, self.threads)
                if self.module.faults:
                    self._check_faults(workspace)
            else:
                self._host(segment, workspace, bound, held, feeds)
        return [self._read(v, workspace, bound, held, feeds) for _, v in self.program.graph.outputs]

    def _check_faults(self, workspace: Workspace) -> None:
        """Fails where a kernel has found data that does not fit."""
        if not workspace.faults.any():
            return
        number = int(np.argmax(workspace.faults[:, 0]))
        given = int(workspace.faults[number, 1])
        workspace.faults[:] = 0
        step, fault = self.module.faults[number]
        raise ExecutionError(
            fault.message,
            node=step.origin or None,
            op=step.region.kind,
            expected=fault.expected or None,
            given=given,
        )

    def _host(
        self,
        step: Step,
        workspace: Workspace,
        bound: Mapping[int, Array],
        held: dict[Value, Any],
        feeds: Mapping[str, Any],
    ) -> None:
        """Runs a step by its reference, between native functions."""
        known: dict[Value, Any] = {}
        for v in step.region.inputs:
            known[v] = self._read(v, workspace, bound, held, feeds)
        for v in step.region.body:
            known[v] = apply(v, [known[i] for i in v.inputs])
        for v in step.region.outputs:
            self._write(v, known[v], workspace, bound, held)

    def _write(
        self,
        value: Value,
        result: Any,
        workspace: Workspace,
        bound: Mapping[int, Array],
        held: dict[Value, Any],
    ) -> None:
        if value in self.program.places.storage:
            self._view(value, workspace, bound)[...] = result
        else:
            held[value] = result

    def _read(
        self,
        value: Value,
        workspace: Workspace,
        bound: Mapping[int, Array],
        held: Mapping[Value, Any],
        feeds: Mapping[str, Any],
    ) -> Any:
        if value in held:
            return held[value]
        if value in self.program.places.storage:
            return self._view(value, workspace, bound)
        return feeds[value.op.label]  # type: ignore[attr-defined]

    def _view(self, value: Value, workspace: Workspace, bound: Mapping[int, Array]) -> Array:
        """A stored value as numpy sees it."""
        place = self.program.places.storage[value]
        if place.buffer.kind == CONSTANT:
            return apply(value, [])  # type: ignore[no-any-return]
        size = place.buffer.dtype.itemsize
        memory, start = workspace.arena, place.offset * size
        if place.buffer.kind == TEMPORARY:
            start += self.module.offsets[place.buffer.id]
        else:
            memory = bound[place.buffer.id].reshape(-1).view(np.uint8)
        strides = tuple(s * size for s in place.strides)
        return np.ndarray(
            value.tensor.static, place.buffer.dtype.numpy, memory.data, start, strides
        )


def compile_graph(graph: Graph, features: Features, threads: int) -> CpuExecutable:
    """An optimised graph of static shapes, compiled for this machine."""
    program = lower(graph, CpuTarget())
    module = compile_program(program, features, threads)
    objects = compile_modules(module.texts, features)
    names = [s.function for s in module.segments if isinstance(s, Segment)]
    return CpuExecutable(program, module, NativeCode(objects, names), threads)
