"""Where a generation keeps its state: arrays of the host, or tensors on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from monograph.ir import Array
from monograph.session import Session


class Arrays(Protocol):
    """Makes arrays where a session wants its state."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array of zeros."""

    def put(self, array: Array) -> Any:
        """An array of the host, there."""

    def get(self, array: Any) -> Array:
        """What such an array holds, on the host."""


class HostArrays:
    """numpy's own."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def put(self, array: Array) -> Any:
        return np.array(array, order="C")

    def get(self, array: Any) -> Array:
        return np.asarray(array)


class DeviceArrays:
    """Tensors on the GPU of a session: state never leaves it."""

    def __init__(self, place: Any) -> None:
        self._place = place

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        import torch

        from monograph.ir import from_numpy
        from monograph.runtime.gpu.tensors import torch_type

        return torch.zeros(*shape, dtype=torch_type(from_numpy(dtype)), device=self._place)

    def put(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(array).copy()).to(self._place)

    def get(self, array: Any) -> Array:
        from monograph.runtime.gpu.ports import to_host

        found: Array = to_host(array)
        return found


def arrays_of(session: Session) -> Arrays:
    """Where a session wants its state."""
    if session.gpu is None or session.gpu.place is None:
        return HostArrays()
    return DeviceArrays(session.gpu.place)
