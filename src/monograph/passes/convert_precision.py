"""Converts a model of f32 to f16 or bf16, and keeps in f32 what needs it.

First a decision for every value (`plan_precision`), then one walk that builds the graph. A value is
computed in one type only and is cast where a user wants the other, once for all such users; so no
cast of a cast arises. What decides, in this order:

1. An op that must stay in f32 does (see `precision_rules`).
2. Arithmetic on nothing but values that stay, stays: the mean, the variance and its square root.
   Arithmetic that joins such a value of wide range (a sum, a power, an integer) with others stays
   too: a whole norm or softmax then runs in f32, whatever arithmetic it is written in.
3. Arithmetic whose every user stays, stays: squares that are summed, differences that e is raised
   to.
4. Views of such values convert where all their users are converted: half the bytes are moved.
"""

from __future__ import annotations

from collections import Counter
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
    subgraphs,
)
from monograph.ir.dtype import f32, f64
from monograph.ir.graph import input_op
from monograph.ops.base import Comparison
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Clip
from monograph.ops.quant import Dequantize
from monograph.passes.base import Environment, Pass, map_subgraphs, users_of
from monograph.passes.precision_rules import (
    ARITHMETIC,
    MOVES,
    TOO_LARGE,
    has_wide_range,
    is_f32,
    is_flexible,
    kept_reason,
)

KEEP, CONVERT = "keep", "convert"
FOLLOWS = "what it reads stays in f32"
JOINS = "it reads a sum or another value of wide range"
FEEDS = "all that reads it stays in f32"
DONATED = "it is written into the memory of an input"


@dataclass(frozen=True)
class Kept:
    """A value that stays in f32."""

    op: str
    origin: str
    type: str
    reason: str


@dataclass(frozen=True)
class PrecisionReport:
    """What a conversion converts and what it keeps, sub-graphs included."""

    to: str
    converted: int
    kept: tuple[Kept, ...]

    def __str__(self) -> str:
        """A line for each op and reason, the most frequent first."""
        counts = Counter((k.op, k.reason) for k in self.kept)
        lines = [f"{self.converted} values in {self.to}, {len(self.kept)} kept in f32"]
        lines += [f"  {n} x {op}: {reason}" for (op, reason), n in counts.most_common()]
        return "\n".join(lines)


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
            environment.trace.note_missed(self.name, graph.origin(wide) or "", reason, 100)
            return graph
        inner = map_subgraphs(graph, lambda g: self._convert(g, environment, KEEP))
        return self._convert(inner, environment, self.inputs_outputs)

    def run_inside(self, graph: Graph, environment: Environment) -> Graph:
        """Sub-graphs are left to `run`: they keep the types they share with their graph."""
        return graph

    def _convert(self, graph: Graph, environment: Environment, edges: str) -> Graph:
        to = dtype(self.to)
        reasons = plan_precision(graph, to, edges)
        for value, reason in reasons.items():
            score = 50 if reason in (FOLLOWS, JOINS, FEEDS) else 100
            origin = graph.origin(value) or ""
            environment.trace.note_missed(self.name, origin, f"{value.op.name}: {reason}", score)
        narrow = [v for v in graph.values if converts(v) and v not in reasons]
        narrow = narrow[: environment.left]
        for value in narrow:
            environment.trace.note_fired(
                self.name,
                graph.origin(value) or "",
                f"{value.op.name} : {value.type}",
                f"{value.op.name} in {to}",
            )
        return _Builder(graph, to, edges, set(narrow), _large(graph, reasons)).run()


def precision_report(graph: Graph, to: str, edges: str = KEEP) -> PrecisionReport:
    """What a conversion of this graph would convert, and keep."""
    target = dtype(to)
    reports: list[tuple[int, list[Kept]]] = []

    def note(g: Graph, borders: str) -> Graph:
        reasons = plan_precision(g, target, borders)
        kept = [
            Kept(v.op.name, g.origin(v) or "", str(v.type), reason) for v, reason in reasons.items()
        ]
        narrow = sum(converts(v) and v not in reasons for v in g.values)
        reports.append((narrow, kept))
        return g

    if _find_f64(graph) is None:
        map_subgraphs(graph, lambda g: note(g, KEEP))
        note(graph, edges)
    total = sum(count for count, _ in reports)
    return PrecisionReport(to, total, tuple(k for _, kept in reports for k in kept))


def converts(value: Value) -> bool:
    """Whether a value could be computed in another float type: it reads or gives f32."""
    if isinstance(value.op, (Input, Constant)):
        return False
    if isinstance(value.op, Comparison):
        return is_f32(value.inputs[0].type)
    return is_f32(value.type)


def _find_f64(graph: Graph) -> Value | None:
    """A value of doubles, in the graph or its sub-graphs."""
    stack = [graph]
    while stack:
        for value in stack.pop().values:
            types = value.type.items if isinstance(value.type, TupleType) else (value.type,)
            if any(isinstance(t, TensorType) and t.dtype == f64 for t in types):
                return value
            stack.extend(subgraphs(value.op))
    return None


def plan_precision(graph: Graph, to: DType, edges: str = KEEP) -> dict[Value, str]:
    """The values that stay in f32, and why."""
    reasons: dict[Value, str] = {}
    wide: set[Value] = set()
    donated = {name for name, _ in graph.donations} if edges == KEEP else set()
    written = {v for name, v in graph.outputs if name in donated}
    for value in graph.values:
        if not reads_f32(value) and not converts(value):
            continue
        reason = DONATED if value in written else kept_reason(value, to)
        operands = [v for v in value.inputs if is_f32(v.type) and not isinstance(v.op, Constant)]
        if reason is None and is_flexible(value.op) and operands:
            if all(v in reasons for v in operands):
                reason = FOLLOWS
            elif any(v in wide for v in operands):
                reason = JOINS
            elif isinstance(value.op, Comparison) and any(v in reasons for v in operands):
                reason = FOLLOWS
        if reason is None:
            continue
        reasons[value] = reason
        carries = is_flexible(value.op) and bool(operands) and all(v in wide for v in operands)
        if carries or has_wide_range(value, reason):
            wide.add(value)
    _keep_what_feeds(graph, reasons)
    return {v: r for v, r in reasons.items() if converts(v)}


def reads_f32(value: Value) -> bool:
    return any(is_f32(v.type) for v in value.inputs)


def _keep_what_feeds(graph: Graph, reasons: dict[Value, str]) -> None:
    """Steps 3 and 4: what is between values that stay, and views that need not."""
    users = users_of(graph)
    outputs = {v for _, v in graph.outputs}
    for value in reversed(graph.values):
        if value in outputs or not users[value] or not converts(value):
            continue
        follows = reasons.get(value) == FOLLOWS
        if isinstance(value.op, ARITHMETIC) and value not in reasons:
            if all(reasons.get(u, FEEDS) != FEEDS for u in users[value]):
                reasons[value] = FEEDS
        elif isinstance(value.op, MOVES) and follows and _all_narrow(users[value], reasons):
            del reasons[value]


def _all_narrow(users: list[Value], reasons: dict[Value, str]) -> bool:
    return all(converts(u) and u not in reasons for u in users)


def _large(graph: Graph, reasons: dict[Value, str]) -> set[Value]:
    """Values that hold constants beyond the range of the narrow type, such as masks."""
    found: set[Value] = set()
    for value in graph.values:
        reason = reasons.get(value, "")
        follows = reason in (FOLLOWS, JOINS) and any(v in found for v in value.inputs)
        if follows or reason.startswith(TOO_LARGE):
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
        """A cast of the model: straight to the type that is wanted of it."""
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
        """A value of f32 in the type that a user wants; others as they are."""
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
