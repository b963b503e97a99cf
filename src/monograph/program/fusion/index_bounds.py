"""Proved bounds: index maps stay inside their buffers, and integer values in their ranges.

Intervals prove most maps. If an interval is too wide, the terms that share counters are evaluated
at all their points, which is exact. A map that is too large for that is counted and checked at run
time. A map that is proven to leave its buffer is a fault of Monograph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np

from monograph.errors import InternalError
from monograph.ir import Array, Item, TensorType, TupleType, Value, known
from monograph.ir.sizes import any_open, is_open, proven
from monograph.ir.traits import IntRange
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, Indices, counters, resolve
from monograph.program.index import Atom, Counter, Index, Quotient, flatten
from monograph.program.memory.buffer_assignment import described
from monograph.program.program import Program, Step

MOST_POINTS = 1 << 21
"""The most points at which terms that share counters are evaluated."""

Term = tuple[Atom, int]


def inside(index: Index, extent: int, what: object = "") -> bool:
    """Prove that an index stays in 0 .. extent - 1; False if it needs a check at run time.

    An index that is proven to leave that range raises an InternalError.
    """
    low, high = index.bounds()
    if proven(0, "<=", low) and proven(high, "<", extent):
        return True
    counters = index.counters
    if any_open((low, high, extent)) or any(is_open(c.extent) for c in counters):
        return False
    if any((c.extent if c.values is None else c.values) < 1 for c in counters):
        return True  # the loop never runs
    index = substitute(index, {c: Index() for c in counters if c.values == 1})
    found = extremes(index)
    if found is None:
        return False
    low, high = found
    if low >= 0 and high < extent:
        return True
    raise InternalError(
        "an address is outside of its buffer",
        expected=f"0..{extent - 1}, the elements of {what or 'the buffer'}",
        given=f"{low}..{high}, the range of {shown(index)}",
    )


def substitute(index: Index, known: Mapping[Counter, Index]) -> Index:
    """Replace some counters of an index."""
    if not known or not index.counters & known.keys():
        return index
    made = Index(index.constant)
    for atom, factor in index.terms:
        if isinstance(atom, Counter):
            one = known.get(atom, Index(0, ((atom, 1),)))
        else:
            inner = substitute(atom.index, known)
            one = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
        made = made + one * factor
    return made


@lru_cache(maxsize=1024)
def extremes(index: Index) -> tuple[int, int] | None:
    """Return the exact smallest and largest value of an index; None if that takes too long."""
    low = high = index.constant
    for terms in _independent(index.terms):
        found = _extremes_of(terms)
        if found is None:
            return None
        low, high = low + found[0], high + found[1]
    return low, high


def _independent(terms: Iterable[Term]) -> list[list[Term]]:
    """Group the terms so that no two groups share a counter: each group has its own extremes."""
    groups: list[tuple[set[Counter], list[Term]]] = []
    for term in terms:
        own, joined = Index(0, (term,)).counters, [term]
        apart = []
        for sharing, members in groups:
            if sharing & own:
                own, joined = own | sharing, [*members, *joined]
            else:
                apart.append((sharing, members))
        groups = [*apart, (own, joined)]
    return [members for _, members in groups]


def _extremes_of(terms: list[Term]) -> tuple[int, int] | None:
    if len(terms) == 1 and isinstance(terms[0][0], Counter):
        return Index(0, tuple(terms)).bounds()
    whole = Index(0, tuple(terms))
    every = sorted(whole.counters, key=lambda c: c.name)
    if math.prod(c.extent for c in every) > MOST_POINTS:
        return None
    grids = {
        c: np.arange(c.extent).reshape([-1 if c is own else 1 for own in every]) for c in every
    }
    values = evaluate(whole, grids)
    return int(values.min()), int(values.max())


def evaluate(index: Index, grids: dict[Counter, Array]) -> Array:
    """Evaluate an index at these values of its counters, broadcast against each other."""
    total = np.asarray(index.constant, np.int64)
    for atom, factor in index.terms:
        if isinstance(atom, Counter):
            one = grids[atom]
        elif isinstance(atom, Quotient):
            one = evaluate(atom.index, grids) // atom.by
        else:
            one = evaluate(atom.index, grids) % atom.by
        total = total + one * factor
    return total


def shown(index: Index) -> str:
    """Format an index for messages."""
    parts = [str(index.constant)] if index.constant or not index.terms else []
    for atom, factor in index.terms:
        if isinstance(atom, Counter):
            text = f"{atom.name}<{atom.extent}>"
        else:
            sign = "//" if isinstance(atom, Quotient) else "%"
            text = f"(({shown(atom.index)}) {sign} {atom.by})"
        parts.append(text if factor == 1 else f"{factor}*{text}")
    return " + ".join(parts)


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


DEEPEST = 40
"""The number of ops through which a value is followed back."""


def is_within(indices: Value, size: int) -> bool:
    """Return True if indices lie in a dimension, counted from the front or the back."""
    found = range_of(indices)
    return found is not None and -size <= found[0] and found[1] < size


def range_of(value: Value) -> IntRange | None:
    """Return the range of an integer value; None where only its type is known."""
    return _Ranges().of(value, DEEPEST)


class _Ranges:
    """The ranges found so far: values have common operands."""

    def __init__(self) -> None:
        self.found: dict[Value, IntRange | None] = {}

    def of(self, value: Value, depth: int) -> IntRange | None:
        if value not in self.found:
            self.found[value] = self._of(value, depth)
        return self.found[value]

    def _of(self, value: Value, depth: int) -> IntRange | None:
        if depth == 0 or isinstance(value.type, TupleType) or not value.dtype.is_integer:
            return None
        data = known(value)
        if data is not None:
            return (int(data.min()), int(data.max())) if data.size else None
        found = value.op.integer_range(value, lambda v: self.of(v, depth - 1))
        return found if found is not None and _fits(found, value) else None


def _fits(found: IntRange, value: Value) -> bool:
    """Return True if no number wraps around in its type."""
    kind = value.dtype
    low = -(2 ** (kind.bits - 1)) if kind.is_signed else 0
    return low <= found[0] and found[1] < low + 2**kind.bits
