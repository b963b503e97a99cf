"""Large constants that the programs of a process share, found by the digest of their bytes."""

from __future__ import annotations

import weakref

from monograph.ir import Array

SHARED_BYTES = 16 << 10
"""Constants of at least this size are shared by all programs of the process that read them."""
_in_process: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()


def weight_in_process(digest: str) -> Array | None:
    """Return the large constant of a digest, if a program of this process holds it."""
    return _in_process.get(digest)


def share_weight(digest: str, data: Array) -> None:
    """Let later programs use this copy of a large constant, as long as one of them holds it."""
    _in_process[digest] = data
