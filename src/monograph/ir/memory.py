"""Limits on the size of tensors, checked before anything is allocated.

A model file states sizes, and a few bytes of it can state a petabyte. A type is checked against a
fixed limit when it is built. A result is checked against the memory of the machine before it is
computed: one result may take half of it, and the process together with the next step three
quarters. A caller can lower the limit for optional work (`lend`), such as folding during import.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from monograph.errors import ExecutionError
from monograph.ir.sizes import hint_of

MAX_TENSOR_BYTES = 1 << 36
"""The largest tensor allowed: a larger size means a broken or hostile model."""
MAX_RANK = 32
"""The largest number of dimensions allowed: numpy's limit."""

_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

ROOM_STEP = 1 << 24
"""The process measures its memory again after this many bytes of results."""

_lent: ContextVar[int | None] = ContextVar("lent", default=None)


@cache
def machine_memory() -> int:
    """Return the memory available to this process: the machine's, or its control group's."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        total = MAX_TENSOR_BYTES
    for name in _GROUP_LIMITS:
        try:
            limit = Path(name).read_text().strip()
        except OSError:
            continue
        total = min(total, int(limit)) if limit.isdigit() else total
    return total


def resident() -> int:
    """Return the resident bytes of this process; 0 where the system does not report them."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def text_lengths(texts: Any) -> Any:
    """Return the length of each text of an array; an element of the array is only a reference."""
    return np.array([len(t) for t in texts.flat], np.int64).reshape(texts.shape)


@contextmanager
def lend(nbytes: int) -> Iterator[None]:
    """Limit the size of any result to `nbytes` inside the context."""
    token = _lent.set(nbytes)
    try:
        yield
    finally:
        _lent.reset(token)


def count_elements(shape: Sequence[int]) -> int:
    """Return the product of the sizes; 0 counts as 1, as in numpy's check of a shape."""
    count = 1
    for d in shape:
        count *= int(hint_of(d)) or 1
    return count


def check_result(shape: Sequence[int], itemsize: int) -> None:
    """Raise an error if the machine cannot hold a result, before numpy tries to allocate it."""
    lent = _lent.get()
    limit = min(MAX_TENSOR_BYTES, machine_memory() // 2) if lent is None else lent
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise ExecutionError(
            "a result has an impossible shape",
            expected=f"at most {MAX_RANK} dimensions, none of them negative",
            given=[*shape],
        )
    if count_elements(shape) * itemsize > limit:
        raise ExecutionError(
            "a result is too large", expected=f"at most {limit:,} bytes", given=[*shape]
        )


_asked = 0
"""Bytes of results since the last measurement of memory. Threads may lose some counts."""


def check_room(nbytes: int) -> None:
    """Raise an error if the process holds too much memory to allocate `nbytes` more."""
    global _asked
    _asked += nbytes
    if _asked < ROOM_STEP:
        return
    _asked = 0
    held, limit = resident(), machine_memory() // 4 * 3
    if held + nbytes > limit:
        raise ExecutionError(
            "the run needs more memory than is left",
            expected=f"at most {limit:,} bytes in this process",
            given=f"{held:,} held and {nbytes:,} needed",
        )
