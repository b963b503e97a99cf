"""The progress of a compilation, for callers that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from monograph.errors import ConfigError

Progress: TypeAlias = Callable[[str, int, int], None]
"""Takes a stage, what of it is done, and the whole; it may be called from any thread.

Stages are import, wait (for another process that compiles the same), rewrite, generate, compile and
load, not always all of them; ready is the last.
For a GPU kernels are measured too: measure, a space, and which problem.
"""
READY = "ready"
"""Work is over, or has failed."""


def check_progress(given: Any) -> None:
    """Refuses what cannot be called: it would fail in the middle of a compilation."""
    if given is not None and not callable(given):
        raise ConfigError("progress is a function", given=repr(given))


@contextmanager
def until_ready(progress: Progress) -> Iterator[None]:
    """Report `READY` when the work inside has ended or failed."""
    try:
        yield
    finally:
        progress(READY, 1, 1)


def silent(stage: str, done: int, total: int) -> None:
    """Shows nothing."""
