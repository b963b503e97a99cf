"""The common base of branches and loops: operands, results, memory, sub-programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.control.inline import Functions, InlinedProgram, StridedRef, copy, dense
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    pointers,
    synchronise,
)
from monograph.ir import Graph, Item, TensorType, Value
from monograph.ops.control import If, Loop, Scan
from monograph.ops.loop_donation import state_donated
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.lowering import lower_body
from monograph.program.program import Program

_PROGRAMS: WeakKeyDictionary[Graph, Program | None] = WeakKeyDictionary()


def graphs_of(value: Value) -> list[Graph]:
    """The sub-graphs of a branch or a loop."""
    op = value.op
    assert isinstance(op, (If, Loop, BoundedLoop, Scan))
    if isinstance(op, (Loop, BoundedLoop)):
        return [state_donated(op.body, op.carried)]
    return [op.then, op.orelse] if isinstance(op, If) else [op.body]


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
        for value in (*region.inputs, *region.outputs):
            context.argument(value)
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
        self.rooms[name] = (self.context.argument(LlvmScratch(max(type_.nbytes, 64))), type_)

    def place(self, name: str) -> StridedRef:
        position, type_ = self.rooms[name]
        return dense(self.b.arguments[f"p{position}"], type_)

    def kernel(self) -> Kernel:
        self.b: Builder = self.context.builder(len(self.context.arguments))
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
            if not place.dense:
                self.copy(place, self.place(f"operand {i}"))
                place = self.place(f"operand {i}")
            found.append(place.pointer)
        return found


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
