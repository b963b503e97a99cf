"""Graphs of code for any shape: sizes are parameters of their nodes, as addresses are.

One graph is built for a variant and instantiated. For other sizes, grids, numbers and addresses of
its nodes are rewritten in the executable graph: nothing is captured and nothing is instantiated. A
node with nothing to do is disabled. Sizes that come back after others had their graph get one of
their own, as long as there are few: launching it costs less than rewriting.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from monograph.runtime.gpu.capture.capture import Memory, Place, Recording, own_ports
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.runtime.gpu.capture.launches import TENSORS, Launches
from monograph.runtime.gpu.driver.graphs import GraphError, Graphs, Handle, Params

MOST_GRAPHS = 8
"""The most executable graphs of a variant."""


class SizedGraph(CapturedGraph):
    """An executable graph at one set of sizes. It belongs to its variant."""

    captured = False

    def close(self) -> None:
        """Let the memory of its ports go; the variant frees the graph."""
        self.kept.clear()


class _Slot:
    """An executable graph, the parameters of its nodes, and whose sizes it has."""

    def __init__(self, executable: Handle, params: list[Params]) -> None:
        self.executable = executable
        self.params = params
        self.disabled: set[int] = set()
        """Launches whose nodes do nothing."""
        self.owner: weakref.ref[Launches] | None = None

    @property
    def launches(self) -> Launches | None:
        return None if self.owner is None else self.owner()


class SizedGraphs:
    """The executable graphs of a variant. Its callers hold the lock of the variant's runs."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self._template: Recording | None = None
        self._slots: list[_Slot] = []
        """In the order in which they were given to sizes."""
        self._prepared: set[int | None] = set()

    def adopt(self, built: CapturedGraph, launches: Launches, memory: Memory) -> SizedGraph:
        """Take the first graph of a variant."""
        records = launches.executable.records
        self._template = built.taken
        self._prepared |= {self.graphs.function(r) for r in records}
        slot = self._slot(built.executable)
        self._disable(slot, [i for i, r in enumerate(records) if r.empty])
        return self._bound(slot, launches, memory)

    def take(self, launches: Launches, memory: Memory, again: bool) -> SizedGraph | None:
        """Return a graph at the sizes of a program; None before the first graph is built.

        again: whether the program had a graph before.
        """
        template = self._template
        if template is None:
            return None
        if not self._slots or (again and len(self._slots) < MOST_GRAPHS):
            slot = self._slot(self.graphs.instantiate(template.graph))
        else:
            slot = self._slots.pop(self._oldest())
        self._leave(slot)
        try:
            self._resize(slot, launches, memory)
            return self._bound(slot, launches, memory)
        except BaseException:
            slot.executable.close()  # nobody knows which sizes it has
            raise

    def _slot(self, executable: Handle) -> _Slot:
        template = self._template
        assert template is not None
        params = [self._read(template.nodes[i]) for i in range(len(template.nodes))]
        return _Slot(executable, params)

    def _read(self, nodes: Sequence[Any]) -> Params:
        found = self.graphs.read(nodes[0]) if len(nodes) == 1 else None
        if found is None:
            raise GraphError("a launch was not recorded as the kernel that it is")
        return found

    def _oldest(self) -> int:
        """Return the slot to take: that of a program that was dropped, or the oldest."""
        unused = [i for i, s in enumerate(self._slots) if s.launches is None]
        return unused[0] if unused else 0

    def _leave(self, slot: _Slot) -> None:
        """Take a graph from the program that has it."""
        before = slot.launches
        if before is not None:
            before.made.pop(TENSORS, None)
        slot.owner = None

    def _resize(self, slot: _Slot, launches: Launches, memory: Memory) -> None:
        """Write the launches of a program into the nodes of a graph."""
        program, graphs = launches.executable, self.graphs
        for port, record, position, offset in program.port_arguments:
            record.point(position, memory[port], offset)
        empty = []
        for number, record in enumerate(program.records):
            if record.empty:
                empty.append(number)
                continue
            if (code := graphs.function(record)) not in self._prepared:
                graphs.prepare(record)
                self._prepared.add(code)
            graphs.resize(slot.params[number], record)
            graphs.write(slot.executable, slot.params[number])
        self._disable(slot, empty)

    def _disable(self, slot: _Slot, empty: Sequence[int]) -> None:
        wanted = set(empty)
        for number in sorted(wanted ^ slot.disabled):
            node = slot.params[number].node
            self.graphs.enable(slot.executable, node, number not in wanted)
        slot.disabled = wanted

    def _bound(self, slot: _Slot, launches: Launches, memory: Memory) -> SizedGraph:
        """Return the graph of a slot, as that of a program."""
        assert self._template is not None
        program = launches.executable
        places: dict[str, list[Place]] = {}
        for number, ports in enumerate(own_ports(program)):
            if number in slot.disabled:
                continue
            for port, position, offset in ports:
                params = slot.params[number]
                word = params.word(position, 0)
                if word.value != memory[port].data_ptr() + offset:
                    raise GraphError("a kernel of a graph has other parameters than were written")
                places.setdefault(port, []).append((params, word, offset))
        addresses = {name: tensor.data_ptr() for name, tensor in memory.items()}
        made = SizedGraph(self.graphs, self._template, places, addresses, slot.executable)
        slot.owner = weakref.ref(launches)
        self._slots.append(slot)
        return made
