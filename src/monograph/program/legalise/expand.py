"""Expansion of ops into ops that kernels exist for, before lowering.

A Fourier transform of known length is a product with a constant matrix; a recurrent cell is a dot
and its steps; a transposed convolution with disjoint windows is a dot of every pixel,
others are one plain convolution per phase; a loop of
known trip count is a scan; a resize that only repeats pixels is a view; a value that depends on
shapes only is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from monograph.ir import Array, DType, Graph, Item, TensorType, Value, constant, is_finite, known
from monograph.ir.dtype import f32, f64
from monograph.ir.evaluate import apply
from monograph.ir.sizes import any_open, divides, hint_of, is_open
from monograph.ops.cast import Cast
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.deferred import Require
from monograph.ops.image import CROP, nearest_places
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Iota
from monograph.ops.recurrent import RecurrentCell
from monograph.ops.resize import NEAREST, STRETCH, Resize
from monograph.ops.shape import Broadcast, Concat, Reshape, ShapeOf, Slice, Transpose, Unsqueeze
from monograph.ops.signal import Dft, MelWeights
from monograph.ops.subgraph import inline
from monograph.ops.window import CHANNELS_LAST
from monograph.program.fusion.op_classes import is_native
from monograph.program.legalise.fourier import long_transform
from monograph.program.legalise.open_resize import as_lookups
from monograph.program.legalise.recurrence import split_cell

Inline = Callable[[Graph, tuple[Value, ...]], tuple[Value, ...]]
"""A function that returns the results of a graph on arguments."""
MAX_TRIPS = 1 << 20
MAX_UNROLLED = 1 << 12
"""The most values of an unrolled loop, and the most iterations whose numbers are a constant."""


def as_scan(op: Loop, inputs: tuple[Value, ...]) -> Value | None:
    """Return a loop of known trip count as a scan; None if the count is not certain."""
    trips, condition = known(inputs[0]), known(inputs[1])
    number, go, *formals = op.body.inputs
    if trips is None or condition is None or not condition.all() or not never_breaks(op):
        return None
    count = trip_count(trips)
    few = 0 <= hint_of(count) <= MAX_TRIPS
    if not few or number.tensor.shape != () or not go.tensor.is_static:
        return None
    if any(isinstance(v.type, TensorType) and not v.type.is_static for v in formals[: op.carried]):
        return None  # its state may change size
    going = constant(np.ones(go.tensor.static, bool))
    _, *results = inline(op.body, (number, going, *formals))
    named = tuple((f"y{i}", v) for i, v in enumerate(results))
    state, captures = formals[: op.carried], formals[op.carried :]
    body = Graph((*state, number, *captures), named, op.body.name, op.body.origins)
    collected = len(results) - op.carried
    scan = Scan(body, (0,), (False,), (0,) * collected, (False,) * collected)
    given = inputs[2:]
    few = not is_open(count) and count <= MAX_UNROLLED
    numbers = constant(np.arange(count)) if few else Iota(count)()
    return scan(*given[: op.carried], numbers, *given[op.carried :])


def trip_count(trips: Array) -> int:
    """Return a known trip count, which may be an open size."""
    count = trips.reshape(-1)[0]
    return count if is_open(count) else int(count)


def never_breaks(op: Loop) -> bool:
    """Return True if nothing in the body ends the loop."""
    ends = op.body.outputs[0][1]
    data = known(ends)
    return ends is op.body.inputs[1] or (data is not None and bool(data.all()))


def unrolled(
    op: Loop, inputs: tuple[Value, ...], inlined: Inline = inline
) -> tuple[Value, ...] | None:
    """Unroll a loop with a small known trip count.

    Sizes may change on the way: each iteration is a graph of its own. None if the count is not
    certain, or if the graph would become large.
    """
    trips, condition = known(inputs[0]), known(inputs[1])
    if trips is None or condition is None or not condition.all() or not never_breaks(op):
        return None
    if not op.pure:  # a random op advances its state once per iteration, but would occur only once
        return None
    count = trip_count(trips)
    if is_open(count) or not 0 < count <= MAX_UNROLLED // max(len(op.body.values), 1):
        return None
    number, go = (t for t in op.body.input_types[:2] if isinstance(t, TensorType))
    state, captures = inputs[2 : 2 + op.carried], inputs[2 + op.carried :]
    collected: list[tuple[Value, ...]] = []
    for i in range(count):
        at = constant(np.full(number.static, i, np.int64))
        going = constant(np.ones(go.static, bool))
        _, *results = inlined(op.body, (at, going, *state, *captures))
        state = tuple(results[: op.carried])
        collected.append(tuple(results[op.carried :]))
    stacks = (Concat(0)(*map(Unsqueeze((0,)), parts)) for parts in zip(*collected, strict=True))
    return (*state, *stacks)


MOST_PHASES = 64
"""The most phases: each is a kernel."""


@dataclass(frozen=True)
class Phase:
    """One phase along one axis: its taps in order, the pixels that it reads, the zeros
    around them, and the pixels from one tap to the next.
    """

    taps: tuple[int, ...]
    start: int
    stop: int
    before: int
    after: int
    dilation: int = 1


def phases_of(
    size: int, results: int, kernel: int, stride: int, pad: int, dilation: int = 1
) -> list[Phase]:
    """Return the phases along an axis, in the order of their results, all of equal number."""
    found = []
    count = -(-results // stride)
    apart = dilation // math.gcd(stride, dilation)
    for p in range(stride):
        # Tap k of result q * stride + p reads pixel q + (p + pad - k * dilation) / stride.
        meets = [k for k in range(kernel) if (p + pad - k * dilation) % stride == 0]
        taps = tuple(reversed(meets))
        first = (p + pad - taps[0] * dilation) // stride if taps else 0
        end = first + count + (len(taps) - 1) * apart
        start, stop = max(0, min(first, size)), max(0, min(end, size))
        before = max(0, min(-first, end - first))
        after = end - first - before - max(0, stop - start)
        found.append(Phase(taps, start, stop, before, after, apart))
    return found


def as_phases(op: ConvTranspose, x: Value, w: Value, shape: Sequence[int]) -> Value | None:
    """Return a transposed convolution with a result of this shape as convolutions and a view."""
    weights = known(w)
    if weights is None or op.layout != CHANNELS_LAST or op.auto or op.sizes:
        return None
    if 0 in (*x.tensor.static, *shape, *weights.shape):
        return None
    # Phases multiply zeros outside of the image; a transposed convolution does not.
    if not is_finite(w):
        return None
    spatial = x.tensor.static[1:-1]
    windows = (weights.shape[2:], op.strides, op.pads_begin, op.dilations)
    axes = [phases_of(*one) for one in zip(spatial, shape[1:-1], *windows, strict=True)]
    every = [phase for axis in axes for phase in axis]
    # A phase without taps, or one that reads only zeros, is no convolution.
    whole = all(phase.taps and phase.start < phase.stop for phase in every)
    if not whole or math.prod(op.strides) > MOST_PHASES:
        return None
    made = [_convolved(x, weights, op.groups, phases) for phases in product(*axes)]
    joined = Concat(len(shape) - 1)(*made) if len(made) > 1 else made[0]
    return _side_by_side(joined, op.strides, shape)


def _convolved(x: Value, weights: Array, groups: int, phases: Sequence[Phase]) -> Value:
    """Return the results of one phase along every axis."""
    shape, rank = x.tensor.static, len(phases)
    starts = (0, *(p.start for p in phases), 0)
    stops = (shape[0], *(p.stop for p in phases), shape[-1])
    if stops != shape or any(starts):
        x = Slice(starts, stops, (1,) * len(shape))(x)
    taps = np.ix_(*(range(d) for d in weights.shape[:2]), *(p.taps for p in phases))
    kept = weights[taps]
    # [C, O / groups, *K] -> [O, C / groups, *K]
    turned = np.swapaxes(kept.reshape(groups, -1, *kept.shape[1:]), 1, 2)
    turned = np.ascontiguousarray(turned.reshape(-1, *turned.shape[2:]))
    before, after = (tuple(p.before for p in phases), tuple(p.after for p in phases))
    apart = tuple(p.dilation for p in phases)
    op = Conv((1,) * rank, before, after, apart, groups=groups, layout=CHANNELS_LAST)
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
    kinds = (ConvTranspose, Dft, Loop, MelWeights, RecurrentCell, Require, Resize, ShapeOf)
    if not any(isinstance(v.op, kinds) for v in graph.values):
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
        if isinstance(op, RecurrentCell):
            return split_cell(op, inputs)
        if isinstance(op, Dft):
            return _as_dot(op, new, inputs[0]) or new
        if isinstance(op, ConvTranspose):
            x, w = inputs
            return _as_conv(op, x, w) or as_phases(op, x, w, new.tensor.static) or new
        if isinstance(op, Resize):
            return _as_view(op, inputs[0]) or as_lookups(op, inputs[0]) or new
    return new


def _agree(expected: Value, given: Value) -> bool:
    """Return True if both sizes are known and equal."""
    a, b = known(expected), known(given)
    return a is not None and b is not None and bool(np.array_equal(a, b))


def _as_dot(op: Dft, old: Value, x: Value) -> Value | None:
    """Return a transform as a product, its axis moved next to the real and imaginary parts."""
    shape, result = x.tensor.static, old.tensor.static
    axis, rank = op.axis, len(shape)
    # The matrices are made here: the code is for one length.
    length = int(op.length or 0)
    op = replace(op, length=length)
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


FEW_PLACES = 64
"""The elements of an axis of open size that are tried."""


def _places(op: Resize, i: int, size: int) -> Array:
    """Return the elements that the results along a resized axis take: of an open size, some.

    Whether all elements are repeated equally often does not depend on how many there are.
    """
    if is_open(size):
        assert op.sizes is not None
        few = min(size.hint, FEW_PLACES)
        ratio = hint_of(op.sizes[i] // size)
        op, size = replace(op, sizes=(few * ratio,) * len(op.sizes)), few
    return nearest_places(op.axis_of(i, size), op.rounding)


def _as_view(op: Resize, x: Value) -> Value | None:
    """Return a resize that repeats every element equally often, or takes elements equally far
    apart, as a broadcast and reshapes, or as a slice.
    """
    shape = x.tensor.static
    if op.mode != NEAREST or op.policy != STRETCH or op.coordinates == CROP or 0 in shape:
        return None
    sizes = [shape[axis] for axis in op.axes]
    resized = zip(sizes, op.sizes or (), strict=True)
    if any((is_open(d) or is_open(n)) and not divides(d, n) for d, n in resized):
        return None
    every = [_places(op, i, d) for i, d in enumerate(sizes)]
    if not any_open(sizes) and (slices := _as_slice(op.axes, every, x)) is not None:
        return slices
    times = [1] * len(shape)
    for axis, size, places in zip(op.axes, op.sizes or (), every, strict=True):
        if not divides(shape[axis], size):
            return None
        times[axis] = size // shape[axis]
        if is_open(times[axis]):
            return None
        if not np.array_equal(places, np.arange(len(places)) // times[axis]):
            return None
    pairs = [(d, n) for d, n in zip(shape, times, strict=True)]
    apart = Reshape(tuple(k for d, n in pairs for k in ((d, 1) if n > 1 else (d,))))(x)
    spread = Broadcast(tuple(k for d, n in pairs for k in ((d, n) if n > 1 else (d,))))(apart)
    return Reshape(tuple(d * n for d, n in pairs))(spread)


def _as_slice(axes: Sequence[int], every: Sequence[Array], x: Value) -> Value | None:
    """Return elements at places of some axes as a slice; None if their distances differ."""
    shape = x.tensor.static
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, places in zip(axes, every, strict=True):
        apart = np.unique(np.diff(places))
        if not places.size or apart.size > 1 or (apart <= 0).any():
            return None
        starts[axis], stops[axis] = int(places[0]), int(places[-1]) + 1
        steps[axis] = int(apart[0]) if apart.size else 1
    return Slice(tuple(starts), tuple(stops), tuple(steps))(x)


def _cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else Cast(dtype)(x)


def _matrix(op: Dft, used: int, parts: int) -> Array:
    """Return the matrix of the transform: its result for each unit vector."""
    units = np.eye(used * parts).reshape(-1, used, parts)
    results: Array = replace(op, axis=1).reference(units)
    return results.reshape(used * parts, -1)
