"""Inputs and outputs on the host: pinned slabs, in a ring, with the same layout on the device.

The inputs lie at the front and the outputs at the end, what is donated in between: so one copy
brings everything in, and one copy brings everything out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from monograph.errors import FeedError
from monograph.ir import Array
from monograph.runtime.gpu.graphs import Graphs
from monograph.runtime.gpu.running import GpuLayout, Slot
from monograph.runtime.pending import Pending

ALIGNMENT = 256
LARGE = 256 << 10
"""Bytes from which several threads copy faster than one."""
PIECES, PIECE = 8, 256 << 10
"""Into how many pieces inputs are cut that go ahead of the rest, and how small they may be."""
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
        """By input, the offsets and bytes of what is copied at a time."""

    def _pieces(self) -> list[tuple[str, int, int]]:
        step = max(PIECE, -(-self.in_to // PIECES // ALIGNMENT) * ALIGNMENT)
        return [
            (name, at + start, min(step, _rounded(slot) - start))
            for name, (slot, at) in self.inputs.items()
            for start in range(0, _rounded(slot), step)
        ]

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
        self._layout = layout
        self._results = layout.results
        whole: Array = self.block.numpy()
        self._inputs = {n: _view(whole, s, at) for n, (s, at) in layout.inputs.items()}
        self._outputs = {n: _view(whole, s, at) for n, (s, at) in layout.outputs.items()}

    def fill(self, feeds: Mapping[str, Any]) -> None:
        """Takes the inputs: the caller's arrays are free again."""
        for name, place in self._inputs.items():
            copy_into(place, _fitting(name, feeds[name], place))

    def fill_ahead(self, feeds: Mapping[str, Any], send: Callable[[int, int], None]) -> None:
        """The same; what has been taken is sent while the rest is: by its offset and bytes."""
        block: Array = self.block.numpy()
        whole: dict[str, Array] = {}
        for name, place in self._inputs.items():
            data = _fitting(name, feeds[name], place)
            if (
                isinstance(data, np.ndarray)
                and data.dtype == place.dtype
                and data.flags.c_contiguous
            ):
                whole[name] = data.reshape(-1).view(np.uint8)
            else:
                copy_into(place, data)
        for name, at, count in self._layout.pieces:
            if name in whole:
                start = at - self._layout.inputs[name][1]
                source = whole[name][start : start + count]
                copy_into(block[at : at + source.size], source)
            send(at, count)

    def results(self, out: Mapping[str, Any]) -> list[Any]:
        """The outputs, as fresh arrays or in those of the caller."""
        found = []
        for name in self._results:
            place, given = self._outputs[name], out.get(name)
            if given is None:
                given = np.empty(place.shape, place.dtype)
            copy_into(given, place)
            found.append(given)
        return found


def _fitting(name: str, data: Any, place: Array) -> Any:
    if np.shape(data) != place.shape:
        raise FeedError(
            f"the input {name} has another shape", expected=place.shape, given=np.shape(data)
        )
    return data


def copy_into(to: Array, source: Any) -> None:
    """Copies an array; a large one by several threads, as torch does."""
    if (
        to.nbytes >= LARGE
        and isinstance(source, np.ndarray)
        and source.dtype == to.dtype
        and source.flags.writeable
        and to.flags.c_contiguous
        and source.flags.c_contiguous
    ):
        _bytes(to).copy_(_bytes(source))
    else:
        np.copyto(to, source, casting="unsafe")


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
        slab = next((s for s in self._slabs if s.user is None), None)
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
