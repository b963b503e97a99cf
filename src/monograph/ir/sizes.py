"""Sizes that are known only when a model runs: expressions over the open dimensions of its inputs.

A `Size` is an expression and a hint, the value of the expression in the run that the compilation is
for. It takes the place of an int in shapes, strides and loop bounds. Arithmetic builds expressions.
A comparison that cannot be proven is decided on the hint and recorded as a *guard*: compiled code
is valid for all sizes for which its guards hold. An operation that needs a plain int (`range`,
numpy, `int`) records the guard that the size equals its hint. So code that knows nothing of sizes
stays correct; it only becomes valid for fewer sizes.

Code that decides what is fast, not what is right, asks `hint_of` and records nothing. Code that may
be conservative asks `proven`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from monograph.ir import size_expressions as ex
from monograph.ir.size_expressions import (
    LEAST,
    Factor,
    Most,
    SizeExpression,
    Symbol,
    evaluate,
)
from monograph.ir.size_facts import SizeFacts
from monograph.ir.size_guards import Bounds, SizeGuard, described

Number = TypeVar("Number", int, float)

_scopes = itertools.count(1)


class SizeScope:
    """The open sizes of one compilation: symbols, hints, guards, and the table that code reads."""

    def __init__(self, least: int = LEAST) -> None:
        """least: the least value of symbols; below 2, `is_one` spares guards."""
        self.number = next(_scopes)
        self.least = least
        self.hints: dict[Symbol, int] = {}
        self._hints: dict[SizeExpression, int] = {}
        self._values: dict[Factor, int] = {}
        self._sizes: dict[SizeExpression, int] = {}
        self._facts = SizeFacts()
        self.table: dict[SizeExpression, int] = {}
        """The place of each expression that compiled code reads."""
        self._estimating = 0

    @property
    def spares_guards(self) -> bool:
        """True if code may serve sizes of 1 beside larger ones."""
        return self.least < LEAST

    @property
    def _mark(self) -> str:
        """The end of the names of symbols, which tells compilations apart."""
        return f"@{self.number}"

    def unmarked(self, text: str) -> str:
        """Return a text with the names of symbols as the model has them."""
        return text.replace(self._mark, "")

    @contextmanager
    def estimating(self) -> Iterator[None]:
        """Decide on hints without guards, for an estimate that decides no code."""
        self._estimating += 1
        try:
            yield
        finally:
            self._estimating -= 1

    def new_symbol(self, name: str, hint: int, least: int) -> Symbol:
        """Return a symbol that no other compilation has."""
        made = Symbol(name + self._mark, least)
        self.hints[made] = hint
        return made

    def symbol(self, name: str, hint: int) -> Size:
        """Return the size of an open dimension."""
        made = self.new_symbol(name, hint, self.least)
        return Size(SizeExpression((((made,), 1),)), hint, self)

    def sized(self, expression: SizeExpression) -> int:
        """Return an expression as a size; an int if it is a number."""
        known = self._sizes.get(expression)
        if known is None:
            settled = self.settled(expression)
            literal = settled.literal
            known = Size(settled, self.hint(settled), self) if literal is None else literal
            self._sizes[expression] = known
        return known

    def hint(self, expression: SizeExpression) -> int:
        known = self._hints.get(expression)
        if known is None:
            known = self._hints[expression] = evaluate(expression, self.hints, self._values)
        return known

    @property
    def guards(self) -> dict[SizeExpression, SizeGuard]:
        """The guards so far, by what they limit."""
        return self._facts.guards

    def settled(self, expression: SizeExpression) -> SizeExpression:
        """Return an expression with factors replaced by what guards say that they are equal to."""
        return self._facts.settled(expression)

    def bounds(self, expression: SizeExpression) -> Bounds:
        """Return the least and greatest value that are proven."""
        return self._facts.bounds(expression)

    def proof(self, difference: SizeExpression, how: str) -> bool | None:
        """Return whether an expression is 0 or below 0, if that is proven; else None."""
        return self._facts.proof(difference, how)

    def slot(self, expression: SizeExpression) -> int:
        """Return the place of an expression in the table."""
        return self.table.setdefault(expression, len(self.table))

    def decide(self, difference: SizeExpression, how: str) -> bool:
        """Decide whether an expression is 0 (`==`) or below 0 (`<`), by proof or by its hint."""
        proof = self.proof(difference, how)
        if proof is not None:
            return proof
        hint = self.hint(difference)
        answer = hint == 0 if how == "==" else hint < 0
        if not self._estimating and self._facts.record(difference, how, answer):
            self._sizes.clear()
        return answer

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        """Return True if compiled code is valid for these values of the symbols."""
        return self.broken(values) is None

    def broken(self, values: Mapping[Symbol, int]) -> str | None:
        """Return the first guard that does not hold, with the code that asked for it."""
        for expression, guard in self.guards.items():
            value = evaluate(expression, values)
            if not guard.least <= value <= guard.most or value in guard.other_than:
                return f"{expression} is {value}: {described(guard)}"
        return None


def _expression(number: Any) -> SizeExpression | None:
    if type(number) is Size:
        return number.expression
    return ex.from_number(number) if type(number) is int else None


def _operation(
    make: Callable[[SizeExpression, SizeExpression], SizeExpression], turned: bool = False
) -> Callable[[Size, Any], Any]:
    def operate(self: Size, other: Any) -> Any:
        given = _expression(other)
        if given is None:
            if isinstance(other, bool) or type(other).__module__ == "numpy":
                given = ex.from_number(int(other))
            elif type(other) is float:
                return float(self) * other if make is ex.multiply else NotImplemented
            else:
                return NotImplemented
        a, b = (given, self.expression) if turned else (self.expression, given)
        return self.scope.sized(make(a, b))

    return operate


def _division(
    make: Callable[[SizeExpression, SizeExpression], SizeExpression], turned: bool = False
) -> Callable[[Size, Any], Any]:
    plain = _operation(make, turned)

    def divide(self: Size, other: Any) -> Any:
        given = _expression(other)
        if given is not None:
            a, b = (given, self.expression) if turned else (self.expression, given)
            scope = self.scope
            if scope.bounds(a)[0] >= 0 and scope.proof(ex.subtract(a, b), "<"):
                return 0 if make is ex.divide else scope.sized(a)
        return plain(self, other)

    return divide


def _comparison(how: str, wanted: bool, turned: bool = False) -> Callable[[Size, Any], Any]:
    def compare(self: Size, other: Any) -> Any:
        given = _expression(other)
        if given is None:
            if isinstance(other, (float, bool)) or type(other).__module__ == "numpy":
                return _compared(self, float(other), how, turned) == wanted
            return NotImplemented
        a, b = (given, self.expression) if turned else (self.expression, given)
        return self.scope.decide(ex.subtract(a, b), how) == wanted

    return compare


def _compared(size: Size, other: float, how: str, turned: bool) -> bool:
    """Compare with a float: with the nearest int."""
    if how == "==":
        return other.is_integer() and bool(size == int(other))
    if math.isinf(other):
        return (other < 0) if turned else (other > 0)
    return bool(size > math.floor(other)) if turned else bool(size < math.ceil(other))


if TYPE_CHECKING:

    class Size(int):
        """A size that is known only when a model runs: to a type checker, an int."""

        expression: SizeExpression
        hint: int
        scope: SizeScope

        def __new__(cls, expression: SizeExpression, hint: int, scope: SizeScope) -> Size: ...

else:

    class Size:
        """A size that is known only when a model runs. It passes for an int (see the module)."""

        __slots__ = ("expression", "hint", "scope")

        def __init__(self, expression: SizeExpression, hint: int, scope: SizeScope) -> None:
            self.expression = expression
            self.hint = hint
            self.scope = scope

        @property
        def __class__(self) -> Any:
            return int

        __add__ = __radd__ = _operation(ex.add)
        __sub__, __rsub__ = _operation(ex.subtract), _operation(ex.subtract, turned=True)
        __mul__ = __rmul__ = _operation(ex.multiply)
        __floordiv__, __rfloordiv__ = _division(ex.divide), _division(ex.divide, turned=True)
        __mod__, __rmod__ = _division(ex.remainder), _division(ex.remainder, turned=True)

        def __divmod__(self, other: Any) -> tuple[Any, Any]:
            return self // other, self % other

        def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
            return other // self, other % self

        def __neg__(self) -> Any:
            return self.scope.sized(ex.negative(self.expression))

        def __pos__(self) -> Any:
            return self

        def __abs__(self) -> Any:
            return self if self >= 0 else -self

        __eq__ = _comparison("==", True)
        __ne__ = _comparison("==", False)
        __lt__ = _comparison("<", True)
        __ge__ = _comparison("<", False)
        __gt__ = _comparison("<", True, turned=True)
        __le__ = _comparison("<", False, turned=True)

        def __hash__(self) -> int:
            return hash(self.expression)

        def __bool__(self) -> bool:
            return self != 0

        def __index__(self) -> int:
            """Return the hint; the compiled code is valid only where the size has it."""
            self.scope.decide(ex.subtract(self.expression, ex.from_number(self.hint)), "==")
            return self.hint

        __int__ = __index__

        def __float__(self) -> float:
            return float(self.__index__())

        def __truediv__(self, other: Any) -> float:
            ratio = self // other if is_open(other) and divides(other, self) else self
            return float(ratio) if ratio is not self else self.__index__() / other

        def __rtruediv__(self, other: Any) -> float:
            return other / self.__index__()

        def __repr__(self) -> str:
            return str(self.expression)

        def __str__(self) -> str:
            """Return the register that holds the size in LLVM text."""
            return f"%size.{self.scope.slot(self.expression)}"  # see `size_texts`

        def __format__(self, spec: str) -> str:
            return format(str(self) if spec[-1:] in ("", "s") else int(self), spec)

        def bit_length(self) -> int:
            return self.__index__().bit_length()

        def __reduce__(self) -> Any:
            raise TypeError("a Size belongs to one compilation and cannot be pickled")

        def __deepcopy__(self, memo: Any) -> Size:
            return self


def is_open(number: Any) -> TypeGuard[Size]:
    """Return True for a size that is known only at run time."""
    return type(number) is Size


def any_open(numbers: Iterable[Any]) -> bool:
    """Return True if one of some numbers is known only at run time."""
    return any(type(n) is Size for n in numbers)


def hint_of(number: Number) -> Number:
    """Return a number to decide what is fast: of an open size, its value in the compiling run."""
    return number.hint if is_open(number) else number


def is_one(number: int | str) -> bool:
    """Return True if a size is 1 in the compiling run; if it is not proven to be, with a guard.

    For code that is right for one element in any case: a larger size may be 1 in other runs, and
    there is no guard that it is not. So the answer never changes during a compilation.
    """
    if type(number) is Size and number.scope.spares_guards and number.hint != 1:
        return False
    return number == 1


def proven(a: int, how: str, b: int) -> bool:
    """Return True if a < b, a <= b or a == b holds for all sizes; plain ints are compared."""
    if how == "<=":
        return proven(a, "<", b + 1)
    if type(a) is not Size and type(b) is not Size:
        return a < b if how == "<" else a == b
    difference = a - b
    if type(difference) is not Size:
        return difference < 0 if how == "<" else difference == 0
    return difference.scope.proof(difference.expression, how) is True


def same_sizes(a: Iterable[int | str], b: Iterable[int | str]) -> bool:
    """Return True if two shapes are the same for all sizes."""
    xs, ys = tuple(a), tuple(b)
    return len(xs) == len(ys) and all(map(_same_dim, xs, ys))


def _same_dim(a: int | str, b: int | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    return proven(a, "==", b)


def greatest(number: int) -> float:
    """Return the greatest value that a number is proven to have; of a plain int, itself."""
    return number.scope.bounds(number.expression)[1] if is_open(number) else number


def divides(divisor: int, number: int) -> bool:
    """Return True if a number is a multiple of a divisor for all sizes."""
    if type(divisor) is not Size and type(number) is not Size:
        return number % divisor == 0
    left, right = _expression(number), _expression(divisor)
    assert left is not None
    assert right is not None
    scope = next(n.scope for n in (number, divisor) if type(n) is Size)
    return ex.divide_exactly(scope.settled(left), scope.settled(right)) is not None


def common_divisor(*numbers: int) -> int:
    """Return a divisor of all numbers, the greatest if they are plain ints."""
    if not any_open(numbers):
        return math.gcd(*numbers)
    shared: list[Factor] | None = None
    count, scope = 0, None
    for number in numbers:
        expression = _expression(number)
        assert expression is not None
        if type(number) is Size:
            scope = number.scope
            expression = scope.settled(expression)
        for product, coefficient in expression.terms:
            count = math.gcd(count, coefficient)
            rest = list(product)
            kept = []
            for factor in product if shared is None else shared:
                if factor in rest:
                    rest.remove(factor)
                    kept.append(factor)
            shared = kept
    assert scope is not None
    return scope.sized(SizeExpression(((tuple(shared or ()), count),)))


def largest(numbers: Iterable[int]) -> int:
    """Return the largest of some numbers, without a guard."""
    kept: list[int] = []
    for number in numbers:
        if any(proven(number, "<=", other) for other in kept):
            continue
        kept = [other for other in kept if not proven(other, "<=", number)] + [number]
    if len(kept) == 1:
        return kept[0]
    scope = next(n.scope for n in kept if type(n) is Size)
    parts = [e for n in kept if (e := _expression(n)) is not None]
    return scope.sized(SizeExpression((((Most(tuple(sorted(parts, key=str))),), 1),)))
