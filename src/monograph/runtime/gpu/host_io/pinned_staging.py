"""Inputs and outputs on the host: pinned slabs, in a ring, with the same layout on the device.

The inputs lie at the front and the outputs at the end, what is donated in between: so one copy
brings everything in, and one copy brings everything out.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from monograph.errors import FeedError
from monograph.ir import Array, DType
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.host_io.deferred_free import IDLE, Use, park_at_end, sweep
from monograph.runtime.gpu.host_io.host_downcast import can_narrow
from monograph.runtime.gpu.host_io.overlapped_upload import control_bytes
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending

ALIGNMENT = 256
PIECE, PIECES, LARGE = 128 << 10, 8, 2 << 20
"""Bytes that one copy brings about as soon as a launch starts, so that nobody waits for the last
piece of what is sent ahead; the most pieces that there are; and the bytes from which there are so
many. Threads would copy faster, but they sleep when they are needed, and waking takes longer.
"""
RING = 3
"""Slabs: runs on host data that may be in flight at once."""


class SlabLayout:
    """Where each input and output lies in a slab."""

    def __init__(self, layout: GpuLayout) -> None:
        over = {s.over: s for s in layout.outputs if s.over}
        plain = [s for s in layout.inputs if s.name not in over]
        self.narrowed = _narrowed(plain)
        """The type of 16 bits that some inputs may be rounded to on their way; these come first."""
        first = [s for s in plain if self.narrowed and s.narrowed == self.narrowed]
        plain = [*first, *(s for s in plain if s not in first)]
        self.narrow_to = sum(map(_rounded, first))
        """Where they end."""
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
        """How much that is; and where words begin that say which inputs have arrived."""
        self.control_bytes = control_bytes(self.in_to, self.narrow_to)
        self.results = [s.name for s in layout.outputs]
        self.pieces = self._pieces()
        """Where what is copied at a time begins and ends."""

    def _pieces(self) -> list[tuple[int, int]]:
        """The inputs in two pieces, the last a small one; more where they are large."""
        if self.in_to < 2 * PIECE:
            return [(0, self.in_to)]
        if self.in_to < LARGE:
            cut = (self.in_to - max(PIECE, self.in_to // 4)) // ALIGNMENT * ALIGNMENT
            return [(0, cut), (cut, self.in_to)]
        step = -(-self.in_to // PIECES // ALIGNMENT) * ALIGNMENT
        return [(at, min(at + step, self.in_to)) for at in range(0, self.in_to, step)]

    def parts(self) -> list[tuple[int, int, list[tuple[str, int, int, int]]]]:
        """Every piece, and what lies in it: of which input, where in that and in the slab, bytes.

        The gaps between inputs are part of pieces, and of nothing in them.
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
        """Where each input begins and ends."""
        return [(at, at + nbytes(slot)) for slot, at in self.inputs.values()]

    def ports(self) -> dict[str, tuple[int, int]]:
        """Every port's offset and bytes."""
        found = {f"input:{n}": (at, nbytes(s)) for n, (s, at) in self.inputs.items()}
        return found | {f"output:{n}": (at, nbytes(s)) for n, (s, at) in self.outputs.items()}

    def memory(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every port in a block of this layout."""
        return {name: block[at : at + n] for name, (at, n) in self.ports().items()}


def nbytes(slot: DevicePort) -> int:
    return math.prod(slot.shape) * slot.dtype.itemsize


def _narrowed(slots: Iterable[DevicePort]) -> DType | None:
    """What most of the inputs' bytes may be rounded to: one type, because one kernel takes them."""
    found: Counter[DType] = Counter()
    for slot in slots:
        if slot.narrowed is not None and nbytes(slot) and can_narrow(slot.narrowed):
            found[slot.narrowed] += nbytes(slot)
    return found.most_common(1)[0][0] if found else None


def _rounded(slot: DevicePort) -> int:
    return -(-max(nbytes(slot), 1) // ALIGNMENT) * ALIGNMENT


class Slab:
    """Pinned memory for the inputs and outputs of one run."""

    def __init__(self, layout: SlabLayout, graphs: Graphs) -> None:
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
        """What the device does with it, and with arrays that it fetches by itself."""
        # The run that uses it refers to it, and it to the run: they go in a collection, together.
        park_at_end(self, self.use, block, self.event, graphs)
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
        """Takes the inputs: the caller's arrays are free again."""
        for name, place in self._inputs.items():
            np.copyto(place, _fitting(name, feeds[name], place), casting="unsafe")

    def fill_fitting(self, feeds: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """The same for arrays that are known to be of the right type and shape."""
        for name, to, count in self._places:
            if name in without:
                continue
            array = feeds[name]
            if array.flags.c_contiguous:
                ctypes.memmove(to, array.__array_interface__["data"][0], count)
            else:
                np.copyto(self._inputs[name], array)

    def addresses(self, feeds: Mapping[str, Any]) -> list[int]:
        """Where arrays lie that are known to fit; none where one has to be gathered by itself."""
        found = []
        for name, _, _ in self._places:
            array = feeds[name]
            if not array.flags.c_contiguous:
                self.fill_fitting(feeds)
                return []
            found.append(array.__array_interface__["data"][0])
        return found

    def dense(self, feeds: Mapping[str, Any]) -> tuple[list[int], list[Array]]:
        """Where the inputs lie as dense arrays of their types, and those arrays: some are made."""
        found, arrays = [], []
        for name, place in self._inputs.items():
            array = feeds[name]
            if not _is_like(array, place):
                array = np.ascontiguousarray(_fitting(name, array, place), place.dtype)
            arrays.append(array)
            found.append(array.__array_interface__["data"][0])
        return found, arrays

    def fill_ahead(self, feeds: Mapping[str, Any], send: Callable[[int, int], None]) -> None:
        """The same; what has been taken is sent while the rest is: by its offset and bytes."""
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

    def leave(self) -> None:
        """Behind a run: the slab is for others, and arrays may go."""
        self.use.state, self.use.held = IDLE, NOTHING
        self.user = None

    def came_late(self) -> bool:
        """Whether a run that waited for its inputs has given up."""
        return bool(self._late.value)

    def start_over(self) -> None:
        """Forgets what has arrived, behind a run that did not take it."""
        self._control.zero_()

    def results(self, out: Mapping[str, Any]) -> list[Any]:
        """The outputs, as fresh arrays or in those of the caller."""
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
            f"the input {name} has another shape", expected=place.shape, given=np.shape(data)
        )
    return data


def _is_like(data: Any, place: Array) -> bool:
    """Whether the bytes of some data are those that a place has to hold."""
    return (
        data.__class__ is np.ndarray
        and data.dtype == place.dtype
        and data.shape == place.shape
        and data.flags.c_contiguous
    )


def _view(whole: Array, slot: DevicePort, at: int) -> Array:
    return whole[at : at + nbytes(slot)].view(slot.dtype.numpy).reshape(slot.shape)


class Ring:
    """Slabs that runs take in turn."""

    def __init__(self, layout: GpuLayout, graphs: Graphs, count: int = RING) -> None:
        self.layout = SlabLayout(layout)
        self._graphs = graphs
        self._count = count
        self._slabs: list[Slab] = []
        self._lost: list[Slab] = []
        self._turns = 0

    def take(self) -> Slab:
        """A slab that no run uses: the first such, else a new one, else that of the oldest run."""
        sweep(self._graphs)
        slab: Slab | None = None
        for known in self._slabs:
            if known.user is None:
                slab = known
                break
        if slab is None and len(self._slabs) < self._count:
            slab = Slab(self.layout, self._graphs)
            self._slabs.append(slab)
        if slab is None:
            slab = min(self._slabs, key=lambda s: s.turn)
            self._free(slab)
            if slab not in self._slabs:  # the device may still use it
                slab = Slab(self.layout, self._graphs)
                self._slabs.append(slab)
        self._turns += 1
        slab.turn = self._turns
        return slab

    def lose(self, slab: Slab) -> None:
        """Gives up a slab that the device may still use: it is kept, and no run gets it."""
        if slab in self._slabs:
            self._slabs.remove(slab)
            self._lost.append(slab)

    def _free(self, slab: Slab) -> None:
        """Waits for a run, whose outputs go to where the caller will find them."""
        user = slab.user
        if user is not None:
            with contextlib.suppress(Exception):  # the caller finds that there, too
                user.result()
        if slab in self._slabs:
            slab.leave()
