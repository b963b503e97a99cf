"""Order, and results whose size is decided by the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Narrowing,
    Op,
    TensorType,
    TupleType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.dtype import BOOL, STRING, i64
from monograph.ir.traits import LENGTH, Demand, IntRange, RangeOf, index_range
from monograph.ops.base import NUMERIC, as_tensor, check_kinds, known_sizes, normalise_axis, widen


@dataclass(frozen=True)
class TopK(Op):
    """The k largest (or smallest) elements along an axis in order, and where they stood.

    Of equal elements the one that comes first is taken first. NaN counts as the largest.
    Without `sorted` a target may give them in any order.
    """

    k: int
    axis: int
    largest: bool = True
    sorted: bool = True

    narrowing = Narrowing.KEPT
    kept_reason = "sorting keys stay apart"
    samples = (
        sample("f32[3, 7]", k=3, axis=1),
        sample([[2, 1, 2, 2]], k=3, axis=-1),
        sample("u8[6, 2]", k=2, axis=0, largest=False),
        sample("f16[4]", k=0, axis=0),
    )

    def canonical(self, *types: Type) -> Op:
        return replace(self, axis=normalise_axis(self.axis, as_tensor(types[0]).rank))

    def infer(self, x: TensorType) -> TupleType:
        check_kinds(x.dtype, NUMERIC)
        axis = normalise_axis(self.axis, x.rank)
        size = x.dims[axis]
        if self.k < 0 or (isinstance(size, int) and self.k > size):
            raise InferError("so many elements cannot be taken", expected=x, given=self.k)
        values = x.with_shape((*x.dims[:axis], self.k, *x.dims[axis + 1 :]))
        return TupleType((values, values.with_dtype(i64)))

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if axis != self.axis else None

    def reference(self, x: Array) -> tuple[Array, Array]:
        if self.k > x.shape[self.axis]:
            raise ExecutionError("so many elements cannot be taken", expected=x.shape, given=self.k)
        keys = widen(x)
        if self.largest:
            # Ascending and stable from the back, read backwards: descending, first come first.
            size = x.shape[self.axis]
            order = np.argsort(np.flip(keys, self.axis), axis=self.axis, kind="stable")
            order = np.flip(size - 1 - order, self.axis)
        else:
            order = np.argsort(keys, axis=self.axis, kind="stable")
        order = np.take(order, np.arange(self.k), self.axis).astype(np.int64)
        return np.take_along_axis(x, order, self.axis), order

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        axis = normalise_axis(static["axis"], x.rank)
        values = x.with_shape((*x.dims[:axis], UNKNOWN, *x.dims[axis + 1 :]))
        return TupleType((values, values.with_dtype(i64)))

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        """Return the range of the indices, which are the second result."""
        return index_range(value.inputs[0].tensor.static[self.axis]) if item == 1 else None

    @classmethod
    def late_demand(cls, operand: int, name: str, first: Type) -> Demand:
        sizes = known_sizes(first)
        if not sizes:
            return super().late_demand(operand, name, first)
        return Demand(operand, LENGTH, 1, min(sizes), f"how many of {min(sizes)}")


@dataclass(frozen=True)
class NonZero(Op):
    """The coordinates of the elements that are not zero, a column each, in row-major order."""

    level = True
    samples = (
        sample([[1, 0], [3, 4]]),
        sample("bool[2, 3, 2]"),
        sample("f32[0]"),
        sample(1.0),
    )

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(i64, (as_tensor(x).rank, UNKNOWN))

    def reference(self, x: Array) -> Array:
        # numpy refuses scalars: one that is not zero has a single column without coordinates.
        if x.ndim == 0:
            return np.zeros((0, int(bool(x))), np.int64)
        return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)

    def most_rows(self, *types: TensorType) -> int | None:
        return types[0].size


@dataclass(frozen=True)
class Unique(Op):
    """The distinct elements of x, or its distinct slices along an axis.

    Results: those elements; where each first stood; for every element of x its place among them;
    how often each occurs. In ascending order, or as they first come if not `sorted`. All NaN are
    one element, the largest: the standard does not say, and its own evaluator does so.
    """

    axis: int | None = None
    sorted: bool = True

    samples = (
        sample([2.0, 1.0, 1.0, 3.0, 4.0, 3.0], sorted=False),
        sample("i64[3, 4] in 0..2"),
        sample([[1, 0, 0], [1, 0, 0], [2, 3, 4]], axis=0),
        sample([[1, 1, 0], [3, 3, 4]], axis=-1, sorted=False),
        sample("f32[0]"),
    )

    def canonical(self, *types: Type) -> Op:
        if self.axis is None:
            return self
        return replace(self, axis=normalise_axis(self.axis, as_tensor(types[0]).rank))

    def infer(self, x: TensorType) -> TupleType:
        check_kinds(as_tensor(x).dtype, (*NUMERIC, BOOL, STRING))
        size: Any = UNKNOWN
        if self.axis is None:
            values, inverse = x.with_shape((UNKNOWN,)), x.size if x.is_static else UNKNOWN
        else:
            axis = normalise_axis(self.axis, x.rank)
            values = x.with_shape((*x.dims[:axis], size, *x.dims[axis + 1 :]))
            inverse = x.dims[axis]
        counts = TensorType(i64, (UNKNOWN,))
        return TupleType((values, counts, TensorType(i64, (inverse,)), counts))

    def reference(self, x: Array) -> tuple[Array, Array, Array, Array]:
        keys = x if from_numpy(x.dtype).is_string else widen(x)
        if self.axis is None:
            items, axis, x = keys.reshape(-1, 1), 0, x.reshape(-1)
        else:
            axis = self.axis
            items = np.moveaxis(keys, axis, 0)
            items = items.reshape(len(items), -1) if items.size else items.reshape(len(items), 0)
        first, inverse, counts = _group(items)
        if not self.sorted:
            order = np.argsort(first, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            first, inverse, counts = first[order], place[inverse], counts[order]
        return np.take(x, first, axis), first, inverse, counts

    def most_rows(self, *types: TensorType) -> int | None:
        return types[0].size if self.axis is None else types[0].static[self.axis]


def _group(rows: Array) -> tuple[Array, Array, Array]:
    """First place, group of each, and count of equal rows, groups in ascending order."""
    count = len(rows)
    # The first column decides before the second, and so on; equal rows keep their order.
    order = np.arange(count)
    if rows.dtype != object and rows.shape[1]:
        order = np.lexsort(rows.T[::-1])
    elif rows.dtype == object:
        for column in range(rows.shape[1] - 1, -1, -1):
            order = order[np.argsort(rows[order, column], kind="stable")]
    ordered = rows[order]
    starts = np.ones(count, bool)
    same = ordered[1:] == ordered[:-1]
    if rows.dtype.kind in "fc":
        same |= np.isnan(ordered[1:]) & np.isnan(ordered[:-1])
    starts[1:] = ~same.all(axis=1)
    group = np.cumsum(starts) - 1
    inverse = np.empty(count, np.int64)
    inverse[order] = group
    counts = np.bincount(group, minlength=int(starts.sum())).astype(np.int64)
    return order[starts].astype(np.int64), inverse, counts
