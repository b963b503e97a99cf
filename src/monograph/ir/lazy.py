"""An attribute that is computed at its first access and then kept.

functools.cached_property takes a lock before Python 3.12: a child process that is forked while
another thread computes such an attribute would wait for the lock for ever. This class takes no
lock, so two threads may both compute the same value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """Turn a method without arguments into a cached attribute; works on frozen dataclasses too."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = ""
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        # The instance attribute shadows this descriptor, so later accesses do not call it.
        made = instance.__dict__[self._name] = self._compute(instance)
        return made
