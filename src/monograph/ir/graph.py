"""A graph: named inputs, named outputs, and the values between them.

A graph owns what a value cannot know: where it came from in the ONNX file, how often it is used,
and which outputs are written into which inputs' memory (donations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from monograph.errors import VerifyError
from monograph.ir.lazy import lazy
from monograph.ir.op import Input, Op, Value, encode
from monograph.ir.types import Type, digest_of


def topological(outputs: Iterable[Value]) -> list[Value]:
    """Every value that the outputs need, inputs before users, without recursion."""
    order: list[Value] = []
    done: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(list(outputs))]
    while stack:
        value, expanded = stack.pop()
        if value in done:
            continue
        if expanded:
            done.add(value)
            order.append(value)
            continue
        stack.append((value, True))
        stack.extend((v, False) for v in reversed(value.inputs) if v not in done)
    return order


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable dataflow graph; equal when inputs, outputs and donations are."""

    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    name: str = "main"
    origins: Mapping[Value, str] = field(default_factory=dict)
    donations: tuple[tuple[str, str], ...] = ()
    """(output, input) pairs: the output is written into the input's memory."""
    folded: Mapping[Value, Value] = field(default_factory=dict)
    """Float constants and the expressions that the import folded into them, in its order."""

    @lazy
    def values(self) -> tuple[Value, ...]:
        """Every value that the outputs need, inputs before users."""
        return tuple(topological(v for _, v in self.outputs))

    @lazy
    def uses(self) -> dict[Value, int]:
        """The number of uses of each value; an output counts as a use."""
        counts = dict.fromkeys(self.values, 0)
        for value in self.values:
            for v in value.inputs:
                counts[v] += 1
        for _, v in self.outputs:
            counts[v] += 1
        return counts

    @lazy
    def digest(self) -> bytes:
        parts = [v.digest for v in self.inputs]
        parts += [encode(name) + v.digest for name, v in self.outputs]
        return digest_of(*parts, encode(self.donations))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, memo: object) -> Graph:
        return self

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(input_op(v).label for v in self.inputs)

    @property
    def input_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs)

    @property
    def output_types(self) -> tuple[Type, ...]:
        return tuple(v.type for _, v in self.outputs)

    def origin(self, value: Value) -> str | None:
        """The ONNX node a value came from, where it is known."""
        return self.origins.get(value)

    def place(self, value: Value) -> str:
        """Return a name of a value for reports: its ONNX node or graph input; "" if unknown."""
        named = f"input {value.op.label}" if isinstance(value.op, Input) else ""
        return self.origins.get(value) or named

    @lazy
    def unfolded(self) -> Graph:
        """The graph with the expressions that the import folded into its constants.

        A target may compute them itself, and rounds them then.
        """
        made: dict[Value, Value] = {}

        def take(v: Value, inputs: tuple[Value, ...]) -> Value:
            return made.get(v) or (v if inputs == v.inputs else v.op(*inputs))

        # Equal data is one constant, so an expression may lead back to its own result. Each one
        # sees only those before it.
        for value, expression in self.folded.items():
            made[value] = Graph((), (("", expression),)).rebuild(take).outputs[0][1]
        return self.rebuild(take) if any(v in made for v in self.values) else self

    def rebuild(self, replace: Callable[[Value, tuple[Value, ...]], Value]) -> Graph:
        """Build the graph again, in order: `replace(old, new_inputs)` returns each new value.

        Inputs come first. Origins follow the values.
        """
        made: dict[Value, Value] = {}
        for v in self.inputs:
            made[v] = replace(v, ())
        for v in self.values:
            if v not in made:
                made[v] = replace(v, tuple(made[i] for i in v.inputs))
        origins = {new: self.origins[old] for old, new in made.items() if old in self.origins}
        return Graph(
            tuple(made[v] for v in self.inputs),
            tuple((name, made[v]) for name, v in self.outputs),
            self.name,
            origins,
            self.donations,
        )

    def __str__(self) -> str:
        from monograph.ir.text import print_graph

        return print_graph(self)


def subgraphs(op: Op) -> list[Graph]:
    """The graphs that an op carries: among its attributes, or in tuples there."""
    found: list[Graph] = []
    stack: list[Any] = list(op.attributes.values())
    while stack:
        attribute = stack.pop()
        if isinstance(attribute, Graph):
            found.append(attribute)
        elif isinstance(attribute, tuple):
            stack.extend(attribute)
    return found[::-1]


def all_values(graph: Graph) -> Iterator[Value]:
    """Every value of a graph and of its sub-graphs, at any depth."""
    stack = [graph]
    while stack:
        for value in stack.pop().values:
            yield value
            stack.extend(subgraphs(value.op))


def input_op(value: Value) -> Input:
    """The `Input` op of a graph's input."""
    if not isinstance(value.op, Input):
        raise VerifyError("the inputs of a graph must be Input values", op=str(value.op))
    return value.op
