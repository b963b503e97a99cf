"""Device memory: constants that executables share, RNG states, and errors where none is left.

A constant lies on the device once, whichever shapes it was packed for: it is found by its bytes. It
goes when the last executable that reads it goes. An RNG state belongs to its random ops: all that
draw from it on one device share it.
"""

from __future__ import annotations

import bisect
import ctypes
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from monograph.errors import ExecutionError
from monograph.ir import Array
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.tensors import from_numpy

if TYPE_CHECKING:
    from monograph.ops.random import Turns
    from monograph.program.program import Program

SLACK = 256
"""Bytes that nothing lies in behind each memory, so that none is empty."""
NO_CONSTANTS: Array = np.zeros(0, np.uint8)
"""In the place of constants that are on the device already."""
Pieces: TypeAlias = Sequence[tuple[int, int]]


class DeviceConstants:
    """Constants on a device, as long as an executable holds them."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.uploads = 0
        """The number of constants copied to the device."""
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()

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
        digests = [hashlib.sha256(block[a : a + n].data).hexdigest() for a, n in pieces]
        held = dict(zip(digests, (block[a : a + n] for a, n in pieces), strict=True))
        return self.upload_stored(pieces, digests, lambda wanted: {d: held[d] for d in wanted})

    def upload_stored(
        self,
        pieces: Pieces,
        digests: Sequence[str],
        find: Callable[[Sequence[str]], Mapping[str, Array]],
    ) -> ConstantBlock:
        """A block of constants by the digests of its pieces; `find` returns those not there yet."""
        with self._lock:
            kept = {d: t for d in digests if (t := self._known.get(d)) is not None}
            missing = [d for d in dict.fromkeys(digests) if d not in kept]
            found = find(missing) if missing else {}
            for digest in missing:
                kept[digest] = self._known[digest] = self._uploaded(found[digest])
            return ConstantBlock(pieces, digests, [kept[d] for d in digests])

    def _uploaded(self, data: Array) -> torch.Tensor:
        made = torch.empty(data.size + SLACK, dtype=torch.uint8, device=self.device.place)
        if data.size:
            made[: data.size].copy_(_readable(data))
        self.uploads += 1
        return made


class ConstantBlock:
    """A block of constants, whose pieces lie anywhere on the device."""

    def __init__(self, pieces: Pieces, digests: Sequence[str], tensors: list[torch.Tensor]) -> None:
        self.digests = digests
        """The digests of the pieces."""
        self._pieces = pieces
        self._starts = [at for at, _ in pieces]
        self.tensors = tensors

    @property
    def weights(self) -> Mapping[str, Array]:
        """The pieces by digest; each is copied to the host when it is asked for."""
        return _OnDevice(
            {
                digest: tensor[:count]
                for digest, (_, count), tensor in zip(
                    self.digests, self._pieces, self.tensors, strict=True
                )
            }
        )

    def at(self, offset: int) -> tuple[torch.Tensor, int]:
        """The memory in which an offset of the block lies, and the offset there."""
        number = bisect.bisect_right(self._starts, offset) - 1
        return self.tensors[number], offset - self._starts[number]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() for t in self.tensors)


class _OnDevice(Mapping[str, Array]):
    """Bytes of a device as arrays of the host."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, digest: str) -> Array:
        found: Array = self._tensors[digest].cpu().numpy()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _readable(data: Array) -> torch.Tensor:
    """Bytes of the host as a tensor that is only read: memory mapped from a file is not copied."""
    pointed = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    return torch.frombuffer(pointed, dtype=torch.uint8)


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
    from monograph.program.legalise.lower_random import states_of

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
