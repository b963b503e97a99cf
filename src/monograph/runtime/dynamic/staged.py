"""Programs whose data decide shapes: native code up to where they do, then code for those shapes.

The rest is compiled for the shapes that the data gave, and kept for runs that give the same. The
executable counts these compilations. The host runs loops that no program can hold between the two
(`host_loop.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, UnsupportedError
from monograph.ir import Graph, Input, Item, TensorType, Value
from monograph.ir.size_expressions import Symbol, evaluate
from monograph.ir.sizes import SizeScope, is_open
from monograph.ir.types import holds_open
from monograph.program.dynamic.remainders import remainder
from monograph.program.launch_regions import stops
from monograph.program.lowering import Lowered, lower
from monograph.program.program import Program, Step
from monograph.runtime.counts import Counts, why_staged
from monograph.runtime.cpu.launch import NativeExecutable, fresh
from monograph.runtime.dynamic.complex_pairs import ComplexExecutable
from monograph.runtime.dynamic.host_loop import HostLoop
from monograph.runtime.dynamic.open_part import OpenPart, Sizes, formal
from monograph.runtime.dynamic.stage_compiler import Compiling
from monograph.runtime.executable import Executable, Feeds, Outputs, constant_bytes
from monograph.runtime.forking import ForkLock
from monograph.runtime.outputs import NOTHING, deliver
from monograph.runtime.shape_code import ShapeCode, Shapes

SMALL_ROOM = 1 << 20
"""Bytes that a result may keep although it does not fill them."""


@dataclass(frozen=True)
class _Parts:
    """Compiles the later parts of a program."""

    compiler: Compiling

    def exact(self, graph: Graph) -> Executable:
        made = compile_stages(self.compiler.optimise(graph), self.compiler)
        if isinstance(made, StagedExecutable):
            made.is_rest = True
        return made

    def open_code(self, graph: Graph, scope: SizeScope, shapes: Shapes) -> ShapeCode | None:
        if not self.compiler.opens:
            return None
        return compile_open(self.compiler.optimise(graph), self.compiler, scope, shapes, rest=True)


class Stages:
    """The parts of a program behind the first; executables of several sizes share them."""

    def __init__(self, lowered: Lowered, compiler: Compiling) -> None:
        assert lowered.split is not None
        self.parts = parts = lowered.split
        self.states = lowered.states
        self.stops = stops(parts)
        self.compiler = compiler
        self.needed = parts.needed
        decisive = set(parts.decisive)
        self.plain = [v not in decisive for v in self.needed]
        self.names = [f"~{i}" for i in range(len(self.needed))]
        every = zip(self.names, self.needed, self.plain, strict=True)
        self.rest = OpenPart(
            [formal(name, v, not plain) for name, v, plain in every],
            [not p for p in self.plain],
            lambda given, change: remainder(
                parts, dict(zip(self.needed, given, strict=True)), change
            ),
            _Parts(compiler),
            compiler.kept,
        )
        self.loops = {loop: HostLoop(loop, _Parts(compiler)) for loop in parts.host_loops}
        waits = set(parts.waiting)
        self.later = [n for n, v in parts.whole.outputs if v in waits]
        values = [v for _, v in parts.whole.outputs]
        self.only_later = waits.issuperset(values) and len(set(values)) == len(values)
        """True if the results of the last part are all outputs, each once."""
        self.fed = [(i, n) for i, n in enumerate(self.names) if self.plain[i]]
        """The operands of the last part that are no constants of it."""
        self.lock = ForkLock()
        self.counted = 0
        """The number of compilations that some executable counts."""

    @property
    def specialisations(self) -> int:
        """The number of compilations for shapes that depend on data."""
        turns = sum(t.specialisations for t in self.loops.values())
        return turns + self.rest.specialisations


class OpenStages(ShapeCode):
    """A program in parts with open sizes: code for the first part, and what the others share."""

    def __init__(self, lowered: Lowered, code: ShapeCode, compiler: Compiling, rest: bool) -> None:
        """rest: the program is a later part of another."""
        self.scope, self.shapes = code.scope, code.shapes
        self._stages = Stages(lowered, compiler)
        self._code = code
        self._is_rest = rest

    @property
    def specialisations(self) -> int:
        with self._stages.lock:
            return self._stages.specialisations

    def executable(self, values: Mapping[Symbol, int]) -> StagedExecutable:
        """Return what runs at these sizes."""
        made = StagedExecutable(self._stages, self._code.executable(values), values)
        made.is_rest = self._is_rest
        return made


def _fills(result: Any) -> bool:
    """Return True if a result may keep its room: it is dense, and the room is small or half full.

    A copy would take as long as the kernel that made the result.
    """
    room = result.base
    if room is None or not result.flags.c_contiguous:
        return False
    return bool(room.nbytes <= SMALL_ROOM or 2 * result.nbytes >= room.nbytes)


def _at(data: Any, sizes: Sizes) -> Any:
    """Return a constant whose elements may be open sizes, as numbers of these sizes."""
    if not isinstance(data, np.ndarray) or not holds_open(data):
        return data
    numbers = [evaluate(n.expression, sizes) if is_open(n) else n for n in data.flat]
    return np.array(numbers, np.int64).reshape(data.shape)


class StagedExecutable(Executable):
    """A first program, and programs compiled for the sizes that its results decide."""

    runs: int = 0

    def __init__(self, stages: Stages, first: Executable, sizes: Sizes) -> None:
        """sizes: the open sizes of the program, which later parts may read."""
        self.parts = stages.parts
        self._shared = stages
        self._stops = stages.stops
        self._why = why_staged(self)
        self.first = first
        self._sizes = sizes
        self._specialised = 0
        self._states = stages.states
        self.counts = Counts()
        tally = stages.compiler.tally
        if tally is not None:
            self.counts = tally.of(self)
            if self._stops:
                tally.say(self._why, logging.INFO)
        self.is_rest = False
        """True for the rest of another staged executable."""
        self._compiler = stages.compiler
        self._lock = stages.lock
        self._loops = stages.loops
        self._is_native = isinstance(first, NativeExecutable)
        self._later_inputs = self._unchecked()
        self._sources = list(self.parts.sources.items())
        readers = Counter(source.result for _, source in self._sources)
        self._only_readers = {v for v, s in self._sources if readers[s.result] == 1}

    def __repr__(self) -> str:
        return f"StagedExecutable(first={self.first!r}, specialisations={self.specialisations})"

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        names = [name for name, _ in self.parts.whole.outputs]
        return deliver(names, self._run(feeds), out)

    def try_run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        """Run on dense arrays of the inputs' own types; None for anything else."""
        later = self._later_inputs
        if later is None or out:
            return None
        for name, shape, dtype in later:
            array = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
        made = self.first.try_run(feeds)
        return None if made is None else self._finish(feeds, made)

    def _unchecked(self) -> list[tuple[str, tuple[int, ...], Any]] | None:
        """Return the inputs that only later parts read; None if runs have to be prepared."""
        first = self.first
        if self._states or not isinstance(first, NativeExecutable):
            return None
        found: list[tuple[str, tuple[int, ...], Any]] = []
        read = first.input_shapes
        whole = self.parts.whole
        for name, value in zip(whole.input_names, whole.inputs, strict=True):
            if name in read:
                continue
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                return None
            dims = value.tensor.static
            shape = (evaluate(d.expression, self._sizes) if is_open(d) else d for d in dims)
            found.append((name, tuple(shape), value.dtype.numpy))
        return found

    def _run(self, feeds: Feeds) -> Outputs:
        if self._stops and self._compiler.recording():
            raise ExecutionError(
                "a run whose sizes data decide cannot be recorded into a caller's graph",
                given=self._why,
            )
        if self._states:
            feeds = {**feeds, **self._states}
        return self._finish(feeds, self.first.run(feeds))

    def _finish(self, feeds: Feeds, made: Outputs) -> Outputs:
        """Run what waits for the results of the first program; return all outputs."""
        self.runs += 1
        if self._stops and not self.is_rest:
            self.counts.fallbacks[self._why] += 1
        data = {v: source.read(made) for v, source in self._sources}
        for loop, turned in self._loops.items():
            found = turned.run([self._read(v, data, feeds) for v in loop.inputs], self._sizes)
            items = ((v, v.op) for v in self.parts.host_loops[loop])
            data |= {v: found[op.index] for v, op in items if isinstance(op, Item)}
        made = self._go_on(data, feeds) if self.parts.waiting else []
        if self._shared.only_later:
            return made
        later = dict(zip(self._shared.later, made, strict=True))
        results: dict[Value, Any] = {}
        for name, v in self.parts.whole.outputs:
            found = later[name] if name in later else self._output(v, data, feeds)
            results[v] = fresh(found) if v in results else found
            later[name] = results[v]
        return [later[name] for name, _ in self.parts.whole.outputs]

    def _output(self, value: Value, data: Mapping[Value, Any], feeds: Feeds) -> Any:
        found = self._read(value, data, feeds)
        source = self.parts.sources.get(value)
        if source is None:
            return fresh(found)
        if source.count is None:
            return found
        return found if value in self._only_readers and _fills(found) else fresh(found)

    def _read(self, value: Value, data: Mapping[Value, Any], feeds: Feeds) -> Any:
        if value in data:
            return data[value]
        if isinstance(value.op, Input):
            return feeds[value.op.label]
        return _at(value.op.reference(), self._sizes)

    def _go_on(self, data: Mapping[Value, Any], feeds: Feeds) -> Outputs:
        shared = self._shared
        given = [self._read(v, data, feeds) for v in shared.needed]
        with self._lock:
            executable = shared.rest.find(given, self._sizes)
        feeds = {name: given[i] for i, name in shared.fed}
        made = executable.try_run(feeds) if self._is_native else None
        return executable.run(feeds) if made is None else made

    @property
    def tier(self) -> str:
        return self.first.tier

    @property
    def stops(self) -> Sequence[str]:
        """The ops after which the host reads sizes; none if it only keeps state between runs."""
        return self._stops

    @property
    def stages(self) -> list[Executable]:
        with self._lock:
            return [self.first, *self._turns, *self._shared.rest.executables]

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
            return self._shared.rest.executables

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
        with self._lock:
            # Executables of several sizes share the later parts: each compilation counts once.
            new = self._shared.specialisations - self._shared.counted
            self._shared.counted += new
            self._specialised += new
            return self.first.specialisations + self._specialised


def compile_stages(graph: Graph, compiler: Compiling) -> Executable:
    """Compile a graph as far as its shapes are known; the rest follows when data tell them."""
    compiler.progress("generate", 0, 1)
    lowered = lower(graph, compiler.rules)
    made = compiler.executable(lowered.program)
    if lowered.split is not None:
        made = StagedExecutable(Stages(lowered, compiler), made, {})
    return ComplexExecutable(graph, made) if lowered.in_pairs else made


def compile_open(
    graph: Graph, compiler: Compiling, scope: SizeScope, shapes: Shapes, rest: bool = False
) -> ShapeCode:
    """Compile an optimised graph with open sizes, which are found from these numbers.

    rest: the graph is a later part of a program. Raises UnsupportedError for a graph whose first
    part is no single native function.
    """
    lowered = lower(graph, compiler.rules)
    if lowered.states or lowered.in_pairs:
        raise UnsupportedError(
            "open sizes go with native functions that keep nothing between runs",
            given="random ops" if lowered.states else "complex numbers",
        )
    code = compiler.open_program(lowered.program, scope, shapes)
    return code if lowered.split is None else OpenStages(lowered, code, compiler, rest)
