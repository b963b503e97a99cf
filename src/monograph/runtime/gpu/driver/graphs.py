"""Graphs of launches as Monograph sees them: recorded from a stream, changed in place, launched.

`cuda_graphs` and `hip_graphs` do this through the drivers. What is here knows neither of them.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from monograph.errors import ExecutionError
from monograph.ir import DType

KERNEL, MEMCPY, MEMSET, EMPTY, CONDITIONAL, OTHER = (
    "kernel",
    "memcpy",
    "memset",
    "empty",
    "conditional",
    "other",
)
"""Kinds of nodes."""
IF, WHILE = "if", "while"
TO_DEVICE, TO_HOST, ON_DEVICE = "to device", "to host", "on device"
"""Where a copy goes; that of a recorded copy cannot change."""


class GraphError(ExecutionError):
    """The driver refused something that has to do with a graph; nothing of it was launched."""


NO_GRAPH = "the driver ended a capture and returned no graph: it was invalidated before"


class UncapturableError(GraphError):
    """Work that no graph can hold."""


class Handle:
    """Something that the driver made, freed exactly once: by `close`, or with its last user.

    Wrap only what a call has returned as made: there is nothing to free after one that failed.
    Nor is there in a forked child: what it has inherited is its parent's.
    """

    def __init__(self, value: Any, free: Callable[[Any], None]) -> None:
        self.value = value
        self._end = weakref.finalize(self, _freed, os.getpid(), free, value)
        self._end.atexit = False  # the driver may be gone by then, and takes everything along

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        self._end()
        self.value = None


def _freed(process: int, free: Callable[[Any], None], value: Any) -> None:
    if os.getpid() == process:
        free(value)


@dataclass(eq=False)
class Params:
    """What a node was recorded with, in memory that can be written: `Graphs.write` applies it."""

    node: Any
    kind: str
    function: int
    """Which code a kernel runs; 0 for other nodes."""
    shape: tuple[int, ...]
    """What cannot change: a kernel's grid and block, the bytes of a copy."""
    blobs: list[Any]
    """The bytes of the parameters, as ctypes arrays; of a copy, its destination and its source."""
    native: Any = None
    """The driver's own form of it, which points to the blobs."""
    kept: list[Any] = field(default_factory=list)
    """What must live as long as `native` does."""

    def bytes(self) -> list[bytes]:
        """The parameters as they are now."""
        return [bytes(b) for b in self.blobs]

    def word(self, blob: int, at: int) -> ctypes.c_uint64:
        """Eight bytes of a parameter, to be read and written."""
        return ctypes.c_uint64.from_buffer(self.blobs[blob], at)


@dataclass(frozen=True)
class CopyNode:
    """A copy between addresses."""

    to: int
    source: int
    nbytes: int
    kind: str
    control: int = 0
    """Where the host says what has arrived, for a copy that waits for that: see `arrivals`."""
    narrowed: DType | None = None
    """The type of 16 bits that what comes first arrives in; it is widened to f32 on the way."""
    narrow_to: int = 0
    """Where that ends, in bytes of what it becomes."""


Fill: TypeAlias = Callable[[Handle], list[Any]]
"""Adds nodes to an empty graph, and returns those that nothing in it waits for."""
Start: TypeAlias = Callable[[int, int, int], int]
"""Calls a driver's function on an executable graph and a stream, and returns its error."""


class Graphs(Protocol):
    """What a driver does with graphs, on one device. Streams are numbers, as drivers have them."""

    name: str
    conditionals: bool
    """Whether a graph can decide by itself what runs next."""
    builds: bool
    """Whether graphs of our own kernels can be built node by node: no stream need record them, and
    what other threads do meanwhile (wait for the device, say) is none of the recording's business.
    """
    arrives: bool
    """Whether a built graph can be launched before its inputs are there: see `start`."""
    lock: Any
    """Held while something is recorded: the streams for that are shared."""

    def streams(self, count: int) -> list[int]:
        """Streams that only recordings use."""

    def using(self, stream: int, pool: Any = None) -> AbstractContextManager[Any]:
        """Makes a stream the current one; with a pool, memory comes from there."""

    def pool(self) -> Handle:
        """Memory that belongs to a recording, as long as the handle lives."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Memory of the host that the device can reach under the same address."""

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        """Keeps whole pages of the host where they are: copies from there are the device's own.

        An error where that is not possible, or they are locked already.
        """

    def current(self) -> int:
        """The stream that the caller works on now."""

    def here(self) -> bool:
        """Whether the device of these graphs is the current one."""

    def guard(self) -> AbstractContextManager[Any]:
        """Makes the device of these graphs the current one."""

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        """Says that a stream uses memory: freed, it is not given away before that is done."""

    def create(self) -> Handle:
        """A graph without nodes."""

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        """Adds a launch of our own behind some nodes.

        A kernel that waits by itself may start while the node `beside`, one of them, still runs.
        """

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        """Adds a copy behind some nodes."""

    def add_foreign(self, graph: Handle, record: Any, before: Sequence[Any]) -> Any:
        """Adds what a launch of others does behind some nodes: a stream of its own records it."""

    def add_conditional(
        self, graph: Handle, kind: str, flag: int, before: Sequence[Any], bodies: Sequence[Fill]
    ) -> list[Any]:
        """Adds what bodies hold behind some nodes, to run as a bool in memory says.

        IF: the first if it holds, the second (if there is one) if not. WHILE: the one, again and
        again; it writes the bool anew each time. Returns what the next nodes wait for.
        """

    def prepare(self, record: Any) -> None:
        """Whatever the first launch of a kernel, or a copy that is one, would do besides.

        It is not allowed while recording.
        """

    def begin(self, stream: int) -> None:
        """Lets a stream record what it is given from now on."""

    def end(self, stream: int) -> Handle:
        """The graph that a stream has recorded."""

    def abort(self, stream: int) -> None:
        """Ends a recording, if there is one, and frees it. The stream can be used again."""

    def capturing(self, stream: int) -> bool:
        """Whether a stream records, for whomever."""

    def capturing_now(self) -> bool:
        """Whether the current stream records."""

    def tails(self, stream: int) -> list[Any]:
        """The nodes that what a recording stream is given next would wait for."""

    def recorded(self, stream: int) -> list[Any]:
        """All nodes that a stream has recorded so far, in order."""

    def nodes(self, graph: Handle) -> list[Any]:
        """The nodes of a graph, in the order in which they were recorded."""

    def kind(self, node: Any) -> str:
        """What a node does: KERNEL, MEMCPY ..."""

    def function(self, record: Any) -> int | None:
        """The code of a launch of our own, by the number that `read` gives; None for others."""

    def read(self, node: Any, words: int = 0) -> Params | None:
        """What a node was recorded with; None where that cannot be read.

        Of a kernel of our own it can be said how many pointers it starts with.
        """

    def instantiate(self, graph: Handle) -> Handle:
        """A graph that can be launched."""

    def write(self, executable: Handle, params: Params) -> None:
        """Changes a node of an executable graph. Launches that are queued keep what they had."""

    def launch(self, executable: Handle, stream: int) -> None:
        """Enqueues an executable graph on a stream."""

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        """The same by native code, which is given the driver's function: see `Arrivals`."""

    def conditional(self, stream: int, kind: str, flag: int, bodies: Sequence[Fill]) -> None:
        """The same on a stream that records, behind what it was given so far.

        No stream records a body: where such a recording is spoilt, the driver frees the body, and
        once more with the graph that holds it, which ends the process.
        """

    def copy(self, stream: int, copy: CopyNode) -> None:
        """Enqueues a copy."""

    def send(self, stream: int, to: int, source: int, nbytes: int) -> None:
        """Enqueues a copy from pinned memory of the host, as cheaply as can be; never recorded."""

    def event(self) -> Handle:
        """A point in a stream's work, not set yet."""

    def record(self, event: Handle, stream: int) -> None:
        """Sets an event behind what a stream was given so far."""

    def wait(self, stream: int, event: Handle) -> None:
        """Lets a stream wait for an event."""

    def finish(self, event: Handle) -> None:
        """Waits for an event."""

    def done(self, event: Handle) -> bool:
        """Whether an event has come."""
