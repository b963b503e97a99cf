"""Feeds that other libraries hold: DLPack describes their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.errors import FeedError

_HOST = (1, 3)
"""DLPack's numbers for memory that the host can read: its own, and pinned memory."""


class _Capsule:
    """A bare capsule, as numpy wants to be handed it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def is_foreign(data: Any) -> bool:
    """Return True if another library holds the data and describes them by DLPack."""
    if isinstance(data, (np.ndarray, np.generic)):
        return False
    return hasattr(data, "__dlpack__") or type(data).__name__ == "PyCapsule"


def arrays_of(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feeds with arrays in place of what other libraries hold on the host."""
    if not any(map(is_foreign, feeds.values())):
        return feeds
    return {n: _array(n, x) if is_foreign(x) else x for n, x in feeds.items()}


def _array(name: str, data: Any) -> Any:
    if type(data).__name__ == "PyCapsule":
        return np.from_dlpack(_Capsule(data))
    kind, number = data.__dlpack_device__()
    if int(kind) not in _HOST:
        raise FeedError(
            f"{name}: its memory is not the host's",
            given=f"{type(data).__name__} on device {int(kind)}:{number} of DLPack",
            hint='copy it to the host, or load the model with target="gpu"',
        )
    if hasattr(data, "__array__"):  # it knows best: DLPack has not every type
        return data
    return np.from_dlpack(data)
