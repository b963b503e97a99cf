"""Index arithmetic: the position of an element of a fused expression, from loop counters.

An index is a sum of atoms times whole numbers. An atom is a loop counter, or a quotient or
remainder that could not be resolved. Views (reshape, transpose, slice, broadcast) only transform
indices, so a chain of them costs nothing if the result is linear in the counters.

Machine division is floor division only for numbers that are not negative. So every index that is
divided must be provably 0 or more: `_split` moves whole multiples of the divisor out of it until it
is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from monograph.errors import InternalError
from monograph.ir.sizes import common_divisor, divides, hint_of, is_one, proven


@dataclass(frozen=True)
class Counter:
    """A loop counter: 0 .. extent - 1."""

    name: str
    extent: int
    values: int | None = None
    """The number of values, if fewer occur than the extent says (see `kept_counter`)."""

    @property
    def bounds(self) -> tuple[int, int]:
        return 0, max(self.extent - 1, 0)


@dataclass(frozen=True)
class _Divided:
    """An index that is never negative, and a divisor."""

    index: Index
    by: int

    def __post_init__(self) -> None:
        if self.by < 1 or self.index.bounds()[0] < 0:
            raise InternalError(
                "an index that is divided may be negative",
                expected="0 or more",
                given=(self.index, self.by),
            )


@dataclass(frozen=True)
class Quotient(_Divided):
    """index // by."""

    @cached_property
    def bounds(self) -> tuple[int, int]:
        low, high = self.index.bounds()
        return low // self.by, high // self.by


@dataclass(frozen=True)
class Remainder(_Divided):
    """index % by."""

    @cached_property
    def bounds(self) -> tuple[int, int]:
        low, high = self.index.bounds()
        if proven(low // self.by, "==", high // self.by):
            return low % self.by, high % self.by
        # All factors are multiples of `step`: values differ by multiples of it.
        step = common_divisor(self.by, *(f for _, f in self.index.terms))
        least = self.index.constant % step
        return least, self.by - step + least


Atom: TypeAlias = Counter | Quotient | Remainder


@dataclass(frozen=True)
class Index:
    """A constant plus atoms times factors."""

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return _made(self.constant + other.constant, factors)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(self.constant * factor, tuple((a, f * factor) for a, f in self.terms))

    def factor(self, atom: Atom) -> int:
        return dict(self.terms).get(atom, 0)

    @property
    def counters(self) -> set[Counter]:
        """Every loop counter the index depends on."""
        found: set[Counter] = set()
        for atom, _ in self.terms:
            found |= {atom} if isinstance(atom, Counter) else atom.index.counters
        return found

    @property
    def is_linear(self) -> bool:
        return all(isinstance(a, Counter) for a, _ in self.terms)

    def bounds(self) -> tuple[int, int]:
        """Return an interval that contains every value of the index."""
        return self._interval

    @cached_property
    def _interval(self) -> tuple[int, int]:
        low = high = self.constant
        for atom, factor in self.terms:
            least, most = atom.bounds
            if factor < 0:
                least, most = most, least
            low, high = low + factor * least, high + factor * most
        return low, high

    @property
    def only(self) -> Atom | None:
        """Return the atom of an index that is one atom; else None."""
        alone = len(self.terms) == 1 and proven(self.constant, "==", 0)
        if alone and proven(self.terms[0][1], "==", 1):
            return self.terms[0][0]
        return None

    def __floordiv__(self, by: int) -> Index:
        atom = self.only
        if isinstance(atom, Quotient):
            return atom.index // (atom.by * by)
        if isinstance(atom, Remainder) and divides(by, atom.by):
            return (atom.index // by) % (atom.by // by)
        whole, rest = self._split(by)
        if proven(rest.bounds()[1], "<", by):
            return whole
        coarse = rest._coarser(by)
        if coarse is not None:
            return whole + coarse[0] // (by // coarse[1])
        return whole + Index(0, ((Quotient(rest, by), 1),))

    def _coarser(self, by: int) -> tuple[Index, int] | None:
        """Return (index, g) with self // by = index // (by // g), without terms too small."""
        ordered = sorted(self.terms, key=lambda t: -abs(hint_of(t[1])))
        for count in range(len(ordered), 0, -1):
            g = common_divisor(by, *(f for _, f in ordered[:count]))
            if type(g) is int and g == 1:
                continue
            kept = Index(0, tuple((a, f // g) for a, f in ordered[:count]))
            moved, rest = Index(self.constant, tuple(ordered[count:]))._at_least_0(g)
            if proven(rest.bounds()[1], "<", g):
                return kept + moved, g
        return None

    def __mod__(self, by: int) -> Index:
        atom = self.only
        if isinstance(atom, Remainder) and divides(by, atom.by):
            return atom.index % by
        _, rest = self._split(by)
        if proven(rest.bounds()[1], "<", by):
            return rest
        return Index(0, ((Remainder(rest, by), 1),))

    def _split(self, by: int) -> tuple[Index, Index]:
        """(whole, rest) with self = whole * by + rest, and rest never negative."""
        whole = Index(0, tuple((a, f // by) for a, f in self.terms if divides(by, f)))
        part = Index(self.constant, tuple((a, f) for a, f in self.terms if not divides(by, f)))
        moved, rest = part._at_least_0(by)
        return whole + moved, rest

    def _at_least_0(self, by: int) -> tuple[int, Index]:
        """(k, rest) with self = k * by + rest, and the lower bound of rest in 0 .. by - 1."""
        moved = self.bounds()[0] // by
        return moved, self + -moved * by


def _made(constant: int, factors: dict[Atom, int]) -> Index:
    """Build an index from factors; d * (i // d) + i % d becomes i again."""
    for atom in [a for a in factors if isinstance(a, Remainder)]:
        factor = factors.get(atom, 0)
        quotient = (atom.index // atom.by).only
        whole = 0 if quotient is None else factors.get(quotient, 0)
        if factor and quotient is not None and proven(whole, "==", factor * atom.by):
            del factors[atom], factors[quotient]
            return _made(constant, factors) + atom.index * factor
    return Index(constant, tuple((a, f) for a, f in factors.items() if f))


def counter(name: str, extent: int) -> Index:
    """The index that a loop counts; a loop of one trip is the constant 0."""
    return Index() if is_one(extent) else Index(0, ((Counter(name, extent), 1),))


def kept_counter(name: str, extent: int) -> Counter:
    """Return a counter that stays in the index even with one value, because its mask is needed."""
    return Counter(name, max(extent, 2), extent)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def split_strides(
    shape: Sequence[int], strides: Sequence[int], finer: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides of a shape that splits the dimensions of another; None if it does not.

    A dimension of one element has a stride too: tiled kernels need it to see that the memory behind
    the one element is not theirs.
    """
    if not proven(math.prod(shape), "==", math.prod(finer)) or 0 in shape:
        return None
    rest = [(d, s) for d, s in zip(shape, strides, strict=True) if not is_one(d)]
    found = []
    size, step = rest.pop() if rest else (1, 0)
    for extent in reversed(finer):
        if is_one(extent):
            found.append(max(step, 1))
            continue
        if is_one(size):
            if not rest:
                return None
            size, step = rest.pop()
        if not divides(extent, size):
            return None
        found.append(step)
        size, step = size // extent, step * extent
    return tuple(reversed(found))


def flatten(indices: Sequence[Index], strides: Sequence[int], offset: int = 0) -> Index:
    """The position of an element, from its index along each dimension."""
    total = Index(offset)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def unflatten(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The index along each dimension, from the row-major position."""
    result = []
    outermost = True
    for extent, stride in zip(shape, strides_of(shape), strict=True):
        if extent == 0 or is_one(extent) or stride == 0:  # one element, or none at all
            result.append(Index())
            continue
        # The outermost dimension needs no remainder: the position never exceeds the shape.
        result.append(position // stride if outermost else (position // stride) % extent)
        outermost = False
    return tuple(result)
