"""Reading and writing at positions that are data: gathers and scatters.

A negative index counts from the end. An index out of range is an ExecutionError, never a wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Narrowing, Op, TensorType, Type, Value, from_numpy, sample
from monograph.ir.affine import INDEX, Demand, IntRange, Known, united
from monograph.ir.dtype import BOOL, COMPLEX
from monograph.ir.layout import LayoutPlan, Need, Order, plain
from monograph.ir.traits import known_product
from monograph.ir.types import merge_dims
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    narrow,
    normalise_axis,
    same_dtype,
    widen,
)

REDUCTIONS = ("none", "add", "mul", "min", "max")


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


class _AlongAxis(Op, abstract=True):
    """An op with an `axis` of its first operand."""

    axis: int

    def canonical(self, *types: Type) -> Op:
        x = as_tensor(types[0])
        if x.shape is None:
            return self
        axis = normalise_axis(self.axis, x.rank)
        return replace(self, axis=axis)  # type: ignore[type-var]


@dataclass(frozen=True)
class Gather(_AlongAxis):
    """Slices of x along an axis, one for each index: the indices' shape replaces the axis."""

    axis: int

    narrowing = Narrowing.MOVE
    never_larger = looks_up = checks_operands = True
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

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0]

    def integer_range(
        self, value: Value, of: Callable[[Value], IntRange | None], item: int = 0
    ) -> IntRange | None:
        return of(value.inputs[0])

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
class GatherElements(_AlongAxis):
    """result[i, j, ...] = x[i, indices[i, j, ...], ...], the index standing at the axis."""

    axis: int

    narrowing = Narrowing.MOVE
    never_larger = looks_up = checks_operands = True
    samples = (
        sample("f32[3, 4]", "i64[3, 2] in -4..3", axis=1),
        sample("f32[3, 4]", "i32[2, 3] in 0..2", axis=0),
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(indices)
        _check_ranks(x, indices)
        return x.with_shape(indices.shape)

    def reference(self, x: Array, indices: Array) -> Array:
        picked: Array = x[_element_places(x, indices, normalise_axis(self.axis, x.ndim))]
        return picked

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0]

    def integer_range(
        self, value: Value, of: Callable[[Value], IntRange | None], item: int = 0
    ) -> IntRange | None:
        return of(value.inputs[0])

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return given[0]

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_index(value.inputs[0], self.axis)


@dataclass(frozen=True)
class GatherNd(Op):
    """The last dimension of the indices holds coordinates into x; the rest of x follows.

    The first `batch_dims` dimensions of both go together and are not indexed.
    """

    batch_dims: int = 0

    narrowing = Narrowing.MOVE
    never_larger = looks_up = checks_operands = True
    samples = (
        sample("f32[2, 3]", [[0, 1], [1, -1]]),
        sample("f32[4, 3]", [[1], [3]]),
        sample("f32[2, 3, 4]", "i64[2, 5, 1] in 0..2", batch_dims=1),
    )

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        check_indices(indices)
        if as_tensor(x).shape is None or indices.shape is None:
            return x.with_shape(None)
        depth, batch = _coordinates(x, indices), self.batch_dims
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

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0]

    def integer_range(
        self, value: Value, of: Callable[[Value], IntRange | None], item: int = 0
    ) -> IntRange | None:
        return of(value.inputs[0])

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_point(value.inputs[0], self.batch_dims)


@dataclass(frozen=True)
class ScatterElements(_AlongAxis):
    """x with updates written at x[i, indices[i, j, ...], ...], the index standing at the axis.

    Where an index comes twice the reduction joins the updates; with "none" the last one stays.
    """

    axis: int
    reduction: str = "none"

    updates_first = checks_operands = True
    samples = (
        sample("f32[3, 4]", [[1, 3], [0, -1], [2, 1]], "f32[3, 2]", axis=1),
        sample("f32[4]", [1, 1, -1], "f32[3]", axis=0, reduction="add"),
        sample("f16[4]", [1, 1, 0], "f16[3]", axis=0, reduction="mul"),
        sample("i32[4]", [1, 1, 0], "i32[3]", axis=0, reduction="max"),
    )

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        check_indices(indices)
        _check_reduction(self.reduction, x)
        same_dtype(x, updates)
        _check_ranks(x, indices)
        if indices.shape is not None and updates.shape is not None:
            if indices.rank != updates.rank:
                raise InferError("one update for each index", expected=indices, given=updates)
            for a, b in zip(indices.dims, updates.dims, strict=True):
                merge_dims(a, b)
        return x

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        if indices.shape != updates.shape:
            raise ExecutionError(
                "one update for each index", expected=indices.shape, given=updates.shape
            )
        places = _element_places(x, indices, normalise_axis(self.axis, x.ndim))
        return _scattered(x, places, updates, self.reduction)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(given[0], given[2])

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_index(value.inputs[0], self.axis)


@dataclass(frozen=True)
class ScatterNd(Op):
    """x with updates written at the coordinates in the last dimension of the indices.

    Where coordinates come twice the reduction joins the updates; with "none" the last one stays.
    """

    reduction: str = "none"

    updates_first = checks_operands = True
    samples = (
        sample("f32[4, 3]", [[0], [-1]], "f32[2, 3]"),
        sample("f32[4, 3]", [[0, 1], [0, 1]], "f32[2]", reduction="add"),
        sample("i64[4]", [[1], [1]], "i64[2]", reduction="min"),
    )

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        check_indices(indices)
        _check_reduction(self.reduction, x)
        same_dtype(x, updates)
        if x.shape is None or indices.shape is None or updates.shape is None:
            return x
        depth = _coordinates(x, indices)
        if depth is None:
            return x
        wanted = (*indices.dims[:-1], *x.dims[depth:])
        if len(wanted) != updates.rank:
            raise InferError("updates do not fit", expected=x.with_shape(wanted), given=updates)
        for a, b in zip(wanted, updates.dims, strict=True):
            merge_dims(a, b)
        return x

    def reference(self, x: Array, indices: Array, updates: Array) -> Array:
        depth = indices.shape[-1]
        wanted = (*indices.shape[:-1], *x.shape[depth:])
        if depth > x.ndim or wanted != updates.shape:
            raise ExecutionError("updates do not fit", expected=wanted, given=updates.shape)
        places = tuple(bounded(indices[..., i], x.shape[i]) for i in range(depth))
        if depth == 0:  # every update is for the whole of x
            places = (np.zeros(indices.shape[:-1], np.int64),)
            return np.squeeze(_scattered(x[None], places, updates, self.reduction), 0)
        return _scattered(x, places, updates, self.reduction)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(given[0], given[2])

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        return demand_point(value.inputs[0], 0)


@dataclass(frozen=True)
class Col2Im(Op):
    """The sum of blocks laid over an image: x[n, c * block, block number] to [n, c, *image].

    Blocks are numbered in row-major order, as a convolution of these strides would visit them.
    """

    image: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    costly = True
    samples = (
        sample(
            "f32[1, 4, 4]", image=(3, 3), block=(2, 2), strides=(1, 1), dilations=(1, 1),
            pads_begin=(0, 0), pads_end=(0, 0),
        ),
        sample(
            "f32[2, 6, 3]", image=(5,), block=(3,), strides=(2,), dilations=(2,),
            pads_begin=(2,), pads_end=(3,),
        ),
    )  # fmt: skip

    def block_counts(self) -> tuple[int, ...]:
        """How many blocks lie along each dimension of the image."""
        counts = []
        for i, size in enumerate(self.image):
            reach = self.dilations[i] * (self.block[i] - 1) + 1
            room = size + self.pads_begin[i] + self.pads_end[i]
            counts.append(max((room - reach) // self.strides[i] + 1, 0))
        return tuple(counts)

    def infer(self, x: TensorType) -> TensorType:
        given = (self.block, self.strides, self.dilations, self.pads_begin, self.pads_end)
        if any(len(g) != len(self.image) for g in given):
            raise InferError("one number for each dimension", expected=self.image, given=given)
        if min((*self.block, *self.strides, *self.dilations), default=1) < 1:
            raise InferError("blocks and steps are positive", given=given)
        if x.rank != 3:
            raise InferError("columns have rank 3", expected="[N, C * block, blocks]", given=x)
        batch, rows, columns = x.dims
        each, blocks = math.prod(self.block), math.prod(self.block_counts())
        if isinstance(rows, int) and rows % each:
            raise InferError("blocks do not divide the rows", expected=each, given=x)
        if isinstance(columns, int) and columns != blocks:
            raise InferError("as many columns as blocks", expected=blocks, given=x)
        return x.with_shape(
            (batch, rows // each if isinstance(rows, int) else UNKNOWN, *self.image)
        )

    def reference(self, x: Array) -> Array:
        self.infer(TensorType(from_numpy(x.dtype), x.shape))
        counts, channels = self.block_counts(), x.shape[1] // math.prod(self.block)
        room = tuple(map(sum, zip(self.pads_begin, self.image, self.pads_end, strict=True)))
        check_allocation((x.shape[0], channels, *room), np.float64)
        result = np.zeros((x.shape[0], channels, *room), from_numpy(x.dtype).compute)
        blocks = widen(x).reshape(x.shape[0], channels, *self.block, *counts)
        for place in np.ndindex(*self.block):
            starts = [p * d for p, d in zip(place, self.dilations, strict=True)]
            window: tuple[Any, ...] = tuple(
                slice(start, start + count * step, step)
                for start, count, step in zip(starts, counts, self.strides, strict=True)
            )
            result[(slice(None), slice(None), *window)] += blocks[
                (slice(None), slice(None), *place)
            ]
        inner: tuple[Any, ...] = tuple(
            slice(b, b + n) for b, n in zip(self.pads_begin, self.image, strict=True)
        )
        return narrow(result[(slice(None), slice(None), *inner)], from_numpy(x.dtype))

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        return x.with_shape((x.dim(0), UNKNOWN, *(UNKNOWN,) * len(static["strides"])))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(self.block)


def _check_ranks(x: TensorType, indices: TensorType) -> None:
    if as_tensor(x).shape is None or indices.shape is None:
        return
    if x.rank != indices.rank or x.rank == 0:
        raise InferError("indices have the rank of the tensor", expected=x, given=indices)


def _check_reduction(reduction: str, x: TensorType) -> None:
    if reduction not in REDUCTIONS:
        raise InferError("no such reduction", expected=" ".join(REDUCTIONS), given=reduction)
    if reduction in ("add", "mul"):
        check_kinds(as_tensor(x).dtype, (*NUMERIC, COMPLEX, BOOL))
    elif reduction != "none":
        check_kinds(as_tensor(x).dtype, (*NUMERIC, BOOL))


def _coordinates(x: TensorType, indices: TensorType) -> int | None:
    """How many dimensions of x each index names; None where that is not known."""
    if indices.rank == 0:
        raise InferError("indices are vectors of coordinates", expected="rank >= 1", given=indices)
    depth = indices.dims[-1]
    if not isinstance(depth, int):
        return None
    if depth > x.rank:
        raise InferError("more coordinates than dimensions", expected=x, given=indices)
    return depth


def _element_places(x: Array, indices: Array, axis: int) -> tuple[Any, ...]:
    """An index tuple that puts each index at the axis and its own position elsewhere."""
    for i, (limit, used) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and used > limit:
            raise ExecutionError(
                "indices reach beyond the tensor", expected=x.shape, given=indices.shape
            )
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[axis] = bounded(indices, x.shape[axis])
    return tuple(places)


_JOIN: dict[str, Callable[..., None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


def _scattered(x: Array, places: tuple[Any, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        result = x.copy()
        result[places] = updates
        return result
    wide = np.array(widen(x))
    _JOIN[reduction](wide, places, widen(updates))
    return narrow(wide, from_numpy(x.dtype))
