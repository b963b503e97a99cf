"""The memory budget of all tensors of a model.

A few bytes of a file can state many: a sparse tensor is mostly zeros, and any number of tensors may
name the same external data. Each tensor is checked against its own limit where it is read; here all
of them share one limit.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from monograph.errors import ModelError
from monograph.ir import Array
from monograph.ir.memory import machine_memory

SPARSE_FREE = 1 << 24
"""The size that a sparse tensor may always have, in bytes."""
SPARSE_FACTOR = 1000
"""The largest ratio of a sparse tensor's size, beyond that, to its stored elements."""
FILE_FACTOR = 4
"""The most times that a file of external data may be read; tensors that share bytes count once."""

Region = tuple[int, int, int, int]
"""Device and inode of a file, offset and length in it."""


@dataclass
class Account:
    """The memory read so far."""

    limit: int = field(default_factory=lambda: machine_memory())
    taken: int = 0
    _read: Counter[tuple[int, int]] = field(default_factory=Counter)
    _regions: WeakValueDictionary[Region, Array] = field(default_factory=WeakValueDictionary)

    def branch(self) -> Account:
        """Return a copy of the account, for one of several imports."""
        return Account(self.limit, self.taken, self._read.copy(), self._regions)

    def take(self, nbytes: int, label: str) -> None:
        """Count bytes before they are allocated."""
        self.taken += nbytes
        if self.taken > self.limit:
            raise ModelError(
                f"the tensors of the model are too large together, up to {label}",
                expected=f"at most {self.limit:,} bytes",
                given=f"{self.taken:,} bytes",
            )

    def take_sparse(self, nbytes: int, stored: int, label: str) -> None:
        """Count a sparse tensor of `nbytes`, of which `stored` are in the file."""
        most = SPARSE_FREE + SPARSE_FACTOR * stored
        if nbytes > most:
            raise ModelError(
                f"{label} is too large for the few elements that it stores",
                expected=f"at most {most:,} bytes",
                given=f"{nbytes:,} bytes",
            )
        self.take(nbytes, label)

    def known(self, handle: int, offset: int, nbytes: int) -> Array | None:
        """Return bytes of a file if they were read before and are still in use."""
        return self._regions.get(_region(handle, offset, nbytes))

    def take_file(self, handle: int, nbytes: int, label: str) -> None:
        """Count bytes before they are read from a file."""
        status = os.fstat(handle)
        key = (status.st_dev, status.st_ino)
        self._read[key] += nbytes
        if self._read[key] > FILE_FACTOR * status.st_size:
            raise ModelError(
                f"the tensors of the model read the same external data too often, up to {label}",
                expected=f"at most {FILE_FACTOR} times its {status.st_size:,} bytes",
                given=f"{self._read[key]:,} bytes",
            )
        self.take(nbytes, label)

    def keep(self, handle: int, offset: int, nbytes: int, data: Array) -> None:
        """Remember the data for as long as something uses it."""
        self._regions[_region(handle, offset, nbytes)] = data


def _region(handle: int, offset: int, nbytes: int) -> Region:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, offset, nbytes
