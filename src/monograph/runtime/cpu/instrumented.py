"""Runs that are looked at while they happen: step by step, or with the time of every step.

Both are compiled from the same program as a plain run, from the same kernels, into the same plan
of memory. A timed run writes time stamps around its steps; a stepped run makes a launch of every
step and shows what it reads and what it writes. Where data decide shapes, a run is made of several
programs (`runtime.dynamic.staged`): each is looked at when its turn comes.
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
from monograph.ir import Array, Graph, Value
from monograph.program.fusion.op_classes import is_join, is_view
from monograph.program.program import Program, Step
from monograph.runtime.cpu.executable import CpuExecutable, RunState, object_code, useful_threads
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.dynamic.staged import Compiler, compile_stages

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
        self._tell(TimedRun(self.module, self.program, stamps))


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
            self._tell(SteppedRun(self.program, given, step, native, inputs, outputs, overwritten))


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


@dataclass(frozen=True)
class _Observing(Compiler, Generic[Seen]):
    """Compiles as a session would, but for the way it is looked at."""

    kind: type[_Observed[Seen]] = _Observed
    tell: Callable[[Seen], None] = lambda _: None

    @property
    def opens(self) -> bool:
        """Return False: each program that runs is observed."""
        return False

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


def compile_timed(graph: Graph, compiler: Compiler, tell: Callable[[TimedRun], None]) -> Run:
    """An optimised graph, compiled so that its steps are timed; `tell` gets each program's."""
    own = {f.name: getattr(compiler, f.name) for f in fields(compiler)}
    return compile_stages(graph, _Observing(**own, kind=_Timed, tell=tell)).run


def compile_stepped(graph: Graph, compiler: Compiler, tell: Callable[[SteppedRun], None]) -> Run:
    """An optimised graph, compiled so that `tell` sees each step when it has run."""
    own = {f.name: getattr(compiler, f.name) for f in fields(compiler)}
    return compile_stages(graph, _Observing(**own, kind=_Stepped, tell=tell)).run
