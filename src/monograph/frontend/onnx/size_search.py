"""The elements of integer values that are computed from known dimensions.

Nodes compute shapes, paddings and bounds of slices from the sizes of their inputs. A backward
search finds such numbers: ints, open sizes, symbols, or UNKNOWN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from monograph.errors import MonographError
from monograph.ir import UNKNOWN, Array, Dim, Op, TensorType, Value, known
from monograph.ir.dtype import boolean, i32, i64
from monograph.ir.sizes import any_open, hint_of, is_open
from monograph.ops import elementwise as ew
from monograph.ops import index, logic, scatter
from monograph.ops import reduce as red
from monograph.ops import shape as sh
from monograph.ops.cast import Cast
from monograph.ops.slice import Slice

Sizes: TypeAlias = tuple[Dim, ...] | None

MAX_LENGTH = 64
"""The most elements of a value that is taken as sizes."""
MAX_DEPTH = 24
"""The deepest chain that is searched for a size."""
MAX_VALUES = 256
"""The most values of one search."""
_MOVES = (
    sh.Reshape, sh.Squeeze, sh.Unsqueeze, sh.Transpose, sh.Broadcast, sh.Concat, Slice,
    index.Gather, index.GatherElements, index.GatherNd, scatter.ScatterElements, scatter.ScatterNd,
)  # fmt: skip
"""Ops that only move elements: their references serve for elements of any kind."""
_INDICES = {
    index.Gather: 1, index.GatherElements: 1, index.GatherNd: 1,
    scatter.ScatterElements: 1, scatter.ScatterNd: 1,
}  # fmt: skip
"""The operand of a move that says where to."""
_REDUCTIONS: dict[type[Op], Callable[[Any, Any], Any]] = {
    red.ReduceSum: operator.add,
    red.ReduceProd: operator.mul,
    red.ReduceMax: lambda x, y: y if x < y else x,
    red.ReduceMin: lambda x, y: x if x < y else y,
}


def known_sizes(value: Value) -> tuple[Dim, ...] | None:
    """Return the elements of a small integer value in order: ints, symbols or UNKNOWN.

    None for any other value, or if its length is not known.
    """
    search = _Search()
    found = search.sizes(value, MAX_DEPTH)
    if not search.cut:
        _found.update(search.seen)
    return found


_found: WeakKeyDictionary[Value, Sizes] = WeakKeyDictionary()
"""The results of earlier searches: nodes come in order, so each search ends at its inputs."""


@dataclass
class _Search:
    """One backward search from a value; `cut` is True if it stopped before the end."""

    seen: dict[Value, Sizes] = field(default_factory=dict)
    cut: bool = False

    def sizes(self, value: Value, depth: int) -> Sizes:
        if value in _found:
            return _found[value]
        if value not in self.seen:
            self.seen[value] = None
            length = _length(value)
            if length is not None:
                found = self._near(value, depth)
                fits = found is not None and len(found) == length
                self.seen[value] = found if fits else (UNKNOWN,) * length
        return self.seen[value]

    def _near(self, value: Value, depth: int) -> Sizes:
        if depth == 0 or len(self.seen) > MAX_VALUES:
            self.cut = True
            return None
        return _evaluate(value, self, depth - 1)


def _length(value: Value) -> int | None:
    kind = value.type
    # Arithmetic in narrower types would wrap.
    if not isinstance(kind, TensorType) or kind.dtype not in (i32, i64, boolean):
        return None
    if not kind.is_static or any_open(kind.static):
        return None
    return kind.size if kind.size <= MAX_LENGTH else None


def _evaluate(value: Value, search: _Search, depth: int) -> Sizes:
    data = known(value)
    if data is not None:
        return tuple(d if is_open(d) else int(d) for d in data.reshape(-1))
    op = value.op
    if isinstance(op, sh.ShapeOf):
        return value.inputs[0].tensor.shape
    operands = [search.sizes(v, depth) for v in value.inputs]
    lists = [found for found in operands if found is not None]
    if len(lists) < len(operands):
        return None
    if isinstance(op, Cast):
        return tuple(_cast(d, value.dtype == boolean) for d in lists[0])
    arrays = [_array(s, v) for s, v in zip(lists, value.inputs, strict=True)]
    if type(op) in _MOVES:
        made = _moved(op, arrays)
    elif type(op) in _REDUCTIONS:
        made = _reduced(op, arrays[0])
    else:
        made = _computed(value, arrays)
    return None if made is None else tuple(made.reshape(-1).tolist())


def _cast(number: Dim, to_bool: bool) -> Dim:
    if isinstance(number, str):
        return UNKNOWN if to_bool else number
    return int(number != 0) if to_bool else _limited(number)


def _array(sizes: tuple[Dim, ...], value: Value) -> Array:
    """Return the elements as an array of objects."""
    made = np.empty(len(sizes), object)
    made[:] = sizes
    return made.reshape(value.tensor.static)


def _moved(op: Op, arrays: list[Array]) -> Array | None:
    """Return the result of an op that only moves elements."""
    if isinstance(op, (scatter.ScatterElements, scatter.ScatterNd)) and op.reduction != "none":
        return None
    at = _INDICES.get(type(op))
    if at is not None:
        if not all(type(n) is int for n in arrays[at].reshape(-1)):
            return None
        arrays[at] = arrays[at].astype(np.int64)
    try:
        return np.asarray(op.reference(*arrays))
    except MonographError:
        return None  # the node itself will say why


def _reduced(op: Op, x: Array) -> Array | None:
    """Return the result of a reduction of numbers."""
    assert isinstance(op, red.Reduction)
    if not x.size or not all(isinstance(d, int) for d in x.reshape(-1)):
        return None
    axes = tuple(a % x.ndim for a in op.axes)
    count = int(np.prod([x.shape[a] for a in axes], dtype=int))
    rows = np.moveaxis(x, axes, range(-len(axes), 0)).reshape(-1, count)
    return _objects([_limited(reduce(_REDUCTIONS[type(op)], row)) for row in rows])


def _objects(found: list[Any]) -> Array:
    made = np.empty(len(found), object)
    made[:] = found
    return made


def _computed(value: Value, arrays: list[Array]) -> Array | None:
    """Return the result of an elementwise op; UNKNOWN where it is not known."""
    op = value.op
    compute = _ELEMENTWISE.get(type(op))
    if compute is None or (type(op) in _LOGIC and value.dtype != boolean):
        return None
    together = np.broadcast_arrays(*arrays)
    return _objects([compute(op, *d) for d in zip(*(a.reshape(-1) for a in together), strict=True)])


def _arithmetic(how: Callable[[Any, Any], Any]) -> Callable[..., Dim]:
    def compute(op: Op, x: Dim, y: Dim) -> Dim:
        if isinstance(x, int) and isinstance(y, int):
            return _limited(how(x, y))
        neutral = 1 if isinstance(op, (ew.Mul, ew.Div)) else 0
        if not isinstance(op, (ew.Add, ew.Sub, ew.Mul, ew.Div)):
            return UNKNOWN
        if isinstance(y, int) and y == neutral:
            return x
        other = isinstance(op, (ew.Mul, ew.Add)) and isinstance(x, int) and x == neutral
        return y if other else UNKNOWN

    return compute


def _limited(number: int) -> Dim:
    """Return a number that is exact in every integer type that sizes have."""
    return number if -(2**31) <= hint_of(number) < 2**31 else UNKNOWN


def _divided(x: int, y: int) -> Any:
    """Return x / y, rounded towards 0."""
    if y == 0:
        return 1 << 63
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _remainder(op: Op, x: Dim, y: Dim) -> Dim:
    assert isinstance(op, ew.Mod)
    if not (isinstance(x, int) and isinstance(y, int)) or y == 0:
        return UNKNOWN
    return x - _divided(x, y) * y if op.truncated else x % y


def _chosen(op: Op, condition: Dim, x: Dim, y: Dim) -> Dim:
    return UNKNOWN if isinstance(condition, str) else x if condition else y


def _numbers(how: Callable[..., Any]) -> Callable[..., Dim]:
    def compute(op: Op, *given: Dim) -> Dim:
        known_all = all(isinstance(d, int) for d in given)
        return _limited(how(*given)) if known_all else UNKNOWN

    return compute


_LOGIC = (logic.And, logic.Or, logic.Not)
"""Ops that work on bits of integers, and here on bool only."""
_ELEMENTWISE: dict[type[Op], Callable[..., Dim]] = {
    ew.Add: _arithmetic(operator.add),
    ew.Sub: _arithmetic(operator.sub),
    ew.Mul: _arithmetic(operator.mul),
    ew.Div: _arithmetic(_divided),
    ew.Mod: _remainder,
    ew.Min: _numbers(lambda x, y: x if x < y else y),
    ew.Max: _numbers(lambda x, y: y if x < y else x),
    ew.Neg: _numbers(operator.neg),
    ew.Abs: _numbers(abs),
    ew.Where: _chosen,
    logic.Equal: _numbers(lambda x, y: int(x == y)),
    logic.Less: _numbers(lambda x, y: int(x < y)),
    logic.LessEqual: _numbers(lambda x, y: int(x <= y)),
    logic.And: _numbers(lambda x, y: int(bool(x) and bool(y))),
    logic.Or: _numbers(lambda x, y: int(bool(x) or bool(y))),
    logic.Not: _numbers(lambda x: int(not x)),
}
