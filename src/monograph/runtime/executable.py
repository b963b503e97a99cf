"""A compiled program bound to memory: run it, and it runs once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
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
from monograph.program.expand import expand
from monograph.program.place import CONSTANT, OUTPUT, TEMPORARY
from monograph.program.program import Program, Step, lower
from monograph.program.work import program_work
from monograph.rewrite.cost import LinearCost
from monograph.runtime.cache import DiskCache, make_key
from monograph.runtime.native import NativeCode, compile_modules
from monograph.runtime.pool import shared_pool

_ALIGNMENT = 64


def aligned_bytes(count: int) -> Array:
    """Memory that starts on a cache line."""
    raw = np.empty(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]


def fresh(result: Any) -> Any:
    """A result that shares memory with nothing: no feed, no constant, no other result."""
    if isinstance(result, np.ndarray):
        return np.array(result, order="C", copy=True)
    if isinstance(result, (list, tuple)):
        return [fresh(x) for x in result]
    if isinstance(result, dict):
        return dict(result)
    return result if result is None else np.array(result)


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
        self.runs = 0
        self._lock = threading.Lock()
        self._functions = {
            s.function: code.address(s.function) for s in module.segments if isinstance(s, Segment)
        }
        self._bind()
        if threads > 1:
            self._pool.reserve(threads)

    @property
    def launches(self) -> int:
        """Native functions called for one run: 1 where everything is compiled."""
        return sum(isinstance(s, Segment) for s in self.module.segments)

    @property
    def kernels(self) -> int:
        """Kernels that run inside those functions."""
        return sum(len(s.steps) for s in self.module.segments if isinstance(s, Segment))

    @property
    def host_steps(self) -> list[Step]:
        """Steps that no compiled code serves."""
        return [s for s in self.module.segments if isinstance(s, Step)]

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs for some inputs, as fresh arrays."""
        workspace = self._take()
        self.runs += 1
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
        slots = workspace.slots
        for slot, name, key, shape, dtype in self._inputs:
            array = feeds[name]
            if not array.flags.c_contiguous or array.shape != shape:
                array = np.ascontiguousarray(array, dtype).reshape(shape)
            bound[key] = array
            slots[slot] = array.__array_interface__["data"][0]
        for slot, key, shape, dtype in self._outputs:
            array = bound[key] = np.empty(shape, dtype)
            slots[slot] = array.__array_interface__["data"][0]
        if self._whole is not None:
            self._launch(self._whole, workspace)
            return [bound[key] for key in self._results]
        held: dict[Value, Any] = {}
        for segment in self.module.segments:
            if isinstance(segment, Segment):
                self._launch(self._functions[segment.function], workspace)
            else:
                self._host(segment, workspace, bound, held, feeds)
        results = [
            self._read(v, workspace, bound, held, feeds) for _, v in self.program.graph.outputs
        ]
        # What the host computed may be a view of an input, of a constant or of another result.
        return [r if own else fresh(r) for r, own in zip(results, self._own, strict=True)]

    def _launch(self, address: int, workspace: Workspace) -> None:
        """Runs a native function; fails where a kernel has found data that does not fit."""
        self._pool.launch(address, workspace.address, self.threads)
        if not self.module.faults or not workspace.faults.any():
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

    def _bind(self) -> None:
        """Works out once what every run would have to look up."""
        ports = list(enumerate(self.module.ports, FIRST_PORT))
        self._inputs = [
            (slot, b.name, b.id, b.shape, b.dtype.numpy) for slot, b in ports if b.kind != OUTPUT
        ]
        self._outputs = [
            (slot, b.id, b.shape, b.dtype.numpy) for slot, b in ports if b.kind == OUTPUT
        ]
        storage = self.program.places.storage
        places = [storage.get(v) for _, v in self.program.graph.outputs]
        self._own = [p is not None and p.buffer.kind == OUTPUT for p in places]
        self._results = [p.buffer.id for p in places if p is not None and p.buffer.kind == OUTPUT]
        self._whole: int | None = None
        segments = self.module.segments
        native = [s for s in segments if isinstance(s, Segment)]
        if len(segments) == len(native) == 1 and len(self._results) == len(places):
            # The usual case: the whole model is one native function.
            self._whole = self._functions[native[0].function]

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


ALONE_SECONDS = 30e-6
"""A program that one core finishes in less is not worth a second one."""
_ONE_CORE = LinearCost(launch_seconds=0.0, flops_per_second=4e10, bytes_per_second=8e9)


def compile_graph(
    graph: Graph,
    features: Features,
    threads: int,
    cache: DiskCache | None = None,
    winograd: bool = True,
) -> CpuExecutable:
    """An optimised graph of static shapes, compiled for this machine; object code is kept."""
    program = lower(expand(graph), CpuTarget())
    if _ONE_CORE.seconds(program_work(program)) < ALONE_SECONDS:
        threads = 1
    module = compile_program(program, features, threads, winograd)
    objects = _objects(module.texts, features, cache)
    names = [s.function for s in module.segments if isinstance(s, Segment)]
    return CpuExecutable(program, module, NativeCode(objects, names), threads)


def _objects(texts: Sequence[str], features: Features, cache: DiskCache | None) -> list[bytes]:
    """The object code of modules, from the cache where it has been compiled before."""
    if cache is None:
        return compile_modules(texts, features)
    key = make_key(features, text=hashlib.sha256("\0".join(texts).encode()).hexdigest())
    parts = cache.get(key)
    names = [f"object{i}" for i in range(len(texts))]
    if parts is not None and sorted(parts) == sorted(names):
        return [parts[name] for name in names]
    objects = compile_modules(texts, features)
    cache.put(key, dict(zip(names, objects, strict=True)))
    return objects
