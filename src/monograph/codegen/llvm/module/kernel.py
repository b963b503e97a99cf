"""The interface of CPU kernels: text, and the pointers they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.registry import KernelRegistry
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.barrier import BARRIER_BYTES, FAULT_BYTES
from monograph.codegen.llvm.module.bounds_checks import GUARD, Extent, Instrumented
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, Value
from monograph.ir.sizes import Size
from monograph.program.memory.buffer_assignment import OWN, described
from monograph.program.program import Program, Step


@dataclass(frozen=True)
class LlvmPacked:
    """A constant in the form that a kernel needs, prepared at compile time."""

    array: Array


@dataclass(frozen=True)
class LaidOut:
    """A constant: its offset in the program's block, or its number among the shared weights."""

    offset: int
    weight: int = -1


@dataclass(frozen=True)
class LlvmScratch:
    """Memory that a kernel needs while it runs, with undefined contents."""

    nbytes: int


@dataclass(frozen=True)
class LlvmFault:
    """A fault that a kernel reports for invalid data, which fails the run.

    A kernel that finds such data continues with harmless values (see `report`).
    """

    message: str
    expected: str = ""
    shows_data: bool = True
    """True if the reported number is meaningful."""
    buffers: tuple[str, ...] = ()
    """For accesses outside of buffers, which are faults of Monograph: the buffers in the order of
    their reported numbers, from 1.
    """


@dataclass(frozen=True)
class Sync:
    """The barrier state, for a kernel whose threads wait for each other (see `synchronise`)."""


@dataclass(frozen=True)
class SizeTable:
    """The table of open sizes, for a kernel that reads some (see `monograph.ir.sizes`)."""


@dataclass(frozen=True)
class SizeEntry:
    """The entry of an open size in the table, for a kernel that reads a constant's memory."""

    size: Size


Argument: TypeAlias = (
    Value | LlvmPacked | LaidOut | LlvmScratch | LlvmFault | Sync | SizeTable | SizeEntry
)


@dataclass(frozen=True)
class Kernel:
    """A function `void name(ptr ..., i64 tid)` and the values its pointers point to.

    A pointer to a value points to the start of its buffer: offset and strides are in the text.
    """

    text: str
    arguments: tuple[Argument, ...]
    declarations: frozenset[str]
    extents: tuple[Extent, ...] = ()
    """The bytes accessible from each pointer."""
    bounds_checks: int = 0
    """The number of addresses that are checked because no proof covers them."""


OUTSIDE = "an address is outside of its buffer"
NAME = "KERNEL"
"""The placeholder for the function's name, so that equal kernels have equal text."""


@dataclass
class KernelContext:
    """The input of a kernel generator: the program, the step, the machine."""

    program: Program
    step: Step
    features: Features
    threads: int
    winograd: bool = True
    """True if convolutions may reassociate their sums to save multiplications."""
    checked: bool = False
    """True if every memory access is checked."""
    arguments: list[Argument] = field(default_factory=list)

    @property
    def anchor(self) -> Value:
        """The op of the step that needs a kernel of its own."""
        anchor = self.step.region.anchor
        assert anchor is not None
        return anchor

    def argument(self, what: Argument) -> int:
        """Return the position of a pointer; the same value always has the same one."""
        if isinstance(what, Value) and what in self.arguments:
            return self.arguments.index(what)
        self.arguments.append(what)
        return len(self.arguments) - 1

    def add(self, *arguments: Argument) -> None:
        """Add pointers that the kernel needs, in this order."""
        for what in arguments:
            self.argument(what)

    def builder(self, spare: int = 0) -> Builder:
        """Return a function body with a pointer for each argument so far, and some to spare."""
        pointers = [(f"p{i}", "ptr") for i in range(len(self.arguments) + spare)]
        arguments = [*pointers, ("tid", "i64")]
        return Builder(NAME, arguments, features=self.features, checked=self.checked)

    def finish(self, b: Builder) -> Kernel:
        b.ret()
        extents = [self.extent(a) for a in self.arguments]
        return finished(b, self.arguments, extents)

    def extent(self, argument: Argument) -> Extent:
        """The bytes that an argument points to."""
        if isinstance(argument, Value):
            buffer = self.program.places.storage[argument].buffer
            return Extent(buffer.nbytes, described(buffer), slack=buffer.kind in OWN)
        if isinstance(argument, LlvmPacked):
            return Extent(argument.array.nbytes, "a packed constant", slack=True)
        if isinstance(argument, LlvmScratch):
            return Extent(argument.nbytes, "scratch memory", slack=True)
        if isinstance(argument, SizeEntry):
            return Extent(8, "an open size", slack=True)
        assert not isinstance(argument, LaidOut)
        is_fault = isinstance(argument, LlvmFault)
        return Extent(FAULT_BYTES if is_fault else BARRIER_BYTES, "the context")


KernelGenerator: TypeAlias = Callable[[KernelContext], Kernel]
KERNELS: KernelRegistry[KernelGenerator] = KernelRegistry("monograph.codegen.llvm")
kernel_for = KERNELS.kernel_for


def no_work(context: KernelContext) -> Kernel:
    """Generate an empty kernel, for results without elements."""
    return context.finish(context.builder())


def finished(b: Builder, arguments: Sequence[Argument], extents: Sequence[Extent]) -> Kernel:
    """Return the finished kernel; its accesses are checked if requested."""
    given = list(arguments)
    if b.checked or b.guards:
        labels = [f"{e.high} bytes of {e.label}" for e in extents]
        given.append(LlvmFault(OUTSIDE, buffers=("memory of the kernel's own", *labels)))
        extents = [*extents, Extent(FAULT_BYTES, "the context")]
        b.signature = b.signature.replace("i64 %tid", f"ptr %{GUARD}, i64 %tid")
    if b.checked:
        names = [*(f"%p{i}" for i in range(len(arguments))), f"%{GUARD}"]
        b.lines = Instrumented(b.lines, dict(zip(names, extents, strict=True)), b.spans).text()
    if b.load_sizes(Reg("%sizes", "ptr")):
        given.append(SizeTable())
        b.signature = b.signature.replace("i64 %tid", "ptr %sizes, i64 %tid")
    declarations = frozenset(b.declarations)
    return Kernel(b.text(), tuple(given), declarations, tuple(extents), b.guards)


def share(b: Builder, units: Int, threads: int, multiple: int = 1) -> tuple[Int, Int]:
    """Return this thread's range of some units of work, [low, high), in whole multiples."""
    if threads == 1:
        return 0, units
    tid = b.arguments["tid"]
    blocks = b.div(b.add(units, multiple - 1), multiple)
    low = b.div(b.mul(tid, blocks), threads)
    high = b.div(b.mul(b.add(tid, 1), blocks), threads)
    if multiple == 1:
        return low, high
    return b.mul(low, multiple), b.minimum(b.mul(high, multiple), units)


def report(b: Builder, position: int, wrong: Reg, given: Reg) -> None:
    """If a condition holds, write the flag and the data into the fault at an argument."""

    def write() -> None:
        fault = b.arguments[f"p{position}"]
        b.store(given, b.offset(fault, 8), 8)
        b.store(Reg("1", "i64"), fault, 8)

    b.when(wrong, write)


def synchronise(b: Builder, position: int, threads: int) -> None:
    """Wait for all threads, whose earlier writes are visible then. The argument is a `Sync`."""
    if threads > 1:
        b.line(f"call void @barrier(ptr %p{position}, i64 {threads})")


def pointers(b: Builder, arguments: Sequence[Argument]) -> dict[Value, Reg]:
    """The pointer of every value among the arguments."""
    return {a: b.arguments[f"p{i}"] for i, a in enumerate(arguments) if isinstance(a, Value)}
