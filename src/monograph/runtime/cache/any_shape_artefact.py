"""Code for any shape as named members: those of `artefact`, and one for its open sizes.

    sizes       JSON: symbols, expressions, guards, the shapes of inputs

An expression is a list of terms [coefficient, factor...]. A factor is the number of a symbol, or of
an entry of `factors`, which refers to earlier numbers only. In shapes and in the layout, [n] stands
for the nth of `others`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monograph.ir import Array
from monograph.ir.size_expressions import Factor, Most, SizeExpression, SizeFloor, Symbol
from monograph.ir.size_guards import SizeGuard
from monograph.ir.sizes import SizeScope, is_open
from monograph.runtime.cache.artefact import Artefact, Weights
from monograph.runtime.cache.object_cache import Buffer

_SIZES = "sizes"
_FLOOR, _MOST = "//", "max"


@dataclass(frozen=True)
class AnyShapeArtefact:
    """Compiled code for all sizes for which its guards hold, independent of its process."""

    scope: SizeScope
    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of the inputs, with open sizes."""
    program: Artefact
    """The native code; shapes and the arena of its layout have open sizes."""
    seconds: float = 0.0
    """The time that the compilation took."""

    @property
    def whole(self) -> bool:
        """Return True: code for any shape is one function."""
        return True

    @property
    def weights(self) -> Mapping[str, Array]:
        """The large constants by digest."""
        return self.program.weights

    def members(self) -> dict[str, Buffer]:
        """Return the members by name, without the weights."""
        write = _Writer(self.scope)
        members = self.program.members(write.number)
        shapes = {n: [write.number(d) for d in shape] for n, shape in self.shapes.items()}
        sizes = write.sizes() | {"shapes": shapes, "seconds": self.seconds}
        return members | {_SIZES: json.dumps(sizes).encode()}

    @staticmethod
    def of(members: Mapping[str, memoryview], weights: Weights) -> AnyShapeArtefact:
        """Return the artefact that the members hold; `weights` finds its large constants."""
        found = json.loads(bytes(members[_SIZES]))
        read = _Reader(found)
        program = Artefact.of(members, weights, read.number)
        shapes = {str(n): tuple(map(read.number, shape)) for n, shape in found["shapes"].items()}
        return AnyShapeArtefact(read.scope, shapes, program, float(found["seconds"]))


class _Writer:
    """Writes the sizes of a compilation as JSON data."""

    def __init__(self, scope: SizeScope) -> None:
        self._scope = scope
        self._numbers: dict[Factor, int] = {s: i for i, s in enumerate(scope.hints)}
        self._factors: list[list[Any]] = []
        self._others: dict[SizeExpression, int] = {}

    def number(self, number: int) -> int | list[int]:
        """Return a size: a number, or the place of its expression."""
        if not is_open(number):
            return number
        return [self._others.setdefault(number.expression, len(self._others))]

    def sizes(self) -> dict[str, Any]:
        """Return everything but shapes, after these have been written."""
        guards = [
            [
                self._expression(e),
                *(int(x) if math.isfinite(x) else None for x in (g.least, g.most)),
                sorted(g.other_than),
                g.reason,
            ]
            for e, g in self._scope.guards.items()
        ]
        return {
            "symbols": [
                [self._scope.unmarked(s.name), hint, s.least]
                for s, hint in self._scope.hints.items()
            ],
            "guards": guards,
            "table": [self._expression(e) for e in self._scope.table],
            "others": [self._expression(e) for e in self._others],
            "factors": self._factors,
        }

    def _expression(self, expression: SizeExpression) -> list[list[int]]:
        return [[count, *map(self._factor, product)] for product, count in expression.terms]

    def _factor(self, factor: Factor) -> int:
        if factor not in self._numbers:
            assert not isinstance(factor, Symbol)
            if isinstance(factor, SizeFloor):
                made = [_FLOOR, self._expression(factor.of), self._expression(factor.by)]
            else:
                made = [_MOST, *map(self._expression, factor.of)]
            self._numbers[factor] = len(self._numbers)
            self._factors.append(made)
        return self._numbers[factor]


class _Reader:
    """Reads the sizes of a compilation; raises an error for what `_Writer` does not write."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.scope = scope = SizeScope()
        self._factors: list[Factor] = []
        for name, hint, least in found["symbols"]:
            symbol = scope.new_symbol(name, _whole(hint), _whole(least))
            self._factors.append(symbol)
        for kind, *parts in found["factors"]:
            self._factors.append(self._factor(kind, [self._expression(p) for p in parts]))
        for expression, least, most, other_than, reason in found["guards"]:
            scope.guards[self._expression(expression)] = SizeGuard(
                -math.inf if least is None else _whole(least),
                math.inf if most is None else _whole(most),
                set(map(_whole, other_than)),
                str(reason),
            )
        for expression in found["table"]:
            scope.slot(self._expression(expression))
        if len(scope.table) != len(found["table"]):
            raise ValueError("a size is twice in the table")
        self._others = [scope.sized(self._expression(e)) for e in found["others"]]

    def number(self, found: Any) -> int:
        """Return a size that was written by `number`."""
        if isinstance(found, list):
            (index,) = found
            return self._others[_index(index, self._others)]
        return _whole(found)

    def _expression(self, terms: Any) -> SizeExpression:
        return SizeExpression(
            tuple(
                (tuple(self._factors[_index(i, self._factors)] for i in product), _whole(count))
                for count, *product in terms
            )
        )

    @staticmethod
    def _factor(kind: str, parts: list[SizeExpression]) -> Factor:
        if kind == _MOST and parts:
            return Most(tuple(parts))
        if kind != _FLOOR or parts[1].literal == 0:
            raise ValueError(f"no such factor: {kind}")
        of, by = parts
        return SizeFloor(of, by)


def _whole(found: Any) -> int:
    if type(found) is not int:
        raise TypeError(f"a size is no int: {found!r}")
    return found


def _index(found: Any, of: Sequence[Any]) -> int:
    if not 0 <= _whole(found) < len(of):
        raise ValueError(f"there is no size {found}")
    return int(found)
