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

    def get(self, array: Any, mark: Any = None) -> Array:
        """What such an array holds, on the host; what was enqueued behind a mark may still run."""

    def mark(self) -> Any:
        """The end of what was enqueued so far; None where everything has ended."""


class HostArrays:
    """numpy's own."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def put(self, array: Array) -> Any:
        return np.array(array, order="C")

    def get(self, array: Any, mark: Any = None) -> Array:
        return np.asarray(array)

    def mark(self) -> Any:
        return None


class DeviceArrays:
    """Tensors on the GPU of a session: state never leaves it."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._aside: Any = None
        """A stream for copies that do not wait for what the current one has yet to do."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        import torch

        from monograph.ir import from_numpy
        from monograph.runtime.gpu.tensors import torch_type

        return torch.zeros(*shape, dtype=torch_type(from_numpy(dtype)), device=self._place)

    def put(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(array).copy()).to(self._place)

    def get(self, array: Any, mark: Any = None) -> Array:
        from monograph.runtime.gpu.ports import to_host

        found: Array
        if mark is None:
            found = to_host(array)
            return found
        import torch

        if self._aside is None or self._aside == torch.cuda.current_stream(self._place):
            # Of those with priority, which callers seldom use themselves.
            self._aside = torch.cuda.Stream(self._place, priority=-1)
        with torch.cuda.stream(self._aside):
            self._aside.wait_event(mark)
            found = to_host(array)
        return found

    def mark(self) -> Any:
        import torch

        if self._place.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._place))
        return event


def arrays_of(session: Session) -> Arrays:
    """Where a session wants its state."""
    if session.gpu is None or session.gpu.place is None:
        return HostArrays()
    return DeviceArrays(session.gpu.place)
