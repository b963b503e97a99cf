"""What a kernel is to the rest of the target: text, and the pointers it wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.registry import KernelRegistry
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.barrier import BARRIER_BYTES
from monograph.codegen.llvm.module.bounds_checks import GUARD, Extent, Instrumented
from monograph.codegen.llvm.module.context import FAULT_BYTES
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, Value
from monograph.program.memory.buffer_assignment import OWN, described
from monograph.program.program import Program, Step


@dataclass(frozen=True)
class LlvmPacked:
    """A constant in the form a kernel wants, prepared while compiling."""

    array: Array


@dataclass(frozen=True)
class LaidOut:
    """A packed constant that has its place among the constants of the program."""

    offset: int


@dataclass(frozen=True)
class LlvmScratch:
    """Memory that a kernel needs while it runs, contents undefined."""

    nbytes: int


@dataclass(frozen=True)
class LlvmFault:
    """A place to say that data does not fit: what the run then fails with.

    A kernel that finds such data goes on with something harmless (see `report`).
    """

    message: str
    expected: str = ""
    shows_data: bool = True
    """Whether the number that comes with it says anything."""
    buffers: tuple[str, ...] = ()
    """For accesses outside of buffers, which are faults of Monograph's own: the buffers, in the
    order in which they are reported by their numbers from 1."""


@dataclass(frozen=True)
class Sync:
    """The barrier's state, for a kernel whose threads wait for each other (see `synchronise`)."""


Argument: TypeAlias = Value | LlvmPacked | LaidOut | LlvmScratch | LlvmFault | Sync


@dataclass(frozen=True)
class Kernel:
    """A function `void name(ptr ..., i64 tid)` and what its pointers point to.

    A pointer to a value points to the start of its buffer: offset and strides are in the text.
    """

    text: str
    arguments: tuple[Argument, ...]
    declarations: frozenset[str]
    flops: float = 0.0
    extents: tuple[Extent, ...] = ()
    """The bytes behind each pointer."""
    bounds_checks: int = 0
    """Addresses that are checked because no proof covers them."""


OUTSIDE = "an address is outside of its buffer"
NAME = "KERNEL"
"""Stands for the function's name in the text, so that equal kernels have equal text."""


@dataclass
class KernelContext:
    """What a kernel generator knows: the program, the step, the machine."""

    program: Program
    step: Step
    features: Features
    threads: int
    winograd: bool = True
    """Whether convolutions may reassociate their sums to save multiplications."""
    checked: bool = False
    """Whether every access to memory is checked."""
    arguments: list[Argument] = field(default_factory=list)

    def argument(self, what: Argument) -> int:
        """The position of a pointer; asking twice for a value gives the same one."""
        if isinstance(what, Value) and what in self.arguments:
            return self.arguments.index(what)
        self.arguments.append(what)
        return len(self.arguments) - 1

    def builder(self, count: int) -> Builder:
        """A function body with so many pointers."""
        pointers = [(f"p{i}", "ptr") for i in range(count)]
        arguments = [*pointers, ("tid", "i64")]
        return Builder(NAME, arguments, features=self.features, checked=self.checked)

    def finish(self, b: Builder, flops: float = 0.0) -> Kernel:
        b.ret()
        extents = [self.extent(a) for a in self.arguments]
        return finished(b, self.arguments, extents, flops)

    def extent(self, argument: Argument) -> Extent:
        """The bytes that an argument points to."""
        if isinstance(argument, Value):
            buffer = self.program.places.storage[argument].buffer
            return Extent(buffer.nbytes, described(buffer), slack=buffer.kind in OWN)
        if isinstance(argument, LlvmPacked):
            return Extent(argument.array.nbytes, "a packed constant", slack=True)
        if isinstance(argument, LlvmScratch):
            return Extent(argument.nbytes, "scratch memory", slack=True)
        assert not isinstance(argument, LaidOut)
        is_fault = isinstance(argument, LlvmFault)
        return Extent(FAULT_BYTES if is_fault else BARRIER_BYTES, "the context")


KernelGenerator: TypeAlias = Callable[[KernelContext], Kernel]
KERNELS: KernelRegistry[KernelGenerator] = KernelRegistry("monograph.codegen.llvm")
kernel_for = KERNELS.kernel_for


def no_work(context: KernelContext) -> Kernel:
    """Generate an empty kernel, for results without elements."""
    return context.finish(context.builder(0))


def finished(
    b: Builder, arguments: Sequence[Argument], extents: Sequence[Extent], flops: float = 0.0
) -> Kernel:
    """A kernel whose text is written; its accesses are checked where that is asked for."""
    given = list(arguments)
    if b.checked or b.guards:
        labels = [f"{e.high} bytes of {e.label}" for e in extents]
        given.append(LlvmFault(OUTSIDE, buffers=("memory of the kernel's own", *labels)))
        extents = [*extents, Extent(FAULT_BYTES, "the context")]
        b.signature = b.signature.replace("i64 %tid", f"ptr %{GUARD}, i64 %tid")
    if b.checked:
        names = [*(f"%p{i}" for i in range(len(arguments))), f"%{GUARD}"]
        b.lines = Instrumented(b.lines, dict(zip(names, extents, strict=True))).text()
    declarations = frozenset(b.declarations)
    return Kernel(b.text(), tuple(given), declarations, flops, tuple(extents), b.guards)


def share(b: Builder, units: int, threads: int, multiple: int = 1) -> tuple[Int, Int]:
    """This thread's part of some units of work: [low, high), in whole multiples."""
    if threads == 1:
        return 0, units
    tid = b.arguments["tid"]
    blocks = -(-units // multiple)
    low = b.div(b.mul(tid, blocks), threads)
    high = b.div(b.mul(b.add(tid, 1), blocks), threads)
    if multiple == 1:
        return low, high
    return b.mul(low, multiple), b.minimum(b.mul(high, multiple), units)


def report(b: Builder, position: int, wrong: Reg, given: Reg) -> None:
    """Where a condition holds, writes into the fault at an argument: that it came, and the data."""

    def write() -> None:
        fault = b.arguments[f"p{position}"]
        b.store(given, b.offset(fault, 8), 8)
        b.store(Reg("1", "i64"), fault, 8)

    b.when(wrong, write)


def synchronise(b: Builder, position: int, threads: int) -> None:
    """Waits for all threads; what they wrote before is seen after. The argument is a `Sync`."""
    if threads > 1:
        b.line(f"call void @barrier(ptr %p{position}, i64 {threads})")


def pointers(b: Builder, arguments: Sequence[Argument]) -> dict[Value, Reg]:
    """The pointer of every value among the arguments."""
    return {a: b.arguments[f"p{i}"] for i, a in enumerate(arguments) if isinstance(a, Value)}
