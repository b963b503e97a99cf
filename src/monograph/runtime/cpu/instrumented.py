"""Runs that are looked at while they happen: step by step, or with the time of every step.

Both are compiled from the same program as a plain run, from the same kernels, into the same plan
of memory. A timed run writes time stamps around its steps; a stepped run makes a launch of every
step and shows what it reads and what it writes. Where data decide shapes, a run is made of several
programs (`runtime.dynamic.staged`): each is looked at when its turn comes. Of code for any shape,
what is told has the sizes of the run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

from monograph.codegen.llvm.module.assembler import Module, Segment
from monograph.codegen.llvm.module.compile import compile_program
from monograph.config import make_config
from monograph.ir import Array, Graph, TensorType, Value
from monograph.ir.size_expressions import Symbol, evaluate
from monograph.ir.sizes import SizeScope
from monograph.program.dynamic.at_hints import program_at_hints
from monograph.program.fusion.op_classes import is_join, is_view
from monograph.program.program import Program, Step
from monograph.runtime.cpu.executable import CpuExecutable, RunState, object_code, useful_threads
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.dynamic.staged import compile_open, compile_stages
from monograph.runtime.executable import Executable
from monograph.runtime.shape_code import ShapeCode, Shapes

Seen = TypeVar("Seen")


def now() -> int:
    """Nanoseconds on the clock that time stamps in native code are read from."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class _Observed(CpuExecutable, Generic[Seen]):
    """A program that tells of its runs."""

    def __init__(
        self,
        program: Program,
        module: Module,
        code: NativeCode,
        threads: int,
        tell: Callable[[Seen], None],
    ) -> None:
        super().__init__(program, module, code, threads)
        self._tell = tell
        self._whole = None  # the short way does not come by here
        self._at_hints = program_at_hints(program)
        if (scope := program.scope) is not None:
            self._sizes = np.array([evaluate(e, scope.hints) for e in scope.table], np.int64)


@dataclass(frozen=True)
class TimedRun:
    """Begin and end of each step of a program on each thread, in ns: [thread, step, 2].

    A step on the host is the first thread's.
    """

    module: Module
    program: Program
    stamps: Array


class _Timed(_Observed[TimedRun]):
    def _run_segments(self, run: RunState) -> None:
        host: dict[int, tuple[int, int]] = {}
        for segment in self.module.segments:
            if isinstance(segment, Segment):
                self._launch(self._functions[segment.function], run.workspace)
                continue
            begin = now()
            self._host(segment, run)
            host[segment.index] = begin, now()
        assert self.module.stamps is not None
        stamps = self.module.stamps.read(run.workspace.arena)
        for index, (begin, end) in host.items():
            stamps[:, index] = end
            stamps[0, index] = begin, end
        steps = self._at_hints.steps
        told = [
            replace(s, steps=tuple(steps[t] for t in s.steps))
            if isinstance(s, Segment)
            else steps[s]
            for s in self.module.segments
        ]
        module = replace(self.module, segments=tuple(told))
        self._tell(TimedRun(module, self._at_hints.program, stamps))


@dataclass(frozen=True)
class SteppedRun:
    """One step of a run: what it read, and what it wrote."""

    program: Program
    feeds: Mapping[str, Any]
    step: Step
    native: bool
    """True if compiled code ran, not the reference on the host."""
    inputs: dict[Value, Any]
    outputs: dict[Value, Any]
    overwritten: tuple[Value, ...]
    """Values that another step has written over between their own step and this one."""


class _Stepped(_Observed[SteppedRun]):
    def _run_segments(self, run: RunState) -> None:
        written: dict[Value, bytes] = {}
        # A donated input is an output's memory before the run is over.
        given = {name: fresh(x) for name, x in run.feeds.items()}

        def read(value: Value) -> Any:
            return self._read(value, run)

        for segment in self.module.segments:
            native = isinstance(segment, Segment)
            step = segment.steps[0] if isinstance(segment, Segment) else segment
            # Copies: the memory may be another value's before the step is over.
            inputs = {v: fresh(read(v)) for v in step.region.inputs}
            parts = dict.fromkeys(p for v in inputs for p in stored_parts(v, written))
            parts = dict.fromkeys(p for p in parts if p in written)
            overwritten = tuple(p for p in parts if _digest(read(p)) != written[p])
            if isinstance(segment, Segment):
                self._launch(self._functions[segment.function], run.workspace)
            else:
                self._host(segment, run)
            outputs = {v: fresh(read(v)) for v in step.region.outputs}
            written |= {v: _digest(x) for v, x in outputs.items() if v not in run.held}
            seen = self._at_hints
            self._tell(
                SteppedRun(
                    seen.program,
                    given,
                    seen.steps[step],
                    native,
                    seen.shown(inputs),
                    seen.shown(outputs),
                    tuple(seen.values.get(v, v) for v in overwritten),
                )
            )


def stored_parts(value: Value, stored: Container[Value]) -> Iterator[Value]:
    """A value; if no step stores it, the parts that it is joined of, which may be views of joins.

    `stored` are the values that steps have written. A value comes before its parts.
    """
    stack = [value]
    while stack:
        found = stack.pop()
        yield found
        if found not in stored and (is_join(found) or is_view(found)):
            stack.extend(reversed(found.inputs))


def _digest(array: Array) -> bytes:
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(plain.data, digest_size=16).digest()


class _ObservedCode(ShapeCode):
    """Code for any shape that is looked at, at the sizes that it was compiled for."""

    def __init__(self, scope: SizeScope, shapes: Shapes, made: CpuExecutable) -> None:
        self.scope, self.shapes = scope, shapes
        self._made = made

    def bind(self, given: Shapes) -> dict[Symbol, int] | None:
        values = super().bind(given)
        return values if values == self.scope.hints else None

    def executable(self, values: Mapping[Symbol, int]) -> Executable:
        return self._made


@dataclass(frozen=True)
class _Observing(Compiler, Generic[Seen]):
    """Compiles as a session would, but for the way it is looked at."""

    kind: type[_Observed[Seen]] = _Observed
    tell: Callable[[Seen], None] = lambda _: None
    any_shape: bool = False
    """Look at code for any shape."""

    @property
    def opens(self) -> bool:
        """True if parts of a program are code for any shape too."""
        return self.any_shape

    def open_program(  # type: ignore[override]
        self, program: Program, scope: SizeScope, shapes: Shapes
    ) -> ShapeCode:
        """Compile a program with open sizes for the sizes of its hints."""
        return _ObservedCode(scope, shapes, self.executable(program))

    def executable(self, program: Program) -> CpuExecutable:
        threads = useful_threads(program, self.threads)
        module = compile_program(
            program,
            self.features,
            threads,
            self.winograd,
            timed=self.kind is _Timed,
            apart=self.kind is _Stepped,
            checked=make_config().checked if self.checked is None else self.checked,
        )
        objects = object_code(module.texts, self.features, self.cache, self.progress)
        names = [s.function for s in module.segments if isinstance(s, Segment)]
        module = replace(module, texts=())
        return self.kind(program, module, NativeCode(objects, names), threads, self.tell)


Run = Callable[[Mapping[str, Any]], list[Any]]
"""Makes outputs of feeds."""


@dataclass(frozen=True)
class OpenGraph:
    """An optimised graph with open sizes; the sizes of its hints are those that are run."""

    graph: Graph
    scope: SizeScope


def compile_timed(
    graph: Graph | OpenGraph, compiler: Compiler, tell: Callable[[TimedRun], None]
) -> Run:
    """An optimised graph, compiled so that its steps are timed; `tell` gets each program's."""
    return _observed(graph, compiler, _Timed, tell)


def compile_stepped(
    graph: Graph | OpenGraph, compiler: Compiler, tell: Callable[[SteppedRun], None]
) -> Run:
    """An optimised graph, compiled so that `tell` sees each step when it has run."""
    return _observed(graph, compiler, _Stepped, tell)


def _observed(
    graph: Graph | OpenGraph,
    compiler: Compiler,
    kind: type[_Observed[Seen]],
    tell: Callable[[Seen], None],
) -> Run:
    own = {f.name: getattr(compiler, f.name) for f in fields(compiler)}
    if isinstance(graph, Graph):
        return compile_stages(graph, _Observing(**own, kind=kind, tell=tell)).run
    types = zip(graph.graph.input_names, graph.graph.input_types, strict=True)
    shapes = {name: t.static for name, t in types if isinstance(t, TensorType)}
    observing = _Observing(**own, kind=kind, tell=tell, any_shape=True)
    code = compile_open(graph.graph, observing, graph.scope, shapes)
    return code.executable(graph.scope.hints).run
