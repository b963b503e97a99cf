"""What a pass is, and how it reaches sub-graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from monograph.errors import VerifyError
from monograph.ir import Constant, Graph, Input, Value, subgraphs
from monograph.rewrite import CPU_COST, CostModel, Rule, Trace, apply_rules


@dataclass
class Environment:
    """What passes share: the target's cost model, and the trace that answers "why not?"."""

    cost: CostModel = CPU_COST
    trace: Trace = field(default_factory=Trace)
    limit: int | None = None
    """At most this many rewrites in the trace; bisection narrows a fault down with it."""

    @property
    def left(self) -> int | None:
        """How many more rewrites may happen; None where any number may."""
        return None if self.limit is None else max(0, self.limit - len(self.trace.fired))

    @property
    def exhausted(self) -> bool:
        return self.left == 0


@dataclass(frozen=True)
class Pass:
    """A rewrite of a whole graph. Its fields are its options; its docstring says what it does."""

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """Same bits, edge values included; of a pass that applies rules, its rules say it."""
    registry: ClassVar[dict[str, type[Pass]]] = {}

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
            Pass.registry[cls.name] = cls

    def run(self, graph: Graph, environment: Environment) -> Graph:
        """The graph after the pass; sub-graphs have been through `run_inside` already."""
        raise NotImplementedError

    def run_inside(self, graph: Graph, environment: Environment) -> Graph:
        """A sub-graph after the pass."""
        return self.run(graph, environment)


@dataclass(frozen=True)
class RulePass(Pass, abstract=True):
    """A pass that applies a set of rules to a fixpoint."""

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
    """The graph with `change` applied to every sub-graph that an op carries."""
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
    """A pass over a graph and, first, over its sub-graphs."""
    inner = map_subgraphs(graph, lambda g: step.run_inside(g, environment))
    return step.run(inner, environment)


def users_of(graph: Graph) -> dict[Value, list[Value]]:
    """The distinct users of every value, in graph order."""
    users: dict[Value, list[Value]] = {v: [] for v in graph.values}
    for value in graph.values:
        for v in dict.fromkeys(value.inputs):
            users[v].append(value)
    return users


def substitute(graph: Graph, replacement: Mapping[Value, Value], origin: str = "") -> Graph:
    """The graph with values replaced, everywhere and in what replaces them.

    New values without an origin of their own get the joined origins of what they replace.
    """
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
                raise VerifyError("replacing values makes a cycle", node=graph.origin(value))
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
    origins = {made[v]: text for v, text in graph.origins.items() if v in made}
    kept = {v: origins.get(v, origin) for v in after.values if v in origins or origin}
    kept = {v: t for v, t in kept.items() if not isinstance(v.op, (Input, Constant))}
    return replace(after, origins=kept)
