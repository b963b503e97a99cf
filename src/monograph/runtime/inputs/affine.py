"""Values that are an input times a factor plus an offset, and what arithmetic makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from monograph.ir import Op, TensorType, Value
from monograph.ir import known as known_data
from monograph.ops import elementwise as ew
from monograph.ops.base import normalise_axis

MOST_ELEMENTS = 1 << 16
"""Of a constant that is looked into."""


@dataclass(frozen=True)
class Affine:
    """factor * input + [low, high]; without an input, [low, high]."""

    source: str | None
    factor: float
    low: float
    high: float

    def moved(self, low: float, high: float) -> Affine:
        return replace(self, low=self.low + low, high=self.high + high)

    def times(self, by: float) -> Affine:
        low, high = sorted((self.low * by, self.high * by))
        return replace(self, factor=self.factor * by, low=low, high=high)

    def solved(self, low: float, high: float) -> tuple[float, float]:
        """The inputs for which the value lies in a range."""
        a, b = (low - self.low) / self.factor, (high - self.high) / self.factor
        return (a, b) if self.factor > 0 else (b, a)


Known: TypeAlias = tuple[Affine, ...]
"""The alternatives that a value may be; none where it is not known."""
NOTHING: Known = ()


def constant_of(value: Value) -> Known:
    """The range of a constant's numbers; nothing of a large one, or where one is not finite."""
    if not isinstance(value.type, TensorType) or value.tensor.size > MOST_ELEMENTS:
        return NOTHING  # weights
    data = known_data(value)
    if data is None or data.size == 0 or data.dtype.kind not in "fiub":
        return NOTHING
    low, high = float(data.min()), float(data.max())
    return (Affine(None, 0.0, low, high),) if math.isfinite(low + high) else NOTHING


def summed(value: Value, known: Known) -> Known:
    """A sum of n numbers, none of which is negative, is at most n times the largest."""
    operand = value.inputs[0].tensor
    axes = getattr(value.op, "axes", None) or (getattr(value.op, "axis", 0),)
    if operand.shape is None:
        return NOTHING
    sizes = [operand.dims[normalise_axis(a, operand.rank)] for a in axes]
    if not all(isinstance(d, int) for d in sizes):
        return NOTHING
    count = max(1, math.prod(d for d in sizes if isinstance(d, int)))
    return tuple(
        replace(a, factor=a.factor * count, low=min(a.low, a.low * count), high=a.high * count)
        for a in known
    )


def sign_of(a: Affine) -> Affine:
    low, high = (float((x > 0) - (x < 0)) for x in (a.low, a.high))
    return replace(a, low=low, high=high)


def _add(a: Affine, b: Affine, _: Value) -> Affine | None:
    return a.moved(b.low, b.high) if b.source is None else None


def _sub(a: Affine, b: Affine, _: Value) -> Affine | None:
    if b.source is None:
        return a.moved(-b.high, -b.low)
    return b.times(-1).moved(a.low, a.high) if a.source is None else None


def _mul(a: Affine, b: Affine, _: Value) -> Affine | None:
    if a.source is None and b.source is None:
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return Affine(None, 0.0, min(ends), max(ends))
    if b.source is not None or b.low != b.high or not math.isfinite(b.low):
        return None
    return a.times(b.low)


def _div(a: Affine, b: Affine, value: Value) -> Affine | None:
    if b.source is not None or b.low != b.high or not b.low:
        return None
    made = a.times(1 / b.low)
    return made.moved(-1, 0) if value.dtype.is_integer and abs(b.low) != 1 else made


def _mod(a: Affine, b: Affine, _: Value) -> Affine | None:
    """A remainder is in range whatever is divided."""
    if b.source is not None or b.low <= 0:
        return None
    return Affine(None, 0.0, 0.0, b.high - 1)


Made: TypeAlias = Callable[[Affine, Affine, Value], "Affine | None"]
BINARY: dict[type[Op], Made] = {
    ew.Add: _add,
    ew.Sub: _sub,
    ew.Mul: _mul,
    ew.Div: _div,
    ew.Mod: _mod,
}
COMMUTE = (ew.Add, ew.Mul)


def binary(rule: Made, value: Value, left: Known, right: Known) -> Known:
    """What a rule makes of every pair of alternatives."""
    made: dict[Affine, None] = {}
    for a in left:
        for b in right:
            pair = (b, a) if isinstance(value.op, COMMUTE) and a.source is None else (a, b)
            found = rule(*pair, value)
            if found is not None:
                made[found] = None
    return tuple(made)
