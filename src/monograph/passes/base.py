"""What a pass is, and how it reaches sub-graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from monograph.ir import Graph, Op, Value
from monograph.rewrite import CPU_COST, CostModel, Rule, Trace, apply_rules


@dataclass
class Environment:
    """What passes share: the target's cost model, and the trace that answers "why not?"."""

    cost: CostModel = CPU_COST
    trace: Trace = field(default_factory=Trace)
    limit: int | None = None
    """At most this many rewrites in the pass; bisection narrows a fault down with it."""


@dataclass(frozen=True)
class Pass:
    """A rewrite of a whole graph. Its fields are its options; its docstring says what it does."""

    name: ClassVar[str]
    registry: ClassVar[dict[str, type[Pass]]] = {}

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
            Pass.registry[cls.name] = cls

    def run(self, graph: Graph, environment: Environment) -> Graph:
        """The graph after the pass; sub-graphs have been through it already."""
        raise NotImplementedError


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
            limit=environment.limit,
        )


def map_subgraphs(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with `change` applied to every sub-graph that an op carries."""
    if not any(_has_subgraph(v.op) for v in graph.values):
        return graph

    def rebuilt(value: Value, inputs: tuple[Value, ...]) -> Value:
        if not _has_subgraph(value.op):
            return value.op(*inputs)
        changed = {
            name: change(map_subgraphs(a, change))
            for name, a in value.op.attributes.items()
            if isinstance(a, Graph)
        }
        return replace(value.op, **changed)(*inputs)  # type: ignore[type-var]

    return graph.rebuild(rebuilt)


def _has_subgraph(op: Op) -> bool:
    return any(isinstance(a, Graph) for a in op.attributes.values())


def run_pass(step: Pass, graph: Graph, environment: Environment) -> Graph:
    """A pass over a graph and, first, over its sub-graphs."""
    inner = map_subgraphs(graph, lambda g: step.run(g, environment))
    return step.run(inner, environment)
