"""Shared parts of the op families: type checks, base classes, wide arithmetic of references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    DType,
    Narrowing,
    Op,
    Shape,
    TensorType,
    Type,
    Value,
    broadcast,
    from_numpy,
    known,
)
from monograph.ir.dtype import BOOL, FLOAT, INT, UINT, boolean
from monograph.ir.layout import LayoutPlan, Order, elementwise, widened
from monograph.ir.memory import MAX_RANK, check_result
from monograph.ir.sizes import hint_of
from monograph.ir.traits import LENGTH, MASK, NOTHING, Affine, Demand, IntRange, Known, RangeOf
from monograph.ops.scalar import Scalar, ScalarBuilder

NUMERIC = (FLOAT, INT, UINT)
INTEGRAL = (INT, UINT, BOOL)


def as_tensor(given: Type) -> TensorType:
    """Return the type of an operand that must be a tensor."""
    if not isinstance(given, TensorType):
        raise InferError("a tensor is needed", given=given)
    return given


def check_kinds(dtype: DType, kinds: tuple[str, ...]) -> None:
    if dtype.kind not in kinds:
        raise InferError("element type not accepted", expected=" or ".join(kinds), given=dtype)


def same_dtype(*types: TensorType) -> DType:
    """Return the element type that all operands must share."""
    first = as_tensor(types[0]).dtype
    for t in types[1:]:
        if as_tensor(t).dtype != first:
            raise InferError("operands have different element types", expected=first, given=t.dtype)
    return first


def check_rank(rank: int) -> int:
    """Return a rank that a tensor can have; a file may state a shape of any length."""
    if rank > MAX_RANK:
        raise InferError(
            "a tensor has too many dimensions", expected=f"at most {MAX_RANK}", given=rank
        )
    return rank


def normalise_axis(axis: int, rank: int) -> int:
    if rank == 0:
        raise InferError("a scalar has no axis", given=axis)
    if not -rank <= axis < rank:
        raise InferError("axis out of range", expected=f"{-rank}..{rank - 1}", given=axis)
    return axis + rank if axis < 0 else axis


def normalise_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return axes as ascending, non-negative, distinct numbers."""
    result = sorted(normalise_axis(a, rank) for a in axes)
    if len(set(result)) != len(result):
        raise InferError("an axis is named twice", given=list(axes))
    return tuple(result)


def widen(x: Array) -> Array:
    """Return an array in the type that the reference computes in (see `DType.compute`)."""
    return x.astype(from_numpy(x.dtype).compute, copy=False)


def narrow(x: Any, like: DType) -> Array:
    """Return a computed result, rounded once to its element type."""
    return np.asarray(x).astype(like.numpy, copy=False)


def check_allocation(shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse a result that the machine cannot hold, before numpy tries to allocate it."""
    check_result(shape, np.dtype(dtype).itemsize)


def known_sizes(given: Type) -> list[int]:
    """Return the sizes of a tensor that are known."""
    shape = given.shape if isinstance(given, TensorType) else None
    return [d for d in shape or () if isinstance(d, int)]


def unknown_shape(length: Type) -> Shape | None:
    """Return a shape of unknown sizes, of the rank that a vector of sizes has."""
    dims = as_tensor(length).dims
    if len(dims) != 1:
        raise InferError("a vector of sizes is needed", given=length)
    return None if isinstance(dims[0], str) else (UNKNOWN,) * check_rank(dims[0])


def unknown_like(x: TensorType) -> Shape | None:
    """Return a shape of unknown sizes, of the rank that x has."""
    return None if x.shape is None else (UNKNOWN,) * x.rank


class Elementwise(Op, abstract=True):
    """An op whose operands broadcast: it works in any order of dimensions."""

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return elementwise(value, widened(order, value.tensor.rank))

    def reach_order(self, value: Value, order: Order) -> LayoutPlan | None:
        return elementwise(value, order)


class ViewOp(Op, abstract=True):
    """An op whose result is its operand under another index map."""

    narrowing = Narrowing.MOVE
    never_larger = passes = view = True
    rounds = False


class Unary(Elementwise, abstract=True):
    """An elementwise op of one operand; a subclass gives `kinds`, and `function` or `compute`.

    Scalar builders have a method of the op's name; another op gives `scalar` itself.
    """

    kinds: ClassVar[tuple[str, ...]] = (FLOAT,)
    function: ClassVar[np.ufunc]
    """The function of numpy that computes it."""

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, self.kinds)
        return x

    def reference(self, x: Array) -> Array:
        return narrow(self.compute(widen(x)), from_numpy(x.dtype))

    def compute(self, x: Array) -> Array:
        """Return the result in the wide type that the reference computes in."""
        return np.asarray(self.function(x))

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        made: Scalar = getattr(b, self.name)(x)
        return made


class Predicate(Unary, abstract=True):
    """An elementwise op of one operand whose result is bool."""

    def infer(self, x: TensorType) -> TensorType:
        return super().infer(x).with_dtype(boolean)

    def reference(self, x: Array) -> Array:
        return np.asarray(self.compute(widen(x)), dtype=np.bool_)


class Binary(Elementwise, abstract=True):
    """An elementwise op of two operands of one element type, broadcast as numpy does.

    A subclass gives `function` or `compute`, and `scalar` unless builders have it by name.
    """

    kinds: ClassVar[tuple[str, ...]] = NUMERIC
    commutative: ClassVar[bool] = False
    function: ClassVar[np.ufunc]
    """The function of numpy that computes it."""

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        dtype = same_dtype(x, y)
        check_kinds(dtype, self.kinds)
        return TensorType(dtype, broadcast(x.shape, y.shape))

    def reference(self, x: Array, y: Array) -> Array:
        return narrow(self.compute(widen(x), widen(y)), from_numpy(x.dtype))

    def compute(self, x: Array, y: Array) -> Array:
        """Return the result in the wide type that the reference computes in."""
        return np.asarray(self.function(x, y))

    def scalar(self, b: ScalarBuilder, x: Scalar, y: Scalar) -> Scalar:
        made: Scalar = getattr(b, self.name)(x, y)
        return made


class BinaryArithmetic(Binary, abstract=True):
    """An elementwise op of two numbers through which integer ranges are followed."""

    def combine_ranges(self, x: IntRange, y: IntRange) -> IntRange | None:
        """Return the range of results from those of two operands."""
        return None

    def combine_affine(self, a: Affine, b: Affine, whole: bool) -> Affine | None:
        """Return the result of two alternatives; `whole` is True for integers."""
        return None

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        x, y = map(of, value.inputs)
        return None if x is None or y is None else self.combine_ranges(x, y)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        """Return the result of every pair of alternatives."""
        made: dict[Affine, None] = {}
        for a in given[0]:
            for b in given[1]:
                pair = (b, a) if self.commutative and a.source is None else (a, b)
                found = self.combine_affine(*pair, value.dtype.is_integer)
                if found is not None:
                    made[found] = None
        return tuple(made)


class Comparison(Binary, abstract=True):
    """An elementwise op of two operands whose result is bool."""

    narrowing = Narrowing.COMPARISON
    level = True
    limit_above: ClassVar[int] = 0
    """The least difference by which the right operand exceeds the left one."""

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        """Return lengths: a number that is compared with all places of an axis is one of them."""
        found = []
        for mine, others in ((0, given[1]), (1, given[0])):
            plain = [a for a in others if a.source is None]
            if not plain or len(plain) < len(others):
                continue
            low, high = min(a.low for a in plain), max(a.high for a in plain)
            if low == high:
                if self.commutative and low in (0, 1):
                    found.append(Demand(mine, MASK))
                continue
            more = self.limit_above if mine == 1 else 0
            why = f"compared with {low:g}..{high:g}"
            found.append(Demand(mine, LENGTH, low + more, high + more, why, must=False))
        return found

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return super().infer(x, y).with_dtype(boolean)

    def reference(self, x: Array, y: Array) -> Array:
        return np.asarray(self.compute(widen(x), widen(y)), dtype=np.bool_)


def layer_bound(value: Value, given: float, axis: int | None = None) -> float:
    """Return the bound of a layer: the largest sum of magnitudes of weights.

    A sum is along an axis of the weights; by default along all but the first.
    """
    weights = known(value.inputs[1])
    if weights is None or given == math.inf or not weights.size:
        return math.inf
    axes = tuple(range(1, weights.ndim)) if axis is None else axis
    norms = np.abs(weights.astype(np.float64)).sum(axis=axes)
    low, high = float(norms.min()), float(norms.max())
    return math.inf if math.isnan(low + high) else given * max(abs(low), abs(high))


def elements(value: Value) -> float:
    """Return the number of elements of a tensor; 0 where sizes are not known."""
    known = isinstance(value.type, TensorType) and value.type.is_static
    return float(hint_of(value.tensor.size)) if known else 0.0


def layer_operations(value: Value, terms: int) -> float:
    """Return the operations of a layer that sums so many products for each element.

    Products of bytes count a quarter: four are computed in the time of one of floats.
    """
    whole = all(v.dtype.is_integer and v.dtype.bits <= 8 for v in value.inputs)
    return 2.0 * float(hint_of(value.tensor.size)) * hint_of(terms) / (4 if whole else 1)


def along_axes(value: Value, axes: tuple[int, ...], known: Known) -> Known:
    """Return a sum of n numbers, none of them negative, which is at most n times the largest."""
    operand = value.inputs[0].tensor
    if operand.shape is None:
        return NOTHING
    sizes = [operand.dims[normalise_axis(a, operand.rank)] for a in axes]
    if not all(isinstance(d, int) for d in sizes):
        return NOTHING
    count = max(1, math.prod(d for d in sizes if isinstance(d, int)))
    return tuple(
        Affine(a.source, a.factor * count, min(a.low, a.low * count), a.high * count) for a in known
    )
