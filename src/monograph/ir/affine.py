"""Integer ranges: data types for the traits that state ranges and demand them of inputs.

`Affine` describes a value as an input times a factor plus an offset; `Demand` is a range that an op
needs of one of its integer operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

IntRange: TypeAlias = tuple[int, int]
"""The smallest and the largest integer of a value."""
INDEX, LENGTH, MASK, NUMBER, SIZE = "index", "length", "mask", "number", "size"
FEW = 4
"""The largest size or trip count that is drawn where nothing bounds it."""


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
        """Return the range of inputs for which the value lies in a range."""
        a, b = (low - self.low) / self.factor, (high - self.high) / self.factor
        return (a, b) if self.factor > 0 else (b, a)


Known: TypeAlias = tuple[Affine, ...]
"""The alternatives that a value may be; empty where nothing is known."""
NOTHING: Known = ()


def index_range(size: int) -> IntRange | None:
    """Return the range of indices into a dimension; None for an empty one."""
    return (0, size - 1) if size else None


def united(*known: Known) -> Known:
    """Return the alternatives of several values, each once."""
    return tuple(dict.fromkeys(a for k in known for a in k))


@dataclass(frozen=True)
class Demand:
    """A range that an op needs of the integers of an operand, and their purpose."""

    operand: int
    kind: str
    low: float = 0
    high: float = 0
    why: str = ""
    must: bool = True
    """True if a run fails outside the range; False if the op does nothing of interest there."""
    negated_only: bool = False
    """True if the demand holds only where the operand falls as the input grows."""
