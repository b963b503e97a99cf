"""A guard that admits one thread at a time: a second thread gets an error and does not wait."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from monograph.errors import ExecutionError

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class Guard:
    """Held by the thread at work; that thread may enter again, others may not."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ExecutionError(
                "another thread is using the generator",
                expected="one thread at a time",
                hint="take turns, or make a Generator for each thread",
            )

    def __exit__(self, *_: Any) -> None:
        self._lock.release()


def alone(method: _F) -> _F:
    """Decorate a method of an object with a `_guard`: one thread at a time may be in it."""

    @functools.wraps(method)
    def guarded(self: Any, *given: Any, **options: Any) -> Any:
        with self._guard:
            return method(self, *given, **options)

    return cast(_F, guarded)


def alone_in_each(items: Iterator[_T], guard: Guard) -> Iterator[_T]:
    """Yield items that are each computed under the guard; between them other threads may enter."""
    while True:
        with guard:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
