"""A program as one native function: kernels in order, barriers between dependent ones.

Code that is compiled for profiling has time stamps around steps. Every thread records when it
begins a step and when it has finished it, before it waits for others. The clock is the system's
monotonic one: it needs no calibration, agrees between cores, and is the one that Python reads, so
that host steps share its time line. Reading it costs about 20 ns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.barrier import (
    ARENA,
    BARRIER_BYTES,
    CONSTANTS,
    FAULT_BYTES,
    FIRST_PORT,
    SIZES,
    WEIGHTS,
    build_barrier,
)
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.kernel import (
    NAME,
    Kernel,
    KernelContext,
    LaidOut,
    LlvmFault,
    LlvmPacked,
    LlvmScratch,
    SizeTable,
    Sync,
)
from monograph.codegen.llvm.module.memory import ConstantLayout, Ordering, zero_halo
from monograph.codegen.llvm.module.select import generator
from monograph.errors import InternalError, UnsupportedError
from monograph.ir import Array, TensorType, Value, known
from monograph.ir.sizes import any_open
from monograph.ops.attention import Attention
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.linear import Dot
from monograph.ops.pool import Pool
from monograph.program.memory.buffer_assignment import CONSTANT, INPUT, OUTPUT, TEMPORARY, Buffer
from monograph.program.memory.memory_planner import ALIGNMENT, Lifetime, plan
from monograph.program.program import Program, Step, lifetimes

BEGIN, END = 0, 1
STAMP_BYTES = 16
"""A timespec as 64-bit systems have it: i64 seconds, i64 nanoseconds."""
_NANOSECONDS = 1_000_000_000
_CLOCK = "clock_gettime"
DECLARATIONS = frozenset({f"declare i32 @{_CLOCK}(i32, ptr)"})


@dataclass(frozen=True)
class Stamps:
    """The location of the stamps in the arena: one row per thread, two stamps per step."""

    offset: int
    threads: int
    steps: int

    @property
    def row_bytes(self) -> int:
        # Threads write at the same time: their rows must not share a cache line.
        return -(-2 * STAMP_BYTES * self.steps // ALIGNMENT) * ALIGNMENT

    @property
    def stop(self) -> int:
        """The first byte after them."""
        return self.offset + self.threads * self.row_bytes

    def write(self, b: Builder, arena: Reg, step: int, which: int) -> None:
        """Write the current time, at the beginning or the end of a step."""
        row = b.offset(arena, b.mul(b.arguments["tid"], self.row_bytes))
        place = b.offset(row, self.offset + STAMP_BYTES * (2 * step + which))
        b.line(f"call i32 @{_CLOCK}(i32 {time.CLOCK_MONOTONIC}, ptr {place})")

    def read(self, arena: Array) -> Array:
        """Return the nanoseconds [thread, step, begin or end] of the last run."""
        rows = arena[self.offset : self.stop].reshape(self.threads, self.row_bytes)
        pairs = rows[:, : 2 * STAMP_BYTES * self.steps].copy().view(np.int64)
        seconds = pairs.reshape(self.threads, self.steps, 2, 2)
        times: Array = seconds[..., 0] * _NANOSECONDS + seconds[..., 1]
        return times


PARTS = 8
"""The number of modules that kernels are distributed to, which compile in parallel."""


@dataclass(frozen=True)
class Segment:
    """Native steps that run as one function."""

    function: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Module:
    """A compiled program before code generation: text, data, and the shape of its context."""

    texts: tuple[str, ...]
    constants: Array
    weights: dict[str, Array]
    """Large constants by digest, which other programs of the process may read too."""
    arena_bytes: int
    ports: tuple[Buffer, ...]
    segments: tuple[Segment | Step, ...]
    """Native segments, and the host steps between them."""
    offsets: dict[int, int]
    """The offset of each temporary buffer in the arena."""
    faults: tuple[tuple[Step, LlvmFault], ...] = ()
    """The faults that the words after the slots of the context stand for."""
    stamps: Stamps | None = None
    """The location of time stamps of each thread and step, if there are any."""
    bounds_checks: int = 0
    """The number of addresses that no proof covers: every run checks them."""


def compile_program(
    program: Program,
    features: Features,
    threads: int,
    winograd: bool = True,
    *,
    timed: bool = False,
    apart: bool = False,
    checked: bool = False,
) -> Module:
    """Return the text of a program's native functions, and the constants they read.

    timed: every thread records the begin and end of each step. apart: every step is a function of
    its own, so that its results can be read. checked: every memory access is checked against its
    buffer.
    """
    constants = ConstantLayout(SLACK)
    kernels = [
        _laid_out(_kernel(program, step, features, threads, winograd, checked), constants)
        for step in program.steps
    ]
    scratch: dict[tuple[int, int], int] = {}
    lives = lifetimes(program.steps, program.places)
    for step, kernel in zip(program.steps, kernels, strict=True):
        for position, argument in enumerate(kernel.arguments if kernel else ()):
            if isinstance(argument, LlvmScratch):
                key = -1 - len(scratch)
                scratch[step.index, position] = key
                lives.append(Lifetime(key, argument.nbytes, step.index, step.index))
    memory = plan(lives)
    # After the slack at the arena's end.
    stamps = Stamps(memory.size + SLACK, threads, len(program.steps)) if timed else None
    assembler = _Assembler(
        program, features, threads, memory.offsets, scratch, constants, stamps, apart, checked
    )
    return assembler.module(kernels, memory.size if stamps is None else stamps.stop)


def _kernel(
    program: Program, step: Step, features: Features, threads: int, winograd: bool, checked: bool
) -> Kernel | None:
    make = generator(step.region)
    if make is None:
        return None
    context = KernelContext(program, step, features, threads, winograd, checked)
    if _makes_nothing(step):
        return _no_work(context)
    try:
        return make(context)
    except InternalError as error:
        raise error.at(step.origin or None, f"step {step.index}, {step.region.kind}") from None


def _no_work(context: KernelContext) -> Kernel:
    """Return a kernel without work; later steps wait for it: its results may have a halo."""
    context.add(*context.step.region.outputs)
    return context.finish(context.builder())


def _makes_nothing(step: Step) -> bool:
    """Return True if all results of a step are empty, and it checks none of its data."""
    anchor = step.region.anchor
    if anchor is not None and not isinstance(anchor.op, _UNCHECKED):
        return False
    types = [v.type for v in step.region.outputs]
    return all(isinstance(t, TensorType) and t.is_static and t.size == 0 for t in types)


_UNCHECKED = (Attention, Conv, ConvTranspose, Dot, Pool)
"""Ops whose kernels tile their results, and take any data."""


def _laid_out(kernel: Kernel | None, constants: ConstantLayout) -> Kernel | None:
    """Return a kernel without its packed constants: these are as large as the model's weights."""
    if kernel is None or not any(isinstance(a, LlvmPacked) for a in kernel.arguments):
        return kernel
    arguments = tuple(
        constants.add(a.array) if isinstance(a, LlvmPacked) else a for a in kernel.arguments
    )
    return replace(kernel, arguments=arguments)


class _Assembler:
    """Lays out constants and writes the functions that call the kernels."""

    def __init__(
        self,
        program: Program,
        features: Features,
        threads: int,
        offsets: dict[int, int],
        scratch: dict[tuple[int, int], int],
        constants: ConstantLayout,
        stamps: Stamps | None,
        apart: bool,
        checked: bool,
    ) -> None:
        self.stamps = stamps
        self.apart = apart
        self.checked = checked
        self.program = program
        self.features = features
        self.threads = threads
        self.cleared: set[int] = set()
        self.pending: list[tuple[Step, Kernel]] = []
        """Halos of buffers that a host step has written."""
        self.offsets = offsets
        self.scratch = scratch
        self.ports = tuple(b for b in program.places.buffers if b.kind in (INPUT, OUTPUT))
        self.slot = {b.id: FIRST_PORT + i for i, b in enumerate(self.ports)}
        self.constants = constants
        self.weights_at: dict[Value, LaidOut] = {}
        self.functions: dict[str, str] = {}
        self.arity: dict[str, int] = {}
        self.declarations: set[str] = set()
        self.faults: list[tuple[Step, LlvmFault]] = []

    def module(self, kernels: list[Kernel | None], arena: int) -> Module:
        segments: list[Segment | Step] = []
        texts: list[str] = []
        run: list[tuple[Step, Kernel]] = []

        def flush() -> None:
            if run:
                name = f"segment{len(segments)}"
                texts.append(self.segment(name, run))
                segments.append(Segment(name, tuple(s for s, _ in run)))
                run.clear()

        for step, kernel in zip(self.program.steps, kernels, strict=True):
            if kernel is not None:
                run.append((step, kernel))
                if self.apart:
                    flush()
            else:
                flush()
                segments.append(step)
                self.pending += [(step, clearing) for clearing in self.halos(step)]
        flush()
        constants, weights = self.constants.finish()
        return Module(
            (*self.kernel_modules(), self.main_module(texts)),
            constants,
            weights,
            arena + SLACK,
            self.ports,
            tuple(segments),
            self.offsets,
            tuple(self.faults),
            self.stamps,
            sum(k.bounds_checks for k in kernels if k is not None),
        )

    def kernel_modules(self) -> list[str]:
        """Distribute the kernels to a few modules of about equal size."""
        parts: list[list[str]] = [[] for _ in range(min(PARTS, len(self.functions)))]
        for text, name in sorted(self.functions.items(), key=lambda item: -len(item[0])):
            smallest = min(parts, key=lambda p: sum(map(len, p)))
            own = text.replace(f"@{NAME}.", f"@{name}.")
            smallest.append(own.replace(f"@{NAME}(", f"@{name}("))
        # Unused declarations do no harm, so every module has all of them.
        barrier = build_barrier(self.features)
        declared = "\n".join(sorted(self.declarations | barrier.declarations))
        return ["\n".join([declared, barrier.text(), *part]) for part in parts]

    def main_module(self, segments: list[str]) -> str:
        """The functions that call the kernels, and the barrier between them."""
        barrier = build_barrier(self.features)
        declared = {
            f"declare void @{name}({', '.join(['ptr'] * count + ['i64'])})"
            for name, count in self.arity.items()
        }
        clock = DECLARATIONS if self.stamps is not None else set()
        parts = [*sorted(declared | barrier.declarations | clock), barrier.text(), *segments]
        return "\n".join(parts)

    def segment(self, name: str, run: list[tuple[Step, Kernel]]) -> str:
        """Write a function that every thread runs: kernels, with barriers where needed.

        Steps do not overlap if they are timed.
        """
        b = Builder(name, [("context", "ptr"), ("tid", "i64"), ("threads", "i64")])
        loaded: dict[int, Reg] = {}

        def slot(index: int) -> Reg:
            if index not in loaded:
                at = b.offset(b.arguments["context"], BARRIER_BYTES + 8 * index)
                loaded[index] = b.load("ptr", at, 8)
            return loaded[index]

        for step, clearing in self.pending:
            self.call(b, slot, step, clearing)
        if self.pending:
            b.line("call void @barrier(ptr %context, i64 %threads)")
        self.pending.clear()
        ordering = Ordering(self.program.places, self.offsets)
        for number, (step, kernel) in enumerate(run):
            waits = ordering.waits(step, kernel, self.scratch)
            if number and (waits or self.stamps is not None):
                b.line("call void @barrier(ptr %context, i64 %threads)")
            self.stamp(b, slot, step, BEGIN)
            # The halo and the step's result do not overlap: no barrier between them.
            for clearing in self.halos(step):
                self.call(b, slot, step, clearing)
            self.call(b, slot, step, kernel)
            self.stamp(b, slot, step, END)
        b.ret()
        self.load_sizes(b)
        return b.text()

    def load_sizes(self, b: Builder) -> None:
        """Load the open sizes that a function uses, before all else."""
        if not b.load_sizes(Reg("%sizes", "ptr")):
            return
        at = f"getelementptr inbounds i8, ptr %context, i64 {BARRIER_BYTES + 8 * SIZES}"
        b.lines[:0] = [f"  %sizes.at = {at}", "  %sizes = load ptr, ptr %sizes.at, align 8"]

    def stamp(self, b: Builder, slot: Callable[[int], Reg], step: Step, which: int) -> None:
        if self.stamps is not None:
            self.stamps.write(b, slot(ARENA), step.index, which)

    def halos(self, step: Step) -> list[Kernel]:
        """Return kernels that clear the halos of buffers that a step writes first."""
        found = []
        for value in step.region.outputs:
            place = self.program.places.storage.get(value)
            if place is None or not place.buffer.has_halo or place.buffer.id in self.cleared:
                continue
            self.cleared.add(place.buffer.id)
            found.append(zero_halo(value, place.buffer, self.threads, self.checked))
        return found

    def call(self, b: Builder, slot: Callable[[int], Reg], step: Step, kernel: Kernel) -> None:
        """Write the call of a kernel; equal kernels share their text."""
        count = len(kernel.arguments)
        pointers = [self.pointer(b, slot, step, i, kernel) for i in range(count)]
        target = self.functions.setdefault(kernel.text, f"kernel{len(self.functions)}")
        self.arity[target] = count
        self.declarations |= kernel.declarations
        listed = ", ".join(f"ptr {p}" for p in pointers)
        b.line(f"call void @{target}({listed}{', ' if pointers else ''}i64 %tid)")

    def pointer(
        self,
        b: Builder,
        load: Callable[[int], Reg],
        step: Step,
        position: int,
        kernel: Kernel,
    ) -> Reg:
        """The pointer that a kernel gets for one of its arguments."""
        argument = kernel.arguments[position]
        if isinstance(argument, LaidOut):
            return self.constant(b, load, argument)
        if isinstance(argument, LlvmScratch):
            return b.offset(load(ARENA), self.offsets[self.scratch[step.index, position]])
        if isinstance(argument, Sync):
            return b.arguments["context"]
        if isinstance(argument, SizeTable):
            return load(SIZES)
        if isinstance(argument, LlvmFault):
            self.faults.append((step, argument))
            slots = FIRST_PORT + len(self.ports)
            at = BARRIER_BYTES + 8 * slots + FAULT_BYTES * (len(self.faults) - 1)
            return b.offset(b.arguments["context"], at)
        assert isinstance(argument, Value)
        buffer = self.program.places.storage[argument].buffer
        if buffer.kind == TEMPORARY:
            return b.offset(load(ARENA), self.offsets[buffer.id])
        if buffer.kind == CONSTANT:
            return self.constant(b, load, self.weights(argument))
        return load(self.slot[buffer.id])

    def constant(self, b: Builder, load: Callable[[int], Reg], place: LaidOut) -> Reg:
        """The pointer to a constant; that of a shared one is in the table of weights."""
        if place.weight < 0:
            return b.offset(load(CONSTANTS), place.offset)
        return b.load("ptr", b.offset(load(WEIGHTS), 8 * place.weight), 8)

    def weights(self, value: Value) -> LaidOut:
        """The place of a constant of the graph."""
        if value not in self.weights_at:
            data = known(value)
            assert data is not None
            if any_open(data.flat):
                # Kernels read an open size from the table of sizes.
                if data.size > 1:
                    raise UnsupportedError("a vector of open sizes has no memory", given=value.type)
                data = np.zeros(1, np.int64)
            self.weights_at[value] = self.constants.add(data)
        return self.weights_at[value]
