"""Integer ranges: proved bounds of the elements of integer values."""

from __future__ import annotations

from monograph.ir import TupleType, Value, known
from monograph.ir.affine import IntRange

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
