"""Exact arithmetic on expressions over the symbols of open sizes: sums of products of factors.

Equal expressions have one form, so that they compare equal. Hints and guards are in `sizes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from monograph.ir.lazy import lazy

MOST = (1 << 31) - 2
"""The greatest value of an open dimension."""
LEAST = 2
"""The least size that is opened: 0 and 1 are ints in code that is compiled for them."""


MOST_TERMS = 64
"""The most terms of a quotient that division looks for."""


@dataclass(frozen=True)
class Symbol:
    """An open dimension of an input, or a number that is computed for each shape."""

    name: str
    least: int = LEAST
    most: int = MOST

    @property
    def text(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class SizeFloor:
    """of // by; the divisor is positive."""

    of: SizeExpression
    by: SizeExpression

    @lazy
    def text(self) -> str:
        return f"(({self.of}) // ({self.by}))"

    def __hash__(self) -> int:
        return hash(self.text)


_numbers: dict[tuple[SizeExpression, ...], int] = {}
"""The number of each set of expressions whose largest one was asked for."""


@dataclass(frozen=True)
class Most:
    """The largest of some expressions."""

    of: tuple[SizeExpression, ...]

    @lazy
    def text(self) -> str:
        """A short name: offsets of buffers are largest ones of largest ones, many levels deep."""
        return f"max#{_numbers.setdefault(self.of, len(_numbers))}"

    def __hash__(self) -> int:
        return hash(self.text)


Factor: TypeAlias = Symbol | SizeFloor | Most
Product: TypeAlias = tuple[Factor, ...]
"""Factors in order; empty for 1."""


@dataclass(frozen=True)
class SizeExpression:
    """A sum of products of factors with whole coefficients, in canonical order."""

    terms: tuple[tuple[Product, int], ...]

    @lazy
    def text(self) -> str:
        """A text that only equal expressions have."""

        def shown(product: Product, count: int) -> str:
            texts = [] if count == 1 and product else [str(count)]
            return "*".join([*texts, *(f.text for f in product)])

        return " + ".join(shown(p, c) for p, c in self.terms) or "0"

    @lazy
    def number(self) -> int:
        """The hash."""
        return hash(self.text)

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return self.text

    @property
    def constant(self) -> int:
        """The term without factors."""
        return next((c for p, c in self.terms if not p), 0)

    @property
    def literal(self) -> int | None:
        """The number, if the expression is one; else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None


def _text(factor: Factor) -> str:
    return factor.text


# Expressions are few, and are combined again and again. They never change, so results are kept.
_kept = lru_cache(maxsize=1 << 15)


@_kept
def from_number(number: int) -> SizeExpression:
    return SizeExpression((((), number),) if number else ())


def collect(parts: Iterable[tuple[Product, int]]) -> SizeExpression:
    counts: dict[Product, int] = {}
    for product, count in parts:
        counts[product] = counts.get(product, 0) + count
    kept = [(p, c) for p, c in counts.items() if c]
    return SizeExpression(tuple(sorted(kept, key=_rank) if len(kept) > 1 else kept))


@_kept
def add(a: SizeExpression, b: SizeExpression) -> SizeExpression:
    return collect((*a.terms, *b.terms))


@_kept
def multiply(a: SizeExpression, b: SizeExpression) -> SizeExpression:
    return collect(
        (tuple(sorted((*p, *q), key=_text)), c * d) for p, c in a.terms for q, d in b.terms
    )


@_kept
def divide_exactly(a: SizeExpression, b: SizeExpression) -> SizeExpression | None:
    """Return the expression that is a / b, if there is one; else None."""
    if a == b:
        return from_number(1)
    if not b.terms:
        return None
    (divisor, by), *others = sorted(b.terms, key=_rank, reverse=True)
    made: list[tuple[Product, int]] = []
    for _ in range(MOST_TERMS):
        if not a.terms:
            return collect(made)
        product, count = max(a.terms, key=_rank)
        rest = list(product)
        for factor in divisor:
            if factor not in rest:
                return None
            rest.remove(factor)
        if count % by:
            return None
        quotient = tuple(rest), count // by
        made.append(quotient)
        kept = SizeExpression(tuple(t for t in a.terms if t[0] != product))
        a = subtract(kept, multiply(SizeExpression((quotient,)), SizeExpression(tuple(others))))
    return None


def _rank(term: tuple[Product, int]) -> tuple[int, list[str]]:
    """Return the place of a term in an order that multiplication keeps."""
    return len(term[0]), [f.text for f in term[0]]


@_kept
def divide(a: SizeExpression, b: SizeExpression) -> SizeExpression:
    """Return a // b with the multiples of b taken out."""
    if a.literal is not None and b.literal is not None:
        return from_number(a.literal // b.literal)
    if (whole := divide_exactly(a, b)) is not None:
        return whole
    taken: list[tuple[Product, int]] = []
    rest: list[tuple[Product, int]] = []
    for term in a.terms:
        one = SizeExpression((term,))
        if (quotient := divide_exactly(one, b)) is not None:
            taken += quotient.terms
        else:
            rest.append(term)
    if b.literal is not None:
        # A constant moves out as far as it is a multiple: (x + 7) // 4 = (x + 3) // 4 + 1.
        left = dict(rest)
        moved, kept = divmod(left.pop((), 0), b.literal)
        taken.append(((), moved))
        rest = [*left.items(), ((), kept)]
    inner = collect(rest)
    if inner.literal is not None and b.literal is not None:
        return collect((*taken, ((), inner.literal // b.literal)))
    nested = as_quotient(inner)
    if nested is not None and b.literal is not None:
        # (x // a + c) // b = (x + a c) // (a b)
        floor, constant = nested
        shifted = add(floor.of, multiply(floor.by, from_number(constant)))
        return add(collect(taken), divide(shifted, multiply(floor.by, b)))
    return collect((*taken, ((SizeFloor(inner, b),), 1)))


def as_quotient(expression: SizeExpression) -> tuple[SizeFloor, int] | None:
    """Return (floor, c) if an expression is a quotient by a number, plus c; else None."""
    rest, constant = without_constant(expression)
    if len(rest.terms) != 1 or rest.terms[0][1] != 1 or len(rest.terms[0][0]) != 1:
        return None
    (factor,) = rest.terms[0][0]
    if not isinstance(factor, SizeFloor) or factor.by.literal is None:
        return None
    return factor, constant


def shared_factors(expression: SizeExpression) -> Product:
    """Return the factors that all terms of an expression have."""
    (first, _), *others = expression.terms
    shared = list(first)
    for product, _ in others:
        rest, kept = list(product), []
        for factor in shared:
            if factor in rest:
                rest.remove(factor)
                kept.append(factor)
        shared = kept
    return tuple(shared)


@_kept
def without_constant(expression: SizeExpression) -> tuple[SizeExpression, int]:
    """Return an expression without its constant, and the constant."""
    if expression.terms and not expression.terms[0][0]:
        return SizeExpression(expression.terms[1:]), expression.terms[0][1]
    return expression, 0


@_kept
def negative(expression: SizeExpression) -> SizeExpression:
    return SizeExpression(tuple((p, -c) for p, c in expression.terms))


def evaluate(
    expression: SizeExpression,
    values: Mapping[Symbol, int],
    seen: dict[Factor, int] | None = None,
) -> int:
    """Return the value of an expression; `seen` keeps the values of factors."""
    seen = {} if seen is None else seen
    total = 0
    for product, count in expression.terms:
        for factor in product:
            if factor not in seen:
                seen[factor] = _value(factor, values, seen)
            count *= seen[factor]
        total += count
    return total


def _value(factor: Factor, values: Mapping[Symbol, int], seen: dict[Factor, int]) -> int:
    if isinstance(factor, Symbol):
        return values[factor]
    if isinstance(factor, SizeFloor):
        return evaluate(factor.of, values, seen) // evaluate(factor.by, values, seen)
    return max(evaluate(e, values, seen) for e in factor.of)


@_kept
def contains(expression: SizeExpression, factor: Factor) -> bool:
    """Return True if a factor occurs in an expression, at any depth."""
    found = factors(expression)
    return factor in found or any(contains(e, factor) for f in found for e in parts(f))


def factors(expression: SizeExpression) -> set[Factor]:
    """Return the factors of the terms of an expression."""
    return {f for product, _ in expression.terms for f in product}


def parts(factor: Factor) -> tuple[SizeExpression, ...]:
    """Return the expressions that a factor is made of."""
    if isinstance(factor, SizeFloor):
        return factor.of, factor.by
    return factor.of if isinstance(factor, Most) else ()


def replaced(expression: SizeExpression, by: Mapping[Factor, SizeExpression]) -> SizeExpression:
    """Return an expression with some factors replaced, at any depth."""
    if not any(contains(expression, f) for f in by):
        return expression
    made = from_number(0)
    for product, count in expression.terms:
        term = from_number(count)
        for factor in product:
            term = multiply(term, _replaced_factor(factor, by))
        made = add(made, term)
    return made


def _replaced_factor(factor: Factor, by: Mapping[Factor, SizeExpression]) -> SizeExpression:
    if factor in by:
        return by[factor]
    if isinstance(factor, SizeFloor):
        return divide(replaced(factor.of, by), replaced(factor.by, by))
    if isinstance(factor, Most):
        of = dict.fromkeys(replaced(e, by) for e in factor.of)
        return next(iter(of)) if len(of) == 1 else one_factor(Most(tuple(sorted(of, key=str))))
    return one_factor(factor)


def one_factor(factor: Factor) -> SizeExpression:
    """Return a factor as an expression."""
    return SizeExpression((((factor,), 1),))


@_kept
def subtract(a: SizeExpression, b: SizeExpression) -> SizeExpression:
    return add(a, negative(b))


@_kept
def remainder(a: SizeExpression, b: SizeExpression) -> SizeExpression:
    return subtract(a, multiply(b, divide(a, b)))


def substitute(
    expression: SizeExpression, values: Mapping[Symbol, SizeExpression]
) -> SizeExpression:
    """Return an expression with its symbols replaced."""
    total = SizeExpression(())
    for product, count in expression.terms:
        term = from_number(count)
        for factor in product:
            term = multiply(term, _substituted(factor, values))
        total = add(total, term)
    return total


def _substituted(factor: Factor, values: Mapping[Symbol, SizeExpression]) -> SizeExpression:
    if isinstance(factor, Symbol):
        return values[factor]
    if isinstance(factor, SizeFloor):
        return divide(substitute(factor.of, values), substitute(factor.by, values))
    parts = {substitute(e, values) for e in factor.of}
    numbers = [p.literal for p in parts]
    known = [n for n in numbers if n is not None]
    if len(known) == len(parts):
        return from_number(max(known))
    if len(parts) == 1:
        return parts.pop()
    return SizeExpression((((Most(tuple(sorted(parts, key=str))),), 1),))


_KEPT = (
    from_number,
    add,
    multiply,
    divide_exactly,
    divide,
    without_constant,
    negative,
    contains,
    subtract,
    remainder,
)


def forget_results() -> None:
    """Free the results that are kept: the symbols of a finished compilation never come back."""
    for function in _KEPT:
        function.cache_clear()
