"""Code for any shape as named members: those of `artefact`, and one for its open sizes.

    sizes       JSON: symbols, expressions, guards, the shapes of inputs

An expression is a list of terms [coefficient, factor...]. A factor is the number of a symbol, or of
an entry of `factors`, which refers to earlier numbers only. In shapes and in the layout, [n] stands
for the nth of `others`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from monograph.ir import Array
from monograph.ir.size_expressions import Factor, Most, SizeExpression, SizeFloor, Symbol
from monograph.ir.size_guards import SizeGuard
from monograph.ir.sizes import SizeScope, is_open
from monograph.runtime.cache.artefact import Artefact, Number, Weights
from monograph.runtime.cache.object_cache import Buffer

_SIZES = "sizes"
_FLOOR, _MOST = "//", "max"
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class StoredProgram(Protocol):
    """The code of a program for one target, whose sizes may be open."""

    @property
    def weights(self) -> Mapping[str, Array]:
        """The large constants by digest."""

    def members(self, write: Number = ..., /) -> dict[str, Buffer]:
        """Return the members by name, without the weights; `write` writes sizes."""


P = TypeVar("P", bound=StoredProgram)


@dataclass(frozen=True)
class VariantArtefact(Generic[P]):
    """Compiled code for all sizes for which its guards hold, independent of its process."""

    scope: SizeScope
    shapes: Shapes
    """The shapes of the inputs, with open sizes."""
    program: P
    seconds: float = 0.0
    """The time that the compilation took."""

    @property
    def whole(self) -> bool:
        """Return True: code for any shape is all that a run takes."""
        return True

    @property
    def weights(self) -> Mapping[str, Array]:
        """The large constants by digest."""
        return self.program.weights

    def members(self) -> dict[str, Buffer]:
        """Return the members by name, without the weights."""
        return with_sizes(self.scope, self.shapes, self.seconds, self.program.members)

    def timed(self, seconds: float) -> Self:
        """Return the same code, whose compilation took this time."""
        return replace(self, seconds=seconds)


class AnyShapeArtefact(VariantArtefact[Artefact]):
    """Native code for any shape; shapes and the arena of its layout have open sizes."""

    @staticmethod
    def of(members: Mapping[str, memoryview], weights: Weights) -> AnyShapeArtefact:
        """Return the artefact that the members hold; `weights` finds its large constants."""
        read = SizeReader(members)
        program = Artefact.of(members, weights, read.number)
        return AnyShapeArtefact(read.scope, read.shapes, program, read.seconds)


def with_sizes(
    scope: SizeScope,
    shapes: Shapes,
    seconds: float,
    members_of: Callable[[Number], dict[str, Buffer]],
) -> dict[str, Buffer]:
    """Return the members of a program, and one that states the sizes in them.

    members_of: makes the members, given a function that writes sizes.
    """
    write = _SizeWriter(scope)
    members = members_of(write.number)
    written = {n: [write.number(d) for d in shape] for n, shape in shapes.items()}
    sizes = write.sizes() | {"shapes": written, "seconds": seconds}
    return members | {_SIZES: json.dumps(sizes).encode()}


class _SizeWriter:
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


class SizeReader:
    """Reads the sizes of a compilation; raises an error for what `with_sizes` does not write."""

    def __init__(self, members: Mapping[str, memoryview]) -> None:
        found = json.loads(bytes(members[_SIZES]))
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
        self.shapes: Shapes = {
            str(n): tuple(map(self.number, shape)) for n, shape in found["shapes"].items()
        }
        """The shapes of the inputs, with open sizes."""
        self.seconds = float(found["seconds"])
        """The time that the compilation took."""

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
