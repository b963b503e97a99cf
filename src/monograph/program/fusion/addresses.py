"""Proofs of the addresses of a program's steps that are index maps, against their buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from monograph.ir import Item, TensorType, Value
from monograph.program.fusion.access import Element, Indices, counters, resolve
from monograph.program.fusion.index_bounds import inside
from monograph.program.fusion.op_classes import is_view
from monograph.program.index import flatten
from monograph.program.memory.buffer_assignment import described
from monograph.program.program import Program, Step


def unproven_addresses(program: Program) -> int:
    """Count the index maps that no proof covers: every run checks them.

    An InternalError means that an index map is proven to leave its buffer.
    """
    return sum(not _inside(program, e) for step in program.steps for e in _elements(program, step))


def _elements(program: Program, step: Step) -> Iterator[Element]:
    """Yield the elements that a step loads through views and stores."""
    region, storage = step.region, program.places.storage
    for value in region.outputs:
        if value in storage:
            yield from _loaded(program, step, value, counters(value.tensor.static))
            yield Element(value, counters(value.tensor.static))
    for operand in region.anchor.inputs if region.anchor is not None else ():
        if isinstance(operand.type, TensorType):
            yield from _loaded(program, step, operand, counters(operand.tensor.static))


def _loaded(program: Program, step: Step, value: Value, at: Indices) -> Iterator[Element]:
    region = step.region
    given = {*region.inputs, region.anchor}

    def is_input(v: Value) -> bool:
        # The kernel computes the items of an anchor with several results; they are not elements.
        return v in given or isinstance(v.op, Item)

    for item in resolve([Element(value, at)], is_input, is_view):
        found = item.element
        if not item.operands and found.value is not region.anchor:
            yield found


def _inside(program: Program, element: Element) -> bool:
    place = program.places.storage.get(element.value)
    if place is None:
        return True
    position = flatten(element.at, place.strides, place.offset)
    return inside(position, math.prod(place.buffer.padded), described(place.buffer))
