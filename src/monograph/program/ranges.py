"""Between which integers the elements of a value are sure to lie, where that can be seen."""

from __future__ import annotations

from typing import TypeAlias

from monograph.ir import Item, TupleType, Value, known
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, Max, Min, Mod, Mul, Sub
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.reduce import ArgMax, ArgMin
from monograph.ops.shape import (
    Broadcast,
    Concat,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from monograph.ops.sort import TopK

Range: TypeAlias = tuple[int, int]
"""The smallest and the largest number that there can be."""
DEEPEST = 40
"""How far back a value is followed."""
_PICKS = (Gather, GatherElements, GatherNd)
_MOVES = (Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze, *_PICKS)
"""Ops whose elements are those of their first operand."""


def is_within(indices: Value, size: int) -> bool:
    """Whether indices are sure to lie in a dimension, counted from the front or the back."""
    found = range_of(indices)
    return found is not None and -size <= found[0] and found[1] < size


def range_of(value: Value) -> Range | None:
    """The range of an integer value; None where nothing is known but its type."""
    return _Ranges().of(value, DEEPEST)


class _Ranges:
    """Ranges found so far: values have common operands."""

    def __init__(self) -> None:
        self.found: dict[Value, Range | None] = {}

    def of(self, value: Value, depth: int) -> Range | None:
        if value not in self.found:
            self.found[value] = self._of(value, depth)
        return self.found[value]

    def _of(self, value: Value, depth: int) -> Range | None:
        if depth == 0 or isinstance(value.type, TupleType) or not value.dtype.is_integer:
            return None
        data = known(value)
        if data is not None:
            return (int(data.min()), int(data.max())) if data.size else None
        found = self._made(value, depth - 1)
        return found if found is not None and _fits(found, value) else None

    def _made(self, value: Value, depth: int) -> Range | None:
        op = value.op
        if isinstance(op, Item):
            (made,) = value.inputs
            if isinstance(made.op, TopK) and op.index == 1:
                return _below(made.inputs[0].tensor.static[made.op.axis])
            return None
        if isinstance(op, (ArgMax, ArgMin)):
            return _below(value.inputs[0].tensor.static[op.axis])
        if isinstance(op, (*_MOVES, Cast)):
            return self.of(value.inputs[0], depth)
        ranges = [r for v in value.inputs if (r := self.of(v, depth)) is not None]
        if len(ranges) != len(value.inputs):
            return None
        if isinstance(op, Concat):
            return min(r[0] for r in ranges), max(r[1] for r in ranges)
        return _arithmetic(value, ranges) if len(ranges) == 2 else None


def _arithmetic(value: Value, operands: list[Range]) -> Range | None:
    (a, b), (c, d) = operands
    op = value.op
    if isinstance(op, Add):
        return a + c, b + d
    if isinstance(op, Sub):
        return a - d, b - c
    if isinstance(op, Mul):
        products = (a * c, a * d, b * c, b * d)
        return min(products), max(products)
    if isinstance(op, Min):
        return min(a, c), min(b, d)
    if isinstance(op, Max):
        return max(a, c), max(b, d)
    if isinstance(op, Div) and a >= 0 and c > 0:
        return a // d, b // c
    if isinstance(op, Mod) and a >= 0 and c > 0:
        return 0, min(b, d - 1)
    return None


def _below(size: int) -> Range | None:
    return (0, size - 1) if size else None


def _fits(found: Range, value: Value) -> bool:
    """Whether no number wraps around on the way into its type."""
    kind = value.dtype
    low = -(2 ** (kind.bits - 1)) if kind.is_signed else 0
    return low <= found[0] and found[1] < low + 2**kind.bits
