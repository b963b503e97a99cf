"""Facts on the open sizes of one compilation: guards, and the bounds and equalities they prove."""

from __future__ import annotations

import math

from monograph.ir import size_expressions as ex
from monograph.ir.size_expressions import (
    Factor,
    Most,
    SizeExpression,
    SizeFloor,
    Symbol,
    collect,
)
from monograph.ir.size_guards import Bounds, SizeGuard, asker, floored, interval_product

MOST_DIVISOR = 1 << 24
"""The largest common divisor of quotients that bounds are derived with."""


class SizeFacts:
    """The guards of a compilation, and what they and the bounds of symbols prove."""

    def __init__(self) -> None:
        self.guards: dict[SizeExpression, SizeGuard] = {}
        self._bounds: dict[SizeExpression, Bounds] = {}
        self._equal: dict[Factor, SizeExpression] = {}
        """The expressions that stand for factors, because guards make them equal."""
        self._settled: dict[SizeExpression, SizeExpression] = {}

    def settled(self, expression: SizeExpression) -> SizeExpression:
        """Return an expression with factors replaced by what guards say that they are equal to."""
        if not self._equal:
            return expression
        known = self._settled.get(expression)
        if known is None:
            known = self._settled[expression] = ex.replaced(expression, self._equal)
        return known

    def bounds(self, expression: SizeExpression) -> Bounds:
        """Return the least and greatest value that are proven."""
        rest, constant = ex.without_constant(expression)
        if not rest.terms:
            return constant, constant
        known = self._bounds.get(rest)
        if known is None:
            known = self._bounds[rest] = self._range(rest)
        low, high = known
        if (guard := self.guards.get(rest)) is not None:
            low, high = max(low, guard.least), min(high, guard.most)
        if (guard := self.guards.get(ex.negative(rest))) is not None:
            low, high = max(low, -guard.most), min(high, -guard.least)
        return low + constant, high + constant

    def _range(self, rest: SizeExpression) -> Bounds:
        shared = ex.shared_factors(rest)
        if shared and len(rest.terms) > 1:
            # s - b s = s (1 - b): the sign of a product is known where that of a sum is not.
            one = SizeExpression(((shared, 1),))
            left = ex.divide_exactly(rest, one)
            assert left is not None
            return interval_product(self._range(one), self.bounds(left))
        low = high = 0.0
        for product, count in rest.terms:
            ends: Bounds = (1, 1)
            for factor in product:
                ends = interval_product(ends, self._of_factor(factor))
            ends = interval_product(ends, (count, count))
            low, high = low + ends[0], high + ends[1]
        least, most = self._without_quotients(rest)
        return max(low, least), min(high, most)

    def _without_quotients(self, expression: SizeExpression) -> Bounds:
        """Return bounds of a sum of quotients, in which a // n is (a - r) / n with r in 0..n-1.

        They are near where quotients nearly cancel, as in n * (a // n) - a.
        """
        quotients = {}
        for product, count in expression.terms:
            floor = product[0] if len(product) == 1 else None
            if isinstance(floor, SizeFloor) and (by := floor.by.literal) is not None:
                quotients[product] = floor.of, by, count
        whole = math.lcm(*(by for _, by, _ in quotients.values()))
        if not quotients or len(expression.terms) == 1 or whole > MOST_DIVISOR:
            return -math.inf, math.inf
        total = collect((p, whole * c) for p, c in expression.terms if p not in quotients)
        low = high = 0
        for of, by, count in quotients.values():
            times = count * whole // by
            total = ex.add(total, ex.multiply(of, ex.from_number(times)))
            low, high = low + min(0, -times * (by - 1)), high + max(0, -times * (by - 1))
        least, most = self.bounds(total)
        return -floored(-(least + low), whole), floored(most + high, whole)

    def _of_factor(self, factor: Factor) -> Bounds:
        if isinstance(factor, Symbol):
            guard = self.guards.get(SizeExpression((((factor,), 1),)), SizeGuard())
            return max(factor.least, guard.least), min(factor.most, guard.most)
        if isinstance(factor, Most):
            each = [self.bounds(e) for e in factor.of]
            return max(low for low, _ in each), max(high for _, high in each)
        (low, high), (least, most) = self.bounds(factor.of), self.bounds(factor.by)
        corners = [floored(x, y) for x in (low, high) for y in (max(least, 1), most)]
        return min(corners), max(corners)

    def proof(self, difference: SizeExpression, how: str) -> bool | None:
        """Return whether an expression is 0 or below 0, if that is proven; else None."""
        difference = self.settled(difference)
        low, high = self.bounds(difference)
        if how == "<":
            return True if high < 0 else False if low >= 0 else None
        if low > 0 or high < 0:
            return False
        if low == high == 0:
            return True
        rest, constant = ex.without_constant(difference)
        common = math.gcd(*(c for _, c in rest.terms))
        if constant % common:
            return False
        guard = self.guards.get(rest)
        return False if guard is not None and -constant in guard.other_than else None

    def record(self, difference: SizeExpression, how: str, answer: bool) -> bool:
        """Keep the answer to a question as a guard; return True if it replaces a size."""
        replaced = False
        rest, constant = ex.without_constant(difference)
        low, high = (x - constant for x in self.bounds(difference))
        if how == "==" and answer:
            self._limit(rest, -constant, -constant)
            replaced = self._equate(difference)
        elif how == "==" and low == -constant:
            self._limit(rest, low + 1, math.inf)
        elif how == "==" and high == -constant:
            self._limit(rest, -math.inf, high - 1)
        elif how == "==":
            if rest.terms[0][1] < 0:
                rest, constant = ex.negative(rest), -constant
            guard = self.guards.setdefault(rest, SizeGuard())
            guard.other_than.add(-constant)
            guard.ask(asker())
        elif answer:
            self._limit(rest, -math.inf, -constant - 1)
        else:
            self._limit(rest, -constant, math.inf)
        self._bounds.clear()
        return replaced

    def _equate(self, difference: SizeExpression) -> bool:
        """Replace a factor of an expression that is 0, from now on, by what it is equal to."""
        for product, count in reversed(difference.terms):
            if len(product) != 1 or abs(count) != 1:
                continue
            (factor,) = product
            term = SizeExpression(((product, -count),))
            other = ex.add(difference, term)
            if count > 0:
                other = ex.negative(other)
            if ex.contains(other, factor):
                continue
            one = {factor: other}
            self._equal = {f: ex.replaced(e, one) for f, e in self._equal.items()} | one
            self._settled.clear()
            return True
        return False

    def _limit(self, rest: SizeExpression, least: float, most: float) -> None:
        """Keep a range of an expression without constant, as one of its simplest part."""
        while True:
            common = math.gcd(*(c for _, c in rest.terms))
            if rest.terms[0][1] < 0:
                rest, least, most = ex.negative(rest), -most, -least
            if common > 1:
                rest = SizeExpression(tuple((p, c // common) for p, c in rest.terms))
                least, most = -floored(-least, common), floored(most, common)
            nested = ex.as_quotient(rest)
            if nested is None:
                break
            floor, by = nested[0], nested[0].by.literal or 1
            rest, constant = ex.without_constant(floor.of)
            least, most = least * by - constant, most * by + by - 1 - constant
        guard = self.guards.setdefault(rest, SizeGuard())
        guard.least, guard.most = max(guard.least, least), min(guard.most, most)
        guard.ask(asker())
