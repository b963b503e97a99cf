"""Sub-programs inside a kernel, and the common base of branches and loops.

The kernels of a sub-program become functions of the outer kernel, their memory a part of its
scratch memory, their constants and faults its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import LoopNest
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.bounds_checks import SPANS_MARK
from monograph.codegen.llvm.module.kernel import (
    NAME,
    Argument,
    Kernel,
    KernelContext,
    LlvmFault,
    LlvmPacked,
    LlvmScratch,
    SizeEntry,
    SizeTable,
    Sync,
    pointers,
    synchronise,
)
from monograph.codegen.llvm.module.memory import zero_halo
from monograph.ir import Graph, Input, Item, TensorType, Value, known
from monograph.ir.sizes import is_one, is_open, proven
from monograph.program.dynamic.bounded import graphs_of
from monograph.program.fusion.region import Indices, counters, merge
from monograph.program.index import flatten, strides_of
from monograph.program.legalise.open_constants import open_number
from monograph.program.lowering import lower_body
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY, Buffer, Storage
from monograph.program.memory.memory_planner import Lifetime, MemoryPlan, plan
from monograph.program.program import Program, Step, lifetimes

SIZES = Reg("%sizes", "ptr")
"""The table of open sizes, in a kernel that reads some or passes it on."""


@dataclass(frozen=True)
class StridedRef:
    """The location of elements: a pointer, an offset and strides in elements."""

    pointer: Reg
    type: TensorType
    offset: int
    strides: tuple[int, ...]

    @property
    def dense(self) -> bool:
        steps = zip(self.type.static, self.strides, strides_of(self.type.static), strict=True)
        return self.offset == 0 and all(is_one(d) or proven(a, "==", b) for d, a, b in steps)

    @property
    def span(self) -> Buffer:
        """Return memory up to the last of the elements, which may be part of a larger buffer."""
        steps = zip(self.type.static, self.strides, strict=True)
        last = self.offset + sum((d - 1) * max(s, 0) for d, s in steps)
        return Buffer(-1, TEMPORARY, self.type.dtype, (last + 1,), ((0, 0),))


def dense(pointer: Reg, type_: TensorType) -> StridedRef:
    """Return contiguous elements from a pointer on."""
    return StridedRef(pointer, type_, 0, strides_of(type_.static))


@dataclass
class Functions:
    """The functions that a kernel includes; equal ones once."""

    names: dict[str, str] = field(default_factory=dict)
    declarations: set[str] = field(default_factory=set)

    def add(self, kernel: Kernel) -> str:
        """Return the name by which the outer kernel calls a kernel."""
        self.declarations |= kernel.declarations
        return self.names.setdefault(kernel.text, f"{NAME}.{len(self.names)}")

    def text(self) -> str:
        made = []
        for text, name in self.names.items():
            own = text.replace(f"@{NAME}.", f"@{name}.").replace(f"@{NAME}(", f"@{name}(")
            made.append(own.replace(f"define void @{name}(", f"define internal void @{name}("))
        return "\n".join(made)


class InlinedProgram:
    """A sub-program that a kernel runs, once or many times."""

    def __init__(
        self,
        context: KernelContext,
        program: Program,
        kernels: Sequence[tuple[Step, Kernel]],
        functions: Functions,
        sync: int,
    ) -> None:
        self.context = context
        self.program = program
        self.kernels = kernels
        self.functions = functions
        self.sync = sync
        self.calls = [
            (step, kernel, self._settle(step, kernel))
            for step, own in kernels
            for kernel in (*self._halos(step), own)
        ]
        self.memory = self._plan()
        self.scratch = context.argument(LlvmScratch(at_least(self.memory.size, 64)))

    def _halos(self, step: Step) -> list[Kernel]:
        """Return kernels that clear the halos of a step's results."""
        places = (self.program.places.storage.get(v) for v in step.region.outputs)
        found = zip(step.region.outputs, places, strict=True)
        threads = self.context.threads
        checked = self.context.checked
        return [
            zero_halo(v, p.buffer, threads, checked) for v, p in found if p and p.buffer.has_halo
        ]

    def _settle(self, step: Step, kernel: Kernel) -> dict[int, int]:
        """Return the arguments that the outer kernel has to request: their positions there."""
        settled = {}
        for position, argument in enumerate(kernel.arguments):
            wanted: Argument | None = None
            if isinstance(argument, (LlvmPacked, LlvmFault, SizeEntry)):
                wanted = argument
            elif isinstance(argument, Value):
                wanted = self._constant(argument)
            if wanted is not None:
                settled[position] = self.context.argument(wanted)
        return settled

    def _constant(self, value: Value) -> Argument | None:
        """Return the memory of a constant, which the sub-program has none for."""
        data, size = known(value), open_number(value)
        if data is None or self.program.places.storage[value].buffer.kind != CONSTANT:
            return None
        return LlvmPacked(data) if size is None else SizeEntry(size)

    def _plan(self) -> MemoryPlan:
        lives = lifetimes(self.program.steps, self.program.places)
        self.scratches: dict[tuple[int, int], int] = {}
        for step, kernel in self.kernels:
            for position, argument in enumerate(kernel.arguments):
                if isinstance(argument, LlvmScratch):
                    key = -1 - len(self.scratches)
                    self.scratches[step.index, position] = key
                    lives.append(Lifetime(key, argument.nbytes, step.index, step.index))
        return plan(lives)

    def emit(self, b: Builder, given: Mapping[int, Reg]) -> None:
        """Call every kernel, with barriers between steps; `given` points to the ports' elements."""
        last: Step | None = None
        for step, kernel, settled in self.calls:
            if last is not None and last is not step:
                synchronise(b, self.sync, self.context.threads)
            last = step
            pointers = [
                self._pointer(b, step, kernel, position, settled, given)
                for position in range(len(kernel.arguments))
            ]
            listed = "".join(f"ptr {p}, " for p in pointers)
            ends = [n for e in kernel.extents for n in (e.low, e.high)]
            b.spans |= {str(n): n for n in ends if is_open(n)}
            spans = " ".join(f"{e.low}:{e.high}" for e in kernel.extents)
            call = f"call void @{self.functions.add(kernel)}({listed}i64 %tid)"
            b.line(f"{call} {SPANS_MARK}{spans}" if b.checked else call)

    def _pointer(
        self,
        b: Builder,
        step: Step,
        kernel: Kernel,
        position: int,
        settled: Mapping[int, int],
        given: Mapping[int, Reg],
    ) -> Reg:
        if position in settled:
            return b.arguments[f"p{settled[position]}"]
        argument = kernel.arguments[position]
        base = b.arguments[f"p{self.scratch}"]
        if isinstance(argument, Sync):
            return b.arguments[f"p{self.sync}"]
        if isinstance(argument, SizeTable):
            b.passes_sizes = True
            return SIZES
        if isinstance(argument, LlvmScratch):
            return b.offset(base, self.memory.offsets[self.scratches[step.index, position]])
        assert isinstance(argument, Value)
        buffer = self.program.places.storage[argument].buffer
        if buffer.kind == TEMPORARY:
            return b.offset(base, self.memory.offsets[buffer.id])
        return given[buffer.id]

    def port(self, value: Value) -> int:
        """Return the buffer of an input or output of the sub-program; -1 if it is not read."""
        place = self.program.places.storage.get(value)
        return -1 if place is None else place.buffer.id


def copy(context: KernelContext, b: Builder, source: StridedRef, target: StridedRef) -> None:
    """Copy elements, divided among the threads."""
    shape = source.type.static
    if 0 in shape:
        return
    values = [Input(name, source.type)() for name in ("source", "target")]
    elements, at = _strided(context, b, dict(zip(values, (source, target), strict=True)))

    def body(point: Point) -> None:
        elements.store(values[1], at, elements.load(values[0], at, point), point)

    lanes = context.features.lanes(max(source.type.dtype.bits, 32))
    LoopNest(b, at, context.threads).run(body, lanes)


def clear(context: KernelContext, b: Builder, target: StridedRef) -> None:
    """Store zeros, divided among the threads."""
    if 0 in target.type.static:
        return
    value, dtype = Input("target", target.type)(), target.type.dtype
    elements, at = _strided(context, b, {value: target})

    def body(point: Point) -> None:
        zero = elements.scalars.constant(0, dtype)
        elements.store(value, at, elements.scalars.splat(zero, point.lanes), point)

    LoopNest(b, at, context.threads).run(body, context.features.lanes(max(dtype.bits, 32)))


def _strided(
    context: KernelContext, b: Builder, places: Mapping[Value, StridedRef]
) -> tuple[LlvmElements, Indices]:
    """Return access to the elements of places of one shape, and counters over them."""
    (shape, *_) = (p.type.static for p in places.values())
    storage = {v: Storage(p.span, p.offset, p.strides) for v, p in places.items()}
    pointers = {v: p.pointer for v, p in places.items()}
    elements = LlvmElements(
        b, LlvmScalars(b, context.features), storage, pointers, frozenset(places)
    )
    plain = counters(shape)
    return elements, merge(shape, plain, [flatten(plain, s.strides) for s in storage.values()])


_PROGRAMS: WeakKeyDictionary[Graph, Program | None] = WeakKeyDictionary()


def lowered(graph: Graph) -> Program:
    """Return the program of a sub-graph that compiled code can hold."""
    found = find_program(graph)
    assert found is not None
    return found


def find_program(graph: Graph) -> Program | None:
    """Return the program of a sub-graph, made once; None when compiled code cannot hold it."""
    from monograph.codegen.llvm.module.select import CpuTarget

    if graph not in _PROGRAMS:
        _PROGRAMS[graph] = lower_body(graph, CpuTarget())
    return _PROGRAMS[graph]


def find_generator() -> Callable[..., Callable[[KernelContext], Kernel] | None]:
    # Kernels contain sub-programs and sub-programs contain kernels: circular imports.
    from monograph.codegen.llvm.module.select import generator

    return generator


class Control:
    """The common base of branches and loops: operands, results, memory, sub-programs."""

    def __init__(self, context: KernelContext, anchor: Value) -> None:
        self.context = context
        self.anchor = anchor
        self.threads = context.threads
        region = context.step.region
        context.add(*region.inputs, *region.outputs)
        self.sync = context.argument(Sync())
        self.functions = Functions()
        self.subs = [self._sub(graph) for graph in graphs_of(anchor)]
        self.results = {v.op.index: v for v in region.outputs if isinstance(v.op, Item)}
        self.rooms: dict[str, tuple[int, TensorType]] = {}
        self.reserve()

    def _sub(self, graph: Graph) -> InlinedProgram:
        program = lowered(graph)
        generator, kernels = find_generator(), []
        for step in program.steps:
            make = generator(step.region)
            assert make is not None
            outer = self.context
            inner = KernelContext(
                program, step, outer.features, self.threads, outer.winograd, outer.checked
            )
            kernels.append((step, make(inner)))
        return InlinedProgram(self.context, program, kernels, self.functions, self.sync)

    def reserve(self) -> None:
        """Reserve the memory that the kernel needs besides that of the sub-programs."""

    def emit(self) -> None:
        raise NotImplementedError

    def room(self, name: str, type_: TensorType) -> None:
        """Reserve memory for elements of a type, by name."""
        self.rooms[name] = (self.context.argument(LlvmScratch(at_least(type_.nbytes, 64))), type_)

    def place(self, name: str) -> StridedRef:
        position, type_ = self.rooms[name]
        return dense(self.b.arguments[f"p{position}"], type_)

    def kernel(self) -> Kernel:
        self.b: Builder = self.context.builder()
        self.pointers = pointers(self.b, self.context.arguments)
        self.emit()
        made = self.context.finish(self.b)
        text = "\n".join([self.functions.text(), made.text])
        return replace(
            made,
            text=text,
            declarations=made.declarations | self.functions.declarations,
            bounds_checks=made.bounds_checks
            + sum(k.bounds_checks for sub in self.subs for _, k in sub.kernels),
        )

    def stored(self, value: Value) -> StridedRef:
        """Return the location of an operand or a result of the op."""
        found = self.context.program.places.storage[value]
        return StridedRef(self.pointers[value], value.tensor, found.offset, found.strides)

    def wait(self) -> None:
        synchronise(self.b, self.sync, self.threads)

    def copy(self, source: StridedRef, target: StridedRef) -> None:
        copy(self.context, self.b, source, target)

    def flag(self, pointer: Reg, offset: int = 0) -> Reg:
        """Load a bool."""
        stored = self.b.load("i8", self.b.offset(pointer, offset), 1)
        return self.b.compare("ne", stored, Reg("0", "i8"))

    def run(self, sub: InlinedProgram, inputs: Sequence[Reg], outputs: Sequence[Reg]) -> None:
        """Run a sub-program on contiguous elements."""
        graph = sub.program.graph
        given = {sub.port(v): p for v, p in zip(graph.inputs, inputs, strict=True)}
        made = {sub.port(v): p for (_, v), p in zip(graph.outputs, outputs, strict=True)}
        sub.emit(self.b, given | made)

    def reserve_operands(self, operands: Sequence[Value]) -> None:
        """Reserve room for operands that may not be contiguous."""
        for i, value in enumerate(operands):
            self.room(f"operand {i}", value.tensor)

    def dense_operands(self, operands: Sequence[Value]) -> list[Reg]:
        """Return contiguous operands: in place, or copied."""
        found = []
        for i, value in enumerate(operands):
            place = self.stored(value)
            if not place.dense or open_number(value) is not None:
                place = self.place(f"operand {i}")
                self.fill(value, place)
            found.append(place.pointer)
        return found

    def fill(self, value: Value, target: StridedRef) -> None:
        """Copy an operand."""
        size = open_number(value)
        if size is None:
            self.copy(self.stored(value), target)
        else:
            self.b.on_thread(0, lambda: self.b.store(Reg(str(size), "i64"), target.pointer, 8))


def at_least(nbytes: int, least: int) -> int:
    """Return a number of bytes, or more where it is below the least."""
    return nbytes + least if is_open(nbytes) else max(nbytes, least)


def within(b: Builder, place: StridedRef, axis: int, t: Int) -> StridedRef:
    """Return a slice of a location along an axis."""
    at = b.add(place.offset, b.mul(t, place.strides[axis]))
    shape = [d for k, d in enumerate(place.type.static) if k != axis]
    strides = tuple(s for k, s in enumerate(place.strides) if k != axis)
    pointer = b.offset(place.pointer, b.mul(at, place.type.dtype.itemsize))
    return StridedRef(pointer, place.type.with_shape(shape), 0, strides)


def tensor_type(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_
