"""Recording the launches of an executable, and which parameter of which node is whose address.

A launch of our own is known exactly: the node that it becomes holds the words of its parameters.
What a library launches is recorded at three sets of addresses. The first two show which words move
with which buffer; the third has to come out as these words say, byte for byte.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from monograph.program.memory.schedules import Schedule
from monograph.runtime.gpu.bound_program import GpuLayout
from monograph.runtime.gpu.capture.control import (
    ConditionalLaunch,
    Ends,
    add_launch,
    decides_on_foreign,
    is_own,
    once,
    record_control,
)
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.driver.graphs import KERNEL, CopyNode, GraphError, Graphs, Handle, Params

if TYPE_CHECKING:
    from monograph.codegen.triton.module.layout import Bound

Memory: TypeAlias = Mapping[str, torch.Tensor]
"""The bytes of every port."""
Place: TypeAlias = tuple[Params, "ctypes.c_uint64", int]
"""A word of a node's parameters, and how far behind a port's start it points."""
Copies: TypeAlias = Mapping[str, CopyNode]
"""Copies at one end of a graph, done in any order, by the names that their nodes get."""
NO_COPIES: Copies = {}


class Recordable(Protocol):
    """Launches that a graph can be recorded from: those of a whole program, or some in a row."""

    layout: GpuLayout
    device: Device
    records: list[Record]
    """The launches, in order."""
    port_arguments: list[tuple[str, Record, int, int]]
    """The arguments that point to ports: port, launch, position, and offset in bytes."""
    held: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    lock: threading.RLock

    @property
    def works(self) -> Sequence[Bound]:
        """The compiled work of each launch; empty if it is not known."""


@dataclass
class Recording:
    """A recorded graph, and the nodes of each launch: by number, those inside bodies left out."""

    nodes: dict[int, list[Any]] = field(default_factory=dict)
    edges: dict[str, Any] = field(default_factory=dict)
    """Nodes of copies, by the name they were recorded under."""
    graphs: list[Handle] = field(default_factory=list)

    @property
    def graph(self) -> Handle:
        (graph,) = self.graphs
        return graph


def every_record(records: Sequence[Any]) -> Iterator[Any]:
    """Launches, branches and loops, and all inside them."""
    for record in records:
        yield record
        if isinstance(record, ConditionalLaunch):
            for body in record.bodies:
                yield from every_record(body)


def own_ports(executable: Recordable) -> list[list[tuple[str, int, int]]]:
    """For every launch, its ports: which, as which argument, how many bytes behind its start."""
    number = {id(r): i for i, r in enumerate(executable.records)}
    found: list[list[tuple[str, int, int]]] = [[] for _ in executable.records]
    for port, record, position, offset in executable.port_arguments:
        if id(record) in number:
            found[number[id(record)]].append((port, position, offset))
    return found


def inner_ports(executable: Recordable) -> set[str]:
    """Ports that something inside a branch or a loop uses: no driver changes those nodes."""
    outer = {id(r) for r in executable.records if not isinstance(r, ConditionalLaunch)}
    return {port for port, record, _, _ in executable.port_arguments if id(record) not in outer}


def held_ports(executable: Recordable) -> list[tuple[str, Any, int, int]]:
    """Return the arguments of launches that point to held memory."""
    if not executable.held:
        return []
    arguments = zip(every_record(executable.records), executable.layout.arguments, strict=True)
    return [
        (where.port, record, position, where.offset)
        for record, places in arguments
        for position, where in enumerate(places)
        if where.port in executable.held
    ]


def order_of(executable: Recordable) -> Schedule:
    """The order of an executable's launches, in all streams that its memory was planned for."""
    count = len(executable.records)
    if len(executable.works) == count:
        return launch_order(executable.works)
    if len(executable.layout.streams) == count:
        return stated_order(executable.layout.streams, executable.layout.waits)
    return in_turn(count)  # on one stream, or a part of a run


def in_turn(count: int) -> Schedule:
    """The order of launches one after the other."""
    return Schedule((0,) * count, ((),) * count, tuple((1 << i) - 1 for i in range(count)))


def launch_order(works: Sequence[Bound]) -> Schedule:
    """The order of steps as one of launches: a wait for a step is a wait for its last launch."""
    waits: list[tuple[int, ...]] = []
    ended: dict[int, int] = {}
    for number, bound in enumerate(works):
        # Not for a step without work.
        waits.append(tuple(ended[step] for step in bound.waits if step in ended))
        ended[bound.position] = number
    return stated_order([b.stream for b in works], waits)


def stated_order(streams: Sequence[int], waits: Sequence[tuple[int, ...]]) -> Schedule:
    """The order of launches, given the stream of each and what it waits for."""
    before: list[int] = []
    tails: dict[int, int] = {}
    for number, (stream, waited) in enumerate(zip(streams, waits, strict=True)):
        behind = [tails[stream]] if stream in tails else []
        known = 0
        for other in (*behind, *waited):
            known |= before[other] | 1 << other
        before.append(known)
        tails[stream] = number
    return Schedule(tuple(streams), tuple(waits), tuple(before))


class _Uncollected:
    """While anybody is inside, no garbage is collected in this process.

    Recordings on several devices at once are several users: the last one to leave puts things back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._collects = False

    def forked(self) -> None:
        """In a child process: threads that were inside do not exist there."""
        self._lock = threading.Lock()
        if self._users and self._collects:
            gc.enable()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._collects = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._collects:
                gc.enable()


UNCOLLECTED = _Uncollected()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=UNCOLLECTED.forked)


@contextmanager
def recording(graphs: Graphs, stream: int, pool: Any, made: list[Handle]) -> Iterator[None]:
    """Records what is done inside; afterwards the graph has been added to a list.

    Whatever goes wrong, the recording is ended and freed, and the stream can be used again.
    """
    # What a collection frees, it would free in the middle of the recording.
    with UNCOLLECTED, graphs.using(stream, pool):
        try:
            graphs.begin(stream)
            yield
            made.append(graphs.end(stream))
        except BaseException:
            with suppress(GraphError):  # what went wrong first is what is told
                graphs.abort(stream)
            raise


class Recorder:
    """Records an executable's launches, streams side by side."""

    def __init__(
        self, executable: Recordable, graphs: Graphs, order: Schedule | None = None
    ) -> None:
        self.executable = executable
        self.graphs = graphs
        self.pool = None if self.all_own else graphs.pool()
        self.order = order or order_of(executable)
        if any(decides_on_foreign(graphs, r) for r in executable.records):
            # One stream records what libraries do inside all bodies: they share their memory.
            self.order = in_turn(len(executable.records))
        self.events: list[Handle] = []

    def record(
        self, memory: Memory, before: Copies = NO_COPIES, after: Copies = NO_COPIES
    ) -> Recording:
        """The graph of one run on some memory, with copies before and after it."""
        with self.executable.lock:
            for port, record, position, offset in self.executable.port_arguments:
                record.point(position, memory[port], offset)
            if self.graphs.builds and self.all_own:
                return self._built(before, after)
            with self.graphs.lock:
                return self._captured(before, after)

    @property
    def all_own(self) -> bool:
        """True if every launch is a generated kernel, inside branches and loops too."""
        return all(is_own(self.graphs, r) for r in self.executable.records)

    def _built(self, before: Copies, after: Copies) -> Recording:
        """A graph made node by node, by what streams and waits say."""
        graph = self.graphs.create()
        try:
            taken = self._filled(graph, before, after)
        except BaseException:
            graph.close()
            raise
        taken.graphs.append(graph)
        return taken

    def _filled(self, graph: Handle, before: Copies, after: Copies) -> Recording:
        graphs, taken = self.graphs, Recording()
        for name, copy in before.items():
            taken.edges[name] = graphs.add_copy(graph, copy, ())
        start = list(taken.edges.values())
        overlaps = next((taken.edges[name] for name, copy in before.items() if copy.control), None)
        last: dict[int, Ends] = {}
        ends: dict[int, Ends] = {}
        for number, record in enumerate(self.executable.records):
            stream, waits = self.order.stream[number], self.order.waits[number]
            here = last.get(stream) or Ends([], None if waits else overlaps)
            needed = once([*here.nodes, *(n for i in waits for n in ends[i].nodes)]) or start
            made = add_launch(graphs, record, graph, Ends(needed, here.beside))
            taken.nodes[number] = [] if isinstance(record, ConditionalLaunch) else made.nodes
            last[stream] = ends[number] = made
        end = once([n for e in last.values() for n in e.nodes]) or start
        for name, copy in after.items():
            taken.edges[name] = graphs.add_copy(graph, copy, end)
        return taken

    def _captured(self, before: Copies, after: Copies) -> Recording:
        """A graph recorded from streams."""
        graphs, taken = self.graphs, Recording()
        streams = graphs.streams(self.order.streams)
        try:
            with recording(graphs, streams[0], self.pool, taken.graphs):
                self._edges(taken, before, streams[0])
                self._launches(streams, taken)
                self._edges(taken, after, streams[0])
        finally:
            self.events.clear()
        return taken

    def _edges(self, taken: Recording, copies: Copies, stream: int) -> None:
        for name, copy in copies.items():
            self.graphs.copy(stream, copy)
            (taken.edges[name],) = self.graphs.tails(stream)

    def _launches(self, streams: Sequence[int], taken: Recording) -> None:
        main = streams[0]
        for stream in streams[1:]:
            self.graphs.wait(stream, self._event(main))
        awaited = {i for waits in self.order.waits for i in waits}
        ended: dict[int, Handle] = {}
        for number, record in enumerate(self.executable.records):
            stream = streams[self.order.stream[number]]
            for other in self.order.waits[number]:
                self.graphs.wait(stream, ended[other])
            taken.nodes[number] = self._nodes(record, stream)
            if number in awaited:
                ended[number] = self._event(stream)
        for stream in streams[1:]:
            self.graphs.wait(main, self._event(stream))

    def _event(self, stream: int) -> Handle:
        event = self.graphs.event()
        self.graphs.record(event, stream)
        self.events.append(event)
        return event

    def _nodes(self, record: Any, stream: int) -> list[Any]:
        """Launches a record, and finds the nodes that it has become."""
        if isinstance(record, ConditionalLaunch):
            record_control(self.graphs, record, stream)
            return []
        if self.graphs.function(record) is not None:
            record.launch(stream)
            return self.graphs.tails(stream)
        before = set(map(int, self.graphs.recorded(stream)))
        with self.graphs.using(stream):
            record.launch(stream)
        return [n for n in self.graphs.recorded(stream) if int(n) not in before]


def places_of(
    executable: Recordable, graphs: Graphs, taken: Recording, numbers: Sequence[int], memory: Memory
) -> dict[str, list[Place]]:
    """Return the parameters of generated kernels that hold port addresses, checked in the nodes."""
    found: dict[str, list[Place]] = {}
    ports = own_ports(executable)
    for number in numbers:
        if not ports[number]:
            continue
        params = _only_kernel(graphs, taken.nodes[number], executable.records[number])
        for port, position, offset in ports[number]:
            word = params.word(position, 0)
            if word.value != memory[port].data_ptr() + offset:
                raise GraphError("a recorded kernel has other parameters than were launched")
            found.setdefault(port, []).append((params, word, offset))
    return found


def _only_kernel(graphs: Graphs, nodes: Sequence[Any], record: Any) -> Params:
    """The one node that a launch of our own has become."""
    params = graphs.read(nodes[0]) if len(nodes) == 1 else None
    if params is None or params.kind != KERNEL or params.function != graphs.function(record):
        raise GraphError("a launch was not recorded as the kernel that it is")
    return params
