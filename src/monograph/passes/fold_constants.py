"""Constant folding: compute expressions without inputs once, during compilation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monograph.errors import MonographError
from monograph.ir import Constant, Graph, TensorType, Value, constant, evaluate, topological
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Reshape, Transpose
from monograph.passes.base import Environment, Pass, substitute

CODE_BITS = 8


@dataclass(frozen=True)
class FoldConstants(Pass):
    """f(constants) -> constant, within a byte budget.

    An expression that makes its constants much larger (a broadcast, dequantised weights) stays,
    because memory traffic limits small batches. Weights of at most 8 bits that a dot reads stay
    too, because kernels read them packed.
    """

    small: int = 1 << 16
    """The size in bytes up to which a result is always folded."""
    growth: float = 2.0
    """The largest ratio of a larger result to the constants that it comes from."""
    budget: int = 1 << 30
    """The largest number of bytes of all results and intermediates together."""

    exact = True

    def run(self, graph: Graph, environment: Environment) -> Graph:
        roots: list[Value] = []
        left = self.budget
        weights = {v.inputs[1] for v in graph.values if isinstance(v.op, Dot)}
        pending = _closed_roots(graph)
        seen = set(pending)
        while pending:
            value = pending.pop(0)
            reason, cost = self._check(value, left)
            if not reason and value in weights and value.tensor.nbytes > self.small:
                reason = _coded(value)
            if not reason:
                roots.append(value)
                left -= cost
                continue
            environment.trace.note_missed(self.name, graph.place(value), reason, 100)
            # An expression that stays may have operands that need not: scales behind a reshape.
            inner = [v for v in _closed(value.inputs) if v not in seen]
            if value in weights and isinstance(value.op, (Transpose, Reshape)):
                weights.update(inner)
            seen.update(inner)
            pending += inner
        if not roots:
            return graph
        made: dict[Value, Value] = {}
        for value in roots[: environment.left]:
            try:
                (data,) = evaluate(Graph((), (("", value),)), {})
            except MonographError as e:
                origin = graph.place(value)
                environment.trace.note_missed(self.name, origin, f"it fails: {e.message}", 100)
                continue
            made[value] = constant(data)
            environment.trace.note_fired(
                self.name,
                graph.place(value),
                f"{value.op.name} : {value.type}",
                f"constant : {value.type}",
            )
        return substitute(graph, made) if made else graph

    def _check(self, value: Value, left: int) -> tuple[str, int]:
        """Return the reason not to fold an expression ("" to fold it), and the bytes it takes."""
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            return "the result has no static shape", 0
        total = leaves = 0
        for v in topological([value]):
            if not isinstance(v.type, TensorType) or not v.type.is_static:
                return "an intermediate has no static shape", 0
            total += 0 if isinstance(v.op, Constant) else v.type.nbytes
            leaves += v.type.nbytes if isinstance(v.op, Constant) else 0
        size = value.type.nbytes
        if total > left:
            return f"the byte budget is spent (expected at most {left:,}, given {total:,})", 0
        if size > self.small and size > self.growth * leaves:
            limit = f"{self.growth:g} x {leaves:,} bytes"
            return f"the constant would grow (expected at most {limit}, given {size:,})", 0
        return "", total


def _coded(weights: Value) -> str:
    """Return the reason not to fold dequantised weights of a dot; "" to fold them."""
    while isinstance(weights.op, (Transpose, Reshape)):
        weights = weights.inputs[0]
    if not isinstance(weights.op, Dequantize):
        return ""
    bits = weights.inputs[0].dtype.bits
    return f"weights of {bits} bits stay packed" if bits <= CODE_BITS else ""


def _closed_roots(graph: Graph) -> list[Value]:
    """Return the largest expressions without inputs: an output or another value reads them."""
    found: dict[Value, None] = {}
    for value in graph.values:
        if not value.closed:
            found.update(dict.fromkeys(_closed(value.inputs)))
    found.update(dict.fromkeys(_closed([v for _, v in graph.outputs])))
    return list(found)


def _closed(values: Iterable[Value]) -> list[Value]:
    """Return the expressions without inputs that are not constants yet."""
    return [v for v in values if v.closed and not isinstance(v.op, Constant)]
