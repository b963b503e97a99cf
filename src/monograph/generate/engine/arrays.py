"""The state arrays of a generation, on the host or on a GPU, and the logits after each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from monograph.errors import ConfigError
from monograph.ir import Array
from monograph.session import Session


class Arrays(Protocol):
    """Creates state arrays in the memory of a session's target."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array of zeros."""

    def put(self, array: Array) -> Any:
        """Copy an array of the host there."""

    def get(self, array: Any, mark: Any = None) -> Array:
        """Return a state array's content on the host; work enqueued after `mark` may run on."""

    def contiguous(self, array: Any) -> Any:
        """Return an array with its elements next to each other: itself, or a copy."""

    def mark(self) -> Any:
        """Return a mark after all enqueued work; None if all has ended."""


class HostArrays:
    """State as numpy arrays."""

    def zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def put(self, array: Array) -> Any:
        return np.array(array, order="C")

    def get(self, array: Any, mark: Any = None) -> Array:
        return np.asarray(array)

    def contiguous(self, array: Any) -> Any:
        return np.ascontiguousarray(array)

    def mark(self) -> Any:
        return None


class DeviceArrays:
    """State as tensors on a session's GPU: it never leaves the device."""

    def __init__(self, place: Any) -> None:
        self._place = place
        self._aside: Any = None
        """A stream for copies that do not wait for the current stream."""

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
            # A high-priority stream, which callers seldom use themselves.
            self._aside = torch.cuda.Stream(self._place, priority=-1)
        with torch.cuda.stream(self._aside):
            self._aside.wait_event(mark)
            found = to_host(array)
        return found

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()

    def mark(self) -> Any:
        import torch

        if self._place.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._place))
        return event


def arrays_of(session: Session) -> Arrays:
    """Return the state arrays of a session's target."""
    if session.gpu is None or session.gpu.place is None:
        return HostArrays()
    return DeviceArrays(session.gpu.place)


class Logits:
    """The logits of each row, from the run that reached its end; None if there is none."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._rows: list[Any] = []

    def forget(self, batch: int) -> None:
        """Drop the logits of all rows."""
        self._rows = [None] * batch

    def drop(self, row: int) -> None:
        """Drop the logits of a row, whose next token has been chosen."""
        self._rows[row] = None

    def keep(self, made: Any, rows: Iterable[int]) -> None:
        """Keep the logits of a run that reached the end of some rows."""
        for row in rows:
            self._rows[row] = made

    def has(self, row: int) -> bool:
        """Return True if the logits after the last token of a row are known."""
        return self._rows[row] is not None

    def check(self) -> None:
        """Raise an error if the step does not return logits."""
        if not self._wanted:
            raise ConfigError(
                "logits are not available", hint="make the Generator with logits=True"
            )

    def read(self, get: Callable[[Any], Array], vocabulary: int) -> Array:
        """Return the logits after each row, [batch, vocabulary]; NaN where they are unknown."""
        found = np.full((len(self._rows), vocabulary), np.nan, np.float32)
        for row, made in enumerate(self._rows):
            if made is not None:
                found[row] = get(made)[row]
        return found
