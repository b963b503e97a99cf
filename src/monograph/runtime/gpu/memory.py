"""Device memory: constants that executables share, RNG states, and errors where none is left.

A constant lies on the device once, whichever shapes it was packed for: it is found by its bytes. It
goes when the last executable that reads it goes. An RNG state belongs to its random ops: all that
draw from it on one device share it.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from monograph.errors import ExecutionError
from monograph.ir import Array
from monograph.ops.random import Turns
from monograph.program.legalise.lower_random import states_of
from monograph.program.program import Program
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.tensors import from_numpy

SLACK = 256
"""Bytes that nothing lies in behind each memory, so that none is empty."""
Pieces: TypeAlias = Sequence[tuple[int, int]]


class DeviceConstants:
    """Constants on a device, as long as an executable holds them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.uploads = 0
        """The number of constants copied to the device."""
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[bytes, torch.Tensor] = (
            weakref.WeakValueDictionary()
        )

    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(t.numel() for t in list(self._known.values()))

    def upload(self, block: Array, pieces: Pieces) -> ConstantBlock:
        """A block of constants on the device, piece by piece; what is there already is shared."""
        needed = max((at + count for at, count in pieces), default=0)
        if block.size < needed:  # an executable keeps its module without them
            raise ExecutionError(
                "the constants of this module are on a device already",
                expected=f"{needed:,} bytes",
                given=f"{block.size:,} bytes",
                hint="compile the module again for another executable",
            )
        with self._lock:
            return ConstantBlock(
                block.size, pieces, [self._piece(block[a : a + n]) for a, n in pieces]
            )

    def _piece(self, data: Array) -> torch.Tensor:
        key = hashlib.sha256(data.data).digest()
        found = self._known.get(key)
        if found is None:
            found = torch.empty(data.size + SLACK, dtype=torch.uint8, device=self.device.place)
            found[: data.size].copy_(from_numpy(data))
            self._known[key] = found
            self.uploads += 1
        return found


class ConstantBlock:
    """A block of constants, whose pieces lie anywhere on the device."""

    def __init__(self, size: int, pieces: Pieces, tensors: list[torch.Tensor]) -> None:
        self._size = size
        self._pieces = pieces
        self._starts = [at for at, _ in pieces]
        self.tensors = tensors

    def to_host(self) -> Array:
        """The block as it was uploaded."""
        block = np.zeros(self._size, np.uint8)
        for (at, count), tensor in zip(self._pieces, self.tensors, strict=True):
            block[at : at + count] = tensor[:count].cpu().numpy()
        return block

    def at(self, offset: int) -> tuple[torch.Tensor, int]:
        """The memory in which an offset of the block lies, and the offset there."""
        number = bisect.bisect_right(self._starts, offset) - 1
        return self.tensors[number], offset - self._starts[number]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() for t in self.tensors)


FAILED: type[Exception] = getattr(torch, "AcceleratorError", RuntimeError)
"""The error that torch raises for a failed device; lack of memory is another error."""


@contextmanager
def told_of_failure() -> Iterator[None]:
    """Says in our words what torch says of a device that has failed: nothing works there then.

    And of what is not allowed while somebody captures: memory that has to be allocated first.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except FAILED as e:
        given = (str(e).splitlines() or [""])[0]
        if "captur" in given:
            raise ExecutionError(
                "a run needs memory that cannot be had while a stream is being captured",
                given=given,
                hint="run the model once like this before the capture",
            ) from e
        raise ExecutionError(
            "the device has failed, and does nothing more for this process",
            given=given,
            hint="look for what went wrong before, and start a new process",
        ) from e


def out_of_memory(
    device: Device, arena: int, constants: int, kept: int, error: Exception
) -> ExecutionError:
    """Return the error for a lack of memory, with what needs how much."""
    free = device.free_bytes()
    total = arena + constants + kept
    return ExecutionError(
        f"{device.name} has not enough memory for the model",
        expected=f"{total:,} bytes: {constants:,} of constants, {arena:,} of temporaries, "
        f"{kept:,} kept between runs, and the inputs and outputs",
        given=f"{free:,} bytes free ({str(error).splitlines()[0] if str(error) else 'no more'})",
        hint="use smaller shapes, precision f16, fewer sessions or a smaller max_cached_shapes",
    )


_lock = threading.Lock()
_known: WeakKeyDictionary[Turns, dict[torch.device, torch.Tensor]] = WeakKeyDictionary()
"""By the host's state, and the place."""


def states_on(device: Device, program: Program) -> dict[str, torch.Tensor]:
    """The states that a program draws from, by the name of the input that stands for each."""
    names = dict(zip(program.graph.inputs, program.graph.input_names, strict=True))
    return {names[v]: _on(device, state) for v, state in states_of(program.graph).items()}


def _on(device: Device, state: Turns) -> torch.Tensor:
    with _lock:
        places = _known.setdefault(state, {})
        found = places.get(device.place)
        if found is None:
            found = places[device.place] = from_numpy(state.count).to(device.place)
        else:  # it may have been made on a stream other than the caller's
            device.used([found])
        return found
