"""Programs whose data decide shapes: native code up to where they do, then code for those shapes.

The rest is compiled for the shapes that the data gave, and kept for runs that give the same. The
executable counts these compilations. The host runs loops that no program can hold between the two
(`host_loop.py`). A program on complex numbers runs on pairs of real ones, views of the same memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.errors import ExecutionError
from monograph.ir import Array, DType, Graph, Input, Item, TensorType, Type, Value
from monograph.ir.dtype import COMPLEX
from monograph.program.dynamic.stages import remainder
from monograph.program.launch_regions import stops
from monograph.program.legalise.lower_complex import real_of
from monograph.program.lowering import Lowered, LoweringTarget, lower
from monograph.program.program import Program, Step
from monograph.runtime.cache.object_cache import DiskCache
from monograph.runtime.counts import Counts, RunCounters, why_staged
from monograph.runtime.cpu.executable import CpuExecutable, compile_lowered
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.dynamic.host_loop import HostLoop
from monograph.runtime.executable import (
    Executable,
    Feeds,
    Outputs,
    WrappedExecutable,
    constant_bytes,
)
from monograph.runtime.forking import ForkLock
from monograph.runtime.outputs import NOTHING, deliver
from monograph.runtime.progress import Progress, silent


class ComplexExecutable(WrappedExecutable):
    """An executable for the pairs, run on complex inputs and outputs."""

    def __init__(self, graph: Graph, inner: Executable) -> None:
        super().__init__(inner)
        self._names = [name for name, _ in graph.outputs]
        self._given = {
            n: v.dtype
            for n, v in zip(graph.input_names, graph.inputs, strict=True)
            if _complex(v.type)
        }
        self._made = {n: v.dtype for n, v in graph.outputs if _complex(v.type)}

    def __repr__(self) -> str:
        return f"ComplexExecutable({self.inner!r})"

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        parts = {n: _parts(x, self._given[n]) if n in self._given else x for n, x in feeds.items()}
        results = zip(self._names, self.inner.run(parts), strict=True)
        whole = [_whole(x, self._made[n]) if n in self._made else x for n, x in results]
        return deliver(self._names, whole, out)

    def artefact(self) -> None:
        """Return None: its inputs are not those of the model."""


def _complex(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.kind == COMPLEX


def _parts(data: Array, dtype: DType) -> Array:
    plain = np.ascontiguousarray(data, dtype.numpy)
    return plain.reshape(-1).view(real_of(dtype).numpy).reshape(*data.shape, 2)


def _whole(data: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(dtype.numpy).reshape(data.shape[:-1])


KEPT = 16
"""Specialisations of what waits that a stage keeps."""


@dataclass(frozen=True)
class Compiler:
    """Compiles each stage of a graph for the CPU."""

    features: Features
    threads: int
    cache: DiskCache | None = None
    winograd: bool = True
    optimise: Callable[[Graph], Graph] = lambda graph: graph
    """Optimises a graph of known shapes for the target."""
    kept: int = KEPT
    progress: Progress = silent
    rules: LoweringTarget = CpuTarget()  # noqa: RUF009
    """The rules that graphs are lowered by."""
    tally: RunCounters | None = None
    """The counters of all executables; None if each counts for itself."""
    checked: bool | None = None
    """Check every access to memory; None follows the environment."""

    def executable(self, program: Program) -> CpuExecutable:
        made = compile_lowered(
            program,
            self.features,
            self.threads,
            self.cache,
            self.winograd,
            self.progress,
            self.checked,
        )
        if self.tally is not None:
            self.tally.watch(made)
        return made

    def recording(self) -> bool:
        """Return False: only a GPU captures."""
        return False


class Compiling(Protocol):
    """A compiler of stages for one target."""

    @property
    def kept(self) -> int:
        """The number of specialisations that a stage keeps."""

    @property
    def optimise(self) -> Callable[[Graph], Graph]:
        """Optimises a graph of known shapes for the target."""

    @property
    def rules(self) -> LoweringTarget:
        """The rules that graphs are lowered by."""

    @property
    def progress(self) -> Progress:
        """Told of each piece of work."""

    def recording(self) -> bool:
        """Return True if the caller captures a graph; a run cannot wait for the device then."""

    @property
    def tally(self) -> RunCounters | None:
        """The counters of all executables."""

    def executable(self, program: Program) -> Executable:
        """Compile a program."""


class StagedExecutable(Executable):
    """A first program, and programs compiled for the sizes that its results decide."""

    runs: int = 0

    def __init__(self, lowered: Lowered, compiler: Compiling) -> None:
        assert lowered.split is not None
        self.parts = parts = lowered.split
        self._stops = stops(parts)
        self._why = why_staged(self)
        self.first = compiler.executable(lowered.program)
        self._states = lowered.states
        self.counts = Counts()
        if compiler.tally is not None:
            self.counts = compiler.tally.of(self)
            if self._stops:
                compiler.tally.say(self._why, logging.INFO)
        self.is_rest = False
        """True for the rest of another staged executable."""
        self.specialised = 0
        """The number of compilations of later stages."""
        self._compiler = compiler
        self._rest: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._lock = ForkLock()
        self._needed = parts.needed
        self._decisive = set(parts.decisive)
        self._loops = {
            loop: HostLoop(loop, lambda g: compile_stages(compiler.optimise(g), compiler))
            for loop in parts.host_loops
        }
        waits = set(parts.waiting)
        self._later = [n for n, v in parts.whole.outputs if v in waits]

    def __repr__(self) -> str:
        return f"StagedExecutable(first={self.first!r}, specialisations={self.specialisations})"

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        names = [name for name, _ in self.parts.whole.outputs]
        return deliver(names, self._run(feeds), out)

    def _run(self, feeds: Feeds) -> Outputs:
        if self._stops and self._compiler.recording():
            raise ExecutionError(
                "a run whose sizes data decide cannot be recorded into a caller's graph",
                given=self._why,
            )
        self.runs += 1
        if self._stops and not self.is_rest:
            self.counts.fallbacks[self._why] += 1
        if self._states:
            feeds = {**feeds, **self._states}
        made = self.first.run(feeds)
        data = {v: source.read(made) for v, source in self.parts.sources.items()}
        for loop, turned in self._loops.items():
            found = turned.run([self._read(v, data, feeds) for v in loop.inputs])
            items = ((v, v.op) for v in self.parts.host_loops[loop])
            data |= {v: found[op.index] for v, op in items if isinstance(op, Item)}
        later: dict[str, Any] = {}
        if self.parts.waiting:
            later = self._go_on(data, feeds)
        results: dict[Value, Any] = {}
        for name, v in self.parts.whole.outputs:
            found = later[name] if name in later else self._output(v, data, feeds)
            results[v] = fresh(found) if v in results else found
            later[name] = results[v]
        return [later[name] for name, _ in self.parts.whole.outputs]

    def _output(self, value: Value, data: Mapping[Value, Any], feeds: Feeds) -> Any:
        found = self._read(value, data, feeds)
        source = self.parts.sources.get(value)
        whole = source is not None and source.count is None
        return found if whole else fresh(found)

    def _read(self, value: Value, data: Mapping[Value, Any], feeds: Feeds) -> Any:
        if value in data:
            return data[value]
        if isinstance(value.op, Input):
            return feeds[value.op.label]
        return value.op.reference()

    def _go_on(self, data: Mapping[Value, Any], feeds: Feeds) -> dict[str, Any]:
        given = {v: self._read(v, data, feeds) for v in self._needed}
        key = tuple(self._key(v, x) for v, x in given.items())
        with self._lock:
            executable = self._rest.get(key)
            if executable is None:
                graph, _ = remainder(self.parts, given)
                executable = compile_stages(self._compiler.optimise(graph), self._compiler)
                if isinstance(executable, StagedExecutable):
                    executable.is_rest = True
                self._rest[key] = executable
                self.specialised += 1
            self._rest.move_to_end(key)
            while len(self._rest) > self._compiler.kept:
                self._rest.popitem(last=False)
        plain = (x for v, x in given.items() if v not in self._decisive)
        made = executable.run({f"~{i}": x for i, x in enumerate(plain)})
        return dict(zip(self._later, made, strict=True))

    def _key(self, value: Value, data: Any) -> tuple[Any, ...]:
        """Return the part of a value that decides the shapes of later stages."""
        if not isinstance(value.type, TensorType):
            return (str(value.type),)
        data, decides = np.asarray(data), value in self._decisive
        return (data.shape, data.dtype.str, data.tobytes() if decides else b"")

    @property
    def stops(self) -> Sequence[str]:
        """The ops after which the host reads sizes; none if it only keeps state between runs."""
        return self._stops

    @property
    def stages(self) -> list[Executable]:
        with self._lock:
            return [self.first, *self._turns, *self._rest.values()]

    @property
    def _turns(self) -> list[Executable]:
        return [e for loop in self._loops.values() for e in loop.stages]

    @property
    def programs(self) -> list[Program]:
        return [p for e in self.stages for p in e.programs]

    @property
    def threads(self) -> int:
        """The threads of the largest program so far."""
        return max(e.threads for e in self.stages)

    @property
    def launches(self) -> int:
        """Native functions called for one run: those of the first, and the most of the others.

        Of a loop that is made turn by turn, those of the run that called the most so far.
        """
        rest = max((e.launches for e in self._after), default=0)
        return self.first.launches + sum(t.launches for t in self._loops.values()) + rest

    @property
    def kernels(self) -> int:
        rest = max((e.kernels for e in self._after), default=0)
        return self.first.kernels + sum(t.kernels for t in self._loops.values()) + rest

    @property
    def _after(self) -> list[Executable]:
        with self._lock:
            return list(self._rest.values())

    @property
    def flops(self) -> float:
        """Not known where only data tell how often a loop is gone round."""
        return float("nan") if self._loops else sum(e.flops for e in self.stages)

    @property
    def moved(self) -> float:
        return sum(e.moved for e in self.stages)

    @property
    def host_steps(self) -> list[Step]:
        return [s for e in self.stages for s in e.host_steps]

    @property
    def host_reasons(self) -> dict[str, str]:
        return {kind: why for e in self.stages for kind, why in e.host_reasons.items()}

    @property
    def bounds_checks(self) -> int:
        """Addresses that every run checks, in all stages."""
        return sum(e.bounds_checks for e in self.stages)

    @property
    def host_kinds(self) -> tuple[str, ...]:
        return tuple(k for e in self.stages for k in e.host_kinds)

    @property
    def arena_bytes(self) -> int:
        return max(e.arena_bytes for e in self.stages)

    @property
    def own_bytes(self) -> int:
        return sum(e.own_bytes for e in self.stages)

    @property
    def syncs(self) -> int:
        return sum(e.syncs for e in self.stages)

    @property
    def streams(self) -> int:
        return max(e.streams for e in self.stages)

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants of all stages."""
        return constant_bytes(self.stages)

    @property
    def shared_bytes(self) -> dict[str, int]:
        return {digest: n for e in self.stages for digest, n in e.shared_bytes.items()}

    @property
    def copies(self) -> int:
        """The number of copies of inputs whose outputs are written over them."""
        return sum(e.copies for e in self.stages)

    @property
    def specialisations(self) -> int:
        """The number of compilations for shapes that depend on data."""
        turns = sum(t.specialisations for t in self._loops.values())
        others = (self.first, *self._after)
        return self.specialised + turns + sum(e.specialisations for e in others)


def compile_stages(graph: Graph, compiler: Compiling) -> Executable:
    """Compile a graph as far as its shapes are known; the rest follows when data tell them."""
    compiler.progress("generate", 0, 1)
    lowered = lower(graph, compiler.rules)
    staged = lowered.split is not None
    made = StagedExecutable(lowered, compiler) if staged else compiler.executable(lowered.program)
    return ComplexExecutable(graph, made) if lowered.in_pairs else made
