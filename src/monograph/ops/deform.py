"""Deformable convolution: a convolution whose places of reading are data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from monograph.errors import InferError
from monograph.ir import UNKNOWN, Array, Dim, Op, Shape, TensorType, from_numpy, sample
from monograph.ir.dtype import FLOAT
from monograph.ir.traits import known_product
from monograph.ops import window as wi
from monograph.ops.base import check_allocation, check_kinds, narrow, same_dtype
from monograph.ops.interpolate import LINEAR, ZEROS, sample_at


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
