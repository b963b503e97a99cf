"""What a kernel is to the rest of the GPU target: source, the buffers it wants, and its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from monograph.codegen.common.registry import KernelRegistry
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.writer import Writer
from monograph.ir import Array, DType, Value, known
from monograph.ir.dtype import i64
from monograph.ir.types import digest_of
from monograph.program.program import Program, Step

OUTSIDE = "an address is outside of its buffer"
NAME = "KERNEL"
"""Stands for the function's name in the source, so that equal kernels have equal source."""


@dataclass(frozen=True)
class Arch:
    """A GPU architecture, as Triton names it."""

    backend: str
    """cuda or hip."""
    name: str
    """sm_90, gfx942 ..."""
    warp: int = 32
    interpreted: bool = False
    """Whether Triton's interpreter stands in for the device."""

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel may start before the one it depends on has ended."""
        return self.backend == "cuda" and int(self.name.removeprefix("sm_")) >= 90

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class TritonPacked:
    """A constant in the form that a kernel wants, prepared while compiling."""

    array: Array
    dtype: DType

    @cached_property
    def digest(self) -> bytes:
        """Of its bytes: weights may be gigabytes, and every rival for a step has the same."""
        return digest_of(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)


@dataclass(frozen=True, eq=False)
class TritonScratch:
    """Memory that a step needs while it runs; zero before the first run where `zeroed`.

    A kernel that needs zeros leaves zeros behind.
    """

    nbytes: int
    dtype: DType
    zeroed: bool = False


@dataclass(frozen=True)
class TritonFault:
    """A place to say that data does not fit: what the run then fails with (see `report`)."""

    message: str
    expected: str = ""
    dtype: DType = i64
    shows_data: bool = True
    """Whether the data say what is wrong."""
    internal: bool = False
    """Whether it is a fault of Monograph's own, not of the data."""


@dataclass(frozen=True, eq=False)
class BufferView:
    """The memory of another argument from some byte on, as elements of a type.

    A library's function sees them in a shape, strided; without one, flat.
    """

    of: Value | TritonPacked | TritonScratch
    offset: int
    dtype: DType
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    nbytes: int = -1
    """The bytes of the buffer from there on; -1 for all that the other argument has."""
    below: int = 0
    """The bytes of the buffer before there."""


Argument: TypeAlias = Value | TritonPacked | TritonScratch | TritonFault | BufferView


@dataclass(frozen=True)
class Launch:
    """One Triton kernel on a grid. Pointers of values start at the value's first element."""

    source: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    warps: int = 4
    stages: int = 2
    dependent: bool = False
    """Whether the kernel waits by itself for the ones before it (dependent launch)."""
    step: Step | None = None
    """The step of a sub-program that it belongs to."""
    bounds_checks: int = 0
    """Addresses that it checks because no proof covers them."""


@dataclass(frozen=True)
class Call:
    """A library's function on tensors, strided as the values lie in memory."""

    name: str
    arguments: tuple[Argument, ...]
    function: Callable[..., None]
    step: Step | None = None
    """The step of a sub-program that it belongs to."""


@dataclass(frozen=True)
class Branch:
    """The first list of work or the second, as a bool in memory says: the one argument.

    Everything that the bodies read and write lies at fixed addresses, the condition included.
    """

    arguments: tuple[Argument, ...]
    bodies: tuple[tuple[Work, ...], ...]


@dataclass(frozen=True)
class RepeatWork:
    """Work that is done while a bool in memory is true, the one argument.

    The body advances all that changes from one turn to the next, at fixed addresses: the bool, the
    number of the turn, the state. With a `count` it is known how often the bool will be true.
    """

    arguments: tuple[Argument, ...]
    bodies: tuple[tuple[Work, ...], ...]
    count: int | None = None


Work: TypeAlias = Launch | Call | Branch | RepeatWork


def every_argument(work: Work) -> Iterator[Argument]:
    """The arguments of some work and of all work inside it, parts as what they are parts of."""
    for argument in work.arguments:
        yield argument.of if isinstance(argument, BufferView) else argument
    if isinstance(work, (Branch, RepeatWork)):
        for inner in (w for body in work.bodies for w in body):
            yield from every_argument(inner)


@dataclass(frozen=True)
class Candidate:
    """One way to compute a step. Its name is its key among the measured ones."""

    name: str
    make: Callable[[], tuple[Work, ...]]


@dataclass
class GpuContext:
    """What a kernel generator knows: the program, the step, the device, the precision allowed."""

    program: Program
    step: Step
    arch: Arch
    tf32: bool = False
    choose: Callable[[Program, Step, list[Candidate]], Candidate] = lambda program, step, found: (
        found[0]
    )
    """How the steps of sub-programs are computed."""

    def kernel(self) -> KernelWriter:
        return KernelWriter(self)


Candidates: TypeAlias = Callable[[GpuContext], list[Candidate]]
KERNELS: KernelRegistry[Candidates] = KernelRegistry("monograph.codegen.triton")
kernel_for = KERNELS.kernel_for


@dataclass
class KernelWriter:
    """A kernel being written: its body, and the arguments it has asked for."""

    context: GpuContext
    w: Writer = field(default_factory=Writer)
    arguments: list[Argument] = field(default_factory=list)
    waited: bool = False
    triggered: bool = False
    checks: int = 0
    """Addresses that are checked because no proof covers them."""

    def pointer(self, what: Argument) -> str:
        """The name of a pointer; asking twice for one thing gives the same."""
        for i, known_one in enumerate(self.arguments):
            if known_one is what or (isinstance(what, TritonFault) and known_one == what):
                return f"p{i}"
        self.arguments.append(what)
        return f"p{len(self.arguments) - 1}"

    def elements(self) -> TritonElements:
        """Access to the region's values, its inputs and outputs as pointers."""
        region = self.context.step.region
        held = [v for v in (*region.inputs, *region.outputs) if not _is_literal(v)]
        pointers = {v: self.pointer(v) for v in held}
        storage = self.context.program.places.storage
        return TritonElements(self.w, storage, pointers, frozenset(region.inputs), guard=self.guard)

    def guard(self, wrong: str, number: str) -> None:
        """Reports an address outside of its buffer, of an index map that no proof covers."""
        self.checks += 1
        self.report(TritonFault(OUTSIDE, internal=True), wrong, number)

    def report(self, fault: TritonFault, wrong: str, data: str) -> None:
        """Where a condition holds, notes that a fault came and with which data.

        A kernel that finds such data goes on with something harmless.
        """
        where = self.w.let(f"{self.pointer(fault)} + ({wrong}).to(tl.int32) * 0", "f")
        self.w.line(f"tl.store({where} + 1, ({data}).to(tl.int64), mask={wrong})")
        self.w.line(f"tl.store({where}, tl.full((), 1, tl.int64), mask={wrong})")

    def program_id(self, axis: int = 0) -> str:
        return self.w.let(f"tl.program_id({axis})", "pid")

    def wait(self) -> None:
        """Before any write, or read of what earlier kernels wrote (dependent launch)."""
        if self.context.arch.dependent_launch and not self.waited:
            self.w.line("gdc_wait()")
        self.waited = True

    def trigger(self) -> None:
        """Lets the next kernel start its own preparations (dependent launch)."""
        if self.context.arch.dependent_launch and not self.triggered:
            self.w.line("gdc_launch_dependents()")
        self.triggered = True

    def launch(self, grid: Sequence[int], warps: int = 4, stages: int = 2) -> Launch:
        """The finished kernel."""
        dependent = self.context.arch.dependent_launch and self.waited
        names = ", ".join(f"p{i}" for i in range(len(self.arguments)))
        body = "\n".join(self.w.lines or ["    pass"])
        source = f"@triton.jit\ndef {NAME}({names}):\n{body}\n"
        x, y, z = (*grid, 1, 1)[:3]
        return Launch(
            source,
            tuple(self.arguments),
            (x, y, z),
            warps,
            stages,
            dependent,
            bounds_checks=self.checks,
        )


def _is_literal(value: Value) -> bool:
    data = known(value)
    return data is not None and data.size == 1


def single(name: str, make: Callable[[], Any]) -> list[Candidate]:
    """The list of a kernel without rivals."""

    def made() -> tuple[Work, ...]:
        work = make()
        return work if isinstance(work, tuple) else (work,)

    return [Candidate(name, made)]


ARCHES = {
    "sm_80": Arch("cuda", "sm_80"),
    "sm_86": Arch("cuda", "sm_86"),
    "sm_89": Arch("cuda", "sm_89"),
    "sm_90": Arch("cuda", "sm_90"),
    "sm_100": Arch("cuda", "sm_100"),
    "sm_120": Arch("cuda", "sm_120"),
    "gfx942": Arch("hip", "gfx942", 64),
    "gfx1100": Arch("hip", "gfx1100"),
    "gfx1151": Arch("hip", "gfx1151"),
    "gfx1201": Arch("hip", "gfx1201"),
}
"""By name."""
