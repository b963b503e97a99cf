"""Control flow: sub-graphs compiled into the kernel of a branch or loop.

All threads read the condition after a barrier, so they all take the same path.

Ops that fail a run are here too: a branch that contradicts its types, and conditions on sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.control.subprograms import (
    Control,
    InlinedProgram,
    StridedRef,
    clear,
    dense,
    find_generator,
    find_program,
    tensor_type,
    within,
)
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point, elements_of
from monograph.codegen.llvm.emit.map_kernel import ElementMaker, Loaded, emit_each
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    kernel_for,
    report,
)
from monograph.ir import DType, Graph, TensorType, Value, known
from monograph.ops.control import Fail, If, Loop, Scan
from monograph.ops.deferred import Require
from monograph.ops.scalar import Scalar
from monograph.program.dynamic.bounded import CONTROL, BoundedLoop, graphs_of
from monograph.program.fusion.op_classes import is_native
from monograph.program.fusion.region import Indices
from monograph.program.index import strides_of
from monograph.program.legalise.open_constants import open_number
from monograph.program.memory.inplace import root


def serves(value: Value) -> bool:
    """Return True if all sub-graphs can be compiled too."""
    return isinstance(value.op, CONTROL) and all(map(_compiles, graphs_of(value)))


def _compiles(graph: Graph) -> bool:
    if not all(map(is_native, (*graph.inputs, *(v for _, v in graph.outputs)))):
        return False
    generator, program = find_generator(), find_program(graph)
    return program is not None and all(generator(s.region) is not None for s in program.steps)


@kernel_for(*CONTROL, when=serves)
def control(context: KernelContext) -> Kernel:
    """Generate a kernel for a branch or a loop with its sub-graphs."""
    anchor = context.anchor
    kinds: dict[type, type[Control]] = {If: _If, Loop: _Loop, BoundedLoop: _Loop, Scan: _Scan}
    return kinds[type(anchor.op)](context, anchor).kernel()


class _If(Control):
    """A branch: one of two sub-programs."""

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

    def _branch(self, sub: InlinedProgram, given: Sequence[Reg]) -> None:
        rooms = [self.place(f"result {i}") for i in range(len(sub.program.graph.outputs))]
        # Directly into the result if it is contiguous.
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


class _Iterated(Control):
    """A loop whose state alternates between two buffers.

    State that the body updates in place has one buffer only.
    """

    state: Sequence[Value]

    def reserve_state(self, types: Sequence[TensorType]) -> None:
        for i, t in enumerate(types):
            if i not in self.in_place:
                self.room(f"old {i}", t)
            if i not in self.written_over:
                self.room(f"new {i}", t)

    @property
    def written_over(self) -> set[int]:
        """The indices of the state that the body updates in place."""
        return set()

    @cached_property
    def in_place(self) -> set[int]:
        """The indices of the state that stays in the caller's donated buffer."""
        places = self.context.program.places
        found = set()
        for i in self.written_over & self.results.keys():
            result = self.results[i]
            new, old = places.storage[result], places.storage[self.state[i]]
            dense_ = (new.offset, new.strides) == (0, strides_of(result.tensor.static))
            if dense_ and root(new.buffer.id, places.over) == old.buffer.id:
                found.add(i)
        return found

    def initial(self) -> tuple[list[Reg], list[Reg]]:
        """Return pointers to the initialised state, and to the next state."""
        old, new = [], []
        for i, value in enumerate(self.state):
            if i in self.in_place:
                place = self.stored(self.results[i])
            else:
                place = self.place(f"old {i}")
                self.fill(value, place)
            old.append(place.pointer)
            following = place if i in self.written_over else self.place(f"new {i}")
            new.append(following.pointer)
        return old, new

    def finish(self, last: Sequence[Reg]) -> None:
        """Copy the last state into the results."""
        for i, pointer in enumerate(last):
            if i in self.results and i not in self.in_place:
                target = self.stored(self.results[i])
                self.copy(dense(pointer, target.type), target)


class _Loop(_Iterated):
    """A loop with a condition and a trip count."""

    @property
    def written_over(self) -> set[int]:
        program = self.subs[0].program
        names, done = program.graph.output_names[1:], program.donated
        return {i for i in range(self.carried) if names[i] in done}

    def reserve(self) -> None:
        op = self.anchor.op
        assert isinstance(op, (Loop, BoundedLoop))
        self.carried = op.carried
        self.trips, self.condition, *rest = self.anchor.inputs
        self.state, self.captures = rest[: op.carried], rest[op.carried :]
        count, go, *formals = map(tensor_type, op.body.input_types)
        self.room("count", count)
        self.room("go", go)
        self.room("next go", tensor_type(op.body.output_types[0]))
        self.reserve_state(formals[: op.carried])
        self.reserve_operands(self.captures)
        self.collected = list(map(tensor_type, op.body.output_types[1 + op.carried :]))
        for i, t in enumerate(self.collected):
            self.room(f"collected {i}", t)

    def emit(self) -> None:
        b = self.b
        captures = self.dense_operands(self.captures)
        old, new = self.initial()
        self.wait()
        go = self.stored(self.condition)
        started = self.flag(go.pointer, go.offset)
        count, limit = len(old), self.limit()

        def continues(i: Reg, goes: Reg, *_: Reg) -> Reg:
            less = b.compare("slt", i, limit)
            return b.set("i1", f"and i1 {goes}, {less}")

        def iterate(i: Reg, goes: Reg, *held: Reg) -> list[Reg]:
            here, there = list(held[:count]), list(held[count:])
            self._iteration(i, goes, here, there, captures)
            again = self.flag(self.place("next go").pointer)
            return [b.set("i64", f"add i64 {i}, 1"), again, *there, *here]

        starts = [("i", Reg("0", "i64")), ("go", started), *(("state", p) for p in (*old, *new))]
        i, _, *held = b.loop_while(starts, continues, iterate)
        self.finish(held[:count])
        self._end(i)

    def limit(self) -> Reg:
        """Return the trip count."""
        if (size := open_number(self.trips)) is not None:
            return self.b.i64(size)
        trips = self.stored(self.trips)
        return self.b.load("i64", self.b.offset(trips.pointer, trips.offset * 8), 8)

    def _end(self, count: Reg) -> None:
        """Store the number of iterations, and clear the unused room."""
        last = self.carried + len(self.collected)
        if last in self.results:
            target = self.stored(self.results[last])
            at = self.b.offset(target.pointer, target.offset * 8)
            self.b.on_thread(0, lambda: self.b.store(count, at, 8))
        for k, type_ in enumerate(self.collected):
            if self.carried + k not in self.results:
                continue
            most = self.results[self.carried + k].tensor.static[0]
            self.b.loop(count, most, 1, partial(self._clear, k, type_))

    def _collect(self, k: int, element: StridedRef, i: Int, _: list[Reg]) -> None:
        """Store a result of an iteration into its slice of the collected result."""
        if self.carried + k in self.results:
            target = within(self.b, self.stored(self.results[self.carried + k]), 0, i)
            self.copy(element, replace(target, type=element.type))

    def _clear(self, k: int, type_: TensorType, i: Int, _: list[Reg]) -> None:
        """Store zeros into a slice of the collected result."""
        target = within(self.b, self.stored(self.results[self.carried + k]), 0, i)
        clear(self.context, self.b, replace(target, type=type_))

    def _iteration(
        self, i: Reg, goes: Reg, old: list[Reg], new: list[Reg], captures: list[Reg]
    ) -> None:
        b = self.b
        count, go, following = (self.place(n).pointer for n in ("count", "go", "next go"))

        def announce() -> None:
            b.store(i, count, 8)
            b.store(b.set("i8", f"zext i1 {goes} to i8"), go, 1)

        self.b.on_thread(0, announce)
        self.wait()
        rooms = [self.place(f"collected {k}") for k in range(len(self.collected))]
        made = [following, *new, *(r.pointer for r in rooms)]
        self.run(self.subs[0], [count, go, *old, *captures], made)
        self.wait()
        for k, element in enumerate(rooms):
            self._collect(k, element, i, [])


class _Scan(_Iterated):
    """A loop over the slices of the scanned operands."""

    def reserve(self) -> None:
        op = self.anchor.op
        assert isinstance(op, Scan)
        self.op = op
        last = op.carried + len(op.axes)
        inputs = self.anchor.inputs
        self.state, self.scanned = inputs[: op.carried], inputs[op.carried : last]
        self.captures = inputs[last:]
        formals = list(map(tensor_type, op.body.input_types))
        self.reserve_state(formals[: op.carried])
        for i, t in enumerate(formals[op.carried : last]):
            self.room(f"slice {i}", t)
        for i, t in enumerate(map(tensor_type, op.body.output_types[op.carried :])):
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
        """Return one slice of a scanned operand, contiguous."""
        whole = within(self.b, self.stored(self.scanned[i]), self.op.axes[i], t)
        room = self.place(f"slice {i}")
        if whole.dense:
            return whole.pointer
        self.copy(replace(whole, type=room.type), room)
        return room.pointer

    def _collect(self, i: int, element: StridedRef, t: Int) -> None:
        """Store a result of an iteration into its slice of the collected result."""
        index = self.op.carried + i
        if index in self.results:
            target = self.stored(self.results[index])
            slice_ = within(self.b, target, self.op.result_axes[i], t)
            self.copy(element, replace(slice_, type=element.type))


@kernel_for(Fail)
def failing(context: KernelContext) -> Kernel:
    """Report that the branch was taken; return zeros for its results."""
    region, anchor = context.step.region, context.anchor
    assert isinstance(anchor.op, Fail)
    context.add(*region.inputs, *region.outputs)
    fault = context.argument(LlvmFault(anchor.op.reason, shows_data=False))
    b = context.builder()
    report(b, fault, Reg("true", "i1"), Reg("0", "i64"))
    emit_each(context, elements_of(context, b), partial(_Zeros, anchor.dtype), vectors=False)
    return context.finish(b)


@kernel_for(Require)
def require(context: KernelContext) -> Kernel:
    """Pass a value on, and report sizes that do not agree."""
    region, anchor = context.step.region, context.anchor
    assert isinstance(anchor.op, Require)
    x, expected, given = anchor.inputs
    context.add(*region.inputs, *region.outputs)
    sizes = known(expected)
    shown = "" if sizes is None else str(sizes.tolist())
    fault = context.argument(LlvmFault(anchor.op.rule, shown))
    b = context.builder()
    elements = elements_of(context, b)
    if expected.tensor.shape != given.tensor.shape:
        report(b, fault, Reg("true", "i1"), Reg(str(given.tensor.size), "i64"))
    else:
        _compare(elements, expected, given, fault)
    emit_each(context, elements, partial(Loaded, x, x.dtype), vectors=True)
    return context.finish(b)


def _compare(elements: LlvmElements, expected: Value, given: Value, fault: int) -> None:
    """Report a size that differs from the expected one."""
    b, a = elements.b, elements.scalars.a
    how = "sext" if given.dtype.is_signed else "zext"

    def element(value: Value, i: Int) -> Reg:
        if (size := open_number(value)) is not None:
            return b.i64(size)
        place = elements.storage[value]
        at = b.add(place.offset, b.mul(i, place.strides[0] if place.strides else 0))
        pointer = b.offset(elements.pointers[value], b.mul(at, value.dtype.itemsize))
        return a.convert(how, elements.scalars.load(value.dtype, pointer).reg, "i64")

    def one(i: Int, _: list[Reg]) -> None:
        wanted, found = element(expected, i), element(given, i)
        report(b, fault, b.compare("ne", wanted, found), found)

    b.loop(0, given.tensor.size, 1, one)


class _Zeros(ElementMaker):
    """0 everywhere."""

    def __init__(self, dtype: DType, elements: LlvmElements, at: Indices) -> None:
        super().__init__(elements, at)
        self.dtype = dtype

    def element(self, point: Point) -> Scalar:
        return self.e.scalars.constant(0, self.dtype)
