"""Graphs of what waits for data: the rest of a split program, and one turn of a loop.

Their inputs have the sizes that a run has found, as numbers or as open sizes of a compilation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError, MonographError
from monograph.frontend.onnx.fold import fold
from monograph.ir import (
    Array,
    Graph,
    Input,
    Item,
    Op,
    TensorType,
    Type,
    Value,
    constant,
    evaluate,
    from_numpy,
    known,
    subgraphs,
)
from monograph.ir.dtype import boolean
from monograph.ops.control import If, Loop
from monograph.ops.deferred import settle
from monograph.program.dynamic.resize import Change, resized_op
from monograph.program.dynamic.stages import StageSplit, is_sized_by_data
from monograph.program.legalise.expand import as_scan, unrolled

SMALL = 1024
"""The most elements that are folded when a part is built."""


def remainder(cut: StageSplit, arguments: Mapping[Value, Value], change: Change) -> Graph:
    """Return the waiting part on arguments: inputs, or constants where data decide shapes.

    change: replaces the open sizes of the split graph.
    """
    builder = _Builder(change, dict(arguments))
    builder.build(cut.waiting)
    waits = set(cut.waiting)
    outputs = tuple((n, builder.made[v]) for n, v in cut.whole.outputs if v in waits)
    return builder.graph(arguments.values(), outputs, cut.whole)


def turn(body: Graph, arguments: tuple[Value, ...], change: Change) -> Graph:
    """Return the body of a loop on arguments: inputs, or constants."""
    builder = _Builder(change, dict(zip(body.inputs, arguments, strict=True)))
    builder.unfolded = conditions_of(body)
    builder.build(body.values)
    outputs = tuple((f"~{i}", builder.argument(v)) for i, (_, v) in enumerate(body.outputs))
    return builder.graph(arguments, outputs, body)


def conditions_of(body: Graph) -> set[Value]:
    """Return the comparisons of numbers that only the condition of a loop depends on.

    The last turn of a loop up to some size would need code of its own if they were folded.
    """
    others = Graph(body.inputs, body.outputs[1:])
    found = set(body.values).difference(others.values)
    if any(subgraphs(v.op) for v in found):
        return set()
    return {v for v in found if isinstance(v.type, TensorType) and v.dtype == boolean}


def settled(graph: Graph) -> Graph:
    """Unroll loops of known trip count whose state changes its size."""
    loops = (v for v in graph.values if isinstance(v.op, Loop))
    if not any(is_sized_by_data(v.type) for v in loops):
        return graph
    builder = _Builder(_same, {v: v for v in graph.inputs})
    builder.build(graph.values)
    outputs = tuple((name, builder.argument(v)) for name, v in graph.outputs)
    origins = dict(graph.origins)
    for old, new in builder.made.items():
        if old in graph.origins:
            origins.setdefault(new, graph.origins[old])
    return Graph(graph.inputs, outputs, graph.name, origins, graph.donations)


def _same(number: int) -> int:
    return number


@dataclass
class _Builder:
    """Values built again on better known operands."""

    change: Change
    made: dict[Value, Value]
    several: dict[Value, tuple[Value, ...]] = field(default_factory=dict)
    """The results of ops that have become several values."""
    unfolded: Collection[Value] = ()
    """Values that are computed although open sizes decide them: no guard is needed."""

    def build(self, values: tuple[Value, ...]) -> None:
        for value in values:
            if value.inputs and value not in self.made:
                self._build(value)

    def argument(self, value: Value) -> Value:
        """Return what takes the place of an operand."""
        found = self.made.get(value)
        if found is None:
            found = value if value.inputs else resized_op(value.op, self.change)()
        return found

    def graph(
        self, arguments: Iterable[Value], outputs: tuple[tuple[str, Value], ...], source: Graph
    ) -> Graph:
        """Return the graph of some outputs; its origins are those of a graph."""
        origins = {new: t for old, new in self.made.items() if (t := source.origin(old))}
        inputs = tuple(v for v in arguments if isinstance(v.op, Input))
        return Graph(inputs, outputs, source.name, origins)

    def _build(self, value: Value) -> None:
        if isinstance(value.op, Item) and value.inputs[0] in self.several:
            self.made[value] = self.several[value.inputs[0]][value.op.index]
            return
        results = self._settled(
            resized_op(value.op, self.change), tuple(map(self.argument, value.inputs))
        )
        if isinstance(results, tuple):
            self.several[value] = tuple(map(_folded, results))
        else:
            self.made[value] = results if value in self.unfolded else _folded(results)

    def _settled(self, op: Op, inputs: tuple[Value, ...]) -> Value | tuple[Value, ...]:
        """Apply an op to better known inputs: the branch that is taken, the op without deferral."""
        try:
            if isinstance(op, If) and (condition := known(inputs[0])) is not None:
                return self._branch(op, condition, inputs[1:])
            if isinstance(op, Loop):
                scan = as_scan(op, inputs)
                if scan is not None and not is_sized_by_data(scan.type):
                    return scan
                return unrolled(op, inputs, self._inlined) or op(*inputs)
            new = op(*inputs)
        except InferError as e:
            raise ExecutionError(
                e.message, op=op.name, given=e.given, expected=e.expected
            ) from None
        try:
            return settle(new)
        except MonographError:
            # The attributes are invalid: the op raises its error when it runs.
            return new

    def _branch(self, op: If, condition: Array, captures: tuple[Value, ...]) -> tuple[Value, ...]:
        if condition.size != 1:
            raise ExecutionError("a condition must have one element", given=[*condition.shape])
        count = len(op.then.inputs)
        if condition.reshape(())[()]:
            return self._inlined(op.then, captures[:count])
        return self._inlined(op.orelse, captures[count:])

    def _inlined(self, graph: Graph, arguments: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the results of a sub-graph on arguments, with every op built for them.

        Its open sizes have been replaced with those of the op that carries it.
        """
        inner = _Builder(_same, dict(zip(graph.inputs, arguments, strict=True)))
        inner.build(graph.values)
        return tuple(inner.argument(v) for _, v in graph.outputs)


def _folded(value: Value) -> Value:
    """Fold a small value that depends on constants or on open sizes alone."""
    if known(value) is not None or not isinstance(value.type, TensorType):
        return value
    if not value.closed:
        return fold(value)
    if not value.type.is_static or value.type.size > SMALL:
        return value
    try:
        (data,) = evaluate(Graph((), (("", value),)), {})
    except MonographError:
        return value
    return constant(data)


def type_of(data: Any, declared: Type) -> Type:
    """Return the type of data where it says more than the declared type."""
    if isinstance(data, np.ndarray) and isinstance(declared, TensorType):
        return TensorType(from_numpy(data.dtype), data.shape)
    return declared
