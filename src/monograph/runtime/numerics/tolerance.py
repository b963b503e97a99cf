"""Tolerances: the distance of two right answers, derived from the graph for each output.

Every float op rounds its result, so two implementations that are both right differ by about one
unit in the last place (eps) of each result, and a sum of K terms by one more per term, in the
precision of the accumulator (acc: f32, or f64 for f64). Roundings are independent, so they add as
variances do: along a path of ops the expected relative difference is

    sqrt(sum over the path of: eps^2 + (K - 1) * acc^2)

and the worst path to an output gives that output's figure. A quantiser, which rounds floats to
integers of at most 8 bits, turns the smallest difference into a whole step for those elements
that lie on an edge between two steps; it counts with half a step of its range, eps = 2^-bits.
Loop bodies count once: trip counts are data. Which sums there are, and how long they are, is in
`terms`. An element is allowed `MARGIN` times the figure, relative to itself alone.

Errors arise at the scale of the values that are summed, not at the scale of what is left after
they cancel. So an element that is beyond this is allowed `MARGIN` times its *spread* more: how far
the roundings of this very run move this very element (`runtime.numerics.spread`).

A sample between pixels moves with its place: a place that is a fraction f of an axis of n pixels
away gives a value that is up to 2 n f of the largest pixel away, so what places differ by counts
n times (`gain`).

A dot may permit its left operand to be rounded to few bits: half a step of those counts too.

A file may allow more than its graph shows: `MatMulNBits` with an `accuracy_level` lets others
round the left operand to f16, bf16 or 8-bit integers (the reference does not).

Integers, bools and strings must be equal; quantised outputs (integers of at most 8 bits, rounded
from floats) may differ by one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes

from monograph.frontend.onnx import ModelFile
from monograph.frontend.onnx.functions import FunctionKey, all_nodes
from monograph.frontend.onnx.node import normalise_domain
from monograph.ir import (
    Array,
    DType,
    Graph,
    MapType,
    TensorType,
    TupleType,
    Type,
    Value,
    subgraphs,
)
from monograph.ir.dtype import COMPLEX, f32
from monograph.ir.op import STRUCTURE

MARGIN = 4.0
"""Room for ops that amplify the differences of their inputs (sums that cancel, steep curves)."""
QUANTISED_BITS = 8
F32_EPSILON = 2.0**-23
TF32_EPSILON = 2.0**-10
RUNS = (2, 8, 16)
"""Disturbed runs in all: each next number where the one before leaves an element unexplained."""
MORE_RUNS = (64,)
"""The runs where the worst element is near, or few elements of integers and strings differ: a few
among many thousands move too little in 16."""
NEAR = 2.0
"""The largest share of the tolerance that is near."""
_LEVELS = {2: 2.0**-10, 3: 2.0**-7, 4: 2.0**-8}
"""Half a step or one eps of the left operand at each accuracy level: f16, bf16, i8."""


class Reach(Protocol):
    """The distance by which roundings may move each element of an output."""

    def reach(
        self, place: Any, any_row: bool = False, runs: Sequence[int] = RUNS
    ) -> Iterator[Array]:
        """Yields it from so many runs each: from a cheap measurement first, then better ones."""


@dataclass(frozen=True)
class Tolerance:
    """|given - expected| <= rtol * |expected| + atol + reach, element by element."""

    rtol: float = 0.0
    atol: float = 0.0
    spread: Reach | None = field(default=None, compare=False, repr=False)
    """Measures the reach, where the rest leaves an element unexplained; None: no reach."""


EXACT = Tolerance()


def derive(graph: Graph, allowed: float = 0.0, *, tf32: bool = False) -> dict[str, Tolerance]:
    """The tolerance of every output of a graph, without spread; `allowed`: what the file grants.

    With `tf32` both operands of an f32 product may be rounded to 10 bits of mantissa.
    """
    extra = TF32_EPSILON**2 if tf32 else 0.0
    found = variances(graph.values, dict.fromkeys(graph.inputs, 0.0), extra)
    return {name: tolerance_for(v.type, found[v] + allowed) for name, v in graph.outputs}


def allowed_by_file(model: ModelFile) -> float:
    """Return the variance that a file's own accuracy levels allow other implementations."""
    return _allowed(model, model.proto.graph.node, {})


def _allowed(model: ModelFile, nodes: object, known: dict[FunctionKey, float]) -> float:
    """Return the variance of these nodes; the importer limits the depth of function calls."""
    total = 0.0
    for node in all_nodes(nodes):
        key = FunctionKey(normalise_domain(node.domain), node.op_type, node.overload)
        function = model.functions.get(key)
        if function is not None:
            if key not in known:
                known[key] = _allowed(model, function.node, known)
            total += known[key]
        elif node.op_type == "MatMulNBits":
            level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
            total += _LEVELS.get(level, 0.0) ** 2
    return total


def epsilon(dtype: DType) -> float:
    """Return the spacing of the floats just above 1; of a complex type, that of its parts."""
    if dtype.kind == COMPLEX:
        return F32_EPSILON if dtype.bits == 64 else 2.0**-52
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def tolerance_for(type_: Type, variance: float) -> Tolerance:
    """Return the tolerance of a value of a type with this expected squared difference."""
    dtype = _element(type_)
    if dtype is None:
        return EXACT
    if dtype.is_float or dtype.kind == COMPLEX:
        # Whatever was computed before, the output itself is rounded on both sides.
        return Tolerance(rtol=MARGIN * max(math.sqrt(variance), epsilon(dtype)))
    if dtype.is_integer and dtype.bits <= QUANTISED_BITS and variance > 0:
        return Tolerance(atol=1.0)
    return EXACT


def variances(
    values: Iterable[Value], given: Mapping[Value, float], product: float = 0.0
) -> dict[Value, float]:
    """Return the expected squared relative difference of values, each along its worst path.

    Values come in an order in which they can be computed, from `given` ones. `product` is what
    rounding the operands of an f32 product adds.
    """
    result: dict[Value, float] = dict(given)
    for value in values:
        if value in result:
            continue
        found = (result[v] * gain(value, i) for i, v in enumerate(value.inputs))
        incoming = max(found, default=0.0)
        worst = incoming
        for body in subgraphs(value.op):
            # Which input feeds which formal differs between control-flow ops; the worst serves all.
            inner = variances(body.values, dict.fromkeys(body.inputs, incoming), product)
            worst = max([worst, *(inner[v] for _, v in body.outputs)])
        result[value] = worst + own_variance(value)
        if product and len(value.inputs) > 1 and _element(value.type) == f32:
            result[value] += product if contraction(value) > 1 else 0.0
    return result


def gain(value: Value, index: int) -> float:
    """Return the factor by which a squared difference of an operand counts in the result."""
    types = [v.type for v in value.inputs if isinstance(v.type, TensorType)]
    return value.op.operand_gain(index, *types) if len(types) == len(value.inputs) else 1.0


def contraction(value: Value) -> int:
    """Return how many terms are summed into one element of a value; at least 1."""
    types = [v.type for v in value.inputs if isinstance(v.type, TensorType)]
    if len(types) < len(value.inputs) or any(t.shape is None for t in types):
        return 1
    return max(1, value.op.accumulation_length(*types))


def own_variance(value: Value) -> float:
    """Return the variance that a value's own rounding adds."""
    if isinstance(value.op, STRUCTURE) or subgraphs(value.op):
        return 0.0
    dtype = _element(value.type)
    if dtype is None:
        return 0.0
    if dtype.is_float or dtype.kind == COMPLEX:
        own = epsilon(dtype)
        permitted = value.op.permitted_rounding()
        # Places are scaled to pixels first, which rounds them.
        places = 0.0 if (more := gain(value, 1)) == 1.0 else more * F32_EPSILON**2
        sums = (contraction(value) - 1) * min(own, F32_EPSILON) ** 2
        return own**2 + sums + permitted**2 + places
    reads_float = any((d := _element(v.type)) is not None and d.is_float for v in value.inputs)
    if dtype.is_integer and dtype.bits <= QUANTISED_BITS and reads_float:
        return (2.0**-dtype.bits) ** 2
    return 0.0


def _element(type_: Type) -> DType | None:
    """Return the element type that decides the rounding of a value."""
    if isinstance(type_, TensorType):
        return type_.dtype
    if isinstance(type_, MapType):
        return type_.value
    if isinstance(type_, TupleType):
        kinds = [d for t in type_.items if (d := _element(t)) is not None]
        return max(kinds, key=lambda d: epsilon(d) if d.is_float else 0.0, default=None)
    return _element(type_.element)
