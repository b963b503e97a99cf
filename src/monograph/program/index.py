"""Index arithmetic: where an element of a fused expression lies, as a function of loop counters.

An index is a sum of atoms times whole numbers. An atom is a loop counter, or what is left of a
division that could not be resolved. Views (reshape, transpose, slice, broadcast) only transform
indices, so a chain of them costs nothing where the result is linear in the counters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Counter:
    """A loop counter: 0 .. extent - 1."""

    name: str
    extent: int


@dataclass(frozen=True)
class Quotient:
    """index // by, of an index that is never negative."""

    index: Index
    by: int


@dataclass(frozen=True)
class Remainder:
    """index % by, of an index that is never negative."""

    index: Index
    by: int


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
        """The smallest and the largest value it can have."""
        low = high = self.constant
        for atom, factor in self.terms:
            most = factor * _largest(atom)
            low, high = low + min(most, 0), high + max(most, 0)
        return low, high

    @property
    def only(self) -> Atom | None:
        """The atom of an index that is nothing else."""
        if self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def __floordiv__(self, by: int) -> Index:
        atom = self.only
        if isinstance(atom, Quotient):
            return atom.index // (atom.by * by)
        if isinstance(atom, Remainder) and atom.by % by == 0:
            return (atom.index // by) % (atom.by // by)
        whole, rest = self._split(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return whole
        coarse = rest._coarser(by)
        if coarse is not None:
            return whole + coarse[0] // (by // coarse[1])
        return whole + Index(0, ((Quotient(rest, by), 1),))

    def _coarser(self, by: int) -> tuple[Index, int] | None:
        """(index, g) with self // by = index // (by // g): without terms too small to matter."""
        ordered = sorted(self.terms, key=lambda t: -abs(t[1]))
        for count in range(len(ordered), 0, -1):
            g = math.gcd(by, *(f for _, f in ordered[:count]))
            rest = Index(self.constant % g, tuple(ordered[count:]))
            low, high = rest.bounds()
            if g > 1 and low >= 0 and high < g:
                kept = tuple((a, f // g) for a, f in ordered[:count])
                return Index(self.constant // g, kept), g
        return None

    def __mod__(self, by: int) -> Index:
        atom = self.only
        if isinstance(atom, Remainder) and atom.by % by == 0:
            return atom.index % by
        _, rest = self._split(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return rest
        return Index(0, ((Remainder(rest, by), 1),))

    def _split(self, by: int) -> tuple[Index, Index]:
        """(whole, rest) with self = whole * by + rest."""
        whole = tuple((a, f // by) for a, f in self.terms if f % by == 0)
        rest = tuple((a, f) for a, f in self.terms if f % by)
        return Index(self.constant // by, whole), Index(self.constant % by, rest)


def _largest(atom: Atom) -> int:
    if isinstance(atom, Counter):
        return atom.extent - 1
    if isinstance(atom, Remainder):
        return min(atom.by - 1, atom.index.bounds()[1])
    return atom.index.bounds()[1] // atom.by


def _made(constant: int, factors: dict[Atom, int]) -> Index:
    """An index from factors, with d * (i // d) + i % d put together again as i."""
    for atom in [a for a in factors if isinstance(a, Remainder)]:
        factor = factors.get(atom, 0)
        quotient = (atom.index // atom.by).only
        if factor and quotient is not None and factors.get(quotient) == factor * atom.by:
            del factors[atom], factors[quotient]
            return _made(constant, factors) + atom.index * factor
    return Index(constant, tuple((a, f) for a, f in factors.items() if f))


def counter(name: str, extent: int) -> Index:
    """The index that a loop counts; a loop of one trip is the constant 0."""
    return Index() if extent == 1 else Index(0, ((Counter(name, extent), 1),))


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def split_strides(
    shape: Sequence[int], strides: Sequence[int], finer: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides of a shape whose dimensions are parts of another's; None where they are not.

    A dimension of one element has a stride too: kernels that work on tiles see by it that what
    lies behind the one element is not theirs.
    """
    if math.prod(shape) != math.prod(finer) or 0 in shape:
        return None
    rest = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    found = []
    size, step = rest.pop() if rest else (1, 0)
    for extent in reversed(finer):
        if extent == 1:
            found.append(max(step, 1))
            continue
        if size == 1:
            size, step = rest.pop()
        if size % extent:
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
        if extent <= 1 or stride == 0:  # one element, or none at all
            result.append(Index())
            continue
        # The outermost needs no remainder: the position never exceeds the shape.
        result.append(position // stride if outermost else (position // stride) % extent)
        outermost = False
    return tuple(result)
