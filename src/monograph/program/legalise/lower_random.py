"""Random ops as compiled code sees them: each reads, and counts in, a state that it is given.

The state outlives a run: an op that draws again goes on where it was, whoever evaluates it. So
the states are inputs of the program, passed on into the sub-graphs that draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from monograph.ir import Array, Graph, Input, Op, TensorType, Value, subgraphs
from monograph.ir.dtype import i64
from monograph.ops.control import If, Loop, Scan
from monograph.ops.random import STATE_WORDS, Random, State

STATE = TensorType(i64, (STATE_WORDS,))


@dataclass(frozen=True)
class Drawn(Op):
    """The numbers of a random op, from a state that is counted up."""

    of: Op

    pure = False

    def infer(self, state: TensorType) -> TensorType:
        made = self.of.infer()
        assert isinstance(made, TensorType)
        return made

    def reference(self, state: Array) -> Array:
        made: Array = self.of.reference()
        return made


def with_states(graph: Graph) -> tuple[Graph, dict[str, Array]]:
    """The graph with the states of its random ops as further inputs, and those states."""
    ops = random_ops(graph)
    if not ops:
        return graph, {}
    states = {f"~draws{op.uid}": op.state().words for op in ops}
    return _given(graph, ops), states


def random_ops(graph: Graph) -> list[Random]:
    """Every random op, those of sub-graphs included, once."""
    found: dict[Random, None] = {}
    stack = [graph]
    while stack:
        for value in stack.pop().values:
            if isinstance(value.op, Random):
                found[value.op] = None
            stack.extend(subgraphs(value.op))
    return list(found)


def states_of(graph: Graph) -> dict[Value, State]:
    """Which inputs of a graph are states that ops in it, or in its sub-graphs, draw from."""
    found: dict[Value, State] = {}
    for value in graph.values:
        if isinstance(value.op, Drawn):
            assert isinstance(value.op.of, Random)
            found[value.inputs[0]] = value.op.of.state()
            continue
        for number, inner in enumerate(subgraphs(value.op)):
            states = states_of(inner)
            # Captures stand behind all else; those of a branch's first side before the second's.
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
    """The graph with one more input for each of these ops."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Random):
            return Drawn(old.op)(_input(old.op))
        if not old.inputs and not isinstance(old.op, If | Loop | Scan):
            return old
        if isinstance(old.op, If | Loop | Scan) and any(map(random_ops, subgraphs(old.op))):
            return _passed_on(old.op, inputs)
        return old.op(*inputs)

    made = graph.rebuild(rebuilt)
    return replace(made, inputs=(*made.inputs, *map(_input, ops)))


def _passed_on(op: Op, inputs: tuple[Value, ...]) -> Value:
    """An op that carries sub-graphs, with the states that those draw from as captures."""
    if isinstance(op, If):
        of_then, of_else = random_ops(op.then), random_ops(op.orelse)
        count = 1 + len(op.then.inputs)
        new = replace(op, then=_given(op.then, of_then), orelse=_given(op.orelse, of_else))
        states = map(_input, of_then), map(_input, of_else)
        return new(*inputs[:count], *states[0], *inputs[count:], *states[1])
    assert isinstance(op, Loop | Scan)
    ops = random_ops(op.body)
    return replace(op, body=_given(op.body, ops))(*inputs, *map(_input, ops))
