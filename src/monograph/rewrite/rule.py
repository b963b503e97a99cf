"""Rules: a pattern, a guard that says why it declines, and a replacement."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from monograph.ir import Op, Value
from monograph.rewrite.pattern import Pattern, root_op


@dataclass(frozen=True)
class Reject:
    """The reason why a rule declines; `expected` and `given` are the two values that differ."""

    reason: str
    expected: Any = None
    given: Any = None

    def __str__(self) -> str:
        shown = self.reason
        if self.expected is not None:
            shown += f" (expected {self.expected}"
            shown += f", given {self.given})" if self.given is not None else ")"
        return shown


Result: TypeAlias = Value | Reject


@dataclass(frozen=True)
class Rule:
    """One rewrite, named after its function; its docstring is its equation.

    A rule whose pattern is an op class (not an expression) gets the whole value as `value`: for
    ops with any number of operands.
    """

    name: str
    pattern: Pattern | type[Op]
    function: Callable[..., Result]
    exact: bool
    """True if the rewrite keeps all bits, for edge values too; else equal in exact arithmetic."""
    parameters: frozenset[str]

    @property
    def root(self) -> type[Op]:
        return root_op(self.pattern) if isinstance(self.pattern, Pattern) else self.pattern

    @property
    def equation(self) -> str:
        return (inspect.getdoc(self.function) or "").split("\n\n")[0].replace("\n", " ")

    def __str__(self) -> str:
        return f"{self.name}: {self.equation} [{'exact' if self.exact else 'reassociating'}]"


def rewrite(pattern: Any, *, exact: bool) -> Callable[[Callable[..., Result]], Rule]:
    """Turn a function into a rule.

    The function's parameters are the variables of the pattern that it uses, `root` for the matched
    value, and `context` for use counts and the cost model.
    """

    def make(function: Callable[..., Result]) -> Rule:
        if not function.__doc__:
            raise TypeError(f"rule {function.__name__} has no equation in its docstring")
        parameters = frozenset(inspect.signature(function).parameters)
        return Rule(function.__name__, pattern, function, exact, parameters)

    return make


def rules_in(module: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that a module defines, in their order."""
    return tuple(r for r in vars(module).values() if isinstance(r, Rule))
