"""Pinned staging buffers for inputs and outputs, in a ring, with the same layout on the device.

Inputs lie at the front, outputs at the end, and donated state in between. So one copy uploads all
inputs and one copy downloads all outputs.

A session may be freed while its runs are in flight. Torch would then reuse pinned memory that the
device still accesses, so freeing is deferred until the device is done. Nothing waits at that point:
it may be a garbage collection, in any thread, during a capture.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from monograph.errors import ExecutionError, FeedError
from monograph.ir import Array, DType
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout
from monograph.runtime.gpu.driver.graphs import Graphs, Handle
from monograph.runtime.gpu.host_io.overlapped_upload import can_narrow, control_bytes
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending

IDLE, LAUNCHED, MARKED = range(3)
"""The device's use of memory: none; launched without an event; launched up to an event."""


class Use:
    """The device's use of host memory. It outlives the owner of the memory."""

    def __init__(self) -> None:
        self.state = IDLE
        self.held: Mapping[str, Any] = NOTHING
        """Arrays of the caller that the device reads directly."""


@dataclass(eq=False)
class _Deferred:
    """Memory whose owner was freed before the device was done with it."""

    use: Use
    memory: Any
    event: Handle
    graphs: Graphs
    process: int


_DEFERRED: list[_Deferred] = []
"""A list without a lock, because a garbage collection may add to it at any time."""


def defer_free(owner: Any, use: Use, memory: Any, event: Handle, graphs: Graphs) -> None:
    """Keep memory after its owner is freed, while the device uses it. Nothing is freed at exit."""
    end = weakref.finalize(owner, _defer, _Deferred(use, memory, event, graphs, os.getpid()))
    end.atexit = False


def _defer(deferred: _Deferred) -> None:
    # The memory belongs to the parent of a forked child.
    if deferred.use.state != IDLE and os.getpid() == deferred.process:
        _DEFERRED.append(deferred)


def free_finished(graphs: Graphs) -> None:
    """Release deferred memory that the device is done with. Called before new work starts."""
    if not _DEFERRED or graphs.capturing_now():
        return
    for deferred in list(_DEFERRED):
        mine = deferred.graphs is graphs and deferred.process == os.getpid()
        if not mine or deferred.use.state != MARKED:
            continue
        # A failed device does not answer. Another thread may have removed the entry.
        with suppress(ExecutionError, ValueError):
            if graphs.done(deferred.event):
                _DEFERRED.remove(deferred)


ALIGNMENT = 256
PIECE, PIECES, LARGE = 128 << 10, 8, 2 << 20
"""Bytes that one copy uploads in the time of a launch, so that nobody waits for the last piece of
an upload in pieces; the maximum number of pieces; and the bytes from which that many are used.
Threads would copy faster, but waking them takes longer."""
RING = 3
"""Number of staging buffers: runs on host data that may be in flight at once."""


class StagingLayout:
    """The offsets of inputs and outputs in a staging buffer."""

    def __init__(self, layout: GpuLayout) -> None:
        over = {s.over: s for s in layout.outputs if s.over}
        plain = [s for s in layout.inputs if s.name not in over]
        self.narrowed = _narrowed(plain)
        """The 16-bit type that some inputs may be rounded to; these come first."""
        first = [s for s in plain if self.narrowed and s.narrowed == self.narrowed]
        plain = [*first, *(s for s in plain if s not in first)]
        self.narrow_to = sum(map(_rounded, first))
        """The end of these inputs."""
        both = [s for s in layout.inputs if s.name in over]
        made = [s for s in layout.outputs if not s.over]
        self.inputs: dict[str, tuple[DevicePort, int]] = {}
        self.outputs: dict[str, tuple[DevicePort, int]] = {}
        at = 0
        for slot in plain:
            self.inputs[slot.name] = slot, at
            at += _rounded(slot)
        self.out_from = at
        for slot in both:
            self.inputs[slot.name] = slot, at
            self.outputs[over[slot.name].name] = over[slot.name], at
            at += _rounded(slot)
        self.in_to = at
        for slot in made:
            self.outputs[slot.name] = slot, at
            at += _rounded(slot)
        self.nbytes = self.control = at
        """The bytes of all ports, and the offset of the arrival flags after them."""
        self.control_bytes = control_bytes(self.in_to, self.narrow_to)
        self.results = [s.name for s in layout.outputs]
        self.pieces = self._pieces()
        """The start and end of each piece."""

    def _pieces(self) -> list[tuple[int, int]]:
        """Split the inputs into two pieces, the last a small one, or more if they are large."""
        if self.in_to < 2 * PIECE:
            return [(0, self.in_to)]
        if self.in_to < LARGE:
            cut = (self.in_to - max(PIECE, self.in_to // 4)) // ALIGNMENT * ALIGNMENT
            return [(0, cut), (cut, self.in_to)]
        step = -(-self.in_to // PIECES // ALIGNMENT) * ALIGNMENT
        return [(at, min(at + step, self.in_to)) for at in range(0, self.in_to, step)]

    def parts(self) -> list[tuple[int, int, list[tuple[str, int, int, int]]]]:
        """Return each piece with its parts: the input, the offsets in it and in the buffer, the
        bytes.

        Gaps between inputs belong to a piece but to no part.
        """
        found = []
        for start, stop in self.pieces:
            inside = []
            for name, (slot, at) in self.inputs.items():
                first, last = max(start, at), min(stop, at + nbytes(slot))
                if first < last:
                    inside.append((name, first - at, first, last - first))
            found.append((start, stop - start, inside))
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return the start and end of each input."""
        return [(at, at + nbytes(slot)) for slot, at in self.inputs.values()]

    def ports(self) -> dict[str, tuple[int, int]]:
        """Return the offset and bytes of each port."""
        found = {f"input:{n}": (at, nbytes(s)) for n, (s, at) in self.inputs.items()}
        return found | {f"output:{n}": (at, nbytes(s)) for n, (s, at) in self.outputs.items()}

    def memory(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each port in a block of this layout."""
        return {name: block[at : at + n] for name, (at, n) in self.ports().items()}


def nbytes(slot: DevicePort) -> int:
    return math.prod(slot.shape) * slot.dtype.itemsize


def _narrowed(slots: Iterable[DevicePort]) -> DType | None:
    """Return the type that most input bytes may be rounded to. One kernel handles one type."""
    found: Counter[DType] = Counter()
    for slot in slots:
        if slot.narrowed is not None and nbytes(slot) and can_narrow(slot.narrowed):
            found[slot.narrowed] += nbytes(slot)
    return found.most_common(1)[0][0] if found else None


def _rounded(slot: DevicePort) -> int:
    return -(-max(nbytes(slot), 1) // ALIGNMENT) * ALIGNMENT


class StagingBuffer:
    """Pinned memory for the inputs and outputs of one run."""

    def __init__(self, layout: StagingLayout, graphs: Graphs) -> None:
        block = graphs.pinned(layout.nbytes + layout.control_bytes + ALIGNMENT)
        skipped = -block.data_ptr() % ALIGNMENT
        self.block = block[skipped : skipped + layout.nbytes]
        self.address = self.block.data_ptr()
        self.control = self.address + layout.control
        self._control = block[skipped + layout.control :][: layout.control_bytes]
        self._control.zero_()
        self._late = ctypes.c_uint32()
        if layout.control_bytes:
            self._late = ctypes.c_uint32.from_address(self.control)
        self.event = graphs.event()
        self.user: Pending | None = None
        self.use = Use()
        """The device's use of it and of pinned arrays."""
        # The run and the buffer refer to each other: garbage collection frees them together.
        defer_free(self, self.use, block, self.event, graphs)
        self.turn = 0
        self._results = layout.results
        whole: Array = self.block.numpy()
        self._inputs = {n: _view(whole, s, at) for n, (s, at) in layout.inputs.items()}
        self._outputs = {n: _view(whole, s, at) for n, (s, at) in layout.outputs.items()}
        self._places = [
            (name, self.address + at, nbytes(slot)) for name, (slot, at) in layout.inputs.items()
        ]
        self._parts = layout.parts()

    def fill(self, feeds: Mapping[str, Any]) -> None:
        """Copy the inputs. The caller may change its arrays afterwards."""
        for name, place in self._inputs.items():
            np.copyto(place, _fitting(name, feeds[name], place), casting="unsafe")

    def fill_fitting(self, feeds: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """Copy arrays that are known to have the right type and shape."""
        for name, to, count in self._places:
            if name in without:
                continue
            array = feeds[name]
            if array.flags.c_contiguous:
                ctypes.memmove(to, array.__array_interface__["data"][0], count)
            else:
                np.copyto(self._inputs[name], array)

    def addresses(self, feeds: Mapping[str, Any]) -> list[int]:
        """Return the addresses of fitting arrays; if one is not dense, gather all, return none."""
        found = []
        for name, _, _ in self._places:
            array = feeds[name]
            if not array.flags.c_contiguous:
                self.fill_fitting(feeds)
                return []
            found.append(array.__array_interface__["data"][0])
        return found

    def dense(self, feeds: Mapping[str, Any]) -> tuple[list[int], list[Array]]:
        """Return the addresses of the inputs as dense arrays of their types, and these arrays."""
        found, arrays = [], []
        for name, place in self._inputs.items():
            array = feeds[name]
            if not _is_like(array, place):
                array = np.ascontiguousarray(_fitting(name, array, place), place.dtype)
            arrays.append(array)
            found.append(array.__array_interface__["data"][0])
        return found, arrays

    def fill_in_pieces(self, feeds: Mapping[str, Any], send: Callable[[int, int], None]) -> None:
        """Copy the inputs, and send each piece while the next is copied.

        send: takes the offset and the bytes of a piece.
        """
        starts: dict[str, int] = {}
        for name, place in self._inputs.items():
            data = feeds[name]
            if not _is_like(data, place):
                np.copyto(place, _fitting(name, data, place), casting="unsafe")
            else:
                starts[name] = data.__array_interface__["data"][0]
        address = self.address
        for start, count, inside in self._parts:
            for name, first, at, size in inside:
                if name in starts:
                    ctypes.memmove(address + at, starts[name] + first, size)
            send(start, count)

    def release(self) -> None:
        """Make the buffer available to other runs, and release the caller's arrays."""
        self.use.state, self.use.held = IDLE, NOTHING
        self.user = None

    def timed_out(self) -> bool:
        """Return whether a run gave up waiting for its inputs."""
        return bool(self._late.value)

    def reset_flags(self) -> None:
        """Clear the arrival flags after a run that did not use them."""
        self._control.zero_()

    def results(self, out: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in new arrays or in those of the caller."""
        if not out:
            return [self._outputs[name].copy() for name in self._results]
        found = []
        for name in self._results:
            place, given = self._outputs[name], out.get(name)
            if given is None:
                given = place.copy()
            else:
                np.copyto(given, place, casting="unsafe")
            found.append(given)
        return found


def _fitting(name: str, data: Any, place: Array) -> Any:
    if np.shape(data) != place.shape:
        raise FeedError(
            f"input {name} has the wrong shape", expected=place.shape, given=np.shape(data)
        )
    return data


def _is_like(data: Any, place: Array) -> bool:
    """Return whether an array has the bytes that a port needs."""
    return (
        data.__class__ is np.ndarray
        and data.dtype == place.dtype
        and data.shape == place.shape
        and data.flags.c_contiguous
    )


def _view(whole: Array, slot: DevicePort, at: int) -> Array:
    return whole[at : at + nbytes(slot)].view(slot.dtype.numpy).reshape(slot.shape)


class Ring:
    """Staging buffers that runs use in turn."""

    def __init__(self, layout: GpuLayout, graphs: Graphs, count: int = RING) -> None:
        self.layout = StagingLayout(layout)
        self._graphs = graphs
        self._count = count
        self._buffers: list[StagingBuffer] = []
        self._lost: list[StagingBuffer] = []
        self._turns = 0

    def take(self) -> StagingBuffer:
        """Return a buffer that no run uses: an idle or a new one, else the oldest run's."""
        free_finished(self._graphs)
        staging: StagingBuffer | None = None
        for known in self._buffers:
            if known.user is None:
                staging = known
                break
        if staging is None and len(self._buffers) < self._count:
            staging = StagingBuffer(self.layout, self._graphs)
            self._buffers.append(staging)
        if staging is None:
            staging = min(self._buffers, key=lambda s: s.turn)
            self._free(staging)
            if staging not in self._buffers:  # the device may still use it
                staging = StagingBuffer(self.layout, self._graphs)
                self._buffers.append(staging)
        self._turns += 1
        staging.turn = self._turns
        return staging

    def abandon(self, staging: StagingBuffer) -> None:
        """Remove a buffer that the device may still use: it is kept, and no run gets it."""
        if staging in self._buffers:
            self._buffers.remove(staging)
            self._lost.append(staging)

    def _free(self, staging: StagingBuffer) -> None:
        """Wait for a run, whose outputs its caller will find."""
        user = staging.user
        if user is not None:
            with contextlib.suppress(Exception):  # the caller gets the error
                user.result()
        if staging in self._buffers:
            staging.release()
