"""Launches as nodes of a graph, branches and loops with all that is inside them.

What decides is a conditional node, which looks at a bool in memory by itself. Its bodies are filled
node by node: no stream records them, and nothing that other threads do can spoil them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from monograph.codegen.triton.control.subprograms import is_unrolled
from monograph.runtime.gpu.capture.control import BRANCH, ConditionalLaunch
from monograph.runtime.gpu.driver.graphs import IF, WHILE, Fill, Graphs, Handle, UncapturableError


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
