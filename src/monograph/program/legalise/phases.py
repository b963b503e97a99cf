"""Transposed convolutions as plain ones, one per phase: the results that are a stride apart.

Along an axis, result q * stride + p reads pixels q + t - j with the taps r + j * stride, where p +
pad = t * stride + r: a convolution of the small image with every stride-th tap, reversed. The
results of all phases are joined as channels, and a view interleaves them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from monograph.ir import Array, Value, constant, is_finite, known
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.shape import Concat, Reshape, Slice, Transpose
from monograph.ops.window import CHANNELS_LAST

MOST_PHASES = 64
"""The most phases: each is a kernel."""


@dataclass(frozen=True)
class Phase:
    """One phase along one axis: its taps in order, the pixels that it reads, the zeros
    around them.
    """

    taps: tuple[int, ...]
    start: int
    stop: int
    before: int
    after: int


def phases_of(size: int, results: int, kernel: int, stride: int, pad: int) -> list[Phase]:
    """Return the phases along an axis, in the order of their results, all of equal number."""
    found = []
    count = -(-results // stride)
    for p in range(stride):
        t, r = divmod(p + pad, stride)
        taps = tuple(reversed(range(r, kernel, stride)))
        first = t - (len(taps) - 1)
        end = first + count + len(taps) - 1
        start, stop = max(0, min(first, size)), max(0, min(end, size))
        before = max(0, min(-first, end - first))
        found.append(Phase(taps, start, stop, before, end - first - before - max(0, stop - start)))
    return found


def as_phases(op: ConvTranspose, x: Value, w: Value, shape: Sequence[int]) -> Value | None:
    """Return a transposed convolution with a result of this shape as convolutions and a view."""
    weights = known(w)
    if weights is None or op.layout != CHANNELS_LAST or op.groups != 1 or op.auto or op.sizes:
        return None
    if any(d != 1 for d in op.dilations) or 0 in (*x.tensor.static, *shape, *weights.shape):
        return None
    # Phases multiply zeros outside of the image; a transposed convolution does not.
    if not is_finite(w):
        return None
    spatial = x.tensor.static[1:-1]
    sizes = zip(spatial, shape[1:-1], weights.shape[2:], op.strides, op.pads_begin, strict=True)
    axes = [phases_of(*one) for one in sizes]
    every = [phase for axis in axes for phase in axis]
    # A phase without taps, or one that reads only zeros, is no convolution.
    whole = all(phase.taps and phase.start < phase.stop for phase in every)
    if not whole or math.prod(op.strides) > MOST_PHASES:
        return None
    made = [_convolved(x, weights, phases) for phases in product(*axes)]
    joined = Concat(len(shape) - 1)(*made) if len(made) > 1 else made[0]
    return _side_by_side(joined, op.strides, shape)


def _convolved(x: Value, weights: Array, phases: Sequence[Phase]) -> Value:
    """Return the results of one phase along every axis."""
    shape, rank = x.tensor.static, len(phases)
    starts = (0, *(p.start for p in phases), 0)
    stops = (shape[0], *(p.stop for p in phases), shape[-1])
    if stops != shape or any(starts):
        x = Slice(starts, stops, (1,) * len(shape))(x)
    taps = np.ix_(*(range(d) for d in weights.shape[:2]), *(p.taps for p in phases))
    turned = np.ascontiguousarray(np.swapaxes(weights[taps], 0, 1))
    before, after = (tuple(p.before for p in phases), tuple(p.after for p in phases))
    op = Conv((1,) * rank, before, after, (1,) * rank, layout=CHANNELS_LAST)
    return op(x, constant(turned))


def _side_by_side(y: Value, strides: Sequence[int], shape: Sequence[int]) -> Value:
    """Interleave [N, *Q, phases * O] to [N, *S, O]: result q * stride + p is phase p at q."""
    batch, *counts, _ = y.tensor.static
    rank = len(strides)
    apart = Reshape((batch, *counts, *strides, shape[-1]))(y)
    pairs = [axis for i in range(rank) for axis in (1 + i, 1 + rank + i)]
    moved = Transpose((0, *pairs, 1 + 2 * rank))(apart)
    sizes = [q * s for q, s in zip(counts, strides, strict=True)]
    result = Reshape((batch, *sizes, shape[-1]))(moved)
    if tuple(sizes) == tuple(shape[1:-1]):
        return result
    return Slice((0,) * len(shape), tuple(shape), (1,) * len(shape))(result)
