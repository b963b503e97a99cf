"""Branches and loops, run by the host or as conditional nodes of a graph.

The host reads a bool from the device and launches what it selects. A conditional node reads the
same bool by itself. Its bodies are filled node by node: no stream records them, so nothing that
other threads do can invalidate them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from monograph.codegen.triton.module.launch import is_unrolled
from monograph.errors import ExecutionError
from monograph.runtime.gpu.driver.devices import Record
from monograph.runtime.gpu.driver.graphs import IF, WHILE, Fill, Graphs, Handle, UncapturableError

PLAIN, BRANCH, REPEAT = "plain", "branch", "repeat"


@dataclass(frozen=True)
class LaunchTree:
    """The nesting of a piece of work, as plain data."""

    kind: str = PLAIN
    bodies: tuple[int, ...] = ()
    """The number of pieces of work in each body, without those further inside."""
    count: int | None = None
    """The number of repetitions of a body, if it is known."""


def count_kernels(every: Sequence[LaunchTree]) -> int:
    """The kernels of a run: of a branch its longer side, of a loop all turns.

    A loop whose turns data decide counts with one turn.
    """
    rest = iter(every)
    total = 0
    for nest in rest:
        total += _kernels(nest, rest)
    return total


def _kernels(nest: LaunchTree, rest: Iterator[LaunchTree]) -> int:
    if nest.kind == PLAIN:
        return 1
    bodies = [sum(_kernels(next(rest), rest) for _ in range(size)) for size in nest.bodies]
    return max(bodies, default=0) * (1 if nest.count is None else nest.count)


class ConditionalLaunch:
    """A branch or a loop: which launches follow is decided when they are to be made."""

    empty = False

    def __init__(self, nest: LaunchTree) -> None:
        self.nest = nest
        self.bodies: list[list[Record]] = []
        self.syncs = 0
        """The number of times that the host has waited for the device."""
        self.launched = 0
        """Pieces of work launched, those inside others not counted."""
        self.flag: torch.Tensor | None = None

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self.flag = memory[offset : offset + 1]

    def launch(self, stream: int) -> None:
        if self.nest.kind == BRANCH:
            self._launch(self.bodies[0 if self._holds() else 1], stream)
        elif self.nest.count is not None:
            for _ in range(self.nest.count):
                self._launch(self.bodies[0], stream)
        else:
            while self._holds():
                self._launch(self.bodies[0], stream)

    def _holds(self) -> bool:
        """The condition, once everything before it has run."""
        assert self.flag is not None
        if self.flag.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ExecutionError(
                "the host reads a condition, which cannot be recorded into a caller's graph",
                hint='load the model with capture="auto"',
            )
        self.syncs += 1
        return bool(self.flag.item())

    def _launch(self, body: Sequence[Record], stream: int) -> None:
        for record in body:
            record.launch(stream)
        self.launched += len(body)


def outermost(records: Sequence[Record], every: Sequence[LaunchTree]) -> list[Record]:
    """Puts records into those that contain them; what is left runs in order."""
    if not every:
        return list(records)
    pairs = iter(list(zip(records, every, strict=True)))
    found = []
    for record, nest in pairs:
        _fill(record, nest, pairs)
        found.append(record)
    return found


def _fill(record: Record, nest: LaunchTree, rest: Iterator[tuple[Record, LaunchTree]]) -> None:
    if not isinstance(record, ConditionalLaunch):
        return
    for size in nest.bodies:
        body = []
        for _ in range(size):
            inner, own = next(rest)
            _fill(inner, own, rest)
            body.append(inner)
        record.bodies.append(body)


def syncs(records: Sequence[Record]) -> int:
    """Return the number of times that the host has waited to read a condition."""
    return sum(_syncs(r) for r in records)


def _syncs(record: Record) -> int:
    if not isinstance(record, ConditionalLaunch):
        return 0
    return record.syncs + sum(_syncs(r) for body in record.bodies for r in body)


def _is_unrolled(record: ConditionalLaunch) -> bool:
    return is_unrolled(record.nest.count, len(record.bodies[0]))


def needs_conditions(record: Any) -> bool:
    """Return True if a launch needs a graph with conditional nodes."""
    if not isinstance(record, ConditionalLaunch):
        return False
    return not _is_unrolled(record) or any(map(needs_conditions, record.bodies[0]))


def is_own(graphs: Graphs, record: Any) -> bool:
    """Return True for a generated kernel, or a branch or loop of such that a graph can hold."""
    possible = graphs.conditionals or not needs_conditions(record)
    return possible and _is_all_own(graphs, record)


def decides_on_foreign(graphs: Graphs, record: Any) -> bool:
    """Return True if a conditional node decides on launches of a library."""
    return needs_conditions(record) and not _is_all_own(graphs, record)


def _is_all_own(graphs: Graphs, record: Any) -> bool:
    if not isinstance(record, ConditionalLaunch):
        return graphs.function(record) is not None
    return all(_is_all_own(graphs, r) for body in record.bodies for r in body)


def record_control(graphs: Graphs, record: ConditionalLaunch, stream: int) -> None:
    """Records a branch or a loop as nodes that look at the condition themselves."""
    if _is_unrolled(record):
        for _ in range(record.nest.count or 0):
            _record_body(graphs, record.bodies[0], stream)
        return
    graphs.conditional(stream, *_decided(graphs, record))


def _record_body(graphs: Graphs, body: Sequence[Any], stream: int) -> None:
    for record in body:
        if isinstance(record, ConditionalLaunch):
            record_control(graphs, record, stream)
        else:
            record.launch(stream)


@dataclass(frozen=True)
class Ends:
    """Nodes that the next one waits for."""

    nodes: list[Any] = field(default_factory=list)
    beside: Any = None
    """The one of them that it may start beside, if it waits by itself."""


def once(nodes: Sequence[Any]) -> list[Any]:
    """Nodes, each of them once: a driver refuses to wait twice for one."""
    return list({int(node): node for node in nodes}.values())


def add_launch(graphs: Graphs, record: Any, graph: Handle, before: Ends) -> Ends:
    """Adds a launch to a graph behind some nodes, a branch or a loop with all that is inside."""
    if not isinstance(record, ConditionalLaunch):
        if graphs.function(record) is None:
            return Ends([graphs.add_foreign(graph, record, before.nodes)])
        node = graphs.add_kernel(graph, record, before.nodes, before.beside)
        return Ends([node], node)
    if _is_unrolled(record):
        for inside in (record.nest.count or 0) * list(record.bodies[0]):
            before = add_launch(graphs, inside, graph, before)
        return before
    kind, flag, bodies = _decided(graphs, record)
    return Ends(graphs.add_conditional(graph, kind, flag, before.nodes, bodies))


def _decided(graphs: Graphs, record: ConditionalLaunch) -> tuple[str, int, list[Fill]]:
    """Return the kind, the address of the flag and the bodies of a conditional node."""
    if not graphs.conditionals:
        raise UncapturableError("a branch or a loop: the driver has no conditional nodes")
    assert record.flag is not None
    kind = IF if record.nest.kind == BRANCH else WHILE
    return kind, record.flag.data_ptr(), [partial(_add_body, graphs, b) for b in record.bodies]


def _add_body(graphs: Graphs, body: Sequence[Any], graph: Handle) -> list[Any]:
    """Adds launches to a graph, one behind the other."""
    last = Ends()
    for record in body:
        last = add_launch(graphs, record, graph, last)
    return last.nodes
