"""Constant data: an array that never changes, with its digest computed once."""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

import numpy as np

from monograph.ir.dtype import DType, from_numpy
from monograph.ir.types import TensorType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DIGEST_BYTES = 16


def digest_of(*parts: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        state.update(part)
    return state.digest()


class Literal:
    """An immutable array. Two literals are equal when dtype, shape and every bit are."""

    __slots__ = ("array", "digest", "dtype")

    array: Array
    dtype: DType
    digest: bytes

    def __init__(self, given: Any) -> None:
        array = np.asarray(given)
        dtype = from_numpy(array.dtype)
        if array.dtype != dtype.numpy:
            array = array.astype(dtype.numpy)
        if array.flags.writeable or not array.flags.c_contiguous:
            # `ascontiguousarray` would turn a scalar into a vector of one element.
            array = np.array(array, order="C", copy=True)
            array.flags.writeable = False
        self.array = array
        self.dtype = dtype
        self.digest = digest_of(str(self.type).encode(), b"\0", self.payload())

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, tuple(self.array.shape))

    def payload(self) -> bytes | memoryview:
        """The bytes behind the elements: as numpy stores them, strings as JSON."""
        if self.dtype.is_string:
            texts = [
                s.decode("utf-8", "surrogateescape") if isinstance(s, bytes) else str(s)
                for s in self.array.reshape(-1)
            ]
            return json.dumps(texts).encode()
        if self.array.size == 0:
            return b""
        return self.array.reshape(-1).view(np.uint8).data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Literal({self.type})"
