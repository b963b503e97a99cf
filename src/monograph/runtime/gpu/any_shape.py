"""Code for any shape on a GPU: one compilation of a model whose open dimensions are numbers.

Kernels take open sizes as arguments (see `KernelWriter.launch`). For each new set of sizes a shape
function computes grids, arguments, offsets of buffers and shapes of ports; nothing is compiled. A
kernel has at most two forms: one for all sizes, and one for sizes that are multiples of 16.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.errors import ExecutionError
from monograph.ir.memory import MAX_TENSOR_BYTES
from monograph.ir.size_expressions import SizeExpression, Symbol
from monograph.ir.size_texts import with_numbers
from monograph.ir.sizes import SizeScope, any_open, is_open
from monograph.runtime.executable import ANY_SHAPE, Executable
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.memory import NO_CONSTANTS, ConstantBlock
from monograph.runtime.gpu.run_turns import RunTurns
from monograph.runtime.shape_code import ShapeCode, check_port, shape_function

if TYPE_CHECKING:
    from monograph.program.program import Program

_VECTOR = 16
T = TypeVar("T")


class AnyShapeProgram(GpuProgram):
    """Code for any shape, bound to one set of sizes. Programs of a variant share temporaries."""

    def __init__(self, code: AnyShapeGpu, layout: GpuLayout, works: Sequence[Launch]) -> None:
        self._code = code
        arguments = layout.arguments

        def records() -> list[Record]:
            pairs = zip(works, arguments, strict=True)
            return [code.record(i, work, places) for i, (work, places) in enumerate(pairs)]

        super().__init__(
            layout, records, code.device, NO_CONSTANTS, code.constants, turns=code.turns
        )

    @property
    def tier(self) -> str:
        return ANY_SHAPE

    @property
    def programs(self) -> list[Program]:
        return self._code.programs


class _Places:
    """The places of numbers among those of one shape: computed ones, then literals."""

    def __init__(self, numbers: Iterable[int], table: Iterable[SizeExpression]) -> None:
        wanted = dict.fromkeys(table)
        for number in numbers:
            if is_open(number):
                wanted[number.expression] = None
        self.computed = {e: i for i, e in enumerate(wanted)}
        self.literals: dict[int, int] = {}

    def of(self, number: int) -> int:
        """Return the place of a number."""
        if is_open(number):
            return self.computed[number.expression]
        return len(self.computed) + self.literals.setdefault(number, len(self.literals))

    def row(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(self.of, numbers))


@dataclass(frozen=True)
class _Template(Generic[T]):
    """An object with open sizes, and the places of its numbers."""

    original: T
    numbers: tuple[tuple[str, int], ...] = ()
    """By attribute."""
    rows: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """By attribute: places of the numbers of a tuple."""

    def at(self, made: Sequence[int]) -> T:
        """Return the object with the numbers of a shape. Every new shape makes hundreds."""
        if not self.numbers and not self.rows:
            return self.original
        found: T = object.__new__(type(self.original))
        fields = vars(found)
        fields.update(vars(self.original))
        for name, place in self.numbers:
            fields[name] = made[place]
        for name, places in self.rows:
            fields[name] = tuple([made[i] for i in places])
        return found


class AnyShapeGpu(ShapeCode):
    """The kernels of a model for all sizes for which its guards hold."""

    programs: list[Program]
    """The program; empty for code that was found on disk."""

    def __init__(
        self,
        scope: SizeScope,
        shapes: Mapping[str, tuple[int, ...]],
        layout: GpuLayout,
        works: Sequence[Launch],
        device: Device,
        constants: ConstantBlock,
        wrap: Callable[[GpuProgram], Executable],
    ) -> None:
        self.scope, self.shapes, self.device = scope, shapes, device
        self.programs = []
        self.turns = RunTurns(device)
        self.constants = constants
        """The constants of all sizes, on the device."""
        self._wrap = wrap
        self._layout = layout
        self._table = list(scope.table)
        self._places = places = _Places(_every_number(layout, works), self._table)
        self._works = [_launch_template(work, places) for work in works]
        self._arguments = [[_place_template(a, places) for a in row] for row in layout.arguments]
        self._inputs = [_port_template(p, places) for p in layout.inputs]
        self._outputs = [_port_template(p, places) for p in layout.outputs]
        self._arena = places.of(layout.arena_bytes)
        self._literals = tuple(places.literals)
        self._compute = shape_function([*scope.hints], [*places.computed])

    @abstractmethod
    def record(self, number: int, work: Launch, places: Sequence[BufferRef]) -> Record:
        """Return a launch at given sizes."""

    def executable(self, values: Mapping[Symbol, int]) -> Executable:
        """Return what runs inputs of these sizes."""
        made = (*self._compute(values), *self._literals)
        arena = made[self._arena]
        if arena > MAX_TENSOR_BYTES:
            raise ExecutionError(
                "a run of this size needs too much memory",
                expected=f"at most {MAX_TENSOR_BYTES:,} bytes",
                given=f"{arena:,} bytes",
            )
        layout = self._bound_layout(made)
        for p in (*layout.inputs, *layout.outputs):
            check_port(p.name, p.shape, p.dtype.itemsize)
        works = [_bound_launch(work, made) for work in self._works]
        return self._wrap(AnyShapeProgram(self, layout, works))

    def _bound_layout(self, made: Sequence[int]) -> GpuLayout:
        return replace(
            self._layout,
            inputs=tuple(p.at(made) for p in self._inputs),
            outputs=tuple(p.at(made) for p in self._outputs),
            arguments=tuple(tuple([a.at(made) for a in row]) for row in self._arguments),
            arena_bytes=made[self._arena],
            faults=tuple(
                replace(
                    f, message=self._text(f.message, made), expected=self._text(f.expected, made)
                )
                for f in self._layout.faults
            ),
        )

    def _text(self, text: str, made: Sequence[int]) -> str:
        """Return a text with numbers in the place of open sizes."""
        computed, table = self._places.computed, self._table
        return with_numbers(text, lambda place: made[computed[table[place]]])


def _every_number(layout: GpuLayout, works: Sequence[Launch]) -> Iterator[int]:
    yield layout.arena_bytes
    for port in (*layout.inputs, *layout.outputs):
        yield from port.shape
    for row in layout.arguments:
        for a in row:
            yield from (a.offset, a.room, a.below)
    for work in works:
        yield from (*work.grid, *work.sizes)


def _launch_template(work: Launch, places: _Places) -> _Template[Launch]:
    # Every launch is told by its own grid, open or not.
    return _Template(
        work, rows=(("grid", places.row(work.grid)), ("sizes", places.row(work.sizes)))
    )


def _bound_launch(work: _Template[Launch], made: Sequence[int]) -> Launch:
    """Return a launch at given sizes, of the form for multiples of 16 where they are."""
    launch = work.at(made)
    if not all(launch.multiples) and all(n % _VECTOR == 0 for n in launch.sizes):
        vars(launch)["multiples"] = (True,) * len(launch.sizes)
    return launch


def _port_template(port: DevicePort, places: _Places) -> _Template[DevicePort]:
    return _Template(
        port, rows=(("shape", places.row(port.shape)),) if any_open(port.shape) else ()
    )


def _place_template(a: BufferRef, places: _Places) -> _Template[BufferRef]:
    numbers = (("offset", a.offset), ("room", a.room), ("below", a.below))
    return _Template(a, tuple((name, places.of(n)) for name, n in numbers if is_open(n)))
