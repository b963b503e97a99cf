"""The base classes of passes, and the functions that rebuild graphs and sub-graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from monograph.errors import VerifyError
from monograph.ir import Constant, Graph, Input, Value, subgraphs
from monograph.ir.types import accepts
from monograph.rewrite import CPU_COST, CostModel, Rule, Trace, apply_rules

ORIGINS_BETWEEN = " + "
"""Separates the ONNX nodes that one value came from."""


@dataclass
class Environment:
    """The state that passes share: the target's cost model and the trace of rewrites."""

    cost: CostModel = CPU_COST
    trace: Trace = field(default_factory=Trace)
    limit: int | None = None
    """The largest number of rewrites; bisection sets it to find a wrong rewrite."""

    @property
    def left(self) -> int | None:
        """The number of rewrites that may still happen; None means no limit."""
        return None if self.limit is None else max(0, self.limit - len(self.trace.fired))

    @property
    def exhausted(self) -> bool:
        """True when no rewrite may happen any more."""
        return self.left == 0


@dataclass(frozen=True)
class Pass:
    """A rewrite of a whole graph. Its fields are its options; its docstring states the rewrite."""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """True when the pass keeps every bit. In a `RulePass` each rule says it instead."""
    registry: ClassVar[dict[str, type[Pass]]] = {}

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
            Pass.registry[cls.name] = cls

    def run(self, graph: Graph, environment: Environment) -> Graph:
        """Return the rewritten graph; `run_inside` has already rewritten its sub-graphs."""
        raise NotImplementedError

    def run_inside(self, graph: Graph, environment: Environment) -> Graph:
        """Return the rewritten sub-graph."""
        return self.run(graph, environment)


@dataclass(frozen=True)
class RulePass(Pass, abstract=True):
    """A pass that applies a set of rules until none fires."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    def run(self, graph: Graph, environment: Environment) -> Graph:
        return apply_rules(
            graph,
            self.rules,
            cost=environment.cost,
            trace=environment.trace,
            limit=environment.left,
        )


def map_subgraphs(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with `change` applied to every sub-graph that an op carries."""
    if not any(subgraphs(v.op) for v in graph.values):
        return graph

    def rebuilt(value: Value, inputs: tuple[Value, ...]) -> Value:
        if not subgraphs(value.op):
            return value.op(*inputs)
        changed = {
            name: change(map_subgraphs(a, change))
            for name, a in value.op.attributes.items()
            if isinstance(a, Graph)
        }
        return replace(value.op, **changed)(*inputs)  # type: ignore[type-var]

    return graph.rebuild(rebuilt)


def run_pass(step: Pass, graph: Graph, environment: Environment) -> Graph:
    """Run a pass on the sub-graphs of a graph, then on the graph."""
    inner = map_subgraphs(graph, lambda g: step.run_inside(g, environment))
    return step.run(inner, environment)


def users_of(graph: Graph) -> dict[Value, list[Value]]:
    """Return the distinct users of every value, in graph order."""
    users: dict[Value, list[Value]] = {v: [] for v in graph.values}
    for value in graph.values:
        for v in dict.fromkeys(value.inputs):
            users[v].append(value)
    return users


def joined_origins(graph: Graph, values: Iterable[Value]) -> str:
    """Return the ONNX nodes that some values come from, each once."""
    listed = [(graph.origin(v) or "").split(ORIGINS_BETWEEN) for v in values]
    return ORIGINS_BETWEEN.join(dict.fromkeys(n for names in listed for n in names if n))


def substitute(
    graph: Graph, replacement: Mapping[Value, Value], origins: Mapping[Value, str] | None = None
) -> Graph:
    """Return the graph with values replaced, also inside the replacements.

    A replacement has the type of the value that it replaces. `origins` gives the ONNX nodes of new
    values; any other new value takes the origin of the value that it replaces or feeds.
    """
    for old, new in replacement.items():
        if not accepts(old.type, new.type):
            raise VerifyError(
                "a value must be replaced by a value of the same type",
                node=graph.origin(old),
                op=old.op.name,
                expected=old.type,
                given=new.type,
            )
    made: dict[Value, Value] = {v: v for v in graph.inputs}
    waiting: set[Value] = set()
    stack = [v for _, v in reversed(graph.outputs)]
    while stack:
        value = stack[-1]
        if value in made:
            stack.pop()
            continue
        needed = [replacement[value]] if value in replacement else list(value.inputs)
        missing = [v for v in needed if v not in made]
        if missing:
            if value in waiting:
                raise VerifyError("the replaced values form a cycle", node=graph.origin(value))
            waiting.add(value)
            stack.extend(missing)
            continue
        operands = tuple(made[v] for v in needed)
        if value in replacement:
            made[value] = operands[0]
        else:
            made[value] = value if operands == value.inputs else value.op(*operands)
        stack.pop()
    outputs = tuple((name, made[v]) for name, v in graph.outputs)
    after = Graph(graph.inputs, outputs, graph.name, {}, graph.donations)
    known = {made[v]: text for v, text in (origins or {}).items() if v in made}
    for value, text in graph.origins.items():
        if value in made:
            known.setdefault(made[value], text)
    return replace(after, origins=inherited_origins(after, known))


def inherited_origins(graph: Graph, known: Mapping[Value, str]) -> dict[Value, str]:
    """Return the origin of every value: its own, or that of a value that reads it."""
    found = dict(known)
    for value in reversed(graph.values):
        if value in found:
            for v in value.inputs:
                found.setdefault(v, found[value])
    return {v: t for v, t in found.items() if not isinstance(v.op, (Input, Constant))}
