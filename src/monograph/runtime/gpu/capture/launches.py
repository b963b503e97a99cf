"""The state that all runs of one executable share: graphs, stream order, counters.

Nothing here knows of `Replay`, which refers to it: an executable that is dropped goes at once, and
with it its memory on the device, not when the garbage is next collected.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import Any

import torch

from monograph.errors import ExecutionError
from monograph.runtime.counts import Counts
from monograph.runtime.gpu.bound_program import GpuProgram, forked
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.runtime.gpu.device_faults import FaultReport
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.driver.graphs import Graphs, Handle, Start

TENSORS, ARRAYS = "tensors", "arrays"
"""The graphs of an executable: on a caller's tensors, and on pinned memory of the host."""


class _Thread(threading.local):
    """State of each thread."""

    ready = False
    """True if it has a device context. A thread that is new to CUDA has none, and a launch fails;
    torch makes one only when it must."""


THREAD = _Thread()
HERE = [os.getpid()]
"""The number of this process: to ask the system for it takes longer than much else of a run."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: HERE.__setitem__(0, os.getpid()))


def enter(device: Device) -> None:
    """Prepare the calling thread for driver calls."""
    if not THREAD.ready:
        with device.active():
            THREAD.ready = True


class Launches:
    """The graphs of an executable, and how they are launched one after the other."""

    def __init__(self, executable: GpuProgram, graphs: Graphs, counts: Counts) -> None:
        self.executable = executable
        self.graphs = graphs
        self.counts = counts
        self.lock = executable.lock
        self.process = HERE[0]
        self.made: dict[Hashable, CapturedGraph] = {}
        self._events: list[Handle] = []

    def check_process(self) -> None:
        """Refuses a child that was forked: it has no part in its parent's device."""
        if HERE[0] != self.process:
            raise forked()

    def order(self, stream: int) -> None:
        """Make a stream wait for runs on others, which use the same memory."""
        if self.executable.order(stream):
            self._mark(stream)

    def begin(self, stream: int) -> None:
        """Before a run: what is noted from here on is noted of that one."""
        notes = self.executable.notes
        if notes is not None:
            self.order(stream)
            notes.begin()

    def noted(self) -> FaultReport | None:
        """Behind a run: what it notes of its data; None where it cannot find anything wrong."""
        notes = self.executable.notes
        return None if notes is None else notes.take()

    def _mark(self, stream: int) -> None:
        """Mark memory as used on a stream, once: the mark holds until the memory is freed."""
        owned: list[torch.Tensor] = []
        if stream not in self.executable.marked_streams:
            self.executable.marked_streams.add(stream)
            owned += self.executable.memory
        for recorded in self.made.values():
            if stream not in recorded.marked:
                recorded.marked.add(stream)
                owned += recorded.memory
        if owned:
            self.graphs.used_on(owned, stream)

    def launch(
        self, recorded: CapturedGraph, addresses: list[int], stream: int, start: Start | None = None
    ) -> None:
        """Moves the ports that have moved, and launches; by native code, where that is given."""
        if self.executable.last_stream != stream:
            self.order(stream)
        if addresses != recorded.addresses:
            try:
                self.counts.rebinds += recorded.rebind(addresses)
            except BaseException:
                self.forget(recorded)  # nobody knows which addresses it has
                raise
        if start is None:
            self.graphs.launch(recorded.executable, stream)
        else:
            self.graphs.start(recorded.executable, stream, start)
        self.counts.replays += 1
        for copied in recorded.copied:
            self.counts.staged[copied] += 1

    def forget(self, recorded: CapturedGraph) -> None:
        self.made = {k: r for k, r in self.made.items() if r is not recorded}

    def marked(self, stream: int) -> Mark:
        """A point behind what a stream was given so far."""
        with self.lock:  # another thread might take the last one in between
            event = self._events.pop() if self._events else self.graphs.event()
        self.graphs.record(event, stream)
        return Mark(self.graphs, self.executable.device, event, self._events)

    def close(self) -> None:
        """Frees the graphs now."""
        with self.lock:
            for recorded in self.made.values():
                recorded.close()
            self.made = {}


class Mark:
    """A point in a stream's work. Its event is used again when nobody looks at it any more."""

    def __init__(self, graphs: Graphs, device: Device, event: Handle, events: list[Handle]) -> None:
        self._graphs = graphs
        self._device = device
        self._event = event
        self._events = events

    def __del__(self) -> None:
        # Found in one heap of garbage with this, the event has been destroyed before.
        if not self._event.closed:
            self._events.append(self._event)

    def wait(self) -> None:
        enter(self._device)
        self._graphs.finish(self._event)

    def reached(self) -> bool:
        enter(self._device)
        return self._graphs.done(self._event)


def not_copied(what: Any) -> ExecutionError:
    """A session or an executable has code, memory and threads that no copy could have."""
    return ExecutionError(
        f"{what} is neither copied nor pickled", hint="load it again where another is needed"
    )
