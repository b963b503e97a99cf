"""The addresses of arrays are those that numpy tells."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.runtime.addresses import data_address

BASE = np.arange(24.0).reshape(2, 3, 4)
ARRAYS = {
    "dense": BASE,
    "strided": BASE[1, ::2],
    "backward": BASE[:, ::-1],
    "transposed": BASE.T,
    "scalar array": np.array(3, np.int8),
    "empty": np.empty((0, 4)),
    "objects": np.empty(2, object),
    "read only": np.frombuffer(b"readonly", np.uint8),
    "text": np.array(["a", "bc"]),
    "subclass": np.ma.masked_array(BASE),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_address_is_that_of_the_interface(name: str) -> None:
    array = ARRAYS[name]
    assert data_address(array) == array.__array_interface__["data"][0]


@pytest.mark.parametrize("scalar", [np.int64(7), np.float32(1), np.bool_(True)])
def test_the_address_of_a_scalar_is_no_part_of_its_value(scalar: np.generic) -> None:
    """Numpy's scalars have no address field: the interface makes an array of them."""
    assert data_address(scalar) not in (0, 1, 7)
