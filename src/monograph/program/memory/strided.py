"""Views as plain strides over a stored value, where the views allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monograph.ir import Value
from monograph.ir.sizes import is_one, is_open
from monograph.ops.shape import Broadcast, Reshape
from monograph.program.fusion.index_bounds import inside
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, counters, through_view
from monograph.program.index import Index, counter, flatten
from monograph.program.memory.buffer_assignment import Storage, described


@dataclass(frozen=True)
class Strided:
    """A view of a stored value: an offset, and a stride for each dimension, in elements."""

    source: Value
    offset: int
    strides: tuple[int, ...]


def strided(value: Value, storage: Mapping[Value, Storage]) -> Strided | None:
    """Return the strides of a value in memory; None if no strides describe it.

    A dimension of size 1 has a stride too, if the views keep dimensions separate: windows step from
    it into the halo.
    """
    shape = value.tensor.static
    least = 2 if _keeps_dimensions(value, storage) else 1
    at = counters([d if is_open(d) and not is_one(d) else max(d, least) for d in shape])
    element = Element(value, at)
    while element.value not in storage:
        if not is_view(element.value):
            return None
        element = through_view(element.value, element.at)
    place = storage[element.value]
    position = flatten(element.at, place.strides, place.offset)
    if not position.is_linear:
        return None
    _check(position, at, shape, place)
    factors = tuple(position.factor(i.terms[0][0]) if i.terms else 0 for i in at)
    return Strided(element.value, position.constant, factors)


def _check(position: Index, at: Indices, shape: Sequence[int], place: Storage) -> None:
    """Check that every element of the value is in its buffer; windows may step outside."""
    if 0 in shape:
        return
    own = Index(position.constant)
    for index, extent in zip(at, shape, strict=True):
        if index.terms:
            (counted, _), *_ = index.terms
            own = own + counter(counted.name, extent) * position.factor(counted)  # type: ignore[union-attr]
    inside(own, math.prod(place.buffer.padded), described(place.buffer))


def _keeps_dimensions(value: Value, storage: Mapping[Value, Storage]) -> bool:
    """Return True if only views that slice or permute dimensions separate a value from storage."""
    while value not in storage and is_view(value):
        if isinstance(value.op, (Reshape, Broadcast)):
            return False
        value = value.inputs[0]
    return True
