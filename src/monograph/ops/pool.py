"""Pools: a reduction over each window of the spatial axes of x[N, C, *S].

Every reduction here is separable, so the reference goes through the axes one at a time.
`MaxUnpool` is the partial inverse of a max pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    DType,
    Narrowing,
    Op,
    Shape,
    TensorType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.dtype import FLOAT, i64
from monograph.ir.layout import LayoutPlan, Order, channels_last, in_order
from monograph.ir.traits import SUMS_MANY, known_product
from monograph.ops import window as wi
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    elements,
    narrow,
    widen,
)

P = TypeVar("P", bound="Pool")


@dataclass(frozen=True)
class Pool(Op, abstract=True):
    """The base of pools: the window.

    With `ceil` a last window may reach beyond the padding, if it does not start there. `auto` asks
    for padding by the input's size (see `window.SAME_UPPER`) and is resolved once that is known.
    With the layout "channels_last" x and the result are [N, *S, C].
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil: bool = False
    auto: str = ""
    layout: str = wi.CHANNELS_FIRST

    costly = True
    kinds: ClassVar[tuple[str, ...]] = (FLOAT,)

    def canonical(self, *types: Type) -> Op:
        if len(types) != 1 or not self.auto:
            return self
        x = wi.type_channels_first(as_tensor(types[0]), self.layout)
        self._check(x)
        pads = wi.resolve_padding(x.dims[2:], self.kernel, self.strides, self.dilations, self.auto)
        if pads is None:
            return self
        return replace(self, pads_begin=pads[0], pads_end=pads[1], ceil=False, auto="")

    def _check(self, x: TensorType) -> None:
        check_kinds(as_tensor(x).dtype, self.kinds)
        if x.rank != len(self.kernel) + 2 or not self.kernel:
            raise InferError(
                "a pool takes x[N, C, *spatial]", expected=f"rank {len(self.kernel) + 2}", given=x
            )
        wi.check_kernel(self.kernel)
        wi.check_window(
            len(self.kernel),
            strides=self.strides,
            dilations=self.dilations,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
            auto=self.auto,
        )

    def infer(self, x: TensorType) -> TensorType:
        x = wi.type_channels_first(as_tensor(x), self.layout)
        self._check(x)
        spatial = (UNKNOWN,) * len(self.kernel) if self.auto else self._spatial(x.dims[2:])
        result = TensorType(self.result_dtype(x.dtype), (*x.dims[:2], *spatial))
        return wi.type_in_layout(result, self.layout)

    def result_dtype(self, given: DType) -> DType:
        return given

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return 0 if index == 0 and axis == 0 else None

    def operations(self, value: Value) -> float:
        return math.prod(self.kernel) * elements(value)

    def reference(self, x: Array) -> Array:
        plain = replace(self, layout=wi.CHANNELS_FIRST)
        return wi.in_layout(plain.pool(wi.channels_first(x, self.layout)), self.layout)

    def pool(self, x: Array) -> Array:
        """Return the result for x[N, C, *S]."""
        raise NotImplementedError

    def _spatial(self, sizes: Shape) -> Shape:
        return tuple(self._count(i, d) for i, d in enumerate(sizes))

    def _count(self, axis: int, size: Dim) -> Dim:
        """Return the number of windows along a spatial axis."""
        pads = (self.pads_begin[axis], self.pads_end[axis])
        window = self.kernel[axis], self.strides[axis], self.dilations[axis]
        return wi.output_dim(size, *window, pads, self.ceil)

    def resolved(self: P, x: Array) -> P:
        """This pool with padding by the size of its data."""
        op = self.canonical(TensorType(from_numpy(x.dtype), x.shape))
        assert isinstance(op, type(self))
        return op

    def windows(self, x: Array, axis: int, fill: float | int) -> Array:
        """The windows of one spatial axis as a last axis; what lies beyond the edges is `fill`."""
        size, kernel = x.shape[axis + 2], self.kernel[axis]
        stride, dilation, begin = self.strides[axis], self.dilations[axis], self.pads_begin[axis]
        count = int(self._count(axis, size))
        end = max(0, (count - 1) * stride + wi.extent(kernel, dilation) - size - begin)
        padded = wi.pad_spatial(np.moveaxis(x, axis + 2, -1), (begin,), (end,), fill)
        view = wi.windows(padded, (kernel,), (stride,), (dilation,))
        return np.moveaxis(view[..., :count, :], -2, axis + 2)

    def reduce(self, x: Array, reduction: Callable[..., Array], fill: float | int) -> Array:
        """Return the reduction over every window, axis by axis."""
        for axis in range(len(self.kernel)):
            x = reduction(self.windows(x, axis, fill), axis=-1)
        return x

    def suits_planes(self, value: Value) -> bool:
        return wi.suits_planes(value.tensor, value.inputs[0].tensor, self.kernel, self)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        if self.layout != wi.CHANNELS_FIRST or order != channels_last(len(order)):
            return None
        return in_order(value, order, layout=wi.CHANNELS_LAST)


def lowest(dtype: np.dtype[Any]) -> float | int:
    """Return the identity of max in a type that the reference computes in."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _fields(
    strides: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    dilations: tuple[int, ...],
) -> dict[str, Any]:
    return {"strides": strides, "pads_begin": begin, "pads_end": end, "dilations": dilations}


_PLAIN = _fields((1, 1), (0, 0), (0, 0), (1, 1))
_PADDED = _fields((2, 1), (1, 0), (0, 1), (1, 2))
_CEIL = _fields((2, 2), (0, 1), (0, 1), (1, 1)) | {"ceil": True}
_AUTO = _fields((2, 3), (0, 0), (0, 0), (1, 1)) | {"auto": wi.SAME_UPPER}
_LINE = _fields((2,), (1,), (1,), (1,)) | {"kernel": (3,)}


@dataclass(frozen=True)
class MaxPool(Pool):
    """The largest element of each window; padding never wins."""

    narrowing = Narrowing.MOVE
    never_larger = True
    kinds = NUMERIC
    samples = (
        sample("f32[2, 3, 5, 6]", kernel=(3, 2), **_PADDED),
        sample("f32[1, 2, 6, 6]", kernel=(3, 3), **_CEIL),
        sample("f16[1, 2, 5, 5]", kernel=(2, 2), **_AUTO),
        sample("i8[1, 2, 4, 4]", kernel=(2, 2), **_PLAIN),
        sample("u8[1, 2, 7]", **_LINE),
        sample("f32[2, 5, 6, 3]", kernel=(3, 2), layout=wi.CHANNELS_LAST, **_PADDED),
    )

    def pool(self, x: Array) -> Array:
        wide = widen(x)
        return narrow(
            self.resolved(x).reduce(wide, np.max, lowest(wide.dtype)), from_numpy(x.dtype)
        )


@dataclass(frozen=True)
class ArgMaxPool(Pool):
    """The index, in all of x, of the largest element of each window; the first of equals.

    Elements are counted row-major, or with `column_major` with the spatial axes in reverse; always
    those of [N, C, *S], whatever the layout. A window that reads only padding has the first of its
    plane.
    """

    column_major: bool = False

    kinds = NUMERIC
    samples = (
        sample("f32[2, 3, 5, 6]", kernel=(3, 2), **_PADDED),
        sample("f32[1, 2, 6, 6]", kernel=(3, 3), **_CEIL),
        sample("f32[1, 2, 5, 5]", kernel=(2, 2), column_major=True, **_AUTO),
        sample("u8[1, 2, 7]", **_LINE),
        sample("f32[2, 5, 6, 3]", kernel=(3, 2), layout=wi.CHANNELS_LAST, **_PADDED),
    )

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return None  # positions count from the first element of the batch

    def result_dtype(self, given: DType) -> DType:
        return i64

    def pool(self, x: Array) -> Array:
        op, best = self.resolved(x), widen(x)
        sizes = x.shape[2:]
        steps = np.cumprod((1, *sizes[:-1]) if self.column_major else (1, *sizes[:0:-1]))
        steps = steps if self.column_major else steps[::-1]
        place = np.zeros(x.shape, np.int64)
        fill = lowest(best.dtype)
        nowhere: Array = np.zeros(x.shape, bool)
        # Last axis first: among equals the first in row-major order is found.
        for axis in reversed(range(len(sizes))):
            candidates = op.windows(best, axis, fill)
            # Padding is as small as the least element and must not win against it.
            here = np.arange(sizes[axis]).reshape((-1,) + (1,) * (x.ndim - 3 - axis))
            inside = op.windows(np.broadcast_to(here, best.shape), axis, -1)
            ranked = np.where(inside >= 0, candidates, fill)
            first = np.argmax((ranked == ranked.max(-1, keepdims=True)) & (inside >= 0), -1)
            nan = np.isnan(ranked) if ranked.dtype.kind == "f" else np.zeros_like(inside, bool)
            first = np.where(nan.any(-1), np.argmax(nan, -1), first)[..., None]
            places = op.windows(place + here * steps[axis], axis, 0)
            best = np.take_along_axis(candidates, first, -1)[..., 0]
            place = np.take_along_axis(places, first, -1)[..., 0]
            nowhere = np.all(op.windows(nowhere, axis, True), axis=-1)
        place = np.where(nowhere, 0, place)
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(sizes))
        result: Array = place + planes * int(np.prod(sizes))
        return result


@dataclass(frozen=True)
class AveragePool(Pool):
    """The mean of each window; padding counts as zeros with `include_pad`, else not at all."""

    include_pad: bool = False

    narrowing = Narrowing.ARITHMETIC
    never_larger = linear = True
    samples = (
        sample("f32[2, 3, 5, 6]", kernel=(3, 2), **_PADDED),
        sample("f32[1, 2, 6, 6]", kernel=(3, 3), include_pad=True, **_CEIL),
        sample("f32[1, 2, 5, 5]", kernel=(2, 2), **_AUTO),
        sample("f16[1, 2, 7]", **_LINE),
        sample("f32[2, 6, 6, 3]", kernel=(3, 3), layout=wi.CHANNELS_LAST, **_CEIL),
    )

    def pool(self, x: Array) -> Array:
        op = self.resolved(x)
        inside = np.ones((1, 1, *x.shape[2:]))
        total = op.reduce(widen(x), np.sum, 0)
        if self.include_pad:
            # What a last window holds beyond the declared padding counts in neither case.
            inside = wi.pad_spatial(inside, op.pads_begin, op.pads_end, 1)
            none = (0,) * len(op.kernel)
            op = replace(op, pads_begin=none, pads_end=none)
        count = op.reduce(inside, np.sum, 0)
        places = (slice(None), slice(None), *(slice(0, n) for n in total.shape[2:]))
        return narrow(total / count[places], from_numpy(x.dtype))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(self.kernel)


@dataclass(frozen=True)
class LpPool(Pool):
    """The p-norm of each window."""

    p: int = 2

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = keeps_small = True
    samples = (
        sample("f32[2, 3, 5, 6]", kernel=(3, 2), **_PADDED),
        sample("f32[1, 2, 5, 5]", kernel=(2, 2), p=1, **_AUTO),
        sample("f32[1, 2, 7]", p=3, **_LINE),
        sample("f32[1, 7, 2]", p=3, layout=wi.CHANNELS_LAST, **_LINE),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.p < 1:
            raise InferError("the order of a norm is 1 or more", given=self.p)
        return super().infer(x)

    def summed_power(self) -> int:
        return self.p

    def pool(self, x: Array) -> Array:
        powers = np.abs(widen(x)) ** self.p
        total = self.resolved(x).reduce(powers, np.sum, 0)
        return narrow(total ** (1.0 / self.p), from_numpy(x.dtype))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(self.kernel)


@dataclass(frozen=True)
class MaxUnpool(Op):
    """Zeros, with each element of x at the place that `indices` gives.

    Places are counted over the tensor whose pool with this window has the shape of x. With `sizes`
    the result has that shape instead: rows and columns are added at the end of each axis, or cut.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    sizes: tuple[int, ...] | None = None

    samples = (
        sample(
            [[[[1.0, 2.0], [3.0, 4.0]]]], np.array([[[[5, 7], [13, 15]]]]),
            kernel=(2, 2), strides=(2, 2), pads_begin=(0, 0), pads_end=(0, 0),
        ),
        sample(
            [[[[5.0, 6.0], [7.0, 8.0]]]], np.array([[[[5, 7], [13, 15]]]]),
            kernel=(2, 2), strides=(2, 2), pads_begin=(0, 0), pads_end=(0, 0),
            sizes=(1, 1, 5, 3),
        ),
        sample(
            [[[1.0, 2.0]], [[3.0, 4.0]]], np.array([[[1, 3]], [[4, 7]]]),
            kernel=(3,), strides=(2,), pads_begin=(1,), pads_end=(0,),
        ),
    )  # fmt: skip

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        _check_operands(x, indices)
        self._check(x)
        if self.sizes is None:
            return x.with_shape(self.pooled_shape(x.dims))
        if len(self.sizes) != x.rank or min(self.sizes) < 0:
            raise InferError("a shape of the rank of x", expected=x, given=list(self.sizes))
        return x.with_shape(self.sizes)

    def _check(self, x: TensorType) -> None:
        spatial = x.rank - 2
        if spatial < 1 or len(self.kernel) != spatial:
            raise InferError("a pool takes x[N, C, *spatial]", expected=self.kernel, given=x)
        wi.check_kernel(self.kernel)
        wi.check_window(
            spatial,
            strides=self.strides,
            dilations=(1,) * spatial,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
        )

    def pooled_shape(self, dims: Shape) -> Shape:
        """Return the shape of the tensor that was pooled."""
        result: list[Dim] = list(dims[:2])
        axes = zip(dims[2:], self.kernel, self.strides, self.pads_begin, self.pads_end, strict=True)
        for size, kernel, stride, begin, end in axes:
            known = isinstance(size, int)
            result.append((int(size) - 1) * stride + kernel - begin - end if known else UNKNOWN)
        return tuple(result)

    def reference(self, x: Array, indices: Array) -> Array:
        shape = tuple(max(0, int(d)) for d in self.pooled_shape(x.shape))
        check_allocation(shape, x.dtype)
        total = math.prod(shape)
        if indices.shape != x.shape:
            raise ExecutionError("one index an element", expected=x.shape, given=indices.shape)
        if indices.size and not (indices.min() >= 0 and indices.max() < total):
            outside = int(indices.min()) if indices.min() < 0 else int(indices.max())
            raise ExecutionError("index out of range", expected=f"0..{total - 1}", given=outside)
        y = np.zeros(total, x.dtype)
        y[indices.reshape(-1)] = x.reshape(-1)
        y = y.reshape(shape)
        if self.sizes is None:
            return y
        check_allocation(self.sizes, x.dtype)
        placed = np.zeros(self.sizes, x.dtype)
        common = tuple(slice(0, min(a, b)) for a, b in zip(shape, self.sizes, strict=True))
        placed[common] = y[common]
        return placed

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x, indices = map(as_tensor, types)
        _check_operands(x, indices)
        cls(**static)._check(x)
        return x.with_shape((UNKNOWN,) * x.rank)


def _check_operands(x: TensorType, indices: TensorType) -> None:
    if as_tensor(indices).dtype != i64:
        raise InferError("indices are 64-bit integers", expected=i64, given=indices)
    if as_tensor(x).rank != indices.rank:
        raise InferError("one index an element", expected=x, given=indices)
