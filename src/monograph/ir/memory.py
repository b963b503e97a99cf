"""How large a tensor may be: asked before anything is allocated.

A model file states sizes, and a few bytes of it can state a petabyte. Types are held to a fixed
limit when they are built. Data is held to the memory of the machine when it is computed: one result
may take half of it, and all that the process holds together with what the next step needs three
quarters. Much less is lent where a computation is only a convenience (folding while importing).
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

MAX_TENSOR_BYTES = 1 << 36
"""No single tensor may be larger: a size beyond it is a broken or hostile model."""
MAX_RANK = 32
"""No tensor may have more dimensions: what numpy holds."""

_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

ROOM_STEP = 1 << 24
"""After so many bytes of results the process is asked again how much it holds."""

_lent: ContextVar[int | None] = ContextVar("lent", default=None)


@cache
def machine_memory() -> int:
    """Bytes that this process can hope for: the machine's, or its control group's."""
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
    """Bytes that this process holds in memory now; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def text_lengths(texts: Any) -> Any:
    """The characters of each text of an array; an element of it is only a reference."""
    return np.array([len(t) for t in texts.flat], np.int64).reshape(texts.shape)


@contextmanager
def lend(nbytes: int) -> Iterator[None]:
    """Within it no result may take more bytes than these."""
    token = _lent.set(nbytes)
    try:
        yield
    finally:
        _lent.reset(token)


def count_elements(shape: Sequence[int]) -> int:
    """The product of the sizes; sizes of 0 count as 1, as they do where numpy checks a shape."""
    count = 1
    for d in shape:
        count *= int(d) or 1
    return count


def check_result(shape: Sequence[int], itemsize: int) -> None:
    """Refuses a result that the machine cannot hold, before numpy tries to allocate it."""
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
"""Bytes of results since the process was last asked what it holds. Threads may lose some."""


def check_room(nbytes: int) -> None:
    """Refuses a step that needs so many bytes when this process holds too much for it already."""
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
