"""Memory of the host that the device still uses when nobody else does.

A session may go while its runs are in flight, and with it pinned memory that they read and write.
torch would hand that to the next who asks. So it is put aside until the device is done: nothing is
waited for where memory goes, which may be in a collection, in any thread, while somebody records.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monograph.errors import ExecutionError
from monograph.runtime.gpu.driver.graphs import Graphs, Handle
from monograph.runtime.outputs import NOTHING

IDLE, LAUNCHED, MARKED = range(3)
"""What the device does with memory: nothing; nobody knows how long; something, up to an event."""


class Use:
    """What the device does with memory of the host. It outlives whoever the memory belongs to."""

    def __init__(self) -> None:
        self.state = IDLE
        self.held: Mapping[str, Any] = NOTHING
        """Arrays of the caller that the device fetches by itself."""


@dataclass(eq=False)
class _Parked:
    """Memory whose owner has gone before the device was done with it."""

    use: Use
    memory: Any
    event: Handle
    graphs: Graphs
    process: int


_PARKED: list[_Parked] = []
"""A list, and no lock: a collection may add to it at any time."""


def park_at_end(owner: Any, use: Use, memory: Any, event: Handle, graphs: Graphs) -> None:
    """Puts memory aside if the device uses it when its owner goes. At exit nobody gets it."""
    end = weakref.finalize(owner, _park, _Parked(use, memory, event, graphs, os.getpid()))
    end.atexit = False


def _park(parked: _Parked) -> None:
    # What a forked child has inherited is its parent's.
    if parked.use.state != IDLE and os.getpid() == parked.process:
        _PARKED.append(parked)


def sweep(graphs: Graphs) -> None:
    """Lets go what a device is done with; whoever makes or starts something there calls this."""
    if not _PARKED or graphs.capturing_now():
        return
    for parked in list(_PARKED):
        mine = parked.graphs is graphs and parked.process == os.getpid()
        if not mine or parked.use.state != MARKED:
            continue
        # Of a device that failed nobody can say; another thread may have taken it away already.
        with suppress(ExecutionError, ValueError):
            if graphs.done(parked.event):
                _PARKED.remove(parked)
