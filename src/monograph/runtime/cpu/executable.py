"""A compiled program bound to memory."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.assembler import Module, Segment
from monograph.codegen.llvm.module.barrier import FIRST_PORT
from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.select import CpuTarget, host_reason, region_name
from monograph.config import make_config
from monograph.ir import Array, Graph, Input, Value
from monograph.ir.evaluate import apply
from monograph.ir.lazy import lazy
from monograph.program.launch_regions import step_name
from monograph.program.lowering import lower
from monograph.program.memory.buffer_assignment import CONSTANT, OUTPUT, TEMPORARY
from monograph.program.program import Program, Step
from monograph.program.work import outer_work, program_work, warn_of_expansion
from monograph.rewrite.cost import LinearCost, Work
from monograph.runtime.cache.artefact import Artefact
from monograph.runtime.cache.object_cache import Buffer, DiskCache, make_key
from monograph.runtime.cpu.launch import (
    Layout,
    NativeExecutable,
    NativeFaultText,
    NativePort,
    Workspace,
    fresh,
)
from monograph.runtime.cpu.native import NativeCode, compile_modules
from monograph.runtime.executable import Executable
from monograph.runtime.progress import Progress, silent


@dataclass(frozen=True)
class RunState:
    """State that the parts of one run share."""

    workspace: Workspace
    bound: Mapping[int, Array]
    feeds: Mapping[str, Any]
    held: dict[Value, Any] = field(default_factory=dict)
    """Values without memory in the program, which the host computed."""


class CpuExecutable(NativeExecutable):
    """A program that was compiled in this process, with the steps that run on the host."""

    def __init__(
        self,
        program: Program,
        module: Module,
        code: NativeCode,
        threads: int,
        objects: Sequence[bytes] = (),
    ) -> None:
        layout = make_layout(program, module, threads)
        super().__init__(layout, code, module.constants, module.weights)
        self._objects: Sequence[Buffer] = objects
        self._parts: tuple[Program, Module] | None = (program, module)
        """The program and the module; None after `adopt`."""

    def artefact(self) -> Artefact:
        """Return the layout, object code and constants."""
        return Artefact(self.layout, self._objects, self._constants, self._weights)

    def adopt(self, stored: Artefact, compile_again: Callable[[], Executable]) -> None:
        """Take constants and object code from the file that holds them; drop the program.

        Processes share the pages of a file, and the system may drop them. Only an executable that
        is one native function can be stored; its runs need no program. `compile_again` makes the
        program from the model when it is asked for.
        """
        assert self.layout.whole
        assert not self._free, "workspaces hold the address of the constants"
        self._objects = stored.objects
        self._hold(stored.constants, stored.weights)
        self._parts = None
        self._compile_again = compile_again

    @lazy
    def _recompiled(self) -> tuple[Program, Module]:
        made = self._compile_again()
        assert isinstance(made, CpuExecutable)
        return made.program, made.module

    @property
    def program(self) -> Program:
        """The program; made anew from the model if it was dropped."""
        return (self._parts or self._recompiled)[0]

    @property
    def module(self) -> Module:
        """The program before code generation; made anew from the model if it was dropped."""
        return (self._parts or self._recompiled)[1]

    @property
    def programs(self) -> list[Program]:
        return [self.program]

    @property
    def host_reasons(self) -> dict[str, str]:
        return {region_name(s.region): host_reason(s.region) for s in self.host_steps}

    @property
    def host_steps(self) -> list[Step]:
        if not self.layout.host_kinds:
            return []  # `stats` asks for them; a dropped program must not be made for that.
        return [s for s in self.module.segments if isinstance(s, Step)]

    def takes_text(self, name: str) -> bool:
        return name in self._fixed_text

    @lazy
    def _fixed_text(self) -> frozenset[str]:
        """The inputs that only ops read which take text of fixed width."""
        if not self.layout.host_kinds:
            return frozenset()
        graph = self.program.graph
        other = {v for _, v in graph.outputs}
        for value in graph.values:
            other |= set() if value.op.fixed_text else set(value.inputs)
        named = zip(graph.input_names, graph.inputs, strict=True)
        return frozenset(name for name, v in named if v not in other)

    def _run_parts(
        self, workspace: Workspace, bound: dict[int, Array], feeds: Mapping[str, Any]
    ) -> list[Any]:
        run = RunState(workspace, bound, feeds)
        self._run_segments(run)
        results = [self._read(v, run) for _, v in self.program.graph.outputs]
        # What the host computed may be a view of an input, of a constant or of another result.
        own = [buffer >= 0 for buffer in self.layout.results]
        return [r if mine else fresh(r) for r, mine in zip(results, own, strict=True)]

    def _run_segments(self, run: RunState) -> None:
        """Runs native functions and what is between them (`instrumented.py` looks on here)."""
        for segment in self.module.segments:
            if isinstance(segment, Segment):
                self._launch(self._functions[segment.function], run.workspace)
            else:
                self._host(segment, run)

    def _host(self, step: Step, run: RunState) -> None:
        """Runs a step by its reference, between native functions."""
        known = {v: self._read(v, run) for v in step.region.inputs}
        for v in step.region.body:
            known[v] = apply(v, [known[i] for i in v.inputs])
        for v in step.region.outputs:
            if v in self.program.places.storage:
                self._view(v, run)[...] = known[v]
            else:
                run.held[v] = known[v]

    def _read(self, value: Value, run: RunState) -> Any:
        if value in run.held:
            return run.held[value]
        if value in self.program.places.storage:
            return self._view(value, run)
        if isinstance(value.op, Input):
            return run.feeds[value.op.label]
        return apply(value, [])  # a constant that has no memory, such as one of strings

    def _view(self, value: Value, run: RunState) -> Array:
        """A stored value as numpy sees it."""
        place = self.program.places.storage[value]
        if place.buffer.kind == CONSTANT:
            return apply(value, [])  # type: ignore[no-any-return]
        size = place.buffer.dtype.itemsize
        memory, start = run.workspace.arena, place.offset * size
        if place.buffer.kind == TEMPORARY:
            start += self.module.offsets[place.buffer.id]
        else:
            memory = run.bound[place.buffer.id].reshape(-1).view(np.uint8)
        strides = tuple(s * size for s in place.strides)
        return np.ndarray(
            value.tensor.static, place.buffer.dtype.numpy, memory.data, start, strides
        )


def make_layout(program: Program, module: Module, threads: int) -> Layout:
    """Return what runs of a program need to know."""
    slots = [
        (
            b.kind,
            NativePort(index, b.id, b.name, b.dtype, b.shape, program.places.over.get(b.id, -1)),
        )
        for index, b in enumerate(module.ports, FIRST_PORT)
    ]
    places = [program.places.storage.get(v) for _, v in program.graph.outputs]
    native = [s for s in module.segments if isinstance(s, Segment)]
    work = program_work(program)
    return Layout(
        functions=tuple(s.function for s in native),
        threads=threads,
        arena_bytes=module.arena_bytes,
        inputs=tuple(slot for kind, slot in slots if kind != OUTPUT),
        outputs=tuple(slot for kind, slot in slots if kind == OUTPUT),
        results=tuple(
            p.buffer.id if p is not None and p.buffer.kind == OUTPUT else -1 for p in places
        ),
        faults=tuple(
            NativeFaultText(
                f.message,
                f.expected,
                step.origin,
                step.region.kind,
                f.shows_data,
                f.buffers,
                step.index,
            )
            for step, f in module.faults
        ),
        kernels=sum(len(s.steps) for s in native),
        host_kinds=tuple(step_name(s) for s in module.segments if isinstance(s, Step)),
        flops=work.flops,
        moved=work.bytes,
        bounds_checks=module.bounds_checks,
        meeting=module.meeting,
        weights=tuple(module.weights),
    )


ALONE_SECONDS = 30e-6
"""A program that one core finishes in less is not worth a second one."""
_ONE_CORE = LinearCost(launch_seconds=0.0, flops_per_second=4e10, bytes_per_second=8e9)


def useful_threads(program: Program, threads: int, larger: float = 1.0) -> int:
    """Return how many of these threads a program is worth: all of them, or one.

    larger: how many times as much work a run may have: sizes may be open.
    """
    # How much of what is inside branches and loops will run, only data tell.
    sure = sum((outer_work(program, s) for s in program.steps), Work(0, 0, 0))
    alone = _ONE_CORE.seconds(sure) * larger < ALONE_SECONDS
    return 1 if alone else threads


def compile_graph(graph: Graph, features: Features, threads: int, **options: Any) -> CpuExecutable:
    """Compile an optimised graph that is one program; see `compile_lowered` for the options."""
    return compile_lowered(lower(graph, CpuTarget()).whole, features, threads, **options)


def compile_lowered(
    program: Program,
    features: Features,
    threads: int,
    cache: DiskCache | None = None,
    winograd: bool = True,
    progress: Progress = silent,
    checked: bool | None = None,
) -> CpuExecutable:
    """Compile a program for this machine; the cache keeps the object code.

    checked: every access to memory is checked; None for what the environment says.
    """
    checked = make_config().checked if checked is None else checked
    threads = useful_threads(program, threads)
    warn_of_expansion(program)
    module = compile_program(program, features, threads, winograd, checked=checked)
    objects = object_code(module.texts, features, cache, progress)
    # The text can be as large as the weights, and has served its purpose.
    module = replace(module, texts=())
    names = [s.function for s in module.segments if isinstance(s, Segment)]
    return CpuExecutable(program, module, NativeCode(objects, names), threads, objects)


def object_code(
    texts: Sequence[str],
    features: Features,
    cache: DiskCache | None,
    progress: Progress = silent,
) -> list[bytes]:
    """The object code of modules, from the cache where it has been compiled before."""
    key = make_key(features, text=hashlib.sha256("\0".join(texts).encode()).hexdigest())
    parts = cache.get(key) if cache is not None else None
    names = [f"object{i}" for i in range(len(texts))]
    if parts is not None and sorted(parts) == sorted(names):
        return [bytes(parts[name]) for name in names]
    count, done = len(texts), itertools.count(1)
    progress("compile", 0, count)
    objects = compile_modules(
        texts, features, finished=lambda: progress("compile", next(done), count)
    )
    if cache is not None:
        cache.put(key, dict(zip(names, objects, strict=True)))
    return objects
