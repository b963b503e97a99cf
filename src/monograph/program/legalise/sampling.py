"""Reads between pixels, which grid sampling and deformable convolution are made of.

The channels of a pixel are contiguous, so that the kernel reads vectors of them with the same
weights. A deformable convolution is a read of all its windows and one product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monograph.ir import Array, DType, Op, TensorType, Value, constant, from_numpy, known
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.base import narrow
from monograph.ops.cast import Cast
from monograph.ops.conv import DeformConv
from monograph.ops.elementwise import Add, Mul
from monograph.ops.image import (
    LINEAR,
    MIRROR,
    REFLECT,
    TAPS,
    ZEROS,
    GridSample,
    sample_at,
    sampling_gain,
)
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Iota
from monograph.ops.shape import Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.program.fusion.op_classes import Copy

PIXELS, CORNERS, EDGES = "pixels", "corners", "edges"
"""Units of places: pixels; from -1 to 1 between the centres of the first and last pixel, or between
their outer edges.
"""
MANY_CHANNELS = 4
"""With this many channels, vectors of channels repay the copy that puts them side by side."""


@dataclass(frozen=True)
class ReadBetween(Op):
    """x[N, G, *S, C] read at places, one operand [N, G, *P] for each axis of S: [N, G, *P, C].

    Only the lowering makes these.
    """

    mode: str = LINEAR
    outside: str = ZEROS
    unit: str = PIXELS

    def infer(self, x: TensorType, *places: TensorType) -> TensorType:
        return x.with_shape((*places[0].dims, x.dims[-1]))

    def reference(self, x: Array, *places: Array) -> Array:
        found = []
        for place, size in zip(places, x.shape[2:-1], strict=True):
            at = place.astype(np.float64)
            if self.unit == CORNERS:
                at = (at + 1) / 2 * (size - 1)
            elif self.unit == EDGES:
                at = ((at + 1) * size - 1) / 2
            found.append(at)
        y = sample_at(np.moveaxis(x, -1, 2).astype(np.float64), found, self.mode, self.outside)
        dtype = from_numpy(x.dtype)
        moved = np.moveaxis(y, 2, -1)
        return narrow(moved, dtype) if dtype.is_float else moved.astype(dtype.numpy)

    def accumulation_length(self, *types: TensorType) -> int:
        return int(TAPS.get(self.mode, 1) ** (len(types) - 1))

    def operand_gain(self, index: int, *types: TensorType) -> float:
        return sampling_gain(types[0].with_shape(types[0].dims[:-1])) if index else 1.0


def split_sampling(value: Value) -> Value:
    """Return a grid sampling or a deformable convolution as reads between pixels."""
    if isinstance(value.op, DeformConv):
        return _deformed(value, value.op)
    assert isinstance(value.op, GridSample)
    return _sampled(value, value.op)


def _sampled(value: Value, op: GridSample) -> Value:
    x, grid = value.inputs
    rank = x.tensor.rank - 2
    outside = MIRROR if op.align_corners and op.outside == REFLECT else op.outside
    read = ReadBetween(op.mode, outside, CORNERS if op.align_corners else EDGES)
    # The coordinate of the last axis comes first.
    places = [Unsqueeze((1,))(_along_last(grid, rank - 1 - i)) for i in range(rank)]
    found = Squeeze((1,))(read(_by_group(x, 1, value.tensor.size), *places))
    return Transpose((0, 1 + rank, *range(1, 1 + rank)))(found)


def _along_last(x: Value, index: int) -> Value:
    """Return the elements at one index of the last axis."""
    shape = x.tensor.static
    starts, stops = (0,) * (len(shape) - 1), shape[:-1]
    taken = Slice((*starts, index), (*stops, index + 1), (1,) * len(shape))(x)
    return Squeeze((len(shape) - 1,))(taken)


def _by_group(x: Value, groups: int, read: int) -> Value:
    """Return x[N, C, *S] as [N, G, *S, C / G]; channels are contiguous if they are read often."""
    batch, channels, *spatial = x.tensor.static
    rank = len(spatial)
    apart = Unsqueeze((1,))(x)
    if groups > 1:
        apart = Reshape((batch, groups, channels // groups, *spatial))(x)
    moved = Transpose((0, 1, *range(3, 3 + rank), 2))(apart)
    often = channels // groups >= MANY_CHANNELS and hint_of(read) * 4 >= hint_of(x.tensor.size)
    return Copy()(moved) if often or groups > 1 else moved


def _deformed(value: Value, op: DeformConv) -> Value:
    """Return the windows at all places times the weights."""
    x, w, offset, *mask = value.inputs
    # Windows are stored between the two steps: halves would be rounded once more.
    wide = x.dtype if x.dtype == f64 else f32
    batch, channels, *_ = x.tensor.static
    output, kernel = value.tensor.static[2:], w.tensor.static[2:]
    rank, groups, terms = len(kernel), op.offset_groups, math.prod(kernel)
    often = math.prod((batch, channels, terms, *output))
    windows = ReadBetween()(
        _by_group(_cast(x, wide), groups, often), *_window_places(op, offset, output, kernel)
    )
    for m in mask:
        # [N, G * K, *O] -> [N, G, *O, *K]
        apart = Reshape((batch, groups, *kernel, *output))(m)
        last = (*range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        scale = Unsqueeze((2 + 2 * rank,))(Transpose((0, 1, *last))(apart))
        windows = Mul()(windows, _cast(scale, wide))
    # [N, G, *O, *K, C / G] -> [groups, N * O, K * C / groups]
    rows = batch * math.prod(output)
    flat = Reshape((batch, groups, math.prod(output), terms, channels // groups))(windows)
    columns = Reshape((rows, terms, op.groups, channels // op.groups))(
        Copy()(Transpose((0, 2, 3, 1, 4))(flat)) if groups > 1 else flat
    )
    lead = (op.groups,) if op.groups > 1 else ()
    columns = Reshape((*lead, rows, terms * (channels // op.groups)))(
        Copy()(Transpose((2, 0, 1, 3))(columns)) if lead else columns
    )
    made = Dot()(columns, _cast(_turned(w, lead), wide))
    # [groups, N * O, M / groups] -> [N, M, *O]
    together = Transpose((1, 0, 2))(made) if lead else made
    pixels = Reshape((batch, *output, w.tensor.static[0]))(together)
    return _cast(Transpose((0, 1 + rank, *range(1, 1 + rank)))(pixels), value.dtype)


def _window_places(
    op: DeformConv, offset: Value, output: tuple[int, ...], kernel: tuple[int, ...]
) -> list[Value]:
    """Return the places that windows read along each axis, [N, G, *O, *K] in pixels."""
    rank, batch = len(kernel), offset.tensor.static[0]
    # [N, G * K * D, *O] -> [N, G, *O, *K, D]
    apart = Reshape((batch, op.offset_groups, *kernel, rank, *output))(offset)
    order = (0, 1, *range(3 + rank, 3 + 2 * rank), *range(2, 3 + rank))
    moved = Transpose(order)(apart)
    found = []
    for axis in range(rank):
        start = _counted(output[axis], op.strides[axis], -op.pads_begin[axis])
        tap = _counted(kernel[axis], op.dilations[axis], 0)
        start = Reshape((-1, *(1,) * (2 * rank - 1 - axis)))(start)
        tap = Reshape((-1, *(1,) * (rank - 1 - axis)))(tap)
        found.append(Add()(_cast(_along_last(moved, axis), f64), Add()(start, tap)))
    return found


def _counted(size: int, step: int, first: int) -> Value:
    """first, first + step ... as f64."""
    if not is_open(size):
        return constant(np.arange(size, dtype=np.float64) * step + first)
    scaled = Mul()(Cast(f64)(Iota(size)()), constant(float(step), f64))
    return Add()(scaled, constant(float(first), f64))


def _turned(w: Value, lead: tuple[int, ...]) -> Value:
    """Return weights[M, C / groups, *K] as [*lead, K * C / groups, M / groups]."""
    results, channels, *kernel = w.tensor.static
    groups, terms = math.prod(lead), math.prod(kernel)
    shape = (groups, results // groups, channels, terms)
    to, order = (*lead, terms * channels, results // groups), (0, 3, 2, 1)
    data = known(w)
    if data is not None:
        return constant(np.ascontiguousarray(data.reshape(shape).transpose(order).reshape(to)))
    return Copy()(Reshape(to)(Transpose(order)(Reshape(shape)(w))))


def _cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else Cast(dtype)(x)
