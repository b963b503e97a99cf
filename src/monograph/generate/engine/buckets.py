"""Buckets: the lengths that tokens are fed in; each used length keeps an executable."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from monograph.errors import ConfigError

LEAST_BUCKET, MOST_BUCKET = 16, 512


def check_buckets(given: Any) -> tuple[int, ...] | None:
    """Return the requested buckets as a tuple; None for the defaults."""
    if given is None:
        return None
    several = list(given) if isinstance(given, Iterable) else [given]
    try:
        if any(isinstance(b, bool) for b in several):
            raise TypeError
        sizes = tuple(operator.index(b) for b in several)
    except TypeError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise ConfigError(
            "`buckets` must be lengths",
            expected="64 or [64, 512]: integers >= 1",
            given=repr(given),
        )
    return sizes


def make_buckets(given: tuple[int, ...] | None, maximum: int, single: bool) -> tuple[int, ...]:
    """Return the buckets, ascending; one token at a time is always among them.

    A bucket that is larger than the room becomes as large as the room.
    """
    if single:
        return (1,)
    if given is not None:
        return tuple(sorted({1, *(min(b, maximum) for b in given)}))
    sizes = [1, *([maximum] if maximum < LEAST_BUCKET else [])]
    size = LEAST_BUCKET
    while size <= min(MOST_BUCKET, maximum):
        sizes.append(size)
        size *= 2
    return tuple(sizes)
