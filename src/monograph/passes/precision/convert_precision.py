"""The pass that converts a model of f32 to f16 or bf16, and keeps values in f32 that need it.

First a decision for every value (see `precision_plan`), then one walk that builds the graph. A
value is computed in one type only and is cast where a user wants the other, once for all such
users; so no cast of a cast arises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from monograph.errors import ConfigError
from monograph.ir import (
    Constant,
    DType,
    Graph,
    Input,
    TensorType,
    TupleType,
    Value,
    constant,
    dtype,
    known,
)
from monograph.ir.dtype import f32, f64
from monograph.ir.graph import all_values, input_op
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Clip
from monograph.ops.quant import Dequantize
from monograph.passes.base import Environment, Pass, map_subgraphs
from monograph.passes.precision.precision_plan import (
    CONVERT,
    FEEDS,
    FOLLOWS,
    JOINS,
    KEEP,
    MISFIT,
    Magnitudes,
    converts,
    plan_precision,
)
from monograph.passes.precision.precision_rules import GROWS, TOO_LARGE, is_f32


@dataclass(frozen=True)
class ConvertPrecision(Pass):
    """Computes in f16 or bf16 what does not need f32; models with f64 in them are left alone."""

    to: str = ""
    """"f16", "bf16", or "" to leave the model as it is."""
    inputs_outputs: str = KEEP
    """"keep" casts at the edges; "convert" gives f32 inputs and outputs the narrow type."""

    def run(self, graph: Graph, environment: Environment) -> Graph:
        if self.to not in ("", "f16", "bf16") or self.inputs_outputs not in (KEEP, CONVERT):
            raise ConfigError(
                "no such conversion",
                expected='to "", f16 or bf16; inputs_outputs keep or convert',
                given=f"to {self.to!r}; inputs_outputs {self.inputs_outputs!r}",
            )
        if not self.to:
            return graph
        wide = _find_f64(graph)
        if wide is not None:
            reason = f"the model computes in f64 (given {wide.op.name} : {wide.type})"
            environment.trace.note_missed(self.name, graph.place(wide), reason, 100)
            return graph
        sizes = Magnitudes(graph, dtype(self.to))
        for value, why in sizes.unknown.items():
            reason = f"{value.op.name}: the range of its numbers is not known ({why})"
            origin = graph.place(value)
            environment.trace.note_missed(self.name, origin, reason, 10, always=True)
        inner = map_subgraphs(graph, lambda g: self._convert(g, environment, KEEP, sizes))
        return self._convert(inner, environment, self.inputs_outputs, sizes)

    def run_inside(self, graph: Graph, environment: Environment) -> Graph:
        """Sub-graphs are left to `run`: they keep the types they share with their graph."""
        return graph

    def _convert(
        self, graph: Graph, environment: Environment, edges: str, sizes: Magnitudes
    ) -> Graph:
        to = dtype(self.to)
        reasons = plan_precision(graph, to, edges, sizes.of(graph))
        for value, reason in reasons.items():
            score = 50 if reason.startswith((FOLLOWS, JOINS, FEEDS, MISFIT)) else 100
            origin = graph.place(value)
            why = f"{value.op.name}: {reason}"
            environment.trace.note_missed(self.name, origin, why, score, always=True)
        narrow = [v for v in graph.values if converts(v) and v not in reasons]
        narrow = narrow[: environment.left]
        for value in narrow:
            environment.trace.note_fired(
                self.name,
                graph.place(value),
                f"{value.op.name} : {value.type}",
                f"{value.op.name} in {to}",
            )
        return _Builder(graph, to, edges, set(narrow), _large(graph, reasons)).run()


def _find_f64(graph: Graph) -> Value | None:
    """Return a value of doubles, in the graph or its sub-graphs."""
    for value in all_values(graph):
        types = value.type.items if isinstance(value.type, TupleType) else (value.type,)
        if any(isinstance(t, TensorType) and t.dtype == f64 for t in types):
            return value
    return None


def _large(graph: Graph, reasons: dict[Value, str]) -> set[Value]:
    """Values beyond the range of the narrow type that may be read in it all the same: masks."""
    found: set[Value] = set()
    for value in graph.values:
        reason = reasons.get(value, "")
        follows = reason in (FOLLOWS, JOINS) and any(v in found for v in value.inputs)
        if follows or reason.startswith((TOO_LARGE, GROWS)):
            found.add(value)
    return found


@dataclass
class _Builder:
    """The graph in which some values are computed in the narrow type."""

    graph: Graph
    to: DType
    edges: str
    narrow: set[Value]
    large: set[Value]

    def run(self) -> Graph:
        self.made: dict[Value, Value] = {}
        self.origins: dict[Value, str] = {}
        graph = self.graph
        for value in (*graph.inputs, *graph.values):
            if value not in self.made:
                self.made[value] = self._make(value)
                origin = graph.origin(value)
                if origin is not None and not isinstance(self.made[value].op, (Input, Constant)):
                    self.origins.setdefault(self.made[value], origin)
        edge = self.to if self.edges == CONVERT else f32
        return Graph(
            tuple(self.made[v] for v in graph.inputs),
            tuple((name, self._read(v, edge)) for name, v in graph.outputs),
            graph.name,
            self.origins,
            graph.donations,
        )

    def _make(self, value: Value) -> Value:
        op = value.op
        if isinstance(op, Input):
            if self.edges == CONVERT and is_f32(value.type):
                return Input(input_op(value).label, value.tensor.with_dtype(self.to))()
            return value
        if isinstance(op, Constant):
            return value
        if isinstance(op, Dequantize) and value in self.narrow:
            # Scales keep f32: they multiply before the result is rounded.
            return replace(op, to=self.to)(*(self._read(v, f32) for v in value.inputs))
        if isinstance(op, Cast):
            return self._cast(value)
        wanted = self.to if value in self.narrow else f32
        return op(*(self._read(v, wanted) for v in value.inputs))

    def _cast(self, value: Value) -> Value:
        """Return a cast of the model: straight to the type that is wanted of it."""
        assert isinstance(value.op, Cast)
        (x,) = value.inputs
        if value.dtype == self.to and is_f32(x.type):
            return self._read(x, self.to)
        made = self.made[x]
        if value.dtype.is_string:
            # The shortest text of a number depends on its type.
            return value.op(self._read(x, f32))
        if value not in self.narrow:
            return value.op(made)
        return made if made.dtype == self.to else Cast(self.to)(made)

    def _read(self, value: Value, wanted: DType) -> Value:
        """Return a value of f32 in the type that a user wants; others as they are."""
        made = self.made[value]
        if not is_f32(value.type) or made.dtype == wanted:
            return made
        data = known(made)
        if data is not None:
            return constant(np.asarray(data).astype(wanted.numpy))
        if isinstance(made.op, Cast):
            # Casts of the model that convert start from types that both float types hold.
            source = made.inputs[0]
            if source.dtype == wanted:
                return source
            made = made if source.dtype.is_float else source
        if value in self.large and wanted == self.to:
            # A finite mask stays finite: rows that are all masked still have a mean.
            limit = float(ml_dtypes.finfo(wanted.numpy).max)  # type: ignore[no-untyped-call]
            made = Clip(-limit, limit)(made)
        cast = Cast(wanted)(made)
        origin = self.graph.origin(value)
        if origin is not None:
            self.origins.setdefault(cast, origin)
        return cast
