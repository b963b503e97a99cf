"""The work of code, counted in calls: the same on a busy machine and on an idle one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest


class Effort:
    """Calls of Python and of C functions so far."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.calls = 0

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self.calls += 1
        if self.limit is not None and self.calls > self.limit:
            pytest.fail(f"more than {self.limit:,} calls")


@contextmanager
def at_most(calls: int | None) -> Iterator[Effort]:
    """Fails as soon as the block makes more calls than that, so that no hang goes unnoticed."""
    effort = Effort(calls)
    before = sys.getprofile()
    sys.setprofile(effort.count)
    try:
        yield effort
    finally:
        sys.setprofile(before)


def calls_of(work: Callable[[], object]) -> int:
    """Return how many calls some work takes."""
    with at_most(None) as effort:
        work()
    return effort.calls


def check_linear(work: Callable[[int], object], size: int) -> None:
    """Fails if twice the size takes much more than twice the calls."""
    work(1)  # What happens once, such as filling caches, is no part of either.
    once, twice = (calls_of(lambda n=n: work(n)) for n in (size, 2 * size))  # type: ignore[misc]
    assert once > size, "the work does not grow with the size"
    assert twice < 2.4 * once, f"{once:,} calls for {size:,}, {twice:,} for {2 * size:,}"


class CountedName(str):
    """A name that counts how often it is compared or looked up: a search through a list shows."""

    touched = 0

    def __eq__(self, other: object) -> bool:
        CountedName.touched += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        CountedName.touched += 1
        return str.__hash__(self)


def touches_of(work: Callable[[], object]) -> int:
    """Return how often names are compared or looked up in some work."""
    before = CountedName.touched
    work()
    return CountedName.touched - before
