"""The addresses of arrays, which every run asks for.

`__array_interface__` makes a dict, which takes longer than the launch of a small program. The
address is the first field of an array after the header of Python's objects. That is checked once,
on import.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_HEADER = object.__basicsize__
_read = ctypes.c_size_t.from_address


def _by_interface(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _by_field(array: Any) -> int:
    # Numpy's scalars are other objects.
    if array.__class__ is not np.ndarray:
        return _by_interface(array)
    return _read(id(array) + _HEADER).value


def _known() -> bool:
    """Return True if arrays are laid out as expected."""
    base = np.zeros((3, 5))
    samples = [base, base[1:], base[:, 2], base[::-1].T, np.array(7), base.astype(np.int8)]
    return all(_by_field(x) == _by_interface(x) for x in samples)


data_address = _by_field if _known() else _by_interface
"""Return the address of the first element of an array."""
