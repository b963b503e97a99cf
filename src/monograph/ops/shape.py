"""Views and rearrangements: the elements stay, their places change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    Narrowing,
    Op,
    Shape,
    TensorType,
    Type,
    Value,
    broadcast,
    sample,
)
from monograph.ir.dtype import i64
from monograph.ir.layout import (
    LayoutPlan,
    Need,
    Order,
    aligned,
    in_order,
    inverse,
    regroup,
    stored_axes,
    widened,
    with_axes,
    without,
)
from monograph.ir.sizes import is_open
from monograph.ir.traits import SIZE, Demand, IntRange, Known, RangeOf, united
from monograph.ops.base import (
    ViewOp,
    as_tensor,
    check_allocation,
    normalise_axes,
    normalise_axis,
    same_dtype,
    unknown_like,
    unknown_shape,
)
from monograph.ops.slice import FAR, Slice, sliced_places

__all__ = [
    "COPY", "FAR", "INFER", "Broadcast", "Concat", "Reshape", "ShapeOf", "Slice", "Squeeze",
    "Transpose", "Unsqueeze", "sliced_places", "unknown_like", "unknown_shape",
]  # fmt: skip

INFER = -1
"""In a reshape: the dimension that makes the sizes agree. At most one."""
COPY = -2
"""In a reshape: the input's dimension at the same place."""


@dataclass(frozen=True)
class Reshape(ViewOp):
    """The same elements in row-major order under another shape.

    A size may be INFER (-1, once) or COPY (-2); both are resolved as soon as the input's shape is
    known, so that equal reshapes are one value.
    """

    shape: tuple[int, ...]

    samples = (
        sample("f32[2, 6]", shape=(3, 4)),
        sample("f32[2, 6]", shape=(COPY, 2, INFER)),
        sample("i64[1]", shape=()),
        sample("f32[0, 3]", shape=(3, 0)),
    )

    def canonical(self, *types: Type) -> Op:
        if len(types) != 1 or not isinstance(types[0], TensorType) or not types[0].is_static:
            return self
        return replace(self, shape=self.resolve(types[0].static))

    def resolve(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the target shape for an input of this static shape."""
        if self.shape.count(INFER) > 1 or any(d < COPY for d in self.shape):
            raise InferError("not a shape to reshape to", given=list(self.shape))
        sizes = list(self._zeros_kept(given))
        left = list(given)  # what remains of the input once copied dimensions are taken out
        for i, d in enumerate(sizes):
            if d == COPY:
                if i >= len(given):
                    raise InferError("no such dimension to copy", expected=list(given), given=i)
                sizes[i], left[i] = given[i], 1
        if INFER in sizes:
            rest = math.prod(d for d in self.shape if d >= 0)
            total = math.prod(left)
            fits = total % rest == 0 if rest else total == 0
            if not fits:
                raise InferError(
                    "sizes do not divide", expected=list(given), given=list(self.shape)
                )
            sizes[sizes.index(INFER)] = total // rest if rest else 0
        if math.prod(sizes) != math.prod(given):
            raise InferError(
                "a reshape keeps the number of elements", expected=list(given), given=sizes
            )
        return tuple(sizes)

    def _zeros_kept(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with zeros for copies, if an empty input has no other shape.

        A model that computes a size, such as batch times length, gets 0 where one of them is 0. In
        ONNX that means a copy; the model means 0.
        """
        empty = any(not is_open(d) and d == 0 for d in given)
        if not empty or COPY not in self.shape or INFER in self.shape:
            return self.shape
        copied = [i for i, d in enumerate(self.shape) if d == COPY]
        rest = [d for d in self.shape if d != COPY]
        sizes = [given[i] for i in copied if i < len(given)] + rest
        fits = copied[-1] < len(given) and any(not is_open(d) and d == 0 for d in sizes)
        return self.shape if fits else tuple(0 if d == COPY else d for d in self.shape)

    def infer(self, x: TensorType) -> TensorType:
        if as_tensor(x).is_static:
            return x.with_shape(self.resolve(x.static))
        given = x.shape or ()
        result: list[Dim] = []
        for i, d in enumerate(self.shape):
            if d == COPY and x.shape is not None and i >= len(given):
                raise InferError("no such dimension to copy", expected=x, given=i)
            result.append(given[i] if d == COPY and i < len(given) else UNKNOWN if d < 0 else d)
        if x.shape is not None and INFER in self.shape:
            result[self.shape.index(INFER)] = self._inferred(x.shape)
        return x.with_shape(result)

    def _inferred(self, given: Shape) -> Dim:
        """Return the size at INFER: what is left of the input's sizes, if that is one dimension."""
        copied = {i for i, d in enumerate(self.shape) if d == COPY}
        left = [d for i, d in enumerate(given) if i not in copied]
        total = math.prod(d for d in left if isinstance(d, int))
        rest = math.prod(d for d in self.shape if d >= 0)
        symbols = [d for d in left if isinstance(d, str)]
        if not symbols and rest > 0 and total % rest == 0:
            return total // rest
        return symbols[0] if len(symbols) == 1 and total == rest > 0 else UNKNOWN

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the one open axis, where as many elements lie before and after it."""
        given, made = types[0].dims, self.infer(types[0]).dims
        open_ = [i for i, d in enumerate(made) if isinstance(d, str)]
        if len(open_) != 1:
            return None
        (own,) = open_
        parts = (given[:axis], made[:own]), (given[axis + 1 :], made[own + 1 :])
        return own if all(_counted(a) == _counted(b) for a, b in parts) else None

    def reference(self, x: Array) -> Array:
        return x.reshape(self.resolve(x.shape))

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return as_tensor(types[0]).with_shape(unknown_shape(late["shape"]))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        regrouped = regroup(value.inputs[0].tensor, value.tensor, order)
        if regrouped is None:
            return None
        need, after = regrouped
        shape = tuple(value.tensor.static[d] for d in after)
        return LayoutPlan(Reshape(shape), (Need(need),), after)

    def operand_order(self, value: Value, order: Order) -> Order | None:
        regrouped = regroup(value.tensor, value.inputs[0].tensor, order)
        return None if regrouped is None else regrouped[1]

    @classmethod
    def late_demand(cls, operand: int, name: str, first: Type) -> Demand:
        return Demand(operand, SIZE, 1, 1, "a size")


def _counted(dims: Shape) -> tuple[int, tuple[str, ...]]:
    """Return the product of sizes, and the symbols among them."""
    numbers = [d for d in dims if isinstance(d, int)]
    return math.prod(numbers), tuple(d for d in dims if isinstance(d, str))


@dataclass(frozen=True)
class Squeeze(ViewOp):
    """Drops dimensions of size 1."""

    axes: tuple[int, ...]

    samples = (sample("f32[1, 3, 1]", axes=(0, 2)), sample("f32[1, 3]", axes=(0,)))

    def canonical(self, *types: Type) -> Op:
        return replace(self, axes=normalise_axes(self.axes, as_tensor(types[0]).rank))

    def infer(self, x: TensorType) -> TensorType:
        for a in self.axes:
            if isinstance(x.dims[a], int) and x.dims[a] != 1:
                raise InferError("a squeezed dimension is not 1", expected=1, given=x)
        return x.with_shape(d for i, d in enumerate(x.dims) if i not in self.axes)

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return None if axis in self.axes else axis - sum(a < axis for a in self.axes)

    def reference(self, x: Array) -> Array:
        return np.squeeze(x, self.axes)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x, dropped = as_tensor(types[0]), unknown_shape(late["axes"])
        known = x.shape is not None and dropped is not None
        return x.with_shape((UNKNOWN,) * (x.rank - len(dropped or ())) if known else None)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        op = Squeeze(stored_axes(order, self.axes))
        return LayoutPlan(op, (Need(order),), without(order, self.axes))

    def operand_order(self, value: Value, order: Order) -> Order | None:
        return with_axes(order, self.axes)


@dataclass(frozen=True)
class Unsqueeze(ViewOp):
    """Puts dimensions of size 1 at these places of the result."""

    axes: tuple[int, ...]

    samples = (sample("f32[3]", axes=(0, 2)), sample("f32[2, 3]", axes=(1,)))

    def canonical(self, *types: Type) -> Op:
        rank = as_tensor(types[0]).rank + len(self.axes)
        return replace(self, axes=normalise_axes(self.axes, rank))

    def infer(self, x: TensorType) -> TensorType:
        shape: list[Dim] = list(x.dims)
        for a in self.axes:
            shape.insert(a, 1)
        return x.with_shape(shape)

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        rank = types[0].rank + len(self.axes)
        return [i for i in range(rank) if i not in self.axes][axis]

    def reference(self, x: Array) -> Array:
        return np.expand_dims(x, self.axes)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x, added = as_tensor(types[0]), unknown_shape(late["axes"])
        known = x.shape is not None and added is not None
        return x.with_shape((UNKNOWN,) * (x.rank + len(added or ())) if known else None)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        after = with_axes(order, self.axes)
        return LayoutPlan(Unsqueeze(stored_axes(after, self.axes)), (Need(order),), after)

    def operand_order(self, value: Value, order: Order) -> Order | None:
        return without(order, self.axes)


@dataclass(frozen=True)
class Transpose(ViewOp):
    """Dimension i of the result is dimension permutation[i] of x."""

    permutation: tuple[int, ...]

    samples = (
        sample("f32[2, 3, 4]", permutation=(2, 0, 1)),
        sample("i8[2, 3]", permutation=(1, 0)),
    )

    def infer(self, x: TensorType) -> TensorType:
        count = len(self.permutation)
        rank = count if as_tensor(x).shape is None else x.rank
        if sorted(self.permutation) != list(range(rank)):
            raise InferError(
                "not a permutation of the dimensions", expected=x, given=self.permutation
            )
        if x.shape is None:
            return x.with_shape((UNKNOWN,) * count)
        return x.with_shape(x.dims[p] for p in self.permutation)

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return self.permutation.index(axis)

    def reference(self, x: Array) -> Array:
        return np.transpose(x, self.permutation)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        back = inverse(self.permutation)
        return LayoutPlan(None, (Need(order),), tuple(back[d] for d in order))

    def operand_order(self, value: Value, order: Order) -> Order | None:
        return tuple(self.permutation[d] for d in order)


@dataclass(frozen=True)
class Broadcast(ViewOp):
    """x repeated to the shape that it and `shape` broadcast to."""

    shape: tuple[int, ...]

    samples = (
        sample("f32[3, 1]", shape=(2, 3, 4)),
        sample("f32[3, 4]", shape=(1, 1)),
        sample("i64[]", shape=(0, 2)),
    )

    def canonical(self, *types: Type) -> Op:
        x = as_tensor(types[0])
        if not x.is_static:
            return self
        return replace(self, shape=x.with_shape(broadcast(x.shape, self.shape)).static)

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(broadcast(as_tensor(x).shape, self.shape))

    def reference(self, x: Array) -> Array:
        shape = np.broadcast_shapes(x.shape, self.shape)
        check_allocation(shape, x.dtype)
        return np.broadcast_to(x, shape)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x, target = as_tensor(types[0]), unknown_shape(late["shape"])
        if x.shape is None or target is None:
            return x.with_shape(None)
        return x.with_shape((UNKNOWN,) * max(x.rank, len(target)))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return self.reach_order(value, widened(order, value.tensor.rank))

    def reach_order(self, value: Value, order: Order) -> LayoutPlan | None:
        if not value.tensor.is_static:
            return None
        shape = tuple(value.tensor.static[d] for d in order)
        return LayoutPlan(Broadcast(shape), (aligned(value.inputs[0], order),), order)

    @classmethod
    def late_demand(cls, operand: int, name: str, first: Type) -> Demand:
        if isinstance(first, TensorType) and first.shape:
            return Demand(operand, SIZE, 1, 1, "a size")
        return super().late_demand(operand, name, first)


@dataclass(frozen=True)
class Concat(Op):
    """The inputs one after the other along an axis."""

    axis: int

    narrowing = Narrowing.MOVE
    adds_terms = True
    rounds = False
    samples = (
        sample("f32[2, 3]", "f32[2, 1]", "f32[2, 2]", axis=1),
        sample("i64[2]", "i64[0]", axis=-1),
    )

    def canonical(self, *types: Type) -> Op:
        ranked = [t for t in map(as_tensor, types) if t.shape is not None]
        return replace(self, axis=normalise_axis(self.axis, ranked[0].rank)) if ranked else self

    def infer(self, *xs: TensorType) -> TensorType:
        if not xs:
            raise InferError("nothing to concatenate")
        dtype = same_dtype(*xs)
        shape = list(xs[0].dims)
        axis = normalise_axis(self.axis, len(shape))
        total: Dim = 0
        for x in xs:
            if x.rank != len(shape):
                raise InferError("ranks differ", expected=xs[0], given=x)
            for i, (a, b) in enumerate(zip(shape, x.dims, strict=True)):
                if i == axis:
                    continue
                if isinstance(a, int) and isinstance(b, int) and a != b:
                    raise InferError("sizes differ off the axis", expected=xs[0], given=x)
                shape[i] = b if isinstance(b, int) else a
            d = x.dims[axis]
            total = total + d if isinstance(total, int) and isinstance(d, int) else UNKNOWN
        shape[axis] = xs[0].dims[axis] if len(xs) == 1 else total
        return TensorType(dtype, tuple(shape))

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if axis != self.axis else None

    def reference(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return max(given)

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return united(*given)

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        ranges = [r for v in value.inputs if (r := of(v)) is not None]
        if len(ranges) != len(value.inputs):
            return None
        return min(r[0] for r in ranges), max(r[1] for r in ranges)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return in_order(value, order, axis=order.index(self.axis))


@dataclass(frozen=True)
class ShapeOf(Op):
    """The sizes of x, as a vector of integers."""

    level = True
    samples = (sample("f32[2, 3]"), sample("f32[]"))

    def infer(self, x: TensorType) -> TensorType:
        shape = as_tensor(x).shape
        return TensorType(i64, (UNKNOWN if shape is None else len(shape),))

    def reference(self, x: Array) -> Array:
        return np.array(x.shape, np.int64)
