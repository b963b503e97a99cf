"""Sliding windows over the trailing (spatial) axes: the geometry that convolutions and pools share.

Ops compute on x[N, C, *S]. One whose `layout` is CHANNELS_LAST takes and gives [N, *S, C]; only the
order of dimensions differs.

Holds no op. A dimension may be a symbol; what cannot be known before run time is `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Dim, Shape, TensorType, Value
from monograph.ir.layout import LayoutPlan, Need, channels_last, plain
from monograph.ir.sizes import any_open
from monograph.ops.base import check_allocation

SAME_UPPER, SAME_LOWER = "same_upper", "same_lower"
"""Padding that makes a result of ceil(size / stride); an odd amount goes to the end, or the
beginning."""

PADDED_ELEMENTS, PADDED_RATIO = 1 << 24, 256
"""A padded array may always have so many elements, or be so many times larger than its data."""

CHANNELS_FIRST, CHANNELS_LAST = "channels_first", "channels_last"


MOST_TAPS, LEAST_COLUMNS, MOST_COLUMNS = 49, 12, 4096
"""Limits of windows that slide over one channel (see `suits_planes`)."""


class WindowOp(Protocol):
    """The attributes that pools and convolutions share."""

    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def auto(self) -> str: ...
    @property
    def layout(self) -> str: ...


def type_channels_first(x: TensorType, layout: str) -> TensorType:
    """Return the type of x[N, C, *S] for an x of this layout."""
    if layout not in (CHANNELS_FIRST, CHANNELS_LAST):
        raise InferError("unknown layout", expected=[CHANNELS_FIRST, CHANNELS_LAST], given=layout)
    if layout == CHANNELS_FIRST or x.rank < 2:
        return x
    return x.with_shape((x.dims[0], x.dims[-1], *x.dims[1:-1]))


def type_in_layout(x: TensorType, layout: str) -> TensorType:
    """Return the type of x[N, C, *S] in this layout."""
    if layout == CHANNELS_FIRST:
        return x
    return x.with_shape((x.dims[0], *x.dims[2:], x.dims[1]))


def channels_first(x: Array, layout: str) -> Array:
    """x[N, C, *S] for an x of this layout."""
    return np.moveaxis(x, -1, 1) if layout == CHANNELS_LAST else x


def in_layout(x: Array, layout: str) -> Array:
    """x[N, C, *S] in this layout."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == CHANNELS_LAST else x


def channels_last_plan(value: Value, layout: str) -> LayoutPlan | None:
    """Return the plan of a convolution with its channels last; None where they are already."""
    if layout != CHANNELS_FIRST:
        return None
    order = channels_last(value.tensor.rank)
    op = replace(value.op, layout=CHANNELS_LAST)  # type: ignore[type-var]
    return LayoutPlan(op, (Need(order), Need(plain(len(order)))), order)


def suits_planes(result: TensorType, x: TensorType, kernel: Shape, op: WindowOp) -> bool:
    """Return True if windows that stay in one channel are fast along its rows.

    Elements are floats of at most 32 bits, sizes are fixed, rows are as long as vectors, and
    windows have few elements.
    """
    if op.layout != CHANNELS_FIRST or op.auto or result.rank != 4:
        return False
    if not result.dtype.is_float or result.dtype.bits > 32 or x.dtype != result.dtype:
        return False
    dims = (*result.dims, *x.dims, *kernel)
    if not all(isinstance(d, int) for d in dims) or any_open(dims) or 0 in dims:
        return False
    columns = max(int(result.dims[3]), int(x.dims[3]))
    few = math.prod(map(int, kernel)) <= MOST_TAPS and max(op.strides) <= 2
    return few and int(result.dims[3]) >= LEAST_COLUMNS and columns <= MOST_COLUMNS


def extent(kernel: int, dilation: int) -> int:
    """Return the number of places from the first to the last element of a dilated window."""
    return (kernel - 1) * dilation + 1


def check_window(
    rank: int,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    auto: str = "",
) -> None:
    """Refuses attributes that are not one positive (pads: not negative) number a spatial axis."""
    positive = {"strides": strides, "dilations": dilations}
    for name, given in {**positive, "pads_begin": pads_begin, "pads_end": pads_end}.items():
        if len(given) != rank:
            raise InferError(f"{name}: one number a spatial axis", expected=rank, given=[*given])
        if any(v < (name in positive) for v in given):
            raise InferError(f"{name}: a number is too small", given=[*given])
    if auto not in ("", SAME_UPPER, SAME_LOWER):
        raise InferError("unknown padding mode", expected=[SAME_UPPER, SAME_LOWER], given=auto)


def check_kernel(kernel: Sequence[Dim]) -> None:
    if any(isinstance(k, int) and k < 1 for k in kernel):
        raise InferError("a window is empty", given=[*kernel])


def split_padding(total: int, auto: str) -> tuple[int, int]:
    """Padding before and after; the odd one goes where the mode says."""
    less, more = total // 2, total - total // 2
    return (less, more) if auto == SAME_UPPER else (more, less)


def same_padding(size: Dim, kernel: Dim, stride: int, dilation: int, auto: str) -> Shape | None:
    """(begin, end) for an automatic mode; None where a size that matters is not known."""
    if not isinstance(kernel, int):
        return None
    if stride == 1:
        return split_padding(extent(kernel, dilation) - 1, auto)
    if not isinstance(size, int):
        return None
    count = -(-size // stride)
    return split_padding(max(0, (count - 1) * stride + extent(kernel, dilation) - size), auto)


def resolve_padding(
    sizes: Shape, kernel: Shape, strides: Sequence[int], dilations: Sequence[int], auto: str
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return all begins and all ends for an automatic mode; None where a size is not known yet."""
    begins, ends = [], []
    for axis in zip(sizes, kernel, strides, dilations, strict=True):
        pads = same_padding(*axis, auto)
        if pads is None:
            return None
        begins.append(int(pads[0]))
        ends.append(int(pads[1]))
    return tuple(begins), tuple(ends)


def output_dim(
    size: Dim, kernel: Dim, stride: int, dilation: int, pads: tuple[int, int], ceil: bool = False
) -> Dim:
    """Return how many windows fit.

    With `ceil` a last one may reach beyond the end, also where it is the only one, but none may
    start in the padding after the data.
    """
    if not isinstance(kernel, int):
        return UNKNOWN
    reach = extent(kernel, dilation)
    if not isinstance(size, int):
        return size if stride == 1 and sum(pads) == reach - 1 else UNKNOWN
    room = size + sum(pads) - reach
    count = -(-room // stride) + 1 if ceil else room // stride + 1
    if room < 0 and not (ceil and count >= 0):
        if size == 0:
            return 0
        raise InferError(
            "a window is larger than the padded input",
            expected=f"at most {size + sum(pads)}",
            given=reach,
        )
    if not ceil:
        return count
    return count - 1 if (count - 1) * stride >= size + pads[0] else count


def check_padding(shape: tuple[int, ...], used: int) -> None:
    """Refuses a working array that is nearly all padding and too large for that."""
    if math.prod(shape) > max(PADDED_ELEMENTS, PADDED_RATIO * used):
        raise ExecutionError(
            "the padding is far larger than the data", expected=f"about {used}", given=[*shape]
        )
    check_allocation(shape, np.float64)


def pad_spatial(x: Array, begin: Sequence[int], end: Sequence[int], fill: float | int) -> Array:
    """x with its trailing axes padded; x itself where nothing is added."""
    if not any(begin) and not any(end):
        return x
    lead = x.ndim - len(begin)
    pads = [(0, 0)] * lead + list(zip(begin, end, strict=True))
    check_padding(tuple(d + b + e for d, (b, e) in zip(x.shape, pads, strict=True)), x.size)
    return np.pad(x, pads, constant_values=fill)


def read_elements(
    x: Array, axis: int, reach: int, stride: int, pads: tuple[int, int]
) -> tuple[Array, int, tuple[int, int]]:
    """Return x, stride and padding along an axis without the elements between two windows."""
    size = x.shape[axis]
    if stride <= reach or not any(pads) or size == 0:
        return x, stride, pads
    count = max(0, (size + sum(pads) - reach) // stride + 1)
    check_padding((*x.shape[:axis], count * reach, *x.shape[axis + 1 :]), x.size)
    places = (np.arange(count)[:, None] * stride + np.arange(reach)).reshape(-1) - pads[0]
    inside = (places >= 0) & (places < size)
    taken = np.take(x, places.clip(0, size - 1), axis)
    inside = inside.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.where(inside, taken, x.dtype.type(0)), reach, (0, 0)


def windows(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """Return a view of every window of the trailing axes: [..., *output, *kernel]."""
    n = len(kernel)
    reach = tuple(map(extent, kernel, dilations))
    if any(r > d for r, d in zip(reach, x.shape[x.ndim - n :], strict=True)):
        return np.empty((*x.shape[: x.ndim - n], *(0,) * n, *kernel), x.dtype)
    view = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(x.ndim - n, x.ndim)))
    whole = (slice(None),) * (x.ndim - n)
    return view[(*whole, *(slice(None, None, s) for s in (*strides, *dilations)))]
