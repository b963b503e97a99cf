"""An attribute that is computed when it is first asked for, and kept.

functools.cached_property has a lock before Python 3.12: a child that is forked while another thread
computes such an attribute would wait for it for ever. Here two threads may compute the same twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """Makes a method without arguments such an attribute; also of frozen dataclasses."""

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
        # Later looks find this, and do not come here.
        made = instance.__dict__[self._name] = self._compute(instance)
        return made
