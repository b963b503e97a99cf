"""Inputs and outputs on the host: pinned slabs, in a ring, with the same layout on the device.

The inputs lie at the front and the outputs at the end, what is donated in between: so one copy
brings everything in, and one copy brings everything out.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from monograph.errors import FeedError
from monograph.ir import Array
from monograph.runtime.gpu.gather import Gather, gather_threads
from monograph.runtime.gpu.graphs import Graphs
from monograph.runtime.gpu.running import GpuLayout, Slot
from monograph.runtime.pending import Pending

ALIGNMENT = 256
LARGE = 2 << 20
"""Bytes from which several threads copy faster than one: they sleep by then, and have to wake."""
PIECE, PIECES = 128 << 10, 8
"""Bytes that one copy brings about as soon as a launch starts, so that nobody waits for the last
piece of what is sent ahead; and the most pieces that there are."""
RING = 3
"""Slabs: runs on host data that may be in flight at once."""


class SlabLayout:
    """Where each input and output lies in a slab."""

    def __init__(self, layout: GpuLayout) -> None:
        over = {s.over: s for s in layout.outputs if s.over}
        plain = [s for s in layout.inputs if s.name not in over]
        both = [s for s in layout.inputs if s.name in over]
        made = [s for s in layout.outputs if not s.over]
        self.inputs: dict[str, tuple[Slot, int]] = {}
        self.outputs: dict[str, tuple[Slot, int]] = {}
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
        self.nbytes = at
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

    def ports(self) -> dict[str, tuple[int, int]]:
        """Every port's offset and bytes."""
        found = {f"input:{n}": (at, nbytes(s)) for n, (s, at) in self.inputs.items()}
        return found | {f"output:{n}": (at, nbytes(s)) for n, (s, at) in self.outputs.items()}

    def memory(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every port in a block of this layout."""
        return {name: block[at : at + n] for name, (at, n) in self.ports().items()}


def nbytes(slot: Slot) -> int:
    return math.prod(slot.shape) * slot.dtype.itemsize


def _rounded(slot: Slot) -> int:
    return -(-max(nbytes(slot), 1) // ALIGNMENT) * ALIGNMENT


class Slab:
    """Pinned memory for the inputs and outputs of one run."""

    def __init__(self, layout: SlabLayout, graphs: Graphs) -> None:
        self.block = graphs.pinned(layout.nbytes + ALIGNMENT)
        skipped = -self.block.data_ptr() % ALIGNMENT
        self.block = self.block[skipped : skipped + layout.nbytes]
        self.address = self.block.data_ptr()
        self.event = graphs.event()
        self.user: Pending | None = None
        self.turn = 0
        self._results = layout.results
        whole: Array = self.block.numpy()
        self._bytes = whole
        self._inputs = {n: _view(whole, s, at) for n, (s, at) in layout.inputs.items()}
        self._outputs = {n: _view(whole, s, at) for n, (s, at) in layout.outputs.items()}
        self._places = [
            (name, self.address + at, nbytes(slot)) for name, (slot, at) in layout.inputs.items()
        ]
        self._parts = layout.parts()
        self._gather: Gather | None = None

    def fill(self, feeds: Mapping[str, Any]) -> None:
        """Takes the inputs: the caller's arrays are free again."""
        for name, place in self._inputs.items():
            copy_into(place, _fitting(name, feeds[name], place))

    def fill_fitting(self, feeds: Mapping[str, Any], many: bool = False) -> None:
        """The same for arrays that are known to be of the right type and shape.

        many: whether several threads copy what is not small.
        """
        for name, to, count in self._places:
            array = feeds[name]
            if not array.flags.c_contiguous or (count >= LARGE and not many):
                copy_into(self._inputs[name], array)
            else:
                copy = self._threads() if many and count >= PIECE else ctypes.memmove
                copy(to, array.__array_interface__["data"][0], count)

    def fill_ahead(
        self, feeds: Mapping[str, Any], send: Callable[[int, int], None], many: bool = False
    ) -> None:
        """The same; what has been taken is sent while the rest is: by its offset and bytes."""
        whole: dict[str, Array] = {}
        starts: dict[str, int] = {}
        for name, place in self._inputs.items():
            data = feeds[name]
            if (
                data.__class__ is not np.ndarray
                or data.dtype != place.dtype
                or data.shape != place.shape
                or not data.flags.c_contiguous
            ):
                copy_into(place, _fitting(name, data, place))
            elif data.nbytes >= LARGE and not many:
                whole[name] = data.reshape(-1).view(np.uint8)
            else:
                starts[name] = data.__array_interface__["data"][0]
        address = self.address
        copy = self._threads() if many else ctypes.memmove
        small = PIECE // 2
        for start, count, inside in self._parts:
            for name, first, at, size in inside:
                if name in starts:
                    by = ctypes.memmove if size < small else copy
                    by(address + at, starts[name] + first, size)
                elif name in whole:
                    copy_into(self._bytes[at : at + size], whole[name][first : first + size], 0)
            send(start, count)

    def _threads(self) -> Gather:
        if self._gather is None:
            self._gather = Gather(gather_threads())
        return self._gather

    def results(self, out: Mapping[str, Any]) -> list[Any]:
        """The outputs, as fresh arrays or in those of the caller."""
        if not out:
            return [copied(self._outputs[name]) for name in self._results]
        found = []
        for name in self._results:
            place, given = self._outputs[name], out.get(name)
            if given is None:
                given = copied(place)
            else:
                copy_into(given, place)
            found.append(given)
        return found


def _fitting(name: str, data: Any, place: Array) -> Any:
    if np.shape(data) != place.shape:
        raise FeedError(
            f"the input {name} has another shape", expected=place.shape, given=np.shape(data)
        )
    return data


def copy_into(to: Array, source: Any, large: int | None = None) -> None:
    """Copies an array; a large one by several threads, as torch does."""
    if (
        to.nbytes >= (LARGE if large is None else large)
        and isinstance(source, np.ndarray)
        and source.dtype == to.dtype
        and source.flags.writeable
        and to.flags.c_contiguous
        and source.flags.c_contiguous
    ):
        _bytes(to).copy_(_bytes(source))
    else:
        np.copyto(to, source, casting="unsafe")


def copied(array: Array) -> Array:
    """A fresh copy."""
    if array.nbytes < LARGE:
        return array.copy()
    made: Array = np.empty(array.shape, array.dtype)
    copy_into(made, array)
    return made


def _bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.reshape(-1).view(np.uint8))


def _view(whole: Array, slot: Slot, at: int) -> Array:
    return whole[at : at + nbytes(slot)].view(slot.dtype.numpy).reshape(slot.shape)


class Ring:
    """Slabs that runs take in turn."""

    def __init__(self, layout: GpuLayout, graphs: Graphs, count: int = RING) -> None:
        self.layout = SlabLayout(layout)
        self._graphs = graphs
        self._count = count
        self._slabs: list[Slab] = []
        self._turns = 0

    def take(self) -> Slab:
        """A slab that no run uses: the first such, else a new one, else that of the oldest run."""
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
        self._turns += 1
        slab.turn = self._turns
        return slab

    def _free(self, slab: Slab) -> None:
        """Waits for a run, whose outputs go to where the caller will find them."""
        user = slab.user
        if user is not None:
            with contextlib.suppress(Exception):  # the caller finds that there, too
                user.result()
        slab.user = None
