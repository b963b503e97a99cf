"""The interface of captured graphs: recorded from a stream or built, changed in place, launched.

`cuda_graphs` and `hip_graphs` implement it with the drivers.
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
"""Directions of copies. The direction of a recorded copy cannot change."""


class GraphError(ExecutionError):
    """The driver refused a call on a graph; nothing of the graph was launched."""


NO_GRAPH = "the driver ended a capture and returned no graph: it was invalidated before"


class UncapturableError(GraphError):
    """Work that a graph cannot hold."""


class Handle:
    """A driver object, freed exactly once: by `close`, or with its last reference.

    Wrap only what a successful call returned. A forked child frees nothing: the objects belong to
    its parent.
    """

    def __init__(self, value: Any, free: Callable[[Any], None]) -> None:
        self.value = value
        self._end = weakref.finalize(self, _free_here, os.getpid(), free, value)
        self._end.atexit = False  # the driver may be gone by then

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        self._end()
        self.value = None


def _free_here(process: int, free: Callable[[Any], None], value: Any) -> None:
    if os.getpid() == process:
        free(value)


@dataclass(eq=False)
class Params:
    """Parameters of a recorded node, in memory that can be written. `Graphs.write` applies them."""

    node: Any
    kind: str
    function: int
    """The kernel's code; 0 for other nodes."""
    shape: tuple[int, ...]
    """Parameters that cannot change: a kernel's grid and block, the bytes of a copy."""
    blobs: list[Any]
    """The bytes of the parameters as ctypes arrays; of a copy, its destination and source."""
    native: Any = None
    """The driver's structure, which points to the blobs."""
    kept: list[Any] = field(default_factory=list)
    """Objects that must live as long as `native`."""

    def bytes(self) -> list[bytes]:
        """Return the current parameters."""
        return [bytes(b) for b in self.blobs]

    def word(self, blob: int, at: int) -> ctypes.c_uint64:
        """Return eight bytes of a parameter, to read and write."""
        return ctypes.c_uint64.from_buffer(self.blobs[blob], at)


@dataclass(frozen=True)
class CopyNode:
    """A copy between addresses."""

    to: int
    source: int
    nbytes: int
    kind: str
    control: int = 0
    """Address of the arrival flags of an overlapped upload: see `overlapped_upload`."""
    narrowed: DType | None = None
    """The 16-bit type of the first inputs; the upload kernel widens them to f32."""
    narrow_to: int = 0
    """The end of these inputs, in bytes after widening."""


Fill: TypeAlias = Callable[[Handle], list[Any]]
"""Adds nodes to an empty graph, and returns those without successors."""
Start: TypeAlias = Callable[[int, int, int], int]
"""Calls a driver function on an executable graph and a stream, and returns its error."""


class Graphs(Protocol):
    """The graphs of one device. Streams are the driver's numbers."""

    name: str
    conditionals: bool
    """Graphs can have conditional nodes."""
    builds: bool
    """Graphs of generated kernels can be built node by node.

    No stream records then, so calls of other threads (a device-wide wait, say) cannot invalidate
    it.
    """
    waits_for_inputs: bool
    """A built graph can be launched before its inputs have arrived: see `start`."""
    lock: Any
    """Held during a capture, because its streams are shared."""

    def streams(self, count: int) -> list[int]:
        """Return streams that only captures use."""

    def using(self, stream: int, pool: Any = None) -> AbstractContextManager[Any]:
        """Make a stream current; with a pool, memory comes from the pool."""

    def pool(self) -> Handle:
        """Return a memory pool of a capture, which lives as long as the handle."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Allocate host memory that the device reaches at the same address."""

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        """Pin whole pages of the host, so that the device copies from them directly.

        Raises if that is impossible or they are locked already.
        """

    def current(self) -> int:
        """Return the caller's current stream."""

    def here(self) -> bool:
        """Return whether the device of these graphs is current."""

    def guard(self) -> AbstractContextManager[Any]:
        """Make the device of these graphs current."""

    def used_on(self, memory: Sequence[torch.Tensor], stream: int) -> None:
        """Tell the allocator that a stream uses memory, so that it is reused only later."""

    def create(self) -> Handle:
        """Create a graph without nodes."""

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        """Add a launch of a generated kernel after some nodes.

        A dependent launch may start while the node `beside`, one of them, still runs.
        """

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        """Add a copy after some nodes."""

    def add_foreign(self, graph: Handle, record: Any, before: Sequence[Any]) -> Any:
        """Add a library's launch after some nodes; a separate stream records it."""

    def add_conditional(
        self, graph: Handle, kind: str, flag: int, before: Sequence[Any], bodies: Sequence[Fill]
    ) -> list[Any]:
        """Add bodies after some nodes, to run as a bool in memory says.

        IF: the first body if it is true, else the second, if any. WHILE: the body, until it writes
        false to the bool. Returns the nodes that the next nodes wait for.
        """

    def prepare(self, record: Any) -> None:
        """Do what the first launch of a kernel or an upload would do besides.

        That is not allowed during a capture.
        """

    def begin(self, stream: int) -> None:
        """Begin a capture on a stream."""

    def end(self, stream: int) -> Handle:
        """End a capture and return its graph."""

    def abort(self, stream: int) -> None:
        """End a capture, if there is one, and free it. The stream can be used again."""

    def capturing(self, stream: int) -> bool:
        """Return whether a stream is capturing, for any caller."""

    def capturing_now(self) -> bool:
        """Return whether the current stream is capturing."""

    def tails(self, stream: int) -> list[Any]:
        """Return the nodes that the next work of a capturing stream would wait for."""

    def recorded(self, stream: int) -> list[Any]:
        """Return all nodes that a stream has recorded so far, in order."""

    def nodes(self, graph: Handle) -> list[Any]:
        """Return the nodes of a graph in the order of recording."""

    def kind(self, node: Any) -> str:
        """Return the kind of a node: KERNEL, MEMCPY ..."""

    def function(self, record: Any) -> int | None:
        """Return the code of a generated kernel's launch as `read` numbers it; None for others."""

    def read(self, node: Any, words: int = 0) -> Params | None:
        """Return the parameters of a node, or None if they cannot be read.

        words: how many pointers a generated kernel starts with.
        """

    resizes: bool
    """Nodes of an executable graph can be given other grids and numbers, and be disabled."""

    def resize(self, params: Params, record: Any) -> None:
        """Change parameters of a kernel's node to those of another launch of generated code.

        It has as many arguments. `write` applies them.
        """

    def enable(self, executable: Handle, node: Any, enabled: bool) -> None:
        """Enable or disable a node of an executable graph."""

    def instantiate(self, graph: Handle) -> Handle:
        """Return an executable graph."""

    def write(self, executable: Handle, params: Params) -> None:
        """Change a node of an executable graph. Queued launches keep the old parameters."""

    def launch(self, executable: Handle, stream: int) -> None:
        """Enqueue an executable graph on a stream."""

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        """Launch by native code, which is given the driver's function: see `OverlappedUpload`."""

    def conditional(self, stream: int, kind: str, flag: int, bodies: Sequence[Fill]) -> None:
        """Do the same on a capturing stream, after its work so far.

        No stream may record a body: if that capture is invalidated, the driver frees the body
        twice, which ends the process.
        """

    def copy(self, stream: int, copy: CopyNode) -> None:
        """Enqueue a copy."""

    def send(self, stream: int, to: int, source: int, nbytes: int) -> None:
        """Enqueue a copy from pinned memory by the cheapest call; never captured."""

    def event(self) -> Handle:
        """Create an event."""

    def record(self, event: Handle, stream: int) -> None:
        """Record an event after the stream's work so far."""

    def wait(self, stream: int, event: Handle) -> None:
        """Make a stream wait for an event."""

    def finish(self, event: Handle) -> None:
        """Wait for an event."""

    def done(self, event: Handle) -> bool:
        """Return whether an event has completed."""
