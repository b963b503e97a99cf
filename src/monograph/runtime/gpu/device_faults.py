"""Data faults: kernels report them on the device, and the run raises them on the host.

All runs of an executable note in the same place. So behind each of them its notes are copied into
memory of the host that is its own, in the order of the stream, and read there once it has ended.
Kernels only ever add a note: where the last run is not known to have left none, they are wiped
before the next one. A caller who waits for every run never needs that.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from monograph.errors import ExecutionError, InternalError
from monograph.runtime.gpu.driver.devices import Device

if TYPE_CHECKING:
    from monograph.runtime.gpu.bound_program import DeviceFaultText

_NOTE = struct.Struct("=qq")
"""A flag that a fault came, and the data."""
_BLOCK = 8
"""Runs whose memory is allocated at once: pinned memory comes in pages."""
_CLEAN, _UNKNOWN = 0, -1
_Slot: TypeAlias = "tuple[torch.Tensor, memoryview]"


class _Doubt:
    """The run that may have left notes on the device, by its number.

    It has a lock of its own: a thread that holds the lock of an executable may wait for a run.
    """

    def __init__(self) -> None:
        self.run = _CLEAN
        self.always = False
        self.lock = threading.Lock()

    def settle(self, run: int) -> None:
        """Nothing was noted in a run; what later ones do, nobody knows yet."""
        with self.lock:
            if self.run == run:
                self.run = _CLEAN


@dataclass(eq=False)
class FaultReport:
    """The data faults of one run, after it has ended.

    Its memory is used again when nobody looks at it any more. It may be in flight then: runs of an
    executable follow each other on the device, and so do their copies.
    """

    _slot: _Slot
    _free: list[_Slot]
    _faults: Sequence[DeviceFaultText]
    _first: int
    _doubt: _Doubt
    run: int

    def __del__(self) -> None:
        self._free.append(self._slot)

    def check(self) -> None:
        """Fails where a kernel of the run found data that do not fit; as often as it is asked."""
        noted = self._slot[1].tobytes()
        if noted.count(0) == len(noted):
            self._doubt.settle(self.run)
            return
        for fault in self._faults:
            came, data = _NOTE.unpack_from(noted, fault.at - self._first)
            if came:
                kind = InternalError if fault.internal else ExecutionError
                raise kind(
                    fault.message,
                    node=fault.node or None,
                    op=fault.op,
                    expected=fault.expected or None,
                    given=data if fault.shows_data else None,
                )


class Notes:
    """The notes of an executable, and copies of them. Its lock is held where they are used."""

    def __init__(
        self, faults: Sequence[DeviceFaultText], memory: torch.Tensor, device: Device
    ) -> None:
        self._faults = faults
        self._first = min(f.at for f in faults)
        # Other memory may lie between two notes: it is zero too between two runs.
        self._here = memory[self._first : max(f.at for f in faults) + _NOTE.size]
        self._zeros = torch.zeros_like(self._here)
        self._device = device
        self._free: list[_Slot] = []
        self._doubt = _Doubt()
        self._runs = itertools.count(1)
        self._grow()

    @property
    def memory(self) -> list[torch.Tensor]:
        """Memory of the device, beside that of the executable."""
        return [self._zeros]

    @property
    def doubtful(self) -> bool:
        """True if reports of earlier runs may be left."""
        return self._doubt.run != _CLEAN or self._doubt.always

    def wipe(self) -> None:
        """Forgets notes, behind all runs so far: the current stream is one that has waited."""
        self._device.copy(self._here, self._zeros)
        self._doubt.run = _CLEAN

    def doubt(self) -> None:
        """Something may have noted what no run of the caller's is to be blamed for."""
        self._doubt.run = _UNKNOWN

    def give_up(self) -> None:
        """Runs are in a graph of the caller's: whenever that is launched, nobody reads them."""
        self._doubt.always = True

    def begin(self) -> None:
        """Before a run, on a stream that has waited for the others."""
        if self.doubtful:
            self.wipe()
        self.doubt()

    def take(self) -> FaultReport:
        """Behind a run, on its stream."""
        try:
            slot = self._free.pop()
        except IndexError:
            self._grow()
            slot = self._free.pop()
        note = FaultReport(
            slot, self._free, self._faults, self._first, self._doubt, next(self._runs)
        )
        self._device.copy(slot[0], self._here)
        self._doubt.run = note.run
        return note

    def _grow(self) -> None:
        pinned = self._device.place.type == "cuda"
        shape = (_BLOCK, self._here.numel())
        block = torch.zeros(shape, dtype=torch.uint8, pin_memory=pinned)
        self._free += [(row, row.numpy().data) for row in block]
