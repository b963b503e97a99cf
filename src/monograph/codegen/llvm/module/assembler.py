"""The functions of a program: which kernels run in which stage, and what each of them points to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.barrier import (
    ARENA,
    BARRIER_BYTES,
    CONSTANTS,
    FAULT_BYTES,
    FIRST_PORT,
    SHARING,
    SIZES,
    WEIGHTS,
    build_barrier,
)
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.kernel import (
    NAME,
    Kernel,
    LaidOut,
    LlvmFault,
    LlvmScratch,
    SizeEntry,
    SizeTable,
    Sync,
)
from monograph.codegen.llvm.module.memory import ConstantLayout, Ordering, zero_halo
from monograph.codegen.llvm.module.parts import BASE, build_next_part, build_part_done
from monograph.codegen.llvm.module.phases import meets, phases
from monograph.codegen.llvm.module.stamps import BEGIN, DECLARATIONS, END, Stamps
from monograph.ir import Array, Value, known
from monograph.ir.sizes import Size
from monograph.program.legalise.open_constants import open_number
from monograph.program.memory.buffer_assignment import CONSTANT, INPUT, OUTPUT, TEMPORARY, Buffer
from monograph.program.program import Program, Step

MODULES = 8
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
    meeting: tuple[str, ...] = ()
    """The functions with kernels whose threads wait for each other: they need all threads."""


@dataclass
class _Call:
    """A call of a kernel; where steps are timed, the first and the last one of a step write."""

    step: Step
    kernel: Kernel
    stamp_begin: bool = False
    stamp_end: bool = False


_Stage: TypeAlias = list[_Call]
"""The calls between two barriers."""


class Assembler:
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
        self.meeting: list[str] = []

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
            tuple(self.meeting),
        )

    def kernel_modules(self) -> list[str]:
        """Distribute the kernels to a few modules of about equal size."""
        parts: list[list[str]] = [[] for _ in range(min(MODULES, len(self.functions)))]
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
        made = [build_barrier(self.features)]
        if any("@next_part(" in text for text in segments):
            made += [build_next_part(self.features), build_part_done()]
        declared = {
            f"declare void @{name}({', '.join(['ptr'] * count + ['i64'])})"
            for name, count in self.arity.items()
        }
        declared |= set[str]().union(*(b.declarations for b in made))
        clock = DECLARATIONS if self.stamps is not None else set()
        return "\n".join([*sorted(declared | clock), *(b.text() for b in made), *segments])

    def segment(self, name: str, run: list[tuple[Step, Kernel]]) -> str:
        """Write a function that every thread runs: the stages of some steps.

        Steps do not overlap if they are timed.
        """
        b = Builder(name, [("context", "ptr"), ("tid", "i64"), ("threads", "i64")])
        cut = {step.index: phases(kernel) for step, kernel in run}
        whole = self.threads == 1 or any(map(meets, itertools.chain(*cut.values())))
        if whole and self.threads > 1:
            self.meeting.append(name)
        stages = self.stages(run, {} if whole else cut)
        loaded: set[int] = set()

        def slot(index: int) -> Reg:
            loaded.add(index)
            return Reg(f"%slot.{index}", "ptr")

        if whole:
            for number, stage in enumerate(stages):
                if number and self.threads > 1:
                    b.line("call void @barrier(ptr %context, i64 %threads)")
                self.work(b, slot, stage, b.arguments["tid"])
        else:
            self.shared(b, slot, stages)
        b.ret()
        for index in sorted(loaded, reverse=True):
            at = f"getelementptr inbounds i8, ptr %context, i64 {BARRIER_BYTES + 8 * index}"
            load = f"  %slot.{index} = load ptr, ptr %slot.at.{index}, align 8"
            b.lines[:0] = [f"  %slot.at.{index} = {at}", load]
        self.load_sizes(b)
        return b.text()

    def stages(
        self, run: list[tuple[Step, Kernel]], cut: Mapping[int, Sequence[Kernel]]
    ) -> list[_Stage]:
        """Return the kernels to run between barriers; `cut` are the pieces of kernels."""
        stages: list[_Stage] = []
        if self.pending:
            stages.append([_Call(step, clearing) for step, clearing in self.pending])
        self.pending.clear()
        ordering = Ordering(self.program.places, self.offsets)
        for number, (step, kernel) in enumerate(run):
            waits = ordering.waits(step, kernel, self.scratch)
            if not number or waits or self.stamps is not None:
                stages.append([])
            # The halo and the step's result do not overlap: no barrier between them.
            pieces = cut.get(step.index, [kernel])
            first = [*self.halos(step), pieces[0]]
            stages[-1] += [_Call(step, k, stamp_begin=k is first[0]) for k in first]
            stages += [[_Call(step, piece)] for piece in pieces[1:]]
            stages[-1][-1].stamp_end = True
        return stages

    def shared(self, b: Builder, slot: Callable[[int], Reg], stages: list[_Stage]) -> None:
        """Write stages whose parts are claimed by the threads that are there."""
        area = b.load("ptr", b.offset(b.arguments["context"], SHARING), 8)
        base = b.load("i64", b.offset(area, BASE), 8)
        for number, stage in enumerate(stages):
            again, work, done = (b.new_label(stem) for stem in ("stage", "work", "done"))
            which = b.i64(b.add(base, number))
            last = "true" if number == len(stages) - 1 else "false"
            b.jump(again)
            b.label(again)
            given = f"ptr %context, i64 {which}, i64 %tid, i1 {last}"
            part = b.set("i64", f"call i64 @next_part({given})")
            b.branch(b.compare("sge", part, Reg("0", "i64")), work, done)
            b.label(work)
            self.work(b, slot, stage, part)
            b.line(f"call void @part_done(ptr %context, i64 {which})")
            b.jump(again)
            b.label(done)

    def work(self, b: Builder, slot: Callable[[int], Reg], stage: _Stage, part: Reg) -> None:
        """Write the calls of a stage for one part."""
        for call in stage:
            if self.stamps is not None and call.stamp_begin:
                self.stamps.write(b, slot(ARENA), part, call.step.index, BEGIN)
            self.call(b, slot, call.step, call.kernel, part)
            if self.stamps is not None and call.stamp_end:
                self.stamps.write(b, slot(ARENA), part, call.step.index, END)

    def load_sizes(self, b: Builder) -> None:
        """Load the open sizes that a function uses, before all else."""
        if not b.load_sizes(Reg("%sizes", "ptr")):
            return
        at = f"getelementptr inbounds i8, ptr %context, i64 {BARRIER_BYTES + 8 * SIZES}"
        b.lines[:0] = [f"  %sizes.at = {at}", "  %sizes = load ptr, ptr %sizes.at, align 8"]

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

    def call(
        self, b: Builder, slot: Callable[[int], Reg], step: Step, kernel: Kernel, part: Reg
    ) -> None:
        """Write the call of a kernel; equal kernels share their text."""
        count = len(kernel.arguments)
        pointers = [self.pointer(b, slot, step, i, kernel) for i in range(count)]
        target = self.functions.setdefault(kernel.text, f"kernel{len(self.functions)}")
        self.arity[target] = count
        self.declarations |= kernel.declarations
        listed = ", ".join(f"ptr {p}" for p in pointers)
        b.line(f"call void @{target}({listed}{', ' if pointers else ''}i64 {part})")

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
        if isinstance(argument, SizeEntry):
            return self.size(b, load, argument.size)
        if isinstance(argument, LlvmFault):
            self.faults.append((step, argument))
            slots = FIRST_PORT + len(self.ports)
            at = BARRIER_BYTES + 8 * slots + FAULT_BYTES * (len(self.faults) - 1)
            return b.offset(b.arguments["context"], at)
        assert isinstance(argument, Value)
        buffer = self.program.places.storage[argument].buffer
        if buffer.kind == TEMPORARY:
            return b.offset(load(ARENA), self.offsets[buffer.id])
        if buffer.kind == CONSTANT and (size := open_number(argument)) is not None:
            return self.size(b, load, size)
        if buffer.kind == CONSTANT:
            return self.constant(b, load, self.weights(argument))
        return load(self.slot[buffer.id])

    def size(self, b: Builder, load: Callable[[int], Reg], size: Size) -> Reg:
        """The pointer to a constant that is an open size: the table is its memory."""
        return b.offset(load(SIZES), 8 * size.scope.slot(size.expression))

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
            self.weights_at[value] = self.constants.add(data)
        return self.weights_at[value]
