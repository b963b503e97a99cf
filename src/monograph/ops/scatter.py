"""Scatters: updates written, or added, at places that are data or blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Op, TensorType, Type, Value, from_numpy, sample
from monograph.ir.dtype import BOOL, COMPLEX
from monograph.ir.traits import Demand, Known, known_product, united
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
from monograph.ops.index import (
    IndexedAxis,
    bounded,
    check_indices,
    check_ranks,
    coordinates_of,
    demand_index,
    demand_point,
    element_places,
)

REDUCTIONS = ("none", "add", "mul", "min", "max")
SUMS = ("add", "mul")
"""The reductions that round."""


@dataclass(frozen=True)
class ScatterElements(IndexedAxis):
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
        check_ranks(x, indices)
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
        places = element_places(x, indices, normalise_axis(self.axis, x.ndim))
        return _scattered(x, places, updates, self.reduction)

    def summed_terms(self, *operands: Array) -> int:
        x, indices, _ = operands
        if self.reduction not in SUMS:
            return 1
        return _most_joined(x, element_places(x, indices, normalise_axis(self.axis, x.ndim)))

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
        depth = coordinates_of(x, indices)
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

    def summed_terms(self, *operands: Array) -> int:
        x, indices, _ = operands
        if self.reduction not in SUMS:
            return 1
        depth = indices.shape[-1]
        return _most_joined(x, [bounded(indices[..., i], x.shape[i]) for i in range(depth)])

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

    def padded(self) -> tuple[int, ...]:
        """Return the size of the image with its padding."""
        return tuple(map(sum, zip(self.pads_begin, self.image, self.pads_end, strict=True)))

    def block_counts(self) -> tuple[int, ...]:
        """Return the number of blocks along each dimension of the image."""
        counts = []
        for i, room in enumerate(self.padded()):
            reach = self.dilations[i] * (self.block[i] - 1) + 1
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
        room = self.padded()
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


def _most_joined(x: Array, places: Sequence[Array]) -> int:
    """Return the most numbers that are joined into one: updates of a place, and its own."""
    if not places:
        return 1
    same = np.broadcast_arrays(*places)
    flat = np.ravel_multi_index(tuple(same), x.shape[: len(same)]) if x.size else np.empty(0, int)
    return 1 + int(np.unique(flat, return_counts=True)[1].max(initial=0))


def _check_reduction(reduction: str, x: TensorType) -> None:
    if reduction not in REDUCTIONS:
        raise InferError("no such reduction", expected=" ".join(REDUCTIONS), given=reduction)
    if reduction in SUMS:
        check_kinds(as_tensor(x).dtype, (*NUMERIC, COMPLEX, BOOL))
    elif reduction != "none":
        check_kinds(as_tensor(x).dtype, (*NUMERIC, BOOL))


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
