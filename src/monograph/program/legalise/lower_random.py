"""Random ops: how a graph is searched for them, and their form in compiled code.

A compiled random op takes a turn from an RNG state, which decides its numbers.

The state counts the turns and outlives a run: the next run continues the sequence. So the states
are inputs of the program, passed into the sub-graphs that use them. All else is pointwise and
fuses with its users.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from monograph.ir import Array, Graph, Input, Op, TensorType, Value, subgraphs
from monograph.ir.dtype import i64
from monograph.ir.graph import all_values
from monograph.ops.control import If, Loop, Scan
from monograph.ops.deferred import Deferred
from monograph.ops.random import Random, Turns
from monograph.ops.scalar import Indexed, Scalar, ScalarBuilder

STATE = TensorType(i64, (1,))


@dataclass(frozen=True)
class TakeTurn(Op):
    """The turn of one evaluation of a random op, from a state that it advances."""

    of: Random

    pure = False

    def infer(self, state: TensorType) -> TensorType:
        return TensorType(i64, ())

    def reference(self, state: Array) -> Array:
        return self.of.turns.take()


@dataclass(frozen=True)
class RandomNumbers(Indexed):
    """The numbers of a random op in a turn."""

    of: Random

    def infer(self, turn: TensorType) -> TensorType:
        return self.of.infer()

    def reference(self, turn: Array) -> Array:
        return self.of.numbers(turn)

    def scalar(self, b: ScalarBuilder, turn: Scalar, index: Scalar) -> Scalar:
        return self.of.number(b, turn, index)


def with_states(graph: Graph) -> tuple[Graph, dict[str, Array]]:
    """Return the graph with the RNG states of its random ops as inputs, and those states."""
    ops = random_ops(graph)
    if not ops:
        return graph, {}
    states = {f"~draws{op.uid}": op.turns.count for op in ops}
    return _given(graph, ops), states


def random_ops(graph: Graph) -> list[Random]:
    """Return every random op once, including those of sub-graphs."""
    return list(dict.fromkeys(v.op for v in all_values(graph) if isinstance(v.op, Random)))


def states_of(graph: Graph) -> dict[Value, Turns]:
    """Return the inputs of a graph that are states of ops in it or in its sub-graphs."""
    found: dict[Value, Turns] = {}
    for value in graph.values:
        if isinstance(value.op, TakeTurn):
            found[value.inputs[0]] = value.op.of.turns
            continue
        for number, inner in enumerate(subgraphs(value.op)):
            states = states_of(inner)
            # Captures come last; for a branch, those of the first side before the second's.
            end = len(value.inputs)
            if isinstance(value.op, If) and number == 0:
                end = 1 + len(inner.inputs)
            outer = value.inputs[end - len(inner.inputs) : end] if states else ()
            pairs = zip(inner.inputs, outer, strict=False)
            found |= {given: states[own] for own, given in pairs if own in states}
    return {v: state for v, state in found.items() if v in graph.inputs}


def _input(op: Random) -> Value:
    return Input(f"~draws{op.uid}", STATE)()


def _given(graph: Graph, ops: list[Random]) -> Graph:
    """Add one input to the graph for each of these ops."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Random):
            return RandomNumbers(old.op)(TakeTurn(old.op)(_input(old.op)))
        if not old.inputs and not isinstance(old.op, If | Loop | Scan):
            return old
        if isinstance(old.op, If | Loop | Scan) and any(map(random_ops, subgraphs(old.op))):
            return _passed_on(old.op, inputs)
        return old.op(*inputs)

    made = graph.rebuild(rebuilt)
    return replace(made, inputs=(*made.inputs, *map(_input, ops)))


def _passed_on(op: Op, inputs: tuple[Value, ...]) -> Value:
    """Return an op with sub-graphs whose RNG states are captures."""
    if isinstance(op, If):
        of_then, of_else = random_ops(op.then), random_ops(op.orelse)
        count = 1 + len(op.then.inputs)
        new = replace(op, then=_given(op.then, of_then), orelse=_given(op.orelse, of_else))
        states = map(_input, of_then), map(_input, of_else)
        return new(*inputs[:count], *states[0], *inputs[count:], *states[1])
    assert isinstance(op, Loop | Scan)
    ops = random_ops(op.body)
    return replace(op, body=_given(op.body, ops))(*inputs, *map(_input, ops))


def random_op_names(graph: Graph) -> list[str]:
    """The names of the ops that draw random numbers: their results differ from run to run."""
    kinds = {_kind(v.op) for v in all_values(graph)}
    return sorted(kind.name for kind in kinds if issubclass(kind, Random))


def draws(values: Iterable[Value]) -> bool:
    """Return True if any of these values, or of their sub-graphs, is random."""
    return any(
        issubclass(_kind(v.op), Random) or any(map(random_op_names, subgraphs(v.op)))
        for v in values
    )


def _kind(op: Op) -> type[Op]:
    if isinstance(op, TakeTurn):  # the compiled form of a random op
        return type(op.of)
    return op.target_class if isinstance(op, Deferred) else type(op)
