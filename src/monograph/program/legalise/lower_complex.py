"""Complex numbers as pairs of real ones, for compiled code.

At inputs and outputs a complex tensor is its memory: the two parts side by side in a further
dimension. In between, views move each part, and sums and products become those of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Constant, DType, Graph, Input, TensorType, Value, constant, known
from monograph.ir.dtype import COMPLEX, c64, f32, f64
from monograph.ops.cast import Cast
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Mul, Sub, Where
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.reduce import CumSum, ReduceSum
from monograph.ops.scatter import ScatterElements, ScatterNd
from monograph.ops.shape import Concat, ShapeOf, Slice, Squeeze, Unsqueeze

_MOVES = (Concat, Gather, GatherElements, GatherNd, Pad, Where)
_SCATTERS = (ScatterElements, ScatterNd)
_SUMS = (Add, CumSum, ReduceSum, Sub)
_PRODUCTS = (Dot, Mul)
_END = (1 << 63) - 1

Pair = tuple[Value, Value]


class _WholeError(Exception):
    """Raised for an op that takes complex numbers as a whole."""


def real_of(dtype: DType) -> DType:
    """The type of the parts of a complex number."""
    return f32 if dtype == c64 else f64


def is_complex(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype.kind == COMPLEX


def in_parts(graph: Graph) -> Graph | None:
    """Return the graph on real and imaginary parts; None if it has no complex numbers, or an op
    that takes them as a whole.
    """
    if not any(map(is_complex, graph.values)):
        return None
    made: dict[Value, Value] = {}
    pairs: dict[Value, Pair] = {}
    origins = dict(graph.origins)
    try:
        for value in dict.fromkeys((*graph.inputs, *graph.values)):
            results = _translate(value, made, pairs)
            if value in graph.origins:
                origins |= dict.fromkeys(results, graph.origins[value])
        outputs = tuple((n, _joined(pairs[v]) if v in pairs else made[v]) for n, v in graph.outputs)
    except (_WholeError, MonographError):
        return None
    return Graph(tuple(made[v] for v in graph.inputs), outputs, graph.name, origins)


def _translate(value: Value, made: dict[Value, Value], pairs: dict[Value, Pair]) -> Pair:
    """Translate a value: itself on new operands, or its two parts."""
    touched = [v for v in value.inputs if v in pairs]
    if isinstance(value.op, ShapeOf) and touched:
        made[value] = value.op(pairs[touched[0]][0])
    elif not touched and not is_complex(value):
        inputs = tuple(made[v] for v in value.inputs)
        made[value] = value if inputs == value.inputs else value.op(*inputs)
    else:
        if isinstance(value.op, Input):
            made[value] = Input(value.op.label, _beside(value.tensor))()
            pairs[value] = _split_parts(made[value])
        else:
            pairs[value] = _pair(value, made, pairs)
        if not is_complex(value):
            raise _WholeError
        return pairs[value]
    return made[value], made[value]


def _pair(value: Value, made: dict[Value, Value], pairs: dict[Value, Pair]) -> Pair:
    op = value.op
    if isinstance(op, Constant):
        data = known(value)
        assert data is not None
        return constant(data.real.copy()), constant(data.imag.copy())
    if isinstance(op, Cast):
        to = replace(op, to=real_of(op.to))
        (x,) = value.inputs
        if x in pairs:
            return to(pairs[x][0]), to(pairs[x][1])
        real = to(made[x])
        # Not x * 0, which is NaN for an infinite x.
        nothing = constant(np.zeros((), real.dtype.numpy))
        return real, Where()(constant(np.array(True)), nothing, real)
    if isinstance(op, _PRODUCTS) and all(v in pairs for v in value.inputs):
        return _product(replace(op, out=None) if isinstance(op, Dot) else op, value, pairs)
    plain = isinstance(op, _SCATTERS) and op.reduction in ("none", "add")
    kind = op.target_class if isinstance(op, Deferred) else type(op)
    if not plain and not kind.view and not issubclass(kind, (*_MOVES, *_SUMS)):
        raise _WholeError
    first, second = (
        op(*(pairs[v][k] if v in pairs else made[v] for v in value.inputs)) for k in (0, 1)
    )
    return first, second


def _product(op: Callable[..., Value], value: Value, pairs: dict[Value, Pair]) -> Pair:
    (a, b), (c, d) = (pairs[v] for v in value.inputs)
    return Sub()(op(a, c), op(b, d)), Add()(op(a, d), op(b, c))


def _beside(type_: TensorType) -> TensorType:
    """Return the type of complex numbers as memory."""
    if type_.shape is None:
        raise _WholeError
    return TensorType(real_of(type_.dtype), (*type_.shape, 2))


def _split_parts(x: Value) -> Pair:
    rank = x.tensor.rank
    stops = tuple(d if isinstance(d, int) else _END for d in x.tensor.dims[:-1])
    first, second = (
        Squeeze((rank - 1,))(Slice((0,) * (rank - 1) + (k,), (*stops, k + 1), (1,) * rank)(x))
        for k in (0, 1)
    )
    return first, second


def _joined(pair: Pair) -> Value:
    if pair[0].tensor.shape is None:
        raise _WholeError
    rank = pair[0].tensor.rank
    return Concat(rank)(*(Unsqueeze((rank,))(x) for x in pair))
