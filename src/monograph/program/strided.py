"""Views as plain strides: where the chain of views over a stored value allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monograph.ir import Value
from monograph.program.access import Element, counters, through_view
from monograph.program.index import flatten
from monograph.program.kinds import is_view
from monograph.program.place import Storage


@dataclass(frozen=True)
class Strided:
    """A value as a stored one sees it: an offset and a stride for each dimension, in elements."""

    source: Value
    offset: int
    strides: tuple[int, ...]


def strided(value: Value, storage: Mapping[Value, Storage]) -> Strided | None:
    """How to step through a value in memory; None where no strides describe it."""
    shape = value.tensor.static
    at = counters(shape)
    element = Element(value, at)
    while element.value not in storage:
        if not is_view(element.value):
            return None
        element = through_view(element.value, element.at)
    place = storage[element.value]
    position = flatten(element.at, place.strides, place.offset)
    if not position.is_linear:
        return None
    factors = tuple(
        0 if d == 1 else position.factor(i.terms[0][0]) for d, i in zip(shape, at, strict=True)
    )
    return Strided(element.value, position.constant, factors)
