"""The interface of GPU kernels: source, buffers, and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from monograph.codegen.common.registry import KernelRegistry
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.launch import Arch, Launch
from monograph.errors import InternalError
from monograph.ir import Array, DType, Value, known
from monograph.ir.dtype import i64
from monograph.ir.size_texts import SIZE_REGISTER
from monograph.ir.sizes import divides
from monograph.ir.types import digest_of
from monograph.program.program import Program, Step

T = TypeVar("T")
OUTSIDE = "an address is outside of its buffer"
NAME = "KERNEL"
"""The placeholder for the function's name, so that equal kernels have equal source."""
NARROW_MOST = (1 << 31) - (1 << 16)
"""The greatest size in 32 bits: numbers of elements of the last block go beyond the size."""
"""An open size in a text: its place in the table of the compilation (`Size.__str__`)."""


@dataclass(frozen=True, eq=False)
class TritonPacked:
    """A constant in the form that a kernel needs, prepared at compile time."""

    array: Array
    dtype: DType

    @cached_property
    def digest(self) -> bytes:
        """The digest of its bytes: large weights are shared by all candidates of a step."""
        return digest_of(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)


@dataclass(frozen=True, eq=False)
class TritonScratch:
    """Memory that a step needs while it runs; zero before the first run if `zeroed`.

    A kernel that needs zeros leaves zeros behind.
    """

    nbytes: int
    dtype: DType
    zeroed: bool = False


@dataclass(frozen=True)
class TritonFault:
    """A fault that a kernel reports for invalid data, which fails the run (see `report`)."""

    message: str
    expected: str = ""
    dtype: DType = i64
    shows_data: bool = True
    """True if the reported data are meaningful."""
    internal: bool = False
    """True for a fault of Monograph, not of the data."""


@dataclass(frozen=True, eq=False)
class BufferView:
    """The memory of another argument from some byte on, as elements of a type.

    A library's function sees them in a shape with strides; without one, flat.
    """

    of: Value | TritonPacked | TritonScratch
    offset: int
    dtype: DType
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    nbytes: int = -1
    """The bytes of the buffer from there on; -1 for all of the other argument."""
    below: int = 0
    """The bytes of the buffer before there."""


Argument: TypeAlias = Value | TritonPacked | TritonScratch | TritonFault | BufferView


@dataclass(frozen=True)
class Call:
    """A library's function on tensors, strided like the values in memory."""

    name: str
    arguments: tuple[Argument, ...]
    function: Callable[..., None]
    step: Step | None = None
    """The step of a sub-program that it belongs to."""


@dataclass(frozen=True)
class Branch:
    """One of two lists of work, selected by a bool in memory: the one argument.

    Everything that the bodies read and write is at fixed addresses, the condition included.
    """

    arguments: tuple[Argument, ...]
    bodies: tuple[tuple[Work, ...], ...]


@dataclass(frozen=True)
class RepeatWork:
    """Work that is repeated while a bool in memory is true: the one argument.

    The body updates all that changes between iterations, at fixed addresses: the bool, the
    iteration number, the state. With a `count` the number of iterations is known.
    """

    arguments: tuple[Argument, ...]
    bodies: tuple[tuple[Work, ...], ...]
    count: int | None = None


Work: TypeAlias = Launch | Call | Branch | RepeatWork


def every_argument(work: Work) -> Iterator[Argument]:
    """Yield the arguments of some work and of all work inside it; views as their sources."""
    for argument in work.arguments:
        yield argument.of if isinstance(argument, BufferView) else argument
    if isinstance(work, (Branch, RepeatWork)):
        for inner in (w for body in work.bodies for w in body):
            yield from every_argument(inner)


@dataclass(frozen=True)
class Candidate:
    """One way to compute a step. Its name is its key among measurements."""

    name: str
    make: Callable[[], tuple[Work, ...]]


@dataclass
class GpuContext:
    """The input of a kernel generator: program, step, device, precision."""

    program: Program
    step: Step
    arch: Arch
    tf32: bool = False
    choose: Callable[[Program, Step, list[Candidate]], Candidate] = lambda program, step, found: (
        found[0]
    )
    """Generates the steps of sub-programs."""

    @property
    def anchor(self) -> Value:
        """The op of the step that needs a kernel of its own."""
        anchor = self.step.region.anchor
        assert anchor is not None
        return anchor

    def kernel(self) -> KernelWriter:
        return KernelWriter(self)


Candidates: TypeAlias = Callable[[GpuContext], list[Candidate]]
KERNELS: KernelRegistry[Candidates] = KernelRegistry("monograph.codegen.triton")
kernel_for = KERNELS.kernel_for


@dataclass
class KernelWriter:
    """A kernel during generation: its body, and its arguments."""

    context: GpuContext
    w: Writer = field(default_factory=Writer)
    arguments: list[Argument] = field(default_factory=list)
    waited: bool = False
    triggered: bool = False
    checks: int = 0
    """The number of addresses that are checked because no proof covers them."""

    def pointer(self, what: Argument) -> str:
        """Return the name of a pointer; the same object always has the same one."""
        for i, known_one in enumerate(self.arguments):
            if known_one is what or (isinstance(what, TritonFault) and known_one == what):
                return f"p{i}"
        self.arguments.append(what)
        return f"p{len(self.arguments) - 1}"

    def elements(self) -> TritonElements:
        """Return access to the region's values, with inputs and outputs as pointers."""
        region = self.context.step.region
        held = [v for v in (*region.inputs, *region.outputs) if not _is_literal(v)]
        pointers = {v: self.pointer(v) for v in held}
        storage = self.context.program.places.storage
        return TritonElements(self.w, storage, pointers, frozenset(region.inputs), guard=self.guard)

    def guard(self, wrong: str, number: str) -> None:
        """Report an address outside of its buffer, for an index map that no proof covers."""
        self.checks += 1
        self.report(TritonFault(OUTSIDE, internal=True), wrong, number)

    def report(self, fault: TritonFault, wrong: str, data: str) -> None:
        """If a condition holds, record a fault and its data.

        A kernel that finds such data continues with harmless values.
        """
        where = self.w.let(f"{self.pointer(fault)} + ({wrong}).to(tl.int32) * 0", "f")
        self.w.line(f"tl.store({where} + 1, ({data}).to(tl.int64), mask={wrong})")
        self.w.line(f"tl.store({where}, tl.full((), 1, tl.int64), mask={wrong})")

    def program_id(self, axis: int = 0) -> str:
        return self.w.let(f"tl.program_id({axis})", "pid")

    def wait(self) -> None:
        """Wait before any write, or read of what earlier kernels wrote (dependent launch)."""
        if self.context.arch.dependent_launch and not self.waited:
            self.w.line("gdc_wait()")
        self.waited = True

    def trigger(self) -> None:
        """Allow the next kernel to start its own preparations (dependent launch)."""
        if self.context.arch.dependent_launch and not self.triggered:
            self.w.line("gdc_launch_dependents()")
        self.triggered = True

    def launch(self, grid: Sequence[int], warps: int = 4, stages: int = 2) -> Launch:
        """The finished kernel."""
        dependent = self.context.arch.dependent_launch and self.waited
        body, sizes = self._with_parameters("\n".join(self.w.lines or ["    pass"]))
        names = ", ".join(f"p{i}" for i in range(len(self.arguments) + len(sizes)))
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
            sizes=sizes,
            wide_sizes=tuple(n > NARROW_MOST for n in sizes),
            multiples=tuple(divides(16, n) for n in sizes),
        )

    def _with_parameters(self, body: str) -> tuple[str, tuple[int, ...]]:
        """Return the body with its open sizes as parameters, and these sizes."""
        places = [int(n) for n in dict.fromkeys(SIZE_REGISTER.findall(body))]
        if not places:
            return body, ()
        scope = self.context.program.scope
        if scope is None:
            raise InternalError("a kernel of fixed sizes reads an open one", given=body)
        held = {place: expression for expression, place in scope.table.items()}
        first = len(self.arguments)
        names = {place: f"p{first + i}" for i, place in enumerate(places)}
        sizes = tuple(scope.sized(held[place]) for place in places)
        return SIZE_REGISTER.sub(lambda found: names[int(found[1])], body), sizes


def _is_literal(value: Value) -> bool:
    data = known(value)
    return data is not None and data.size == 1


def single(name: str, make: Callable[[], Any]) -> list[Candidate]:
    """Return the list of a single candidate."""

    def made() -> tuple[Work, ...]:
        work = make()
        return work if isinstance(work, tuple) else (work,)

    return [Candidate(name, made)]


def variants(name: str, tilings: Iterable[T], make: Callable[[T], Any]) -> list[Candidate]:
    """Return a candidate for each tiling, named after it."""
    return [c for tiling in tilings for c in single(f"{name} {tiling}", partial(make, tiling))]
