"""Control flow: sub-graphs compiled into the kernel that decides which of them run, and how often.

All threads read the condition after a barrier, so they all take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from monograph.codegen.llvm.builder import Builder, Int, Reg
from monograph.codegen.llvm.inline import Functions, Inlined, Place, copy, dense
from monograph.codegen.llvm.kernel import (
    Kernel,
    KernelContext,
    Scratch,
    Sync,
    pointers,
    synchronise,
)
from monograph.ir import Graph, Item, TensorType, Value
from monograph.ops.control import If, Loop, Scan
from monograph.program.expand import expand
from monograph.program.kinds import is_native
from monograph.program.program import Program, lower

_PROGRAMS: WeakKeyDictionary[Graph, Program] = WeakKeyDictionary()


def serves(value: Value) -> bool:
    """Whether everything inside can be compiled too."""
    if not isinstance(value.op, (If, Loop, Scan)):
        return False
    return all(map(_compiles, _graphs(value)))


def _graphs(value: Value) -> list[Graph]:
    op = value.op
    assert isinstance(op, (If, Loop, Scan))
    return [op.then, op.orelse] if isinstance(op, If) else [op.body]


def _compiles(graph: Graph) -> bool:
    if not all(map(is_native, (*graph.inputs, *(v for _, v in graph.outputs)))):
        return False
    generator = _generator()
    return all(generator(s.region) is not None for s in _lowered(graph).steps)


def _lowered(graph: Graph) -> Program:
    """The program of a sub-graph, made once as long as the graph is in use."""
    from monograph.codegen.llvm.select import CpuTarget

    known = _PROGRAMS.get(graph)
    if known is None:
        known = _PROGRAMS[graph] = lower(expand(graph), CpuTarget())
    return known


def _generator() -> Callable[..., Callable[[KernelContext], Kernel] | None]:
    # Kernels contain sub-programs and sub-programs kernels: the modules need each other.
    from monograph.codegen.llvm.select import generator

    return generator


def control(context: KernelContext) -> Kernel:
    """A kernel for a branch or a loop with everything inside it."""
    anchor = context.step.region.anchor
    assert anchor is not None
    kinds: dict[type, type[_Control]] = {If: _If, Loop: _Loop, Scan: _Scan}
    return kinds[type(anchor.op)](context, anchor).kernel()


class _Control:
    """What branches and loops share: operands, results, memory, sub-programs."""

    def __init__(self, context: KernelContext, anchor: Value) -> None:
        self.context = context
        self.anchor = anchor
        self.threads = context.threads
        region = context.step.region
        for value in (*region.inputs, *region.outputs):
            context.argument(value)
        self.sync = context.argument(Sync())
        self.functions = Functions()
        self.subs = [self._sub(graph) for graph in _graphs(anchor)]
        self.results = {v.op.index: v for v in region.outputs if isinstance(v.op, Item)}
        self.rooms: dict[str, tuple[int, TensorType]] = {}
        self.reserve()

    def _sub(self, graph: Graph) -> Inlined:
        program = _lowered(graph)
        generator, kernels = _generator(), []
        for step in program.steps:
            make = generator(step.region)
            assert make is not None
            inner = KernelContext(program, step, self.context.features, self.threads)
            kernels.append((step, make(inner)))
        return Inlined(self.context, program, kernels, self.functions, self.sync)

    def reserve(self) -> None:
        """Asks for the memory that the kernel needs beside the sub-programs'."""

    def emit(self) -> None:
        raise NotImplementedError

    def room(self, name: str, type_: TensorType) -> None:
        """Memory for elements of a type, by name."""
        self.rooms[name] = (self.context.argument(Scratch(max(type_.nbytes, 64))), type_)

    def place(self, name: str) -> Place:
        position, type_ = self.rooms[name]
        return dense(self.b.arguments[f"p{position}"], type_)

    def kernel(self) -> Kernel:
        self.b: Builder = self.context.builder(len(self.context.arguments))
        self.pointers = pointers(self.b, self.context.arguments)
        self.emit()
        made = self.context.finish(self.b)
        text = "\n".join([self.functions.text(), made.text])
        return replace(
            made, text=text, declarations=made.declarations | self.functions.declarations
        )

    def stored(self, value: Value) -> Place:
        """Where an operand or a result of the op lies."""
        found = self.context.program.places.storage[value]
        return Place(self.pointers[value], value.tensor, found.offset, found.strides)

    def wait(self) -> None:
        synchronise(self.b, self.sync, self.threads)

    def copy(self, source: Place, target: Place) -> None:
        copy(self.context, self.b, source, target)

    def flag(self, pointer: Reg, offset: int = 0) -> Reg:
        """A bool from memory."""
        stored = self.b.load("i8", self.b.offset(pointer, offset), 1)
        return self.b.compare("ne", stored, Reg("0", "i8"))

    def run(self, sub: Inlined, inputs: Sequence[Reg], outputs: Sequence[Reg]) -> None:
        """Runs a sub-program on dense elements."""
        graph = sub.program.graph
        given = {sub.port(v): p for v, p in zip(graph.inputs, inputs, strict=True)}
        made = {sub.port(v): p for (_, v), p in zip(graph.outputs, outputs, strict=True)}
        sub.emit(self.b, given | made)

    def reserve_operands(self, operands: Sequence[Value]) -> None:
        """Room for operands that may not lie side by side."""
        for i, value in enumerate(operands):
            self.room(f"operand {i}", value.tensor)

    def dense_operands(self, operands: Sequence[Value]) -> list[Reg]:
        """Operands side by side: where they are, or copied."""
        found = []
        for i, value in enumerate(operands):
            place = self.stored(value)
            if not place.dense:
                self.copy(place, self.place(f"operand {i}"))
                place = self.place(f"operand {i}")
            found.append(place.pointer)
        return found


class _If(_Control):
    """One sub-program or the other."""

    def reserve(self) -> None:
        assert isinstance(self.anchor.op, If)
        self.condition, *self.captures = self.anchor.inputs
        self.reserve_operands(self.captures)
        for i, t in enumerate(self.anchor.op.then.output_types):
            assert isinstance(t, TensorType)
            self.room(f"result {i}", t)

    def emit(self) -> None:
        assert isinstance(self.anchor.op, If)
        b, count = self.b, len(self.anchor.op.then.inputs)
        captures = self.dense_operands(self.captures)
        self.wait()
        place = self.stored(self.condition)
        yes, no, done = (b.new_label(stem) for stem in ("then", "else", "done"))
        b.branch(self.flag(place.pointer, place.offset), yes, no)
        for label, sub, given in (
            (yes, self.subs[0], captures[:count]),
            (no, self.subs[1], captures[count:]),
        ):
            b.label(label)
            self._branch(sub, given)
            b.jump(done)
        b.label(done)

    def _branch(self, sub: Inlined, given: Sequence[Reg]) -> None:
        rooms = [self.place(f"result {i}") for i in range(len(sub.program.graph.outputs))]
        # Straight into the result where it lies side by side.
        targets = {i: self.stored(v) for i, v in self.results.items()}
        direct = [
            targets[i] if i in targets and targets[i].dense else r for i, r in enumerate(rooms)
        ]
        self.run(sub, given, [p.pointer for p in direct])
        left = [i for i in targets if not targets[i].dense]
        if left:
            self.wait()
        for i in left:
            self.copy(rooms[i], targets[i])


class _Iterated(_Control):
    """A loop: state that goes from one iteration to the next, in two places by turns."""

    state: Sequence[Value]

    def reserve_state(self, types: Sequence[TensorType]) -> None:
        for i, t in enumerate(types):
            self.room(f"old {i}", t)
            self.room(f"new {i}", t)

    def initial(self) -> tuple[list[Reg], list[Reg]]:
        """Pointers to the state, filled in, and to where the next one goes."""
        old = [self.place(f"old {i}") for i in range(len(self.state))]
        for value, place in zip(self.state, old, strict=True):
            self.copy(self.stored(value), place)
        new = [self.place(f"new {i}").pointer for i in range(len(self.state))]
        return [p.pointer for p in old], new

    def finish(self, last: Sequence[Reg]) -> None:
        """The last state into the results."""
        for i, pointer in enumerate(last):
            if i in self.results:
                target = self.stored(self.results[i])
                self.copy(dense(pointer, target.type), target)

    def first_thread(self, body: Callable[[], None]) -> None:
        first = self.b.compare("eq", self.b.arguments["tid"], Reg("0", "i64"))
        self.b.when(first, body)


class _Loop(_Iterated):
    """While a condition holds, and at most so often."""

    def reserve(self) -> None:
        op = self.anchor.op
        assert isinstance(op, Loop)
        self.trips, self.condition, *rest = self.anchor.inputs
        self.state, self.captures = rest[: op.carried], rest[op.carried :]
        count, go, *formals = map(_tensor, op.body.input_types)
        self.room("count", count)
        self.room("go", go)
        self.room("next go", _tensor(op.body.output_types[0]))
        self.reserve_state(formals[: op.carried])
        self.reserve_operands(self.captures)

    def emit(self) -> None:
        b = self.b
        captures = self.dense_operands(self.captures)
        old, new = self.initial()
        self.wait()
        trips, go = self.stored(self.trips), self.stored(self.condition)
        limit = b.load("i64", b.offset(trips.pointer, trips.offset * 8), 8)
        started = self.flag(go.pointer, go.offset)
        before, head, inner, done = (
            b.block,
            *(b.new_label(stem) for stem in ("head", "body", "done")),
        )
        i, goes = Reg(b.fresh("i"), "i64"), Reg(b.fresh("go"), "i1")
        held = [Reg(b.fresh("state"), "ptr") for _ in (*old, *new)]
        b.jump(head)
        b.label(head)
        place = len(b.lines)
        less = b.compare("slt", i, limit)
        b.branch(b.set("i1", f"and i1 {goes}, {less}"), inner, done)
        b.label(inner)
        count = len(old)
        self._iteration(i, goes, held[:count], held[count:], captures)
        again = self.flag(self.place("next go").pointer)
        following, last = b.set("i64", f"add i64 {i}, 1"), b.block
        b.jump(head)
        swapped = [*held[count:], *held[:count]]
        phis = [(i, Reg("0", "i64"), following), (goes, started, again)]
        phis += zip(held, [*old, *new], swapped, strict=True)
        b.lines[place:place] = [
            f"  {r} = phi {r.type} [ {x}, %{before} ], [ {y}, %{last} ]" for r, x, y in phis
        ]
        b.label(done)
        self.finish(held[:count])

    def _iteration(
        self, i: Reg, goes: Reg, old: list[Reg], new: list[Reg], captures: list[Reg]
    ) -> None:
        b = self.b
        count, go, following = (self.place(n).pointer for n in ("count", "go", "next go"))

        def announce() -> None:
            b.store(i, count, 8)
            b.store(b.set("i8", f"zext i1 {goes} to i8"), go, 1)

        self.first_thread(announce)
        self.wait()
        self.run(self.subs[0], [count, go, *old, *captures], [following, *new])
        self.wait()


class _Scan(_Iterated):
    """Once for each slice of the scanned operands."""

    def reserve(self) -> None:
        op = self.anchor.op
        assert isinstance(op, Scan)
        self.op = op
        last = op.carried + len(op.axes)
        inputs = self.anchor.inputs
        self.state, self.scanned = inputs[: op.carried], inputs[op.carried : last]
        self.captures = inputs[last:]
        formals = list(map(_tensor, op.body.input_types))
        self.reserve_state(formals[: op.carried])
        for i, t in enumerate(formals[op.carried : last]):
            self.room(f"slice {i}", t)
        for i, t in enumerate(map(_tensor, op.body.output_types[op.carried :])):
            self.room(f"collected {i}", t)
        self.reserve_operands(self.captures)

    def emit(self) -> None:
        captures = self.dense_operands(self.captures)
        old, new = self.initial()
        count = len(old)
        length = self.scanned[0].tensor.static[self.op.axes[0]]

        def step(t: Int, held: list[Reg]) -> list[Reg]:
            slices = [
                self._slice(i, self._turn(t, length, back))
                for i, back in enumerate(self.op.backward)
            ]
            self.wait()
            collected = [self.place(f"collected {i}") for i in range(len(self.op.result_axes))]
            outputs = [*held[count:], *(p.pointer for p in collected)]
            self.run(self.subs[0], [*held[:count], *slices, *captures], outputs)
            self.wait()
            for i, element in enumerate(collected):
                self._collect(i, element, self._turn(t, length, self.op.result_backward[i]))
            return [*held[count:], *held[:count]]

        held = self.b.loop(0, length, 1, step, [*old, *new])
        self.wait()
        self.finish(held[:count])

    def _turn(self, t: Int, length: int, backward: bool) -> Int:
        return self.b.sub(length - 1, t) if backward else t

    def _slice(self, i: int, t: Int) -> Reg:
        """One slice of a scanned operand, side by side."""
        whole = self._within(self.stored(self.scanned[i]), self.op.axes[i], t)
        room = self.place(f"slice {i}")
        if whole.dense:
            return whole.pointer
        self.copy(replace(whole, type=room.type), room)
        return room.pointer

    def _collect(self, i: int, element: Place, t: Int) -> None:
        """Puts what an iteration gives into its slice of the result."""
        index = self.op.carried + i
        if index in self.results:
            target = self.stored(self.results[index])
            slice_ = self._within(target, self.op.result_axes[i], t)
            self.copy(element, replace(slice_, type=element.type))

    def _within(self, place: Place, axis: int, t: Int) -> Place:
        """A slice of a place along an axis."""
        b, size = self.b, place.type.dtype.itemsize
        at = b.add(place.offset, b.mul(t, place.strides[axis]))
        shape = [d for k, d in enumerate(place.type.static) if k != axis]
        strides = tuple(s for k, s in enumerate(place.strides) if k != axis)
        pointer = b.offset(place.pointer, b.mul(at, size))
        return Place(pointer, place.type.with_shape(shape), 0, strides)


def _tensor(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_
