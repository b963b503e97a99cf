"""Replaces ops by ops with less work for the kernels of the CPU.

Pools and interpolations over several axes become one step per axis, and pools read channels that
are contiguous. Products of bytes leave their zero points. Convolutions of halves become those of
f32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from monograph.ir import Graph, Op, Value, constant, known
from monograph.ir.dtype import f32, i32
from monograph.ir.sizes import hint_of
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv, DeformConv
from monograph.ops.image import CROP, GridSample, taps, used_taps
from monograph.ops.linear import Dot
from monograph.ops.pool import AveragePool, LpPool, MaxPool, Pool
from monograph.ops.resize import LINEAR, NEAREST, STRETCH, Resize
from monograph.ops.roi import RoiAlign
from monograph.ops.shape import Transpose
from monograph.ops.window import CHANNELS_FIRST, CHANNELS_LAST
from monograph.program.fusion.op_classes import Copy, is_native
from monograph.program.legalise.sampling import MANY_CHANNELS, split_sampling
from monograph.rewrite import Reject
from monograph.rules.quantised import dot_of_data

LESS = 0.6
"""Ops over single axes must have at most this share of the work of one op over all of them."""

PLANES = (AveragePool, MaxPool)
"""Pools that a kernel computes along rows of one channel."""


def split_axes(graph: Graph) -> Graph:
    """Replace pools and interpolations over several axes by ops over one axis each.

    Pools and reads between pixels read channels that are contiguous.
    """

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if not inputs:
            return old
        new = old.op(*inputs)
        if not isinstance(new.op, (DeformConv, GridSample, Pool, Resize, RoiAlign)):
            return new
        both = (new, *inputs)
        if not all(map(is_native, both)) or any(0 in v.tensor.static for v in both):
            return new
        if isinstance(new.op, (DeformConv, GridSample)):
            return split_sampling(new)
        if isinstance(new.op, RoiAlign):
            return _with_channels_together(new)
        split = _axis_by_axis(new)
        if split is None and isinstance(new.op, PLANES) and new.op.suits_planes(new):
            return new
        return _channels_last(new) or split or new

    return graph.rebuild(rebuilt)


def _channels_last(value: Value) -> Value | None:
    """Return an op of channels first as one of channels last, between copies."""
    op, x = value.op, value.inputs[0]
    rank = x.tensor.rank
    if rank < 3 or hint_of(x.tensor.static[1]) < MANY_CHANNELS:
        return None
    last: Op
    if isinstance(op, (MaxPool, AveragePool, LpPool)):
        if op.auto or op.layout != CHANNELS_FIRST:
            return None
        last = replace(op, layout=CHANNELS_LAST)
    elif isinstance(op, Resize):
        # Where the last axis keeps its elements, they are contiguous already.
        if op.mode == NEAREST or min(op.axes) < 2 or op.axes[-1] != rank - 1:
            return None
        last = replace(op, axes=tuple(a - 1 for a in op.axes))
    else:
        return None
    made = last(Copy()(Transpose((0, *range(2, rank), 1))(x)))
    return Transpose((0, rank - 1, *range(1, rank - 1)))(_axis_by_axis(made) or made)


def _with_channels_together(value: Value) -> Value:
    """Return a pool over boxes whose kernel reads vectors of channels, if it reads them often."""
    x, *others = value.inputs
    _, channels, *sizes = x.tensor.static
    bins = math.prod((value.tensor.static[0], *value.tensor.static[2:]))
    if hint_of(channels) < MANY_CHANNELS or hint_of(bins) * 4 < hint_of(math.prod(sizes)):
        return value
    together = Copy()(Transpose((0, 2, 3, 1))(x))
    return value.op(Transpose((0, 3, 1, 2))(together), *others)


def _axis_by_axis(value: Value) -> Value | None:
    """Return a chain of ops over one axis each; None if it is more work, or other numbers."""
    op, x = value.op, value.inputs[0]
    if not isinstance(op, (MaxPool, AveragePool, Resize)):
        return None
    # Between the steps, numbers are rounded to the type of the result.
    if not isinstance(op, MaxPool) and (not x.dtype.is_float or x.dtype.bits < 32):
        return None
    parts = _pool_parts(op) if isinstance(op, Pool) else _resize_parts(op, x)
    if len(parts) < 2:
        return None
    made, work = x, 0
    for part, width in parts:
        made = part(made)
        work += width * made.tensor.size
    whole = math.prod(width for _, width in parts) * value.tensor.size
    return made if hint_of(work) <= LESS * hint_of(whole) else None


def _pool_parts(op: Pool) -> list[tuple[Op, int]]:
    """Return a pool over each axis and its taps."""
    if op.auto:
        return []
    found: list[tuple[Op, int]] = []
    plain = {"kernel": 1, "strides": 1, "pads_begin": 0, "pads_end": 0, "dilations": 1}
    for axis, width in enumerate(op.kernel):
        own: dict[str, Any] = {
            name: tuple(n if i == axis else other for i, n in enumerate(getattr(op, name)))
            for name, other in plain.items()
        }
        if any(own[name] != (other,) * len(op.kernel) for name, other in plain.items()):
            found.append((replace(op, **own), width))
    return found


def _resize_parts(op: Op, x: Value) -> list[tuple[Op, int]]:
    """Return an interpolation along each axis and its taps, the axis that shrinks most first."""
    assert isinstance(op, Resize)
    if op.mode == NEAREST or op.policy != STRETCH or op.coordinates == CROP:
        return []
    shape, sizes = x.tensor.static, op.sizes or ()
    order = sorted(range(len(sizes)), key=lambda i: sizes[i] / shape[op.axes[i]])
    slope = None if op.mode == LINEAR else op.cubic_a
    found: list[tuple[Op, int]] = []
    for i in order:
        scales = None if op.scales is None else (op.scales[i],)
        part = replace(op, axes=(op.axes[i],), sizes=(sizes[i],), scales=scales)
        where = op.axis_of(i, shape[op.axes[i]])
        places, _ = used_taps(*taps(where, slope, op.antialias, op.exclude_outside))
        found.append((part, len(places)))
    return found


MANY_ROWS = 4
"""A product of at least this many rows repays sums of its operands."""


def split_zero_points(graph: Graph) -> Graph:
    """Replace products of centred bytes, both of them data, by products of bytes."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if not inputs:
            return old
        new = old.op(*inputs)
        if not isinstance(new.op, Dot) or not all(map(is_native, (new, *inputs))):
            return new
        if new.dtype != i32 or known(inputs[1]) is not None:
            return new
        if 0 in inputs[0].tensor.static or new.tensor.static[-2] < MANY_ROWS:
            return new
        made = dot_of_data(new)
        return new if isinstance(made, Reject) else made

    return graph.rebuild(rebuilt)


def widen_convolutions(graph: Graph) -> Graph:
    """Replace convolutions of 16-bit floats by convolutions of f32 between casts.

    A convolution adds in f32, and reads each element of its image for several taps and results:
    converted once, with the step that makes it or copies it, an element costs less.
    """

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if not inputs:
            return old
        new = old.op(*inputs)
        if not isinstance(new.op, Conv) or not all(map(is_native, (new, *inputs))):
            return new
        x, w = inputs
        weights = known(w)
        halves = x.dtype == w.dtype and x.dtype.is_float and x.dtype.bits == 16
        plain = new.op.layout == CHANNELS_LAST and not new.op.auto
        # With one channel in each group, an element meets few weights.
        if weights is None or not halves or not plain or w.tensor.static[1] == 1:
            return new
        wide = new.op(Cast(f32)(x), constant(weights.astype(f32.numpy)))
        return Cast(new.dtype)(wide)

    return graph.rebuild(rebuilt)
