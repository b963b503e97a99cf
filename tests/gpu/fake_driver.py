"""A driver in Python that records and replays on memory of the host, and misbehaves when asked.

Kernels are functions of the words they were launched with: addresses. So a graph that was given a
wrong address computes wrong numbers here as it would on a device.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from monograph.runtime.gpu.driver.graphs import (
    CONDITIONAL,
    KERNEL,
    MEMCPY,
    OTHER,
    GraphError,
    Handle,
)
from tests.gpu.fake_launches import FakeDevice, FakeLibrary, FakeRecord, numbers

__all__ = ["FakeDevice", "FakeDriver", "FakeLibrary", "FakeRecord", "numbers"]


@dataclass(eq=False)
class Node:
    number: int
    kind: str
    function: Callable[[Sequence[bytes]], None] | None
    blobs: list[bytes]
    code: int = 0
    """The function that it runs."""
    bodies: list[FakeGraph] = field(default_factory=list)
    loop: bool = False

    def __int__(self) -> int:
        return self.number


@dataclass(eq=False)
class FakeGraph:
    nodes: list[Node] = field(default_factory=list)
    spoilt: bool = False
    done: bool = False


@dataclass(eq=False)
class FakeExecutable:
    nodes: list[Node]
    values: dict[int, list[bytes]]
    pages: dict[int, int]
    """The pages that copies were told to begin in: those, not others that lie there later."""
    disabled: set[int] = field(default_factory=set)
    """Nodes that do nothing."""


class FakeDriver:
    """Streams, kernels, graphs. `fail` makes a later call raise."""

    def __init__(self) -> None:
        self.live: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.ran: list[str] = []
        """The kernels that have run, by name."""
        self.lazy = False
        """True if work waits until somebody waits for it."""
        self.late = False
        """True if data from the host come too late."""
        self.locked: dict[int, range] = {}
        """Pages of the host, by the number that they were locked under."""
        self.hooks: dict[str, Callable[[], None]] = {}
        self._queue: list[Callable[[], None]] = []
        self._faults: dict[str, tuple[int, Exception]] = {}
        self._recording: dict[int, tuple[FakeGraph, list[Node]]] = {}
        self._numbers = count(1)
        self._at_work = threading.RLock()
        self._local = threading.local()

    def fail(self, call: str, after: int = 0, error: Exception | None = None) -> None:
        """The call after so many others of its name raises, once."""
        self._faults[call] = (after, error or GraphError(f"{call} fails on purpose"))

    def called(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.hooks:
            self.hooks[name]()
        if name in self._faults:
            after, error = self._faults.pop(name)
            if after == 0:
                raise error
            self._faults[name] = (after - 1, error)

    @property
    def current(self) -> int:
        return getattr(self._local, "stream", 0)

    @contextmanager
    def using(self, stream: int) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def launch(
        self, stream: int, name: str, run: Callable[..., None], blobs: Sequence[bytes]
    ) -> None:
        """A kernel: recorded, or run with the words that its parameters are."""
        self.called("launch")

        def named(given: Sequence[bytes]) -> None:
            self.ran.append(name)
            packed = any(len(b) != 8 for b in given)
            run(given if packed else [int.from_bytes(b, "little") for b in given])

        self.add(stream, Node(next(self._numbers), KERNEL, named, list(blobs), id(run)))

    def add(self, stream: int, node: Node) -> None:
        if stream in self._recording:
            graph, tails = self._recording[stream]
            graph.nodes.append(node)
            tails[:] = [node]
        else:
            self.enqueue(lambda: run_node(node, node.blobs))

    def enqueue(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self.lazy:
            self.drain()

    def drain(self) -> None:
        with self._at_work:  # whoever waits waits for what another thread has begun, too
            while self._queue:
                self._queue.pop(0)()

    @contextmanager
    def filling(self, graph: FakeGraph) -> Iterator[int]:
        """A stream that adds to a graph."""
        stream = 5000 + next(self._numbers)
        self._recording[stream] = graph, []
        try:
            yield stream
        finally:
            del self._recording[stream]

    def synchronise(self, stream: int) -> None:
        """Waits for a stream: one that records is spoilt by that."""
        if stream in self._recording:
            self._recording[stream][0].spoilt = True
            raise RuntimeError("a stream that records cannot be waited for")
        self.drain()

    def made(self, kind: str, value: Any) -> Handle:
        self.live[kind] += 1
        return Handle(value, lambda _: self.live.subtract([kind]))

    def pages_of(self, node: Node, blobs: Sequence[bytes]) -> int:
        """The locked pages that a copy begins in; 0 for others."""
        if node.kind != MEMCPY:
            return 0
        source = int.from_bytes(blobs[0][8:16], "little")
        return next((n for n, pages in self.locked.items() if source in pages), 0)

    def leaks(self) -> dict[str, int]:
        return {kind: n for kind, n in self.live.items() if n}


def run_node(node: Node, blobs: Sequence[bytes]) -> None:
    words = [int.from_bytes(b[:8], "little") for b in blobs]
    if node.kind == MEMCPY:
        to, source = (int.from_bytes(blobs[0][i : i + 8], "little") for i in (0, 8))
        ctypes.memmove(to, source, int.from_bytes(blobs[1], "little"))
    elif node.kind == OTHER:
        _run_all(node.bodies[0])
    elif node.kind == CONDITIONAL:
        holds = ctypes.c_bool.from_address(words[0])
        if node.loop:
            while holds.value:
                _run_all(node.bodies[0])
        elif holds.value:
            _run_all(node.bodies[0])
        elif len(node.bodies) > 1:
            _run_all(node.bodies[1])
    elif node.function is not None:
        node.function(blobs)


def _run_all(graph: FakeGraph) -> None:
    for node in graph.nodes:
        run_node(node, node.blobs)
