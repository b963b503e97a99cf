"""Rules (a pattern, a guard that says why it declines, a replacement) and their application.

The engine applies rules to a graph until none fires.

A sweep visits the values, inputs before users. It rewrites each value until no rule fires on it or
on the values that rules made for it. Sweeps repeat until one changes nothing, because use counts
and later rewrites create new matches. An error names the rules of a set that never settles.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

from monograph.errors import MonographError, VerifyError
from monograph.ir import Constant, Graph, Input, Op, Value
from monograph.ir.types import accepts
from monograph.rewrite.cost import CPU_COST, CostModel
from monograph.rewrite.pattern import Miss, Pattern, match, root_op, size
from monograph.rewrite.trace import Trace


@dataclass(frozen=True)
class Reject:
    """The reason why a rule declines; `expected` and `given` are the two values that differ."""

    reason: str
    expected: Any = None
    given: Any = None
    near: bool = True
    """False if the value has not the form of the equation; then any other miss is nearer."""

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


MAX_SWEEPS = 64
FIRINGS_PER_VALUE = 16
"""The most firings of one sweep, for each value at its start; more means a loop."""
MAX_ORIGINS = 8
GUARD = 100
"""The score of a miss whose guard declined, above that of any mismatch."""
NEAR = 64
"""The number of values around a rewrite that get its origin."""


class RewriteLoopError(MonographError):
    """A set of rules rewrites in circles."""


@dataclass
class Context:
    """The facts that a guard may use besides the matched values."""

    cost: CostModel
    uses: dict[Value, int] = field(default_factory=dict)
    only_user: dict[Value, Value] = field(default_factory=dict)
    """The only user of each value that has one user. Values made by rules are missing."""

    def use_count(self, value: Value) -> int:
        """Return the number of uses of a value; a value that a rule has just made counts once.

        Use counts decide only whether a rewrite pays, never whether it is correct.
        """
        return self.uses.get(value, 1)


def apply_rules(
    graph: Graph,
    rules: Sequence[Rule],
    *,
    cost: CostModel = CPU_COST,
    trace: Trace | None = None,
    limit: int | None = None,
) -> Graph:
    """Rewrite a graph until no rule fires; with `limit`, stop after that many firings."""
    engine = _Engine(rules, cost, trace if trace is not None else Trace(), limit)
    for _ in range(MAX_SWEEPS):
        after = engine.sweep(graph)
        if after == graph:
            return after
        graph = after
    culprits = Counter(f.rule for f in engine.trace.fired[-1000:]).most_common(3)
    raise RewriteLoopError(
        "rules fire without end", given=", ".join(f"{name} ({n} times)" for name, n in culprits)
    )


class _Engine:
    """The state of one application of rules."""

    def __init__(
        self, rules: Sequence[Rule], cost: CostModel, trace: Trace, limit: int | None
    ) -> None:
        self.by_root: dict[type[Op], list[Rule]] = defaultdict(list)
        for rule in rules:
            self.by_root[rule.root].append(rule)
        self.trace = trace
        self.context = Context(cost)
        self.left = limit
        self.origins: dict[Value, str] = {}
        self.settled: dict[Value, Value] = {}
        self.forward: dict[Value, tuple[Value, str]] = {}
        self.allowed = 0

    def sweep(self, graph: Graph) -> Graph:
        """Visit the graph once, inputs before users."""
        self.context.uses = dict(graph.uses)
        self.context.only_user = {
            v: user for user in graph.values for v in user.inputs if graph.uses[v] == 1
        }
        self.origins = dict(graph.origins)
        self.settled = {}
        self.forward = {}
        self.allowed = 1000 + FIRINGS_PER_VALUE * len(graph.values)
        for value in graph.values:
            self.settle(value)
        outputs = tuple((name, self.settled[v]) for name, v in graph.outputs)
        result = Graph(graph.inputs, outputs, graph.name, {}, graph.donations)
        origins = {v: self.origins[v] for v in result.values if v in self.origins}
        return Graph(graph.inputs, outputs, graph.name, origins, graph.donations)

    def settle(self, value: Value) -> None:
        """Rewrite a value until no rule fires on it, nor on any value that a rule made below it.

        `forward` holds the current replacement of a value, `settled` its final one. A value that is
        met again while it is still being rewritten means that the rules go in circles.
        """
        stack = [value]
        active: set[Value] = set()
        while stack:
            current = stack[-1]
            if current in self.settled:
                stack.pop()
                active.discard(current)
                continue
            active.add(current)
            if current in self.forward:
                needed = [self.forward[current][0]]
            else:
                needed = list(current.inputs)
            waiting = [v for v in needed if v not in self.settled]
            if waiting:
                self._check_progress(active.intersection(waiting))
                stack.extend(waiting)
            elif current in self.forward:
                self.settled[current] = self.settled[self.forward[current][0]]
            else:
                self._step(current)

    def _step(self, value: Value) -> None:
        """Rewrite a value with settled inputs once, or settle it."""
        operands = tuple(self.settled[v] for v in value.inputs)
        if operands != value.inputs:
            fresh = value.op(*operands)
            self._take_over(value, fresh)
            self.forward[value] = (fresh, "")
            return
        fired = self._fire(value)
        if fired is None:
            self.settled[value] = value
        else:
            self.forward[value] = fired

    def _check_progress(self, again: set[Value]) -> None:
        if not again:
            return
        names = {name for v in again for name in (self.forward.get(v, (v, ""))[1],) if name}
        recent = [f.rule for f in self.trace.fired[-4:]]
        raise RewriteLoopError(
            "a rule rewrites a value to something that contains it",
            given=", ".join(sorted(names) or recent),
        )

    def _take_over(self, old: Value, new: Value) -> None:
        """Transfer the uses and the origin of a value to its replacement."""
        uses = self.context.uses
        uses[new] = uses.get(new, 0) + uses.get(old, 1)
        if old in self.origins and not isinstance(new.op, (Constant, Input)):
            self.origins.setdefault(new, self.origins[old])

    def _fire(self, value: Value) -> tuple[Value, str] | None:
        """Return the result of the first rule that applies to a value, and the rule's name."""
        if self.left == 0:
            return None
        for rule in self.by_root.get(type(value.op), ()):
            for bindings in self._matches(rule, value):
                result = self._call(rule, value, bindings)
                if isinstance(result, Value) and result is not value:
                    self._note(rule, value, result, bindings)
                    return result, rule.name
        return None

    def _matches(self, rule: Rule, value: Value) -> Iterator[dict[str, Any]]:
        if not isinstance(rule.pattern, Pattern):
            yield {}
            return
        miss = Miss()
        found = False
        for bindings in match(rule.pattern, value, miss):
            found = True
            yield bindings
        if not found and miss.score > 0:
            self.trace.note_missed(rule.name, self._origin(value), miss.reason, miss.score)

    def _call(self, rule: Rule, value: Value, bindings: dict[str, Any]) -> Value | Reject:
        arguments = {**bindings, "root": value, "value": value, "context": self.context}
        wanted = {k: v for k, v in arguments.items() if k in rule.parameters}
        try:
            result = rule.function(**wanted)
        except MonographError as e:
            raise e.at(node=self._origin(value), op=f"rule {rule.name}") from None
        except Exception as e:
            # Any exception is a fault of the rule: the error must name the rule.
            raise VerifyError(
                f"rule {rule.name} fails: {type(e).__name__}: {e}",
                node=self._origin(value),
                given=describe(value),
            ) from e
        if isinstance(result, Reject):
            matched = size(rule.pattern) if isinstance(rule.pattern, Pattern) else 1
            score = matched + (GUARD if result.near else 0)
            self.trace.note_missed(rule.name, self._origin(value), str(result), score)
        elif not accepts(value.type, result.type):
            raise VerifyError(
                f"rule {rule.name} changes the type of a value",
                node=self._origin(value),
                expected=value.type,
                given=result.type,
            )
        return result

    def _note(self, rule: Rule, old: Value, new: Value, bindings: dict[str, Any]) -> None:
        """Record a firing, and set the origin of the values that it made."""
        self.allowed -= 1
        if self.left is not None:
            self.left -= 1
        leaves = {v for v in bindings.values() if isinstance(v, Value)}
        origin = self._joined_origin(old, leaves or _near(new))
        self.trace.note_fired(rule.name, origin, describe(old), describe(new))
        if self.allowed < 0:
            raise RewriteLoopError("rules fire without end", given=rule.name)
        self.context.uses[new] = self.context.uses.get(new, 0) + self.context.uses.get(old, 1)
        stack = [new]
        while stack:
            v = stack.pop()
            if v in self.origins or v in leaves or isinstance(v.op, (Constant, Input)):
                continue
            self.origins[v] = origin
            stack.extend(v.inputs)

    def _origin(self, value: Value) -> str:
        return self.origins.get(value, "")

    def _joined_origin(self, root: Value, leaves: set[Value]) -> str:
        """Return the ONNX nodes of all values that a pattern matched above its variables."""
        names: dict[str, None] = {}
        stack, seen = [root], {root}
        while stack and len(seen) < NEAR:
            v = stack.pop()
            for name in self._origin(v).split(" + "):
                if name:
                    names[name] = None
            for i in v.inputs if leaves else ():
                if i not in leaves and i not in seen:
                    seen.add(i)
                    stack.append(i)
        listed = list(names)
        more = ["..."] if len(listed) > MAX_ORIGINS else []
        return " + ".join(listed[:MAX_ORIGINS] + more)


def _near(value: Value) -> set[Value]:
    """Return the values close below one: the limit of origins for a rule without variables."""
    seen = {value}
    stack = [value]
    while stack and len(seen) < NEAR:
        for v in stack.pop().inputs:
            if v not in seen:
                seen.add(v)
                stack.append(v)
    return seen


def describe(value: Value, depth: int = 3) -> str:
    """Return a value as a short expression with its type, for traces."""
    return f"{_expression(value, depth)} : {value.type}"


def _expression(value: Value, depth: int) -> str:
    if isinstance(value.op, Input):
        return f"%{value.op.label}"
    if isinstance(value.op, Constant):
        return str(value.type)
    if depth == 0:
        return "..."
    return f"{value.op.name}({', '.join(_expression(v, depth - 1) for v in value.inputs)})"
