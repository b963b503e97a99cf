"""Branches and loops: work that a bool in memory enables, disables or repeats.

Conditions, iteration numbers and state are at fixed addresses, and only the device computes them;
the launcher reads one bool. A scan of known length needs no bool: its iterations are written out
one after the other, each on its own slices.

Ops that fail a run are here too: a branch that contradicts its types, and conditions on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from monograph.codegen.triton.control.subprograms import InlinedWork, serves
from monograph.codegen.triton.emit.tile import tile
from monograph.codegen.triton.indexing.index_kernels import (
    Copied,
    CopyOperand,
    copy,
    dense,
    room,
    stored,
)
from monograph.codegen.triton.module.kernel import (
    Branch,
    Candidate,
    GpuContext,
    KernelWriter,
    RepeatWork,
    TritonFault,
    TritonPacked,
    TritonScratch,
    Work,
    kernel_for,
    single,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Item, TensorType, Type, Value, known
from monograph.ir.dtype import boolean, i64
from monograph.ops.control import Fail, If, Loop, Scan
from monograph.ops.deferred import Require
from monograph.program.dynamic.bounded import CONTROL, BoundedLoop, graphs_of
from monograph.program.fusion.op_classes import is_view
from monograph.program.memory.inplace import root

MAX_UNROLLED = 4096
"""The most pieces of work of a scan whose iterations are written out."""


@kernel_for(*CONTROL, when=serves, runs_empty=True)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.anchor
    if isinstance(anchor.op, If):
        return single("branch", lambda: _If(context, anchor).works())
    if isinstance(anchor.op, Scan):
        return single("turns", lambda: _Scan(context, anchor).works())
    return single("loop", lambda: _Loop(context, anchor).works())


class _Control:
    """The common base of branches and loops: operands, results, sub-programs."""

    def __init__(self, context: GpuContext, anchor: Value) -> None:
        self.context = context
        self.anchor = anchor
        self.subs = [InlinedWork(context, graph) for graph in graphs_of(anchor)]
        outputs = context.step.region.outputs
        self.results = {
            v.op.index: stored(context.program, v) for v in outputs if isinstance(v.op, Item)
        }
        self.prepared: list[Copied] = []
        """Copies before anything else."""

    def place(self, value: Value) -> CopyOperand:
        return stored(self.context.program, value)

    def dense_operands(self, values: Sequence[Value]) -> list[CopyOperand]:
        """Return contiguous operands: in place, or copied first."""
        found = []
        for value in values:
            place = self.place(value)
            if not place.dense:
                self.prepared.append(Copied(place, room(value.tensor)))
                place = self.prepared[-1].target
            found.append(place)
        return found

    def result(self, index: int, type_: TensorType) -> CopyOperand:
        """Return contiguous memory for a result: its own, or a scratch buffer."""
        place = self.results.get(index)
        return place if place is not None and place.dense else room(type_)

    def left(self, index: int, made: CopyOperand) -> list[Copied]:
        """Return the copy of a result that was computed in a scratch buffer."""
        place = self.results.get(index)
        return [] if place is None or place is made else [Copied(made, place)]


class _If(_Control):
    """A branch: one of two sub-programs."""

    def works(self) -> tuple[Work, ...]:
        op = self.anchor.op
        assert isinstance(op, If)
        condition, *captures = self.anchor.inputs
        given, count = self.dense_operands(captures), len(op.then.inputs)
        bodies = (self._body(0, given[:count]), self._body(1, given[count:]))
        branch = Branch((self.place(condition).part(),), bodies)
        return (*copy(self.context, self.prepared), branch)

    def _body(self, which: int, given: Sequence[CopyOperand]) -> tuple[Work, ...]:
        sub = self.subs[which]
        types = map(tensor_type, sub.program.graph.output_types)
        made = [self.result(i, t) for i, t in enumerate(types)]
        left = [c for i, place in enumerate(made) for c in self.left(i, place)]
        return (*sub.works(given, made), *copy(self.context, left))


class _Iterated(_Control):
    """A loop whose iterations the device counts, with state at a fixed address."""

    def begin(self, state: Sequence[Value], types: Sequence[TensorType]) -> None:
        """Place the state at the results, initialised from the operands."""
        self.old = [self.result(i, t) for i, t in enumerate(types)]
        self.new = [room(t) for t in types]
        self.number = room(TensorType(i64, ()))
        self.flag = room(TensorType(boolean, ()))
        for i, value in enumerate(state):
            if not self._is_in_place(value, i):
                self.prepared.append(Copied(self.place(value), self.old[i]))

    def _is_in_place(self, value: Value, index: int) -> bool:
        """Return True if a state is already at its result: its memory is donated."""
        place = self.results.get(index)
        if place is None or place is not self.old[index]:
            return False
        assert isinstance(place.of, Value)
        places = self.context.program.places
        new, old = (places.storage[v].buffer.id for v in (place.of, value))
        return root(new, places.over) == old

    @property
    def counter(self) -> TritonScratch:
        assert isinstance(self.number.of, TritonScratch)
        return self.number.of

    def end(self) -> list[Copied]:
        return [c for i, place in enumerate(self.old) for c in self.left(i, place)]

    def zero(self, k: KernelWriter) -> None:
        """Set the iteration number to zero."""
        k.w.line(f"tl.store({k.pointer(self.counter)}, tl.full((), 0, tl.int64))")

    def next_number(self, k: KernelWriter) -> str:
        """Increment the iteration number, and return it."""
        pointer = k.pointer(self.counter)
        number = k.w.let(f"tl.load({pointer}) + 1", "t")
        k.w.line(f"tl.store({pointer}, {number})")
        return number

    def announce(self, k: KernelWriter, again: str) -> None:
        """Store whether there is another iteration."""
        k.w.line(f"tl.store({k.pointer(self.flag.part())}, {again}.to(tl.int8))")

    def turned(
        self, pieces: Sequence[Copied], turn: Callable[[KernelWriter], object]
    ) -> tuple[Work, ...]:
        """Return copies at the end of an iteration and the counting: one kernel if possible."""
        if all(p.source_axis is None and p.target_axis is None for p in pieces):
            return copy(self.context, pieces, scalars=turn)
        copied = copy(self.context, pieces, self.counter)
        return (*copied, *copy(self.context, [], scalars=turn))

    def advance(self) -> list[Copied]:
        """Return the copies of the new state over the old one, unless it is in place."""
        pairs = zip(self.new, self.old, strict=True)
        return [Copied(new, old) for new, old in pairs if new is not old]


class _Loop(_Iterated):
    """A loop with a condition and a trip count."""

    def works(self) -> tuple[Work, ...]:
        op, (sub,) = self.anchor.op, self.subs
        assert isinstance(op, (Loop, BoundedLoop))
        self.trips, self.condition, *rest = self.anchor.inputs
        state, captures = rest[: op.carried], rest[op.carried :]
        count, go, *formals = map(tensor_type, op.body.input_types)
        following, *made = map(tensor_type, op.body.output_types)
        self.begin(state, formals[: op.carried])
        for i, name in enumerate(op.body.output_names[1 : 1 + op.carried]):
            if name in sub.program.donated:
                self.new[i] = self.old[i]
        self.going = room(following)
        given = self.dense_operands(captures)
        elements = [room(t) for t in made[op.carried :]]
        for k, _ in enumerate(elements):
            if op.carried + k in self.results:
                self.prepared.append(Copied(None, self.results[op.carried + k]))
        always = dense(TritonPacked(np.ones(go.static, np.bool_), boolean), go)
        inputs = [dense(self.counter, count), always, *self.old, *given]
        body = [*sub.works(inputs, [self.going, *self.new, *elements])]
        collected = [
            Copied(element, self.results[op.carried + k], target_axis=0)
            for k, element in enumerate(elements)
            if op.carried + k in self.results
        ]
        body += self.turned([*self.advance(), *collected], self._turn)
        last = self.results.get(op.carried + len(elements))
        ended = [] if last is None else [Copied(self.number, last)]
        return (
            *copy(self.context, self.prepared, scalars=self._start),
            RepeatWork((self.flag.part(),), (tuple(body),)),
            *copy(self.context, [*self.end(), *ended]),
        )

    def _start(self, k: KernelWriter) -> None:
        self.zero(k)
        go = k.w.let(f"tl.load({k.pointer(self.place(self.condition).part())}) != 0", "go")
        self.announce(k, self._limited(k, go, "0"))

    def _turn(self, k: KernelWriter) -> None:
        go = k.w.let(f"tl.load({k.pointer(self.going.part())}) != 0", "go")
        self.announce(k, self._limited(k, go, self.next_number(k)))

    def _limited(self, k: KernelWriter, go: str, number: str) -> str:
        limit = k.w.let(f"tl.load({k.pointer(self.place(self.trips).part())})", "n")
        return f"({go} & ({number} < {limit}))"


class _Scan(_Iterated):
    """A loop over the slices of the scanned operands."""

    def works(self) -> tuple[Work, ...]:
        op, inputs = self.anchor.op, self.anchor.inputs
        assert isinstance(op, Scan)
        self.op, last = op, op.carried + len(op.axes)
        self.state, self.captures = inputs[: op.carried], inputs[last:]
        self.scanned = [self.place(v) for v in inputs[op.carried : last]]
        self.length = self.scanned[0].type.static[op.axes[0]]
        formals = list(map(tensor_type, op.body.input_types))
        self.types = formals[: op.carried]
        self.slices = formals[op.carried : last]
        self.elements = list(map(tensor_type, op.body.output_types[op.carried :]))
        long = self.length * (self.subs[0].size + 1) > MAX_UNROLLED
        return self._counted() if long else self._unrolled()

    def _unrolled(self) -> tuple[Work, ...]:
        """Write out all iterations; each reads the state that the one before it wrote."""
        if self.length == 0:
            copies = zip(self.state, range(self.op.carried), strict=True)
            return copy(
                self.context,
                [Copied(self.place(v), self.results[i]) for v, i in copies if i in self.results],
            )
        captures, state = self.dense_operands(self.captures), self.dense_operands(self.state)
        turns = [[room(t) for t in self.types] for _ in range(2)]
        last = [self.result(i, t) for i, t in enumerate(self.types)]
        rooms = [room(t) for t in self.slices], [room(t) for t in self.elements]
        works: list[Work] = []
        for t in range(self.length):
            new = last if t == self.length - 1 else turns[t % 2]
            works += self._turn(t, state, new, captures, rooms)
            state = new
        left = [c for i, place in enumerate(last) for c in self.left(i, place)]
        before = copy(self.context, self.prepared)
        return (*before, *works, *copy(self.context, left))

    def _turn(
        self,
        t: int,
        state: Sequence[CopyOperand],
        new: Sequence[CopyOperand],
        captures: Sequence[CopyOperand],
        rooms: tuple[Sequence[CopyOperand], Sequence[CopyOperand]],
    ) -> list[Work]:
        op, before, after = self.op, [], []
        slices = []
        for i, whole in enumerate(self.scanned):
            place = whole.slice(op.axes[i], self._number(t, op.backward[i]))
            if not place.dense:
                before.append(Copied(place, rooms[0][i]))
                place = rooms[0][i]
            slices.append(place)
        elements = []
        for i, place in enumerate(rooms[1]):
            target = self.results.get(op.carried + i)
            if target is not None:
                own = target.slice(op.result_axes[i], self._number(t, op.result_backward[i]))
                if own.dense:
                    place = own
                else:
                    after.append(Copied(place, own))
            elements.append(place)
        body = self.subs[0].works([*state, *slices, *captures], [*new, *elements])
        return [*copy(self.context, before), *body, *copy(self.context, after)]

    def _number(self, t: int, backward: bool) -> int:
        return self.length - 1 - t if backward else t

    def _counted(self) -> tuple[Work, ...]:
        """Return one iteration, repeated and counted by the device."""
        op = self.op
        self.begin(self.state, self.types)
        captures = self.dense_operands(self.captures)
        slices, elements = [room(t) for t in self.slices], [room(t) for t in self.elements]
        taken = [
            Copied(whole, place, source_axis=axis, backward=back)
            for whole, place, axis, back in zip(
                self.scanned, slices, op.axes, op.backward, strict=True
            )
        ]
        given = [
            Copied(place, self.results[op.carried + i], target_axis=axis, backward=back)
            for i, (place, axis, back) in enumerate(
                zip(elements, op.result_axes, op.result_backward, strict=True)
            )
            if op.carried + i in self.results
        ]
        body = (
            *copy(self.context, taken, self.counter),
            *self.subs[0].works([*self.old, *slices, *captures], [*self.new, *elements]),
            *self.turned([*self.advance(), *given], self._count),
        )
        return (
            *copy(self.context, self.prepared, scalars=self._start),
            RepeatWork((self.flag.part(),), (body,), self.length),
            *copy(self.context, self.end()),
        )

    def _start(self, k: KernelWriter) -> None:
        self.zero(k)
        self.announce(k, f"tl.full((), {int(self.length > 0)}, tl.int1)")

    def _count(self, k: KernelWriter) -> None:
        self.announce(k, f"({self.next_number(k)} < {self.length})")


def tensor_type(type_: Type) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


BLOCK = 512


def readable(user: Value, index: int, operand: Value) -> bool:
    """Return True for the value that is passed on; sizes are not read through views."""
    return index == 0 or not is_view(operand)


@kernel_for(Fail, Require, readable=readable, runs_empty=True)
def failing_candidates(context: GpuContext) -> list[Candidate]:
    return single("each", lambda: _failing_kernel(context))


def _failing_kernel(context: GpuContext) -> Launch:
    """Report the fault, and return the value, or zeros for a branch's results.

    The grid has a program even if there is no element.
    """
    anchor = context.anchor
    k = context.kernel()
    t = tile(k)
    pid, size = k.program_id(), math.prod(t.shape)
    k.wait()
    if isinstance(anchor.op, Fail):
        first = k.w.let(f"{pid} == 0", "m")
        k.report(TritonFault(anchor.op.reason, shows_data=False), first, f"{pid}")
    else:
        _compare(k, anchor)
    if size:
        flat = k.w.let(f"{pid} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
        mask = k.w.let(f"{flat} < {size}", "m") if size % BLOCK else None
        t.batch(flat, range(len(t.shape)), mask)
        if isinstance(anchor.op, Fail):
            t.finish_scalar(t.elements.scalars.constant(0, anchor.dtype))
        else:
            t.finish_scalar(t.elements.element(anchor.inputs[0], t.at, t.point))
    k.trigger()
    return k.launch((max(-(-size // BLOCK), 1),))


def _compare(k: KernelWriter, anchor: Value) -> None:
    """Report a size that differs from the expected one."""
    assert isinstance(anchor.op, Require)
    _, expected, given = anchor.inputs
    sizes = known(expected)
    fault = TritonFault(anchor.op.rule, "" if sizes is None else str(sizes.tolist()))
    if expected.tensor.shape != given.tensor.shape:
        wrong = k.w.let(f"{k.program_id()} == 0", "m")
        k.report(fault, wrong, f"({wrong}).to(tl.int64) * {given.tensor.size}")
        return
    count = given.tensor.size
    if not count:
        return
    number = k.w.let(f"tl.arange(0, {1 << (count - 1).bit_length()})", "j")
    found = []
    for value in (expected, given):
        # a vector, or a scalar
        step = (k.context.program.places.storage[value].strides or (0,))[0]
        where = f"{k.pointer(value)} + {number} * {step}"
        found.append(k.w.let(f"tl.load({where}, mask={number} < {count}, other=0)", "n"))
    k.report(fault, k.w.let(f"{found[0]} != {found[1]}", "m"), found[1])
