"""Walks over a graph and the sub-graphs that its control flow carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from monograph.ir import Constant, Graph, Input, Item, Op, Value, subgraphs
from monograph.ops.deferred import Deferred
from monograph.ops.random import Random
from monograph.program.legalise.lower_random import TakeTurn

STRUCTURE = (Input, Constant, Item)
"""Ops that hold a graph together and compute nothing."""


def all_values(graph: Graph) -> Iterator[Value]:
    """Every value of a graph and of its sub-graphs, at any depth."""
    stack = [graph]
    while stack:
        for value in stack.pop().values:
            yield value
            stack.extend(subgraphs(value.op))


def random_ops(graph: Graph) -> list[str]:
    """The names of the ops that draw random numbers: their results differ from run to run."""
    kinds = {_kind(v.op) for v in all_values(graph)}
    return sorted(kind.name for kind in kinds if issubclass(kind, Random))


def draws(values: Iterable[Value]) -> bool:
    """Return True if any of these values, or of their sub-graphs, is random."""
    return any(
        issubclass(_kind(v.op), Random) or any(map(random_ops, subgraphs(v.op))) for v in values
    )


def _kind(op: Op) -> type[Op]:
    if isinstance(op, TakeTurn):  # the compiled form of a random op
        return type(op.of)
    return op.target_class if isinstance(op, Deferred) else type(op)
