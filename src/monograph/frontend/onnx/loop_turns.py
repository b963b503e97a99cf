"""Loops whose number of turns follows from known numbers, and what each turn then knows.

Exporters write a loop over the elements of a tensor as one with a counter and a condition, and
slices at places that the counter decides. The part of the body that depends on known numbers alone
is evaluated, turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.frontend.onnx.fold import fold
from monograph.ir import Array, Graph, TensorType, Value, constant, known
from monograph.ir.evaluate import evaluate
from monograph.ir.sizes import any_open
from monograph.ir.types import holds_open
from monograph.ops.deferred import Deferred, settle
from monograph.ops.index import Gather
from monograph.ops.shape import Reshape
from monograph.ops.slice import Slice, count_places, sliced_places

MAX_COUNTED, MAX_COUNTED_SIZE = 1 << 15, 64
"""The most values that are evaluated for the turns of a loop, and their largest size."""
MAX_PLACES = 1 << 16
"""The most places of slices that are kept, over all turns."""


def count_turns(
    body: Graph, carried: int, trips: Value, condition: Value, operands: Sequence[Value]
) -> int | None:
    """Return how often a loop runs whose condition follows from known numbers alone.

    None if it depends on other data, or if it would take long to count.
    """
    ends, limit, go = body.outputs[0][1], known(trips), known(condition)
    shape = ends.tensor.shape
    if limit is None or go is None or not go.all() or known(ends) is not None or shape is None:
        return None
    found = _Known(body, carried, operands)
    if ends not in found.values:
        return None
    part, last = found.part([ends]), int(limit.reshape(-1)[0])
    # Without state and number, no turn changes what the condition depends on.
    most = MAX_COUNTED // part.cost if part.moves else 1
    try:
        for turn, (goes_on,) in enumerate(part.run(min(last, most))):
            if not goes_on.all():
                return turn + 1
    except MonographError:
        return None
    return last if last <= most else None


def settle_turns(body: Graph, carried: int, turns: int, operands: Sequence[Value]) -> Graph:
    """Return the body of a loop with a known number of turns, with what they decide settled.

    An attribute that is the same in all turns is a constant. A slice of one length at a place that
    differs from turn to turn is a lookup of the places of the turn.
    """
    if not turns or not any(isinstance(v.op, Deferred) for v in body.values):
        return body
    found = _Known(body, carried, operands)
    late = {
        operand
        for v in body.values
        if isinstance(v.op, Deferred)
        for operand in v.inputs[len(v.inputs) - len(v.op.late) :]
        if operand in found.values and known(operand) is None
    }
    wanted = [v for v in body.values if v in late]
    part = found.part(wanted)
    if not wanted or part.cost * turns > MAX_COUNTED:
        return body
    try:
        columns = zip(*part.run(turns), strict=True)
        rows = dict(zip(wanted, map(np.stack, columns), strict=True))
    except MonographError:
        return body
    made = {v: v for v in body.inputs}
    for value in body.values:
        if value not in made:
            made[value] = _settled(value, tuple(made[v] for v in value.inputs), rows, body)
    origins = dict(body.origins)
    for old, new in made.items():
        if origin := body.origin(old):
            origins.setdefault(new, origin)
    outputs = tuple((name, made[v]) for name, v in body.outputs)
    return Graph(body.inputs, outputs, body.name, origins)


def _settled(
    value: Value, inputs: tuple[Value, ...], rows: Mapping[Value, Array], body: Graph
) -> Value:
    """Rebuild a value of the body on new operands; rows has the late attributes of each turn."""
    op = value.op
    if not isinstance(op, Deferred):
        return value if inputs == value.inputs else fold(op(*inputs))
    first = len(inputs) - len(op.late)
    late = [
        constant(rows[old][0]) if old in rows and _is_one(rows[old]) else new
        for old, new in zip(value.inputs[first:], inputs[first:], strict=True)
    ]
    try:
        settled = settle(op(*inputs[:first], *late))
        if isinstance(settled.op, Deferred) and op.target == Slice.name:
            each = dict(op.static)
            for name, old, new in zip(op.late, value.inputs[first:], late, strict=True):
                each[name] = rows.get(old, known(new))
            settled = _slice_of_turn(inputs[0], each, body.inputs[0]) or settled
    except MonographError:
        return op(*inputs)  # the op raises its error when it runs
    return fold(settled)


def _is_one(rows: Array) -> bool:
    return bool((rows == rows[0]).all())


def _slice_of_turn(x: Value, each: Mapping[str, Any], number: Value) -> Value | None:
    """Return a slice whose length is the same in all turns as lookups; None for any other.

    each: the starts, stops and steps: of all turns in rows, or one for all.
    """
    bounds = [each[name] for name in ("starts", "stops", "steps")]
    if any(b is None for b in bounds) or not x.tensor.is_static or any_open(x.tensor.static):
        return None
    turns = max(len(b) for b in bounds if np.ndim(b) == 2)
    rank = x.tensor.rank
    whole = np.stack([np.broadcast_to(b, (turns, rank)) for b in bounds])
    at = Reshape(())(number)
    for axis, size in enumerate(x.tensor.static):
        places = [sliced_places(slice(*map(int, b)), size) for b in whole[:, :, axis].T]
        counts = {count_places(p) for p in places}
        if len(counts) > 1 or counts.pop() * turns > MAX_PLACES:
            return None
        table = np.array(places, np.int64).reshape(turns, -1)
        if not _is_one(table):
            x = Gather(axis)(x, Gather(0)(constant(table), at))
        elif not np.array_equal(table[0], np.arange(size)):
            x = Gather(axis)(x, constant(table[0]))
    return x


class _Known:
    """The values of a loop's body that follow from known numbers, in every turn."""

    def __init__(self, body: Graph, carried: int, operands: Sequence[Value]) -> None:
        self.body, self.carried = body, carried
        self.start = {
            v: data
            for v, operand in zip(body.inputs[2:], operands, strict=True)
            if (data := known(operand)) is not None
            and data.size <= MAX_COUNTED_SIZE
            and not holds_open(data)
        }
        """The data that state and captures have in the first turn."""
        self.next = {
            v: new
            for v, (_, new) in zip(body.inputs[2 : 2 + carried], body.outputs[1:], strict=False)
        }
        while True:
            self.values = self._follow()
            lost = [v for v in self.start if v in self.next and self.next[v] not in self.values]
            if not lost:
                break
            for v in lost:
                del self.start[v]

    def _follow(self) -> set[Value]:
        """Return the values that follow from the first data."""
        found = {*self.body.inputs[:2], *self.start}
        for v in self.body.values:
            plain = isinstance(v.type, TensorType) and v.type.is_static
            if not plain or any_open(v.tensor.static):
                continue
            if v.tensor.size <= MAX_COUNTED_SIZE and v.op.pure and v not in found:
                from_known = v.inputs and all(i in found for i in v.inputs)
                if from_known or known(v) is not None:
                    found.add(v)
        return found

    def part(self, wanted: Sequence[Value]) -> _Part:
        """Return what computes some of these values, and the state that they depend on."""
        states: list[Value] = []
        while True:
            outputs = [*wanted, *(self.next[v] for v in states)]
            values = Graph((), tuple((str(i), v) for i, v in enumerate(outputs))).values
            needed = [v for v in self.next if v in values]
            if needed == states:
                break
            states = needed
        roots = tuple(v for v in values if v in self.body.inputs)
        graph = Graph(roots, tuple((str(i), v) for i, v in enumerate(outputs)))
        return _Part(graph, len(wanted), tuple(states), self)


@dataclass
class _Part:
    """A part of the body that is evaluated turn by turn."""

    graph: Graph
    wanted: int
    states: tuple[Value, ...]
    whole: _Known

    @property
    def cost(self) -> int:
        return len(self.graph.values)

    @property
    def moves(self) -> bool:
        """True if the results may change from turn to turn."""
        return bool(self.states) or self.whole.body.inputs[0] in self.graph.inputs

    def run(self, most: int) -> Iterator[list[Array]]:
        """Return the wanted values of each turn, up to a number of turns."""
        number, going = self.whole.body.inputs[:2]
        state = dict(self.whole.start)
        for turn in range(most):
            state |= {
                number: np.full(number.tensor.static, turn, np.int64),
                going: np.full(going.tensor.static, True),
            }
            made = evaluate(self.graph, [state[v] for v in self.graph.inputs])
            yield made[: self.wanted]
            state |= dict(zip(self.states, made[self.wanted :], strict=True))
