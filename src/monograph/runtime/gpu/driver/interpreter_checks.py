"""Bounds checks of interpreted kernels: every address is in a buffer of the kernel's arguments.

Triton's interpreter accesses memory through one module. While a checked kernel runs, that module
checks each address. Masked elements are not accessed and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from monograph.errors import InternalError
from monograph.ir import Array

Range = tuple[int, int, str]
"""The first address of a buffer, the first after it, and a label."""


class _Watched:
    """Triton's memory module, with checks of every address. One kernel runs at a time."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.kernel = ""
        self.ranges: Sequence[Range] | None = None
        self.undo: list[tuple[Array, Array, Array]] | None = None
        """Addresses, what they held, and a mask, of every store that may be taken back."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Array, mask: Array, other: Array, dtype: Any) -> Any:
        kind = np.dtype(dtype)
        read = self._check("load", pointers, mask, kind.itemsize)
        if read is None:
            return other.astype(kind)
        found = _gathered(read, kind)
        return found if read is pointers else np.where(mask.astype(bool), found, other.astype(kind))

    def store(self, pointers: Array, values: Array, mask: Array) -> Any:
        self._check("store", pointers, mask, values.dtype.itemsize)
        self._remember(pointers, mask, values.dtype)
        return self._plain.store(pointers, values, mask)

    def atomic_rmw(self, how: Any, pointers: Array, values: Array, mask: Array, order: Any) -> Any:
        self._check("atomic", pointers, mask, values.dtype.itemsize)
        self._remember(pointers, mask, values.dtype)
        return self._plain.atomic_rmw(how, pointers, values, mask, order)

    def atomic_cas(self, pointers: Array, expected: Array, values: Array, order: Any) -> Any:
        mask = np.ones(pointers.shape, bool)
        self._check("atomic", pointers, mask, values.dtype.itemsize)
        self._remember(pointers, mask, values.dtype)
        return self._plain.atomic_cas(pointers, expected, values, order)

    def take_back(self) -> None:
        """Undoes the stores of a batch, the last one first."""
        for pointers, values, mask in reversed(self.undo or []):
            self._plain.store(pointers, values, mask)

    def _remember(self, pointers: Array, mask: Array, dtype: Any) -> None:
        if self.undo is not None:
            held = self.load(pointers, mask, np.zeros(pointers.shape, dtype), dtype)
            self.undo.append((pointers, held, mask))

    def _check(self, how: str, pointers: Array, mask: Array, size: int) -> Array | None:
        """The addresses with one that is accessed for each that is not; None where none is."""
        read = _accessed(pointers, mask.astype(bool, copy=False))
        if read is None or self.ranges is None:
            return read
        low, high = int(read.min()), int(read.max()) + size
        if any(start <= low and high <= stop for start, stop, _ in self.ranges):
            return read
        good = np.zeros(read.shape, bool)
        for start, stop, _ in self.ranges:
            good |= (read >= start) & (read + np.uint64(size) <= stop)
        if not good.all():
            raise self._outside(how, int(read[~good][0]), size)
        return read

    def _outside(self, how: str, address: int, size: int) -> InternalError:
        assert self.ranges is not None

        def distance(range_: Range) -> int:
            start, stop, _ = range_
            return max(start - address, address + size - stop)

        start, stop, label = min(self.ranges, key=distance)
        return InternalError(
            "an address is outside of its buffer",
            op=self.kernel,
            expected=f"an access within {stop - start} bytes of {label}",
            given=f"a {how} of {size} bytes at {address - start}, address {address:#x}",
        )


def _accessed(pointers: Array, mask: Array) -> Array | None:
    if mask.all():
        return pointers
    if not mask.any():
        return None
    shape = np.broadcast_shapes(pointers.shape, mask.shape)
    allowed = np.broadcast_to(mask, shape)
    one = np.broadcast_to(pointers, shape).flat[int(allowed.argmax())]
    return np.where(allowed, pointers, one)


def _gathered(addresses: Array, kind: np.dtype[Any]) -> Array:
    """The elements at some addresses, each a whole number of elements from the others."""
    low, high = addresses.min(), addresses.max()
    memory: Any = SimpleNamespace()
    memory.__array_interface__ = {
        "data": (int(low), True),
        "shape": (int(high - low) // kind.itemsize + 1,),
        "typestr": kind.str,
        "version": 3,
    }
    places = (addresses - low) >> np.uint64(kind.itemsize.bit_length() - 1)
    found: Array = np.asarray(memory).take(places.view(np.int64))
    return found


@cache
def watched() -> _Watched:
    """Triton's module for memory, replaced once by one that looks at addresses."""
    from triton.runtime import interpreter

    module: Any = interpreter
    module._interpreter = _Watched(module._interpreter)
    return module._interpreter  # type: ignore[no-any-return]


@contextmanager
def checked_access(kernel: str, ranges: Sequence[Range]) -> Iterator[None]:
    """Let a kernel access only these buffers."""
    memory = watched()
    memory.kernel, memory.ranges = kernel, ranges
    try:
        yield
    except Exception as error:
        # The interpreter wraps the errors of a kernel.
        own = error
        while own.__cause__ is not None and not isinstance(own, InternalError):
            own = own.__cause__  # type: ignore[assignment]
        raise own if isinstance(own, InternalError) else error from None
    finally:
        memory.ranges = None
