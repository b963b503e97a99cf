"""Expansion of ops into ops that kernels exist for, before lowering.

A Fourier transform of known length is a product with a constant matrix; a recurrent cell is a dot
and its steps; a transposed convolution with disjoint windows is a dot of every pixel; a loop of
known trip count is a scan; a resize that only repeats pixels is a view; a value that depends on
shapes only is a constant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monograph.ir import Array, DType, Graph, Item, Value, constant, known
from monograph.ir.dtype import f32, f64
from monograph.ir.evaluate import apply
from monograph.ops.cast import Cast
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.decoding import DecodeAttention
from monograph.ops.linear import Dot
from monograph.ops.require import Require
from monograph.ops.resample import CROP, nearest_places
from monograph.ops.resize import NEAREST, STRETCH, Resize
from monograph.ops.shape import Broadcast, Reshape, ShapeOf, Slice, Transpose
from monograph.ops.signal import Dft, MelWeights
from monograph.ops.window import CHANNELS_LAST
from monograph.program.dynamic.static_loops import as_scan
from monograph.program.fusion.op_classes import is_native
from monograph.program.legalise.fourier import long_transform
from monograph.program.legalise.phases import as_phases
from monograph.program.legalise.recurrence import GATES, split_cell

MAX_MATRIX = 1 << 22
"""The most elements of a transform's matrix; a larger one would waste work."""


def split_decoding(graph: Graph) -> Graph:
    """Replace steps of decoding by cache updates and attention, which every target computes."""
    if not any(isinstance(v.op, DecodeAttention) for v in graph.values):
        return graph

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Item) and isinstance(inputs[0].op, DecodeAttention):
            return inputs[0].op.parts(*inputs[0].inputs)[old.op.index]
        return old.op(*inputs) if old.inputs else old

    return graph.rebuild(rebuilt)


def expand(graph: Graph) -> Graph:
    """Replace such ops in a graph."""
    kinds = (ConvTranspose, Dft, Loop, MelWeights, Require, Resize, ShapeOf, *GATES)
    if not any(type(v.op) in kinds for v in graph.values):
        return graph
    return graph.rebuild(_expanded)


def _expanded(old: Value, inputs: tuple[Value, ...]) -> Value:
    op = old.op
    if isinstance(op, MelWeights):
        return constant(apply(old, []))
    if not old.inputs:
        return old
    if isinstance(op, ShapeOf) and inputs[0].tensor.is_static:
        return constant(np.array(inputs[0].tensor.static, np.int64))
    if isinstance(op, Require) and _agree(*inputs[1:]):
        return inputs[0]
    if isinstance(op, Loop):
        return as_scan(op, inputs) or op(*inputs)
    new = op(*inputs)
    # The new type counts: an operand that was expanded may have made sizes known.
    if all(map(is_native, (new, *inputs))):
        if type(op) in GATES:
            return split_cell(op, inputs)
        if isinstance(op, Dft):
            return _as_dot(op, new, inputs[0]) or new
        if isinstance(op, ConvTranspose):
            x, w = inputs
            return _as_conv(op, x, w) or as_phases(op, x, w, new.tensor.static) or new
        if isinstance(op, Resize):
            return _as_view(op, inputs[0]) or new
    return new


def _agree(expected: Value, given: Value) -> bool:
    """Return True if both sizes are known and equal."""
    a, b = known(expected), known(given)
    return a is not None and b is not None and bool(np.array_equal(a, b))


def _as_dot(op: Dft, old: Value, x: Value) -> Value | None:
    """Return a transform as a product, its axis moved next to the real and imaginary parts."""
    shape, result = x.tensor.static, old.tensor.static
    axis, rank = op.axis, len(shape)
    length = op.length or 0
    used = min(shape[axis], length)
    size = used * shape[-1] * result[axis] * result[-1]
    if 0 in shape or not size:
        return None
    if size > MAX_MATRIX:
        return _cast(long_transform(op, x), old.dtype)
    if used < shape[axis]:
        stops = tuple(used if i == axis else d for i, d in enumerate(shape))
        x = Slice((0,) * rank, stops, (1,) * rank)(x)
    others = [i for i in range(rank - 1) if i != axis]
    order = (*others, axis, rank - 1)
    wide = f64 if x.dtype == f64 else f32
    rows = Reshape((-1, used * shape[-1]))(Transpose(order)(x))
    made = Dot()(_cast(rows, wide), constant(_matrix(op, used, shape[-1]).astype(wide.numpy)))
    apart = Reshape((*(shape[i] for i in others), result[axis], result[-1]))(made)
    back = tuple(int(i) for i in np.argsort(order))
    return _cast(Transpose(back)(apart), old.dtype)


def _as_conv(op: ConvTranspose, x: Value, w: Value) -> Value | None:
    """Return a transposed convolution with disjoint windows as a 1x1 convolution and a view."""
    weights = known(w)
    if weights is None or op.layout != CHANNELS_LAST or op.groups != 1 or op.auto:
        return None
    kernel, rank = weights.shape[2:], len(op.strides)
    plain = not any((*op.pads_begin, *op.pads_end, *op.output_padding)) and op.sizes is None
    # The windows of a dilated kernel overlap.
    plain &= all(d == 1 or k == 1 for d, k in zip(op.dilations, kernel, strict=True))
    if not plain or kernel != op.strides or 0 in x.tensor.static:
        return None
    channels, results = weights.shape[:2]
    # [*K, O, C]: the contribution of each pixel to each position of its window.
    spread = weights.transpose(*range(2, 2 + rank), 1, 0).reshape(-1, channels, *(1,) * rank)
    ones, none = (1,) * rank, (0,) * rank
    y = Conv(ones, none, none, ones, layout=CHANNELS_LAST)(x, constant(spread))
    batch, *spatial = x.tensor.static[:-1]
    apart = Reshape((batch, *spatial, *kernel, results))(y)
    pairs = [axis for i in range(rank) for axis in (1 + i, 1 + rank + i)]
    moved = Transpose((0, *pairs, 1 + 2 * rank))(apart)
    sizes = (d * k for d, k in zip(spatial, kernel, strict=True))
    return Reshape((batch, *sizes, results))(moved)


def _as_view(op: Resize, x: Value) -> Value | None:
    """Return a resize that repeats every element equally often as a broadcast and reshapes."""
    shape = x.tensor.static
    if op.mode != NEAREST or op.policy != STRETCH or op.coordinates == CROP or 0 in shape:
        return None
    times = [1] * len(shape)
    for i, (axis, size) in enumerate(zip(op.axes, op.sizes or (), strict=True)):
        times[axis], rest = divmod(size, shape[axis])
        places = nearest_places(op.axis_of(i, shape[axis]), op.rounding)
        if rest or not np.array_equal(places, np.arange(size) // times[axis]):
            return None
    pairs = [(d, n) for d, n in zip(shape, times, strict=True)]
    apart = Reshape(tuple(k for d, n in pairs for k in ((d, 1) if n > 1 else (d,))))(x)
    spread = Broadcast(tuple(k for d, n in pairs for k in ((d, n) if n > 1 else (d,))))(apart)
    return Reshape(tuple(d * n for d, n in pairs))(spread)


def _cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else Cast(dtype)(x)


def _matrix(op: Dft, used: int, parts: int) -> Array:
    """Return the matrix of the transform: its result for each unit vector."""
    units = np.eye(used * parts).reshape(-1, used, parts)
    results: Array = replace(op, axis=1).reference(units)
    return results.reshape(used * parts, -1)
