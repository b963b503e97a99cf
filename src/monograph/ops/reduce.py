"""Reductions along axes: sums, products, extremes and where they are, running totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    DType,
    Narrowing,
    Op,
    TensorType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.dtype import BOOL, COMPLEX, i64
from monograph.ir.layout import LayoutPlan, Need, Order, in_order, stored_axes, with_axes, without
from monograph.ir.sizes import greatest
from monograph.ir.traits import (
    MOST_DEGREE,
    SUMS_MANY,
    IntRange,
    Known,
    RangeOf,
    index_range,
    known_product,
)
from monograph.ops.base import (
    NUMERIC,
    along_axes,
    as_tensor,
    check_kinds,
    elements,
    narrow,
    normalise_axes,
    normalise_axis,
    widen,
)


def _lowest(dtype: DType) -> Any:
    if dtype.kind == BOOL:
        return False
    return -np.inf if dtype.is_float else np.iinfo(dtype.compute).min


def _highest(dtype: DType) -> Any:
    if dtype.kind == BOOL:
        return True
    return np.inf if dtype.is_float else np.iinfo(dtype.compute).max


@dataclass(frozen=True)
class Reduction(Op, abstract=True):
    """The base of reductions. Subclasses are dataclasses with `axes` and `keep`."""

    axes: tuple[int, ...]
    keep: bool = False
    kinds: ClassVar[tuple[str, ...]] = NUMERIC

    reads_expressions = True

    def canonical(self, *types: Type) -> Op:
        axes = normalise_axes(self.axes, as_tensor(types[0]).rank)
        return replace(self, axes=axes)

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, self.kinds)
        axes = normalise_axes(self.axes, x.rank)
        if self.keep:
            return x.with_shape(1 if i in axes else d for i, d in enumerate(x.dims))
        return x.with_shape(d for i, d in enumerate(x.dims) if i not in axes)

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        if axis in self.axes:
            return None
        return axis if self.keep else axis - sum(a < axis for a in self.axes)

    def operations(self, value: Value) -> float:
        return elements(value.inputs[0])

    def reference(self, x: Array) -> Array:
        return narrow(self.compute(widen(x)), from_numpy(x.dtype))

    def compute(self, x: Array) -> Array:
        raise NotImplementedError

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x, axes = as_tensor(types[0]), as_tensor(late["axes"])
        check_kinds(x.dtype, cls.kinds)
        if x.shape is None:
            return x
        if static.get("keep", False):
            return x.with_shape((UNKNOWN,) * x.rank)
        count: Dim = axes.dims[0] if axes.rank else 1
        if not isinstance(count, int):
            return x.with_shape(None)
        if count > x.rank:
            raise InferError("more axes than dimensions", expected=x, given=axes)
        return x.with_shape((UNKNOWN,) * (x.rank - count))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        after = order if self.keep else without(order, self.axes)
        moved = replace(self, axes=stored_axes(order, self.axes))
        return LayoutPlan(moved, (Need(order),), after)

    def operand_order(self, value: Value, order: Order) -> Order | None:
        if not self.keep:
            return with_axes(order, self.axes)
        return super().operand_order(value, order)


@dataclass(frozen=True)
class ReduceSum(Reduction):
    """The sum along axes, rounded once; integers wrap. Of nothing, 0; along no axis, x."""

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = linear = True
    kinds = (*NUMERIC, COMPLEX)
    samples = (
        sample("f32[4, 3]", axes=(1,)),
        sample("f32[2, 3, 4]", axes=(0, 2), keep=True),
        sample("f16[64]", axes=(0,)),
        sample("i32[4, 3]", axes=(-1,)),
        sample("f32[2, 0]", axes=(1,)),
        sample("f32[3]", axes=()),
    )

    def compute(self, x: Array) -> Array:
        return np.asarray(np.sum(x, axis=self.axes, keepdims=self.keep))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        (x,) = value.inputs
        static = x.tensor.is_static and value.tensor.is_static
        if not static or not value.tensor.size or given[0] == math.inf:
            return math.inf
        return given[0] * greatest(x.tensor.size // value.tensor.size)

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[0].dims[a] for a in self.axes)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return along_axes(value, self.axes, given[0])


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """The product along axes, rounded once; integers wrap. Of nothing, 1."""

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = True
    samples = (
        sample("f32[4, 3]", axes=(1,)),
        sample("i64[2, 3] in 1..5", axes=(0, 1)),
        sample("f32[2, 0]", axes=(1,), keep=True),
    )

    def compute(self, x: Array) -> Array:
        return np.asarray(np.prod(x, axis=self.axes, keepdims=self.keep))

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] * MOST_DEGREE

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[0].dims[a] for a in self.axes)


@dataclass(frozen=True)
class ReduceMax(Reduction):
    """The largest along axes; NaN if any is. Of nothing, the lowest value of the type."""

    narrowing = Narrowing.MOVE
    never_larger = True
    kinds = (*NUMERIC, BOOL)
    samples = (
        sample("f32[4, 3]", axes=(1,)),
        sample([[1.0, float("nan")], [3.0, 2.0]], axes=(1,)),
        sample("i8[4, 3]", axes=(0,), keep=True),
        sample("bool[4, 3]", axes=(0,)),
        sample("f32[2, 0]", axes=(1,)),
        sample("i32[0]", axes=(0,)),
    )

    def reference(self, x: Array) -> Array:
        like = from_numpy(x.dtype)
        return narrow(_extreme(np.max, widen(x), self.axes, self.keep, _lowest(like)), like)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]


@dataclass(frozen=True)
class ReduceMin(Reduction):
    """The smallest along axes; NaN if any is. Of nothing, the highest value of the type."""

    narrowing = Narrowing.MOVE
    never_larger = True
    kinds = (*NUMERIC, BOOL)
    samples = (
        sample("f32[4, 3]", axes=(1,)),
        sample("u8[4, 3]", axes=(0,), keep=True),
        sample("bool[4, 3]", axes=(0,)),
        sample("f32[2, 0]", axes=(1,)),
    )

    def reference(self, x: Array) -> Array:
        like = from_numpy(x.dtype)
        return narrow(_extreme(np.min, widen(x), self.axes, self.keep, _highest(like)), like)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]


def _extreme(function: Any, x: Array, axes: tuple[int, ...], keep: bool, empty: Any) -> Array:
    # An initial value would hide nothing but costs a pass; numpy needs it only for no elements.
    options = {"initial": empty} if 0 in x.shape else {}
    return np.asarray(function(x, axis=axes, keepdims=keep, **options))


@dataclass(frozen=True)
class ArgReduction(Op, abstract=True):
    """The base of ArgMax and ArgMin."""

    axis: int
    keep: bool = False
    last: bool = False

    level = reads_expressions = True

    def canonical(self, *types: Type) -> Op:
        axis = normalise_axis(self.axis, as_tensor(types[0]).rank)
        return replace(self, axis=axis)

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, NUMERIC)
        axis = normalise_axis(self.axis, x.rank)
        if x.dims[axis] == 0:
            raise InferError("no elements to choose from", given=x)
        kept: tuple[Dim, ...] = (1,) if self.keep else ()
        return TensorType(i64, x.dims[:axis] + kept + x.dims[axis + 1 :])

    def operations(self, value: Value) -> float:
        return elements(value.inputs[0])

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        if axis == self.axis:
            return None
        return axis if self.keep else axis - (self.axis < axis)

    def reference(self, x: Array) -> Array:
        wide = widen(x)
        if not self.last:
            return np.asarray(self.choose(wide))
        flipped = np.flip(wide, self.axis)
        return np.asarray(x.shape[self.axis] - 1 - self.choose(flipped))

    def choose(self, x: Array) -> Array:
        raise NotImplementedError

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        after = order if self.keep else without(order, (self.axis,))
        moved = replace(self, axis=order.index(self.axis))
        return LayoutPlan(moved, (Need(order),), after)

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        return index_range(value.inputs[0].tensor.static[self.axis])


@dataclass(frozen=True)
class ArgMax(ArgReduction):
    """The index of the largest along an axis: the first of equals, or with `last` the last."""

    samples = (
        sample("f32[4, 3]", axis=1),
        sample([[2, 2, 1], [1, 3, 3]], axis=1, last=True),
        sample("i8[4, 3]", axis=-2, keep=True),
    )

    def choose(self, x: Array) -> Array:
        return np.asarray(np.argmax(x, self.axis, keepdims=self.keep), np.int64)


@dataclass(frozen=True)
class ArgMin(ArgReduction):
    """The index of the smallest along an axis: the first of equals, or with `last` the last."""

    samples = (
        sample("f32[4, 3]", axis=1),
        sample([[1, 1, 2], [3, 1, 1]], axis=1, last=True),
    )

    def choose(self, x: Array) -> Array:
        return np.asarray(np.argmin(x, self.axis, keepdims=self.keep), np.int64)


@dataclass(frozen=True)
class Cumulative(Op, abstract=True):
    """The base of running totals."""

    axis: int
    exclusive: bool = False
    reverse: bool = False

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = linear = reads_expressions = True

    def canonical(self, *types: Type) -> Op:
        axis = normalise_axis(self.axis, as_tensor(types[0]).rank)
        return replace(self, axis=axis)

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, NUMERIC)
        normalise_axis(self.axis, x.rank)
        return x

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis; a total that runs from the end of it needs its last row."""
        return None if self.reverse and axis == self.axis else axis

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if axis != self.axis else None

    def reference(self, x: Array) -> Array:
        wide = widen(x)
        wide = np.flip(wide, self.axis) if self.reverse else wide
        total = self.running(wide)
        if self.exclusive:
            # One place on, with the neutral element in front.
            total = np.roll(total, 1, self.axis)
            total[(slice(None),) * (self.axis % x.ndim) + (slice(0, 1),)] = self.neutral
        total = np.flip(total, self.axis) if self.reverse else total
        return narrow(total, from_numpy(x.dtype))

    neutral: ClassVar[int]

    def running(self, x: Array) -> Array:
        raise NotImplementedError

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        check_kinds(as_tensor(types[0]).dtype, NUMERIC)
        return types[0]

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return in_order(value, order, axis=order.index(self.axis))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product([types[0].dims[self.axis]])


@dataclass(frozen=True)
class CumSum(Cumulative):
    """The running sum along an axis; `exclusive` leaves each element itself out, `reverse` runs
    from the end."""

    neutral = 0
    samples = (
        sample("f32[4, 3]", axis=1),
        sample("i32[5]", axis=0, exclusive=True),
        sample("f32[2, 3]", axis=-1, exclusive=True, reverse=True),
        sample("f32[2, 0]", axis=1, exclusive=True),
    )

    def running(self, x: Array) -> Array:
        return np.cumsum(x, self.axis, dtype=x.dtype)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return along_axes(value, (self.axis,), given[0])


@dataclass(frozen=True)
class CumProd(Cumulative):
    """The running product along an axis; `exclusive` and `reverse` as of CumSum."""

    neutral = 1
    samples = (
        sample("f32[4, 3]", axis=1),
        sample("i32[5] in 1..3", axis=0, exclusive=True, reverse=True),
    )

    def running(self, x: Array) -> Array:
        return np.cumprod(x, self.axis, dtype=x.dtype)

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] * MOST_DEGREE
