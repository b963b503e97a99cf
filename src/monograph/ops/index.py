"""Reading and writing at positions that are data: gathers and scatters.

A negative index counts from the end. An index out of range is an ExecutionError, never a wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, Narrowing, Op, TensorType, Type, Value, sample
from monograph.ir.layout import LayoutPlan, Need, Order, plain
from monograph.ir.traits import INDEX, Demand, IntRange, Known, RangeOf
from monograph.ir.types import merge_dims
from monograph.ops.base import (
    as_tensor,
    check_allocation,
    normalise_axis,
)


def check_indices(indices: TensorType) -> None:
    if not as_tensor(indices).dtype.is_integer:
        raise InferError("indices are integers", given=indices)


def bounded(indices: Array, size: int) -> Array:
    """Indices into a dimension of this size, as non-negative numbers."""
    wide = indices.astype(np.int64)
    wrong = (wide < -size) | (wide >= size)
    if wrong.any():
        raise ExecutionError(
            "an index is out of range", expected=f"{-size}..{size - 1}", given=int(wide[wrong][0])
        )
    return np.where(wide < 0, wide + size, wide)


def demand_index(data: Value, axis: int) -> list[Demand]:
    """Return the range of indices (operand 1) into an axis."""
    if not isinstance(data.type, TensorType) or data.type.shape is None:
        return []
    size = data.tensor.dims[normalise_axis(axis, data.tensor.rank)]
    if not isinstance(size, int) or size <= 0:
        return []
    return [Demand(1, INDEX, 0, size - 1, f"an index of {size} rows")]


def demand_point(data: Value, batch: int) -> list[Demand]:
    """Return the range of coordinates (operand 1): the smallest axis bounds them all."""
    if not isinstance(data.type, TensorType) or data.type.shape is None:
        return []
    sizes = [d for d in data.type.shape[batch:] if isinstance(d, int) and d > 0]
    if not sizes:
        return []
    return [Demand(1, INDEX, 0, min(sizes) - 1, f"an index of {min(sizes)} rows")]


@dataclass(frozen=True)
class IndexedAxis(Op, abstract=True):
    """An op with an `axis` of its first operand."""

    axis: int

    def canonical(self, *types: Type) -> Op:
        x = as_tensor(types[0])
        if x.shape is None:
            return self
        axis = normalise_axis(self.axis, x.rank)
        return replace(self, axis=axis)


class IndexedLookup(Op, abstract=True):
    """The base of ops whose results are elements of the first operand, at indices that are data."""

    narrowing = Narrowing.MOVE
    never_larger = looks_up = checks_operands = True

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0]

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        return of(value.inputs[0])


@dataclass(frozen=True)
class Gather(IndexedLookup, IndexedAxis):
    """Slices of x along an axis, one for each index: the indices' shape replaces the axis."""

    samples = (
        sample("f32[5, 3]", "i64[2, 4] in -5..4", axis=0),
        sample("f32[2, 5, 3]", "i32[] in 0..4", axis=-2),
        sample("i8[4]", "i64[0]", axis=0),
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(indices)
        if as_tensor(x).shape is None or indices.shape is None:
            return x.with_shape(None)
        axis = normalise_axis(self.axis, x.rank)
        return x.with_shape((*x.dims[:axis], *indices.shape, *x.dims[axis + 1 :]))

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of what is not indexed, or of the indices, which must be in range."""
        if index == 1:
            return self.axis + axis
        if axis == self.axis:
            return None
        return axis if axis < self.axis else axis + types[1].rank - 1

    def reference(self, x: Array, indices: Array) -> Array:
        axis = normalise_axis(self.axis, x.ndim)
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        check_allocation(shape, x.dtype)
        # Advanced indexing and not `take`: it also serves empty dimensions.
        picked = x[(slice(None),) * axis + (bounded(indices, x.shape[axis]),)]
        return np.asarray(picked, x.dtype)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_index(value.inputs[0], self.axis)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        if index:
            return None
        count = value.inputs[1].tensor.rank
        after: list[int] = []
        for d in order:
            if d == self.axis:
                after.extend(range(d, d + count))
            else:
                after.append(d if d < self.axis else d + count - 1)
        op = Gather(order.index(self.axis))
        return LayoutPlan(op, (Need(order), Need(plain(count))), tuple(after))


@dataclass(frozen=True)
class GatherElements(IndexedLookup, IndexedAxis):
    """result[i, j, ...] = x[i, indices[i, j, ...], ...], the index standing at the axis."""

    samples = (
        sample("f32[3, 4]", "i64[3, 2] in -4..3", axis=1),
        sample("f32[3, 4]", "i32[2, 3] in 0..2", axis=0),
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(indices)
        check_ranks(x, indices)
        return x.with_shape(indices.shape)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if axis != self.axis else None

    def reference(self, x: Array, indices: Array) -> Array:
        picked: Array = x[element_places(x, indices, normalise_axis(self.axis, x.ndim))]
        return picked

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_index(value.inputs[0], self.axis)


@dataclass(frozen=True)
class GatherNd(IndexedLookup):
    """The last dimension of the indices holds coordinates into x; the rest of x follows.

    The first `batch_dims` dimensions of both go together and are not indexed.
    """

    batch_dims: int = 0

    samples = (
        sample("f32[2, 3]", [[0, 1], [1, -1]]),
        sample("f32[4, 3]", [[1], [3]]),
        sample("f32[2, 3, 4]", "i64[2, 5, 1] in 0..2", batch_dims=1),
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(indices)
        if as_tensor(x).shape is None or indices.shape is None:
            return x.with_shape(None)
        depth, batch = coordinates_of(x, indices), self.batch_dims
        if depth is None:
            return x.with_shape(None)
        if not 0 <= batch < indices.rank or batch + depth > x.rank:
            raise InferError("coordinates do not fit the tensor", expected=x, given=indices)
        leading = map(merge_dims, x.dims[:batch], indices.dims[:batch])
        return x.with_shape((*leading, *indices.dims[batch:-1], *x.dims[batch + depth :]))

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of the indices, which must be in range, where it holds no coordinates."""
        plain = index == 1 and not self.batch_dims and axis < types[1].rank - 1
        return axis if plain else None

    def reference(self, x: Array, indices: Array) -> Array:
        batch, depth = self.batch_dims, indices.shape[-1]
        if x.shape[:batch] != indices.shape[:batch] or batch + depth > x.ndim:
            raise ExecutionError(
                "coordinates do not fit the tensor", expected=x.shape, given=indices.shape
            )
        check_allocation((*indices.shape[:-1], *x.shape[batch + depth :]), x.dtype)
        places = [
            np.arange(x.shape[i]).reshape([-1 if j == i else 1 for j in range(indices.ndim - 1)])
            for i in range(batch)
        ]
        places += [bounded(indices[..., i], x.shape[batch + i]) for i in range(depth)]
        if depth == 0:  # no coordinate: each index stands for the whole of its batch
            places.append(np.zeros(indices.shape[:-1], np.int64))
            x = np.expand_dims(x, batch)
        return np.asarray(x[tuple(places)], x.dtype)

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_point(value.inputs[0], self.batch_dims)


def check_ranks(x: TensorType, indices: TensorType) -> None:
    if as_tensor(x).shape is None or indices.shape is None:
        return
    if x.rank != indices.rank or x.rank == 0:
        raise InferError("indices have the rank of the tensor", expected=x, given=indices)


def coordinates_of(x: TensorType, indices: TensorType) -> int | None:
    """Return how many dimensions of x each index names; None where that is not known."""
    if indices.rank == 0:
        raise InferError("indices are vectors of coordinates", expected="rank >= 1", given=indices)
    depth = indices.dims[-1]
    if not isinstance(depth, int):
        return None
    if depth > x.rank:
        raise InferError("more coordinates than dimensions", expected=x, given=indices)
    return depth


def element_places(x: Array, indices: Array, axis: int) -> tuple[Any, ...]:
    """Return an index tuple that puts each index at the axis and its own position elsewhere."""
    for i, (limit, used) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and used > limit:
            raise ExecutionError(
                "indices reach beyond the tensor", expected=x.shape, given=indices.shape
            )
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = bounded(indices, x.shape[axis])
    return tuple(places)
