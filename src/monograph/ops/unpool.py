"""The partial inverse of a max pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Dim, Op, Shape, TensorType, Type, sample
from monograph.ir.dtype import i64
from monograph.ops import window as wi
from monograph.ops.base import as_tensor, check_allocation


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
