"""Convolutions, plain and deformable, over any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

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
from monograph.ir.dtype import FLOAT, i32
from monograph.ir.layout import LayoutPlan, Need, Order, plain
from monograph.ir.traits import known_product
from monograph.ops import window as wi
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    layer_bound,
    layer_operations,
    narrow,
    same_dtype,
    widen,
)
from monograph.ops.image import LINEAR, ZEROS, sample_at

COLUMN_ELEMENTS = 1 << 23
"""The reference unfolds windows into a matrix of at most about this many elements at a time."""
EXACT_FLOAT = 2**53
"""Integers up to this magnitude are exact in f64."""


def _result_dtype(x: TensorType, w: TensorType, out: DType | None) -> DType:
    check_kinds(as_tensor(x).dtype, NUMERIC)
    if out is None:
        return same_dtype(x, w)
    check_kinds(as_tensor(w).dtype, NUMERIC)
    if x.dtype.is_float != w.dtype.is_float or x.dtype.is_float != out.is_float:
        raise InferError("floats and integers are mixed", expected=x.dtype, given=(w.dtype, out))
    return out


def _check_ranks(x: TensorType, w: TensorType) -> None:
    if x.rank < 3 or w.rank != x.rank:
        raise InferError(
            "a convolution takes x[N, C, *spatial] and w of the same rank, 3 or more",
            expected=x,
            given=w,
        )


def _operands(x: Array, w: Array) -> tuple[Array, Array]:
    """Operands in a type that products and their sums are exact in (floats: f64)."""
    if from_numpy(x.dtype).is_float:
        return x.astype(np.float64), w.astype(np.float64)
    x, w = x.astype(np.int64), w.astype(np.int64)
    terms = max(1, math.prod(w.shape[1:]))
    bound = int(np.abs(x).max(initial=0)) * int(np.abs(w).max(initial=0)) * terms
    # Matrix products of floats are far faster than those of integers, and exact within 2^53.
    return (x.astype(np.float64), w.astype(np.float64)) if bound < EXACT_FLOAT else (x, w)


def _result(y: Array, dtype: DType) -> Array:
    # Floats beyond a narrow integer convert to anything; 64-bit integers wrap.
    return narrow(y if dtype.is_float else y.astype(np.int64), dtype)


@dataclass(frozen=True)
class Conv(Op):
    """Cross-correlation of x[N, C, *S] with w[O, C/groups, *K], zeros beyond the edges.

    Channels fall into `groups` that do not mix. `auto` asks for padding by the input's size
    (see `window.SAME_UPPER`) and is resolved as soon as the size is known. Integers accumulate
    exactly and wrap in `out`, the element type of the result (that of x when None).

    With the layout "channels_last" x and the result are [N, *S, C]. Weights keep their form: they
    are constants nearly always, and each target packs them in its own way.
    """

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    out: DType | None = None
    auto: str = ""
    layout: str = wi.CHANNELS_FIRST

    narrowing = Narrowing.LAYER
    contracts = linear = True
    costly = True
    samples = (
        sample(
            "f32[2, 3, 5, 6]", "f32[4, 3, 3, 2]",
            strides=(2, 1), pads_begin=(1, 0), pads_end=(0, 1), dilations=(1, 2),
        ),
        sample(
            "f32[1, 4, 7]", "f32[6, 2, 3]",
            strides=(1,), pads_begin=(1,), pads_end=(1,), dilations=(1,), groups=2,
        ),
        sample(
            "f32[2, 3, 5, 5]", "f32[3, 1, 3, 3]",
            strides=(2, 2), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1), groups=3,
            auto=wi.SAME_LOWER,
        ),
        sample(
            "f16[1, 2, 3, 4, 3]", "f16[2, 2, 1, 1, 1]",
            strides=(1, 1, 1), pads_begin=(0, 0, 0), pads_end=(0, 0, 0), dilations=(1, 1, 1),
        ),
        sample(
            "u8[1, 2, 4, 4]", "i8[3, 2, 3, 3]",
            strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1), out=i32,
        ),
        sample(
            "f32[2, 5, 6, 4]", "f32[6, 2, 3, 2]",
            strides=(2, 1), pads_begin=(1, 0), pads_end=(0, 1), dilations=(1, 2), groups=2,
            layout=wi.CHANNELS_LAST,
        ),
    )  # fmt: skip

    def canonical(self, *types: Type) -> Op:
        """`auto` becomes plain padding where the sizes allow; `out` None where it says nothing."""
        if len(types) != 2:
            return self
        x, w = map(as_tensor, types)
        op = replace(self, out=None) if self.out == x.dtype == w.dtype else self
        if not op.auto or x.rank != w.rank:
            return op
        x = wi.type_channels_first(x, self.layout)
        op._check(x.rank - 2)
        pads = wi.resolve_padding(x.dims[2:], w.dims[2:], op.strides, op.dilations, op.auto)
        return op if pads is None else replace(op, pads_begin=pads[0], pads_end=pads[1], auto="")

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        dtype = _result_dtype(x, w, self.out)
        _check_ranks(x, w)
        x = wi.type_channels_first(x, self.layout)
        self._check(x.rank - 2)
        wi.check_kernel(w.dims[2:])
        self._check_channels(x, w)
        spatial = (UNKNOWN,) * (x.rank - 2) if self.auto else self._spatial(x.dims, w.dims)
        result = TensorType(dtype, (x.dims[0], w.dims[0], *spatial))
        return wi.type_in_layout(result, self.layout)

    def _check(self, spatial: int) -> None:
        wi.check_window(
            spatial,
            strides=self.strides,
            dilations=self.dilations,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
            auto=self.auto,
        )

    def _check_channels(self, x: TensorType, w: TensorType) -> None:
        channels, per_group, results = x.dims[1], w.dims[1], w.dims[0]
        known = isinstance(channels, int) and isinstance(per_group, int)
        if self.groups < 1 or (known and channels != int(per_group) * self.groups):
            raise InferError(
                "channels do not fit the weights",
                expected=f"{self.groups} groups of {per_group}",
                given=channels,
            )
        if isinstance(results, int) and results % self.groups:
            raise InferError(
                "results do not divide into groups", expected=self.groups, given=results
            )

    def _spatial(self, x: Shape, w: Shape) -> Shape:
        pads = zip(self.pads_begin, self.pads_end, strict=True)
        axes = zip(x[2:], w[2:], self.strides, self.dilations, pads, strict=True)
        return tuple(wi.output_dim(*axis) for axis in axes)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return 0 if index == 0 and axis == 0 else None

    def reference(self, x: Array, w: Array) -> Array:
        dtype = self.out or from_numpy(x.dtype)
        op = self.canonical(*(TensorType(from_numpy(a.dtype), a.shape) for a in (x, w)))
        assert isinstance(op, Conv)
        x = wi.channels_first(x, self.layout)
        if x.shape[1] != w.shape[1] * self.groups:
            raise ExecutionError(
                "channels do not fit the weights", expected=w.shape[1] * self.groups, given=x.shape
            )
        shape = (x.shape[0], w.shape[0], *map(int, op._spatial(x.shape, w.shape)))
        check_allocation(shape, np.float64)
        x, w = _operands(x, w)
        y = np.empty(shape, x.dtype)
        # Not -1: where a size is 0, numpy cannot tell what is left for another.
        kernel = w.reshape(op.groups, w.shape[0] // op.groups, math.prod(w.shape[1:]))
        strides, pads = list(op.strides), [*zip(op.pads_begin, op.pads_end, strict=True)]
        for i, reach in enumerate(map(wi.extent, w.shape[2:], op.dilations)):
            x, strides[i], pads[i] = wi.read_elements(x, i + 2, reach, strides[i], pads[i])
        padded = wi.pad_spatial(x, [b for b, _ in pads], [e for _, e in pads], 0)
        view = wi.windows(padded, w.shape[2:], strides, op.dilations)
        if y.size:
            _correlate(view, kernel, y)
        return wi.in_layout(_result(y, dtype), self.layout)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return layer_bound(value, given[0])

    def layer_plan(self, value: Value) -> LayoutPlan | None:
        return wi.channels_last_plan(value, self.layout)

    def any_spatial_order(self, value: Value) -> bool:
        """Return True for a convolution that reads one place for each place of its result."""
        if self.layout != wi.CHANNELS_FIRST or self.auto:
            return False
        kernel = (value.inputs[1].tensor.shape or ())[2:]
        pads = (*self.pads_begin, *self.pads_end)
        return all(k == 1 for k in (*kernel, *self.strides)) and not any(pads)

    def suits_planes(self, value: Value) -> bool:
        x, w = (v.tensor for v in value.inputs)
        separate = w.rank == 4 and w.dims[:2] == (self.groups, 1) and w.dtype == x.dtype
        return separate and wi.suits_planes(value.tensor, x, w.dims[2:], self)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        if index or not self.any_spatial_order(value) or (order[0], order[-1]) != (0, 1):
            return None
        op = replace(self, layout=wi.CHANNELS_LAST)
        return LayoutPlan(op, (Need(order), Need(plain(len(order)))), order)

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[1].dims[1:])

    def operand_error_scale(self, index: int, *operands: Array) -> Array | None:
        """Return the largest magnitude of the tile, or of the kernel, that holds an element.

        None unless Winograd's transform may compute the convolution: that sums whole tiles.
        """
        w = operands[1]
        if w.shape[2:] != (3, 3) or self.groups != 1 or {*self.strides, *self.dilations} != {1}:
            return None
        found = np.nan_to_num(np.abs(widen(operands[index])), nan=0.0, posinf=0.0)
        if index == 1:
            return np.broadcast_to(found.max(axis=(2, 3), keepdims=True, initial=0.0), w.shape)
        first = 1 if self.layout == wi.CHANNELS_LAST else 2
        for axis in (first, first + 1):
            for by in (1, 2, 2):  # five pixels either way: a tile has six
                rows = np.moveaxis(found, axis, 0)
                larger = rows.copy()
                larger[by:] = np.maximum(larger[by:], rows[:-by])
                larger[:-by] = np.maximum(larger[:-by], rows[by:])
                found = np.moveaxis(larger, 0, axis)
        return found

    def operations(self, value: Value) -> float:
        if not value.tensor.is_static:
            return 0.0
        return layer_operations(value, math.prod(value.inputs[1].tensor.static[1:]))


def _correlate(view: Array, kernel: Array, y: Array) -> None:
    """y = kernel times the windows, a bounded part of the first spatial axis at a time."""
    groups, _, terms = kernel.shape
    spatial = y.ndim - 2
    # [N, C, *O, *K] -> [N, C, *K, *O]: the terms of a sum next to each other.
    order = (0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
    view = np.transpose(view, order)
    whole = (slice(None),) * (1 + spatial)
    row = groups * terms * math.prod(y.shape[3:])
    step = max(1, COLUMN_ELEMENTS // max(1, row))
    for n in range(y.shape[0]):
        for start in range(0, y.shape[2], step):
            rows = slice(start, min(start + step, y.shape[2]))
            target = y[n, :, rows]
            places = math.prod(target.shape[1:])
            columns = view[n][(*whole, rows)].reshape(groups, terms, places)
            target[...] = np.matmul(kernel, columns).reshape(target.shape)


@dataclass(frozen=True)
class DeformConv(Op):
    """A convolution of x[N, C, *S] with w[O, C/groups, *K] that reads at displaced places.

    `offset`[N, offset_groups * K * D, *output] displaces each of the K elements of a window along
    each of the D axes, the same for all channels of an offset group; x is interpolated linearly and
    is zero beyond its edges. `mask`[N, offset_groups * K, *output], if given, scales what was read.
    """

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    offset_groups: int = 1

    costly = True
    samples = (
        sample(
            "f32[1, 2, 4, 4]", "f32[3, 2, 2, 2]", "f32[1, 8, 3, 3] in -1..1",
            strides=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1),
        ),
        sample(
            "f32[2, 4, 5, 5]", "f32[2, 2, 2, 2]", "f32[2, 16, 3, 2] in -3..3",
            "f32[2, 8, 3, 2] in 0..1",
            strides=(2, 2), pads_begin=(1, 0), pads_end=(1, 0), dilations=(2, 2),
            groups=2, offset_groups=2,
        ),
    )  # fmt: skip

    def infer(
        self, x: TensorType, w: TensorType, offset: TensorType, *mask: TensorType
    ) -> TensorType:
        check_kinds(same_dtype(x, w, offset, *mask), (FLOAT,))
        if len({x.rank, w.rank, offset.rank, *(m.rank for m in mask)}) > 1 or x.rank < 3:
            raise InferError(
                "x, weights, offsets and mask have one rank, 3 or more", expected=x, given=offset
            )
        spatial = x.rank - 2
        wi.check_window(
            spatial,
            strides=self.strides,
            dilations=self.dilations,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
        )
        wi.check_kernel(w.dims[2:])
        if self.groups < 1 or self.offset_groups < 1 or len(mask) > 1:
            raise InferError("groups are positive numbers, and there is one mask at most")
        result = self._spatial(x.dims, w.dims)
        places = _product((self.offset_groups, *w.dims[2:]))
        _check_channels("x", x.dims[1], _product((w.dims[1], self.groups)))
        _check_channels("offset", offset.dims[1], _product((places, spatial)))
        for operand in (offset, *mask):
            wanted = (x.dims[0], *result)
            if not _agree((operand.dims[0], *operand.dims[2:]), wanted):
                raise InferError("one offset a place of the result", expected=wanted, given=operand)
        for m in mask:
            _check_channels("mask", m.dims[1], places)
        if isinstance(x.dims[1], int) and x.dims[1] % self.offset_groups:
            raise InferError(
                "channels do not divide into offset groups",
                expected=self.offset_groups,
                given=x.dims[1],
            )
        if isinstance(w.dims[0], int) and w.dims[0] % self.groups:
            raise InferError(
                "results do not divide into groups", expected=self.groups, given=w.dims[0]
            )
        return x.with_shape((x.dims[0], w.dims[0], *result))

    def _spatial(self, x: Shape, w: Shape) -> Shape:
        pads = zip(self.pads_begin, self.pads_end, strict=True)
        axes = zip(x[2:], w[2:], self.strides, self.dilations, pads, strict=True)
        return tuple(wi.output_dim(*axis) for axis in axes)

    def reference(self, x: Array, w: Array, offset: Array, *mask: Array) -> Array:
        count, channels, spatial = x.shape[0], x.shape[1], x.ndim - 2
        output = cast(tuple[int, ...], self._spatial(x.shape, w.shape))
        kernel = w.shape[2:]
        terms = int(np.prod(kernel))
        check_allocation((count, channels, terms, *output), np.float64)
        # [N, G, *K, D, *output]: the displacement of every element of every window.
        moved = offset.astype(np.float64).reshape(
            count, self.offset_groups, *kernel, spatial, *output
        )
        places = []
        for axis in range(spatial):
            base = (np.arange(kernel[axis]) * self.dilations[axis] - self.pads_begin[axis]).reshape(
                -1, *(1,) * (spatial - 1 - axis + spatial)
            )
            start = (np.arange(output[axis]) * self.strides[axis]).reshape(
                -1, *(1,) * (spatial - 1 - axis)
            )
            places.append(moved[(slice(None),) * (2 + spatial) + (axis,)] + base + start)
        # [N, G, C/G, *K, *output]: x as each window reads it.
        grouped = x.astype(np.float64).reshape(
            count, self.offset_groups, channels // self.offset_groups, *x.shape[2:]
        )
        read = sample_at(grouped, places, LINEAR, ZEROS)
        for m in mask:
            scale = m.astype(np.float64).reshape(count, self.offset_groups, 1, *kernel, *output)
            read = read * scale
        # Not -1: where a size is 0, numpy cannot tell what is left for another.
        summed = channels // self.groups * terms
        columns = read.reshape(count, self.groups, summed, math.prod(output))
        weights = w.astype(np.float64).reshape(self.groups, w.shape[0] // self.groups, summed)
        y = np.matmul(weights, columns).reshape(count, w.shape[0], *output)
        return narrow(y, from_numpy(x.dtype))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[1].dims[1:]) * int(2 ** (types[0].rank - 2))


def _product(dims: Shape) -> Dim:
    result = 1
    for d in dims:
        if not isinstance(d, int):
            return UNKNOWN
        result *= d
    return result


def _agree(given: Shape, expected: Shape) -> bool:
    return all(
        a == b or isinstance(a, str) or isinstance(b, str)
        for a, b in zip(given, expected, strict=True)
    )


def _check_channels(name: str, given: Dim, expected: Dim) -> None:
    if not _agree((given,), (expected,)):
        raise InferError(f"{name} has the wrong number of channels", expected=expected, given=given)
