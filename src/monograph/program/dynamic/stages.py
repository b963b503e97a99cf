"""Splits a graph where shapes depend on data: the part that can run now, and the part that waits.

An op waits for data that decide its shape: sizes that an earlier op finds in data (nonzero
elements), computed attributes, the condition of a branch whose sides differ. Once these are known,
the rest is a graph of known shapes. A loop whose state changes size is a host loop: each iteration
is a graph of known shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monograph.ir import (
    Graph,
    Item,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    Value,
    known,
    unpack,
)
from monograph.ir.dtype import COMPLEX, STRING
from monograph.ops.control import If, Loop, Scan
from monograph.ops.deferred import Deferred
from monograph.program.dynamic.bounded import Room, carry, close, counted, counted_axis
from monograph.program.fusion.op_classes import is_leaf
from monograph.program.legalise.expand import never_breaks

Compiles = Callable[[Value], bool]
"""A function that returns True if a branch or loop can be compiled as it is."""


@dataclass(frozen=True)
class StageSource:
    """The source of a value that a later stage needs: a result, cut to its valid length."""

    result: int
    count: int | None = None
    axis: int = 0

    def read(self, results: list[Any]) -> Any:
        data = results[self.result]
        if self.count is None:
            return data
        return data[(slice(None),) * self.axis + (slice(0, int(results[self.count])),)]


@dataclass(frozen=True, eq=False)
class StageSplit:
    """A graph in two parts: the graph that can run, and the values that wait for its results."""

    whole: Graph
    first: Graph
    sources: Mapping[Value, StageSource]
    """The results of the first graph that the waiting values, or the outputs, need."""
    waiting: tuple[Value, ...]
    decisive: tuple[Value, ...]
    """Values whose data decide shapes: they become constants of the waiting part."""
    reasons: Mapping[Value, str]
    """The reason of each value that waits first."""
    host_loops: Mapping[Value, tuple[Value, ...]]
    """Host loops that run before the waiting part, with their results."""

    @property
    def needed(self) -> list[Value]:
        """The values that the waiting ones read, from the first graph or the inputs."""
        waits = set(self.waiting)
        found = (i for v in self.waiting for i in v.inputs)
        return [v for v in dict.fromkeys(found) if v not in waits and known(v) is None]


def cut(
    graph: Graph, compiles: Compiles, keeps_state: bool = False, turns: bool = False
) -> StageSplit | None:
    """Split a graph where it has to wait; None if it is a plain program.

    keeps_state: a state in the graph outlives a run, so it is no plain program. turns: loops that
    cannot be compiled as a whole become host loops.
    """
    search = _Search(compiles, turns)
    for value in graph.values:
        search.visit(value)
    waits = search.waiting
    host_loops = {loop: tuple(items) for loop, items in search.host_loops.items()}
    if not waits and not keeps_state and not search.rooms and not host_loops:
        return None
    read = [i for v in (*waits, *host_loops) for i in v.inputs] + [v for _, v in graph.outputs]
    later = {*waits, *(item for items in host_loops.values() for item in items)}
    now = [v for v in dict.fromkeys(read) if v not in later and not is_leaf(v)]
    first, sources = search.first(graph, now)
    decisive = tuple(search.decisive)
    return StageSplit(graph, first, sources, tuple(waits), decisive, search.reasons, host_loops)


def contained(graph: Graph, compiles: Compiles) -> Graph:
    """Return a sub-graph with bounded results, if its data-dependent sizes stay inside it."""
    if not any(is_sized_by_data(v.type) for v in graph.values):
        return graph
    search = _Search(compiles)
    for value in graph.values:
        search.visit(value)
    if search.waiting or any(v in search.sized for _, v in graph.outputs):
        return graph
    outputs = tuple((name, search.made.get(v, v)) for name, v in graph.outputs)
    return Graph(graph.inputs, outputs, graph.name, graph.origins)


class _Search:
    """One walk over a graph in order: it finds waiting values and replacements of others."""

    def __init__(self, compiles: Compiles, turns: bool = False) -> None:
        self.compiles = compiles
        self.turns = turns
        self.host_loops: dict[Value, list[Value]] = {}
        """Host loops, with their results."""
        self.waiting: dict[Value, None] = {}
        self.sized: dict[Value, None] = {}
        """Values whose sizes depend on data, found by compiled ops or host steps."""
        self.rooms: dict[Value, Room] = {}
        """Those of them that have a bounded form."""
        self.items: dict[Value, tuple[Value, ...]] = {}
        """The results of ops in bounded form."""
        self.made: dict[Value, Value] = {}
        self.decisive: dict[Value, None] = {}
        self.reasons: dict[Value, str] = {}

    def visit(self, value: Value) -> None:
        if is_leaf(value):
            return
        if any(v in self.waiting for v in value.inputs):
            self.waiting[value] = None
        elif isinstance(value.op, Item) and value.inputs[0] in self.host_loops:
            self.host_loops[value.inputs[0]].append(value)
        elif any(v.inputs and v.inputs[0] in self.host_loops for v in value.inputs):
            self._wait(value, "it reads a result of a host loop")
        elif isinstance(value.op, Item) and value.inputs[0] in self.sized:
            self._item(value, value.inputs[0])
        elif late := [v for v in self._decisive(value) if known(v) is None]:
            self.decisive.update(dict.fromkeys(late))
            self._wait(value, "its shape depends on data")
        elif any(v in self.sized for v in value.inputs):
            self._go_on(value)
        else:
            self._plain(value)

    def _plain(self, value: Value) -> None:
        """Process a value whose operands are ready; its own size may depend on data."""
        inputs = tuple(self.made.get(v, v) for v in value.inputs)
        new = value if inputs == value.inputs else value.op(*inputs)
        room = counted(new, self.compiles) if is_sized_by_data(value.type) else None
        if room is None and self.turns and is_host_loop(value) and not self.compiles(new):
            self.host_loops[value] = []
            return
        self.made[value] = new
        if not is_sized_by_data(value.type):
            return
        self.sized[value] = None
        if room is None:
            return
        self.items[value] = unpack(room)
        if not isinstance(value.type, TupleType):
            self._room(value, self.items[value], 0)

    def _decisive(self, value: Value) -> tuple[Value, ...]:
        """Return the operands to wait for; none for a loop that is a host loop anyway."""
        op, turns = value.op, self.turns and is_host_loop(value)
        if turns and isinstance(op, Loop) and _changes_size(op):
            return ()  # its body is compiled once, for any number of turns
        return _decisive(value, self.compiles)

    def _item(self, value: Value, whole: Value) -> None:
        """Process a result of an op that has found its size."""
        assert isinstance(value.op, Item)
        if is_sized_by_data(value.type):
            self.sized[value] = None
        if whole in self.items:
            self._room(value, self.items[whole], value.op.index)
        else:
            self.made[value] = value.op(self.made[whole])

    def _room(self, value: Value, items: tuple[Value, ...], index: int) -> None:
        axis = counted_axis(value.type)
        self.made[value] = items[index]
        if axis is not None:
            self.rooms[value] = Room(items[index], items[-1], axis)

    def _go_on(self, value: Value) -> None:
        """Process a value on a bounded operand: row by row, or after the size is known."""
        room = carry(value, self.rooms, self.made)
        whole = close(value, self.rooms, self.made)
        if room is not None:
            self.sized[value] = None
            self.rooms[value] = room
            self.made[value] = room.value
        elif whole is not None:
            self.made[value] = whole
        else:
            self._wait(value, "its size depends on data")

    def _wait(self, value: Value, why: str) -> None:
        self.waiting[value] = None
        self.reasons[value] = why

    def first(self, graph: Graph, wanted: list[Value]) -> tuple[Graph, dict[Value, StageSource]]:
        """Return the graph that can run now, with bounded results."""
        outputs: dict[Value, int] = {}
        sources: dict[Value, StageSource] = {}

        def place(value: Value) -> int:
            return outputs.setdefault(value, len(outputs))

        for value in wanted:
            room = self.rooms.get(value)
            if room is None:
                sources[value] = StageSource(place(self.made[value]))
            else:
                sources[value] = StageSource(place(room.value), place(room.count), room.axis)
        named = tuple((f"~{i}", v) for v, i in outputs.items())
        origins = dict(graph.origins)
        for old, new in self.made.items():
            if old in graph.origins:
                origins.setdefault(new, graph.origins[old])
            if old in self.items and old in graph.origins:
                origins[self.items[old][0].inputs[0]] = graph.origins[old]
        return Graph(graph.inputs, named, graph.name, origins), sources


def _decisive(value: Value, compiles: Compiles) -> tuple[Value, ...]:
    """Return the operands whose data must be known before an op can be compiled."""
    op = value.op
    if isinstance(op, Deferred):
        count = len(value.inputs) - len(op.late)
        return value.inputs[count:] if all(map(_is_number, value.inputs)) else ()
    if isinstance(op, If) and not _has_optional(value.type) and not compiles(value):
        return value.inputs[:1]
    if isinstance(op, Loop) and all(map(_is_number, value.inputs)) and not compiles(value):
        # The trip count, and the condition if nothing in the body ends the loop.
        return value.inputs[: 2 if never_breaks(op) else 1]
    return ()


def is_host_loop(value: Value) -> bool:
    """Return True if each iteration of a loop can be compiled, though not the whole loop.

    The parts of an iteration that cannot be compiled (text, sequences) are host steps.
    """
    if not isinstance(value.op, (Loop, Scan)):
        return False
    return not any(isinstance(v.type, OptionalType) for v in value.inputs)


def _changes_size(op: Loop) -> bool:
    """Return True if the state of a loop may change its size."""
    return any(map(is_sized_by_data, op.body.input_types[2 : 2 + op.carried]))


def _has_optional(type_: Type) -> bool:
    """Return True if one branch may return a value where the other returns an optional."""
    assert isinstance(type_, TupleType)
    return any(isinstance(t, OptionalType) for t in type_.items)


def _is_number(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype.kind not in (STRING, COMPLEX)


def is_sized_by_data(type_: Type) -> bool:
    """Return True if a numeric type has a size that depends on data."""
    if isinstance(type_, TupleType):
        return any(map(is_sized_by_data, type_.items))
    if not isinstance(type_, TensorType) or type_.dtype.kind in (STRING, COMPLEX):
        return False
    return not type_.is_static
