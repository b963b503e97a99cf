"""Patterns: expressions over ops in which variables stand for values and attributes.

    x, lo, hi = variables("x lo hi")
    Clip(lo, hi)(Neg()(x))

matches a clip of a negation. A variable that occurs twice must match the same value twice;
`const("k")` matches constants only, `number(1.0)` those whose elements all equal it. Operands of
commutative ops match either way. An attribute that is left out must have its default; `ANY`
leaves it open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from monograph.ir import Constant, Op, Value, known
from monograph.ir.op import encode
from monograph.ops.base import Binary

Bindings = dict[str, Any]


class Pattern:
    """Something that a value can match."""

    def applied(self, op: Op, operands: tuple[Any, ...]) -> Pattern:
        """The pattern of an op over operands, of which at least one is a pattern."""
        return Apply(op, tuple(map(as_pattern, operands)))


@dataclass(frozen=True, eq=False)
class Var(Pattern):
    """Stands for any value (as an operand) or any attribute (in an op)."""

    name: str


@dataclass(frozen=True, eq=False)
class Const(Var):
    """Stands for any constant."""


@dataclass(frozen=True, eq=False)
class Number(Pattern):
    """A constant whose elements all equal this number."""

    number: float


@dataclass(frozen=True, eq=False)
class Apply(Pattern):
    """An op, with variables among its attributes, over operands that match."""

    op: Op
    operands: tuple[Pattern, ...]


ANY: Any = Var("_")
"""An attribute or operand of any kind, not captured."""


def variables(names: str) -> tuple[Any, ...]:
    """Variables of these names; typed Any, so that they fit wherever an op wants a value."""
    return tuple(Var(n) for n in names.split())


def const(name: str) -> Any:
    """A variable that matches constants only."""
    return Const(name)


def number(given: float) -> Any:
    """A pattern for a constant whose elements all equal a number, its sign included."""
    return Number(float(given))


def as_pattern(given: Any) -> Pattern:
    if isinstance(given, Pattern):
        return given
    raise TypeError(f"not a pattern: {given!r}")


@dataclass
class Miss:
    """The best attempt at a match so far, and the reason why it stopped."""

    score: int = 0
    reason: str = ""

    def note(self, score: int, reason: Callable[[], str], plain: bool = False) -> None:
        """Record an attempt; of equally good ones the last that is not `plain` stays."""
        if score > self.score or (score == self.score and not (plain and self.reason)):
            self.score = score
            self.reason = reason()


def match(pattern: Pattern, value: Value, miss: Miss | None = None) -> Iterator[Bindings]:
    """Yield the bindings of the variables for every way in which a value matches a pattern."""
    yield from _match(pattern, value, {}, miss or Miss(), 0)


def _match(
    pattern: Pattern, value: Value, bound: Bindings, miss: Miss, score: int
) -> Iterator[Bindings]:
    if isinstance(pattern, Var):
        yield from _match_variable(pattern, value, bound, miss, score)
    elif isinstance(pattern, Number):
        data = known(value)
        if data is None:
            miss.note(score, lambda: f"{value!r} is not a constant {pattern.number:g}")
        elif data.dtype.kind in "OSU" or not data.size or not _equals(data, pattern.number):
            miss.note(score + 1, lambda: f"the constant is not {pattern.number:g}")
        else:
            yield bound
    elif isinstance(pattern, Apply):
        yield from _match_apply(pattern, value, bound, miss, score)


def _equals(data: Any, number: float) -> bool:
    """Return True if all elements equal a number; 0.0 and -0.0 differ (a rule can list both)."""
    wide = np.asarray(data).astype(np.float64)
    return bool((wide == number).all() and (np.signbit(wide) == np.signbit(number)).all())


def _match_variable(
    pattern: Var, value: Value, bound: Bindings, miss: Miss, score: int
) -> Iterator[Bindings]:
    if isinstance(pattern, Const) and not isinstance(value.op, Constant):
        miss.note(score, lambda: f"{pattern.name} is {value!r}, not a constant")
        return
    if pattern.name == "_":
        yield bound
    elif pattern.name not in bound:
        yield bound | {pattern.name: value}
    elif bound[pattern.name] is value:
        yield bound
    else:
        miss.note(score, lambda: f"{pattern.name} is {bound[pattern.name]!r} and {value!r}")


def _match_apply(
    pattern: Apply, value: Value, bound: Bindings, miss: Miss, score: int
) -> Iterator[Bindings]:
    if type(value.op) is not type(pattern.op):
        # A constant is never an op: the other operand of a commutative op says more.
        plain = isinstance(value.op, Constant)
        miss.note(score, lambda: f"{value!r} is not {pattern.op.name}", plain)
        return
    count = len(pattern.operands)
    if len(value.inputs) != count:
        miss.note(score, lambda: f"{value!r} has {len(value.inputs)} operands, not {count}")
        return
    with_attributes = _match_attributes(pattern.op, value.op, bound)
    if isinstance(with_attributes, str):
        reason = with_attributes
        miss.note(score, lambda: reason)
        return
    orders = [value.inputs]
    if isinstance(value.op, Binary) and value.op.commutative:
        orders.append(value.inputs[::-1])
    for order in orders:
        yield from _match_operands(pattern.operands, order, with_attributes, miss, score + 1)


def _match_operands(
    patterns: tuple[Pattern, ...],
    values: tuple[Value, ...],
    bound: Bindings,
    miss: Miss,
    score: int,
) -> Iterator[Bindings]:
    if not patterns:
        yield bound
        return
    # What the other operands match counts, whichever operand comes first.
    others = sum(map(_fits, patterns[1:], values[1:]))
    for found in _match(patterns[0], values[0], bound, miss, score + others):
        matched = score + extent(patterns[0])
        yield from _match_operands(patterns[1:], values[1:], found, miss, matched)


def _fits(pattern: Pattern, value: Value) -> bool:
    """Return True if a value has the form of a pattern: its own op, or that it is a constant."""
    if isinstance(pattern, Apply):
        return type(value.op) is type(pattern.op)
    if isinstance(pattern, Const):
        return isinstance(value.op, Constant)
    return not isinstance(pattern, Number) or known(value) is not None


def _match_attributes(pattern: Op, given: Op, bound: Bindings) -> Bindings | str:
    """Return the bindings with the attributes captured, or the reason why they do not match."""
    result = dict(bound)
    for f in fields(pattern):  # type: ignore[arg-type]
        want, have = getattr(pattern, f.name), getattr(given, f.name)
        if isinstance(want, Var):
            if want.name == "_":
                continue
            if want.name in result and encode(result[want.name]) != encode(have):
                return f"{want.name} is {result[want.name]} and {have}"
            result[want.name] = have
        elif encode(want) != encode(have):
            return f"{f.name} of {given.name} is {have}, not {want}"
    return result


def root_op(pattern: Pattern) -> type[Op]:
    """Return the op class of the values that the pattern can match."""
    if not isinstance(pattern, Apply):
        raise TypeError("the root of a rule's pattern must be an op")
    return type(pattern.op)


def extent(pattern: Pattern) -> int:
    """Return the number of ops and leaves in a pattern."""
    return 1 + sum(map(extent, pattern.operands)) if isinstance(pattern, Apply) else 1


def size(pattern: Pattern) -> int:
    """Return the number of ops in a pattern."""
    return 1 + sum(map(size, pattern.operands)) if isinstance(pattern, Apply) else 0
