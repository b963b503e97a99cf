"""Normalisations, as their arithmetic: (x - mean) / sqrt(variance + epsilon) and its variants.

Statistics of 16-bit floats are computed in f32, as ONNX asks; those of f64 stay in f64.
"""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import (
    cast,
    mean,
    per_channel,
    reshape_like,
    scalar,
    widened,
)
from monograph.frontend.onnx.dtypes import from_onnx
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import broadcast_onto, divided, required, size_of, times
from monograph.ir import DType, Value
from monograph.ir.dtype import bf16, f16, f32, f64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.pool import AveragePool
from monograph.ops.reduce import ReduceSum

MAX_WINDOW = 1 << 16
"""The most channels of a local response normalisation if the number of channels is not known."""


def centred(x: Value, axes: tuple[int, ...]) -> tuple[Value, Value, Value]:
    """Return x minus its mean along axes, the mean, and the population variance."""
    average = mean(x, axes)
    difference = ew.Sub()(x, average)
    return difference, average, mean(ew.Mul()(difference, difference), axes)


def deviation(variance: Value, epsilon: float) -> Value:
    return ew.Sqrt()(ew.Add()(variance, scalar(epsilon, variance)))


def standardised(x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """(x - mean) / sqrt(variance + epsilon) along axes, in x's own element type."""
    difference, _, variance = centred(x, axes)
    return ew.Div()(difference, deviation(variance, epsilon))


def _widest(*values: Value) -> DType:
    """Return the widest float type of the operands, at least f32."""
    return f64 if any(v.dtype == f64 for v in values) else f32


def _affine(x: Value, scale: Value, bias: Value | None = None) -> Value:
    """x * scale + bias, in the shape of x: scale and bias broadcast to it."""
    y = ew.Mul()(x, broadcast_onto(scale, x))
    return y if bias is None else ew.Add()(y, broadcast_onto(bias, x))


@converter("BatchNormalization")
def batch_normalization(n: Node) -> tuple[Value | None, ...]:
    """x * a + b, with a = scale / sqrt(variance + epsilon) and b = bias - mean * a.

    Before opset 14 a node trains if it asks for more than one output. Before opset 9, with
    `spatial` = 0, every element of a sample has its own statistics.
    """
    x, rank = n.input(0), n.rank(0)
    epsilon = n.attr_float("epsilon", 1e-5)
    wide = _widest(*(n.input(i) for i in range(5)))
    scale, bias, average, variance = (cast(n.input(i), wide) for i in range(1, 5))
    spatial = n.opset >= 9 or n.attr_flag("spatial", True)
    training = n.attr_flag("training_mode") if n.opset >= 14 else any(n.outputs[1:])
    outputs: tuple[Value | None, ...] = ()
    if training:
        axes = (0, *range(2, rank)) if spatial and rank > 1 else (0,)
        average, variance, outputs = _batch_statistics(n, cast(x, wide), axes)
    a = ew.Div()(scale, deviation(variance, epsilon))
    b = ew.Sub()(bias, ew.Mul()(average, a))
    if spatial:
        a, b = per_channel(a, rank), per_channel(b, rank)
    y = _affine(cast(x, wide), a, b)
    return cast(y, x.dtype), *outputs


def _batch_statistics(
    n: Node, x: Value, axes: tuple[int, ...]
) -> tuple[Value, Value, tuple[Value | None, ...]]:
    """Return mean and variance of this batch, and the outputs with the running statistics."""
    _, average, variance = centred(x, axes)
    shape_of = n.input(3)
    average, variance = reshape_like(average, shape_of), reshape_like(variance, shape_of)
    momentum = n.attr_float("momentum", 0.9)
    running = tuple(
        _running(n.input(3 + i), v, momentum) for i, v in enumerate((average, variance))
    )
    if n.opset >= 14:
        return average, variance, running
    saved = tuple(cast(v, n.input(3).dtype) for v in (average, variance))
    return average, variance, (*running, *saved)


def _running(previous: Value, current: Value, momentum: float) -> Value:
    """previous * momentum + current * (1 - momentum)."""
    old = ew.Mul()(cast(previous, current.dtype), scalar(momentum, current))
    new = ew.Mul()(current, scalar(1 - momentum, current))
    return cast(ew.Add()(old, new), previous.dtype)


@converter("InstanceNormalization")
def instance_normalization(n: Node) -> Value:
    x, rank = n.input(0), n.rank(0)
    wide = widened(x)
    normal = standardised(wide, tuple(range(2, rank)), n.attr_float("epsilon", 1e-5))
    scale, bias = (per_channel(cast(n.input(i), wide.dtype), rank) for i in (1, 2))
    return cast(_affine(normal, scale, bias), x.dtype)


def _stash(n: Node, x: Value) -> tuple[DType, Value]:
    """Return the type of the statistics outputs, and x in the type they are computed in."""
    stash = from_onnx(n.attr_int("stash_type", 1))
    if not stash.is_float:
        n.fail("stash_type must be a float type", given=stash)
    narrow = x.dtype in (f16, bf16)
    return stash, cast(x, f64 if stash == f64 else f32) if narrow else x


def _trailing(n: Node) -> tuple[int, ...]:
    rank = n.rank(0)
    return tuple(range(normalise_axis(n.attr_int("axis", -1), rank), rank))


@converter("LayerNormalization")
def layer_normalization(n: Node) -> tuple[Value | None, ...]:
    x = n.input(0)
    stash, wide = _stash(n, x)
    difference, average, variance = centred(wide, _trailing(n))
    spread = deviation(variance, n.attr_float("epsilon", 1e-5))
    y = _affine(cast(ew.Div()(difference, spread), x.dtype), n.input(1), n.optional(2))
    inverse = ew.Div()(scalar(1, spread), spread) if n.wants(2) else None
    return y, cast(average, stash), cast(inverse, stash) if inverse is not None else None


@converter("RMSNormalization")
def rms_normalization(n: Node) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * scale, in the type of the scale."""
    x, scale = n.input(0), n.input(1)
    _, wide = _stash(n, x)
    square = mean(ew.Mul()(wide, wide), _trailing(n))
    normal = ew.Div()(wide, deviation(square, n.attr_float("epsilon", 1e-5)))
    return _affine(cast(cast(normal, x.dtype), scale.dtype), scale)


@converter("GroupNormalization")
def group_normalization(n: Node) -> Value:
    """Convert GroupNormalization: normalise each group over its channels and positions.

    Scale and bias are per channel; before opset 21 per group.
    """
    x, rank, groups = n.input(0), n.rank(0), n.attr_int("num_groups")
    channels = x.tensor.dim(1) if rank > 1 else 0
    if groups < 1 or (isinstance(channels, int) and (not channels or channels % groups)):
        n.fail(
            "the number of channels must be a multiple of the groups",
            expected=channels,
            given=groups,
        )
    _, wide = _stash(n, x)
    whole = size_of(x, 1)
    even = times(divided(whole, groups), groups)
    wide = required(wide, "groups divide the channels", [even], [whole])
    grouped = sh.Reshape((sh.COPY, groups, sh.INFER))(wide)
    normal = cast(standardised(grouped, (2,), n.attr_float("epsilon", 1e-5)), x.dtype)
    by_group = n.opset < 21
    if not by_group:
        normal = reshape_like(normal, x)
    scale, bias = (per_channel(n.input(i), 3 if by_group else rank) for i in (1, 2))
    y = _affine(normal, scale, bias)
    return reshape_like(y, x) if by_group else y


@converter("LpNormalization")
def lp_normalization(n: Node) -> Value:
    """x / |x| along an axis; zero if the norm is zero."""
    x, order = n.input(0), n.attr_int("p", 2)
    axis = (normalise_axis(n.attr_int("axis", -1), n.rank(0)),)
    wide = widened(x)
    if order == 1:
        norm = ReduceSum(axis, keep=True)(ew.Abs()(wide))
    elif order == 2:
        norm = ew.Sqrt()(ReduceSum(axis, keep=True)(ew.Mul()(wide, wide)))
    else:
        n.fail("the order of the norm must be 1 or 2", given=order)
    zero = scalar(0, wide)
    y = ew.Where()(ew.Equal()(norm, zero), zero, ew.Div()(wide, norm))
    return cast(y, x.dtype)


@converter("MeanVarianceNormalization")
def mean_variance_normalization(n: Node) -> Value:
    """(x - mean) / (sqrt(variance) + 1e-9): ONNX adds the small number outside the root."""
    x = n.input(0)
    axes = tuple(normalise_axis(a, n.rank(0)) for a in n.attr_ints("axes", (0, 2, 3)))
    difference, _, variance = centred(widened(x), axes)
    spread = ew.Sqrt()(variance)
    return cast(ew.Div()(difference, ew.Add()(spread, scalar(1e-9, spread))), x.dtype)


@converter("LRN")
def local_response_normalization(n: Node) -> Value:
    """x / (bias + alpha * mean of x^2 over `size` neighbouring channels)^beta.

    Channels beyond the edge count as zeros: the mean is an average pool along the channels.
    """
    x, rank, size = n.input(0), n.rank(0), n.attr_int("size")
    if size < 1 or rank < 2:
        n.fail("a positive size and a tensor with channels are needed", given=(size, x.type))
    if size > MAX_WINDOW and not isinstance(x.tensor.dim(1), int):
        n.undecided("a window this wide needs a known number of channels", given=x.type)
    wide = widened(x)
    channels = x.tensor.dim(1)
    # No window is wider than the channels; the divisor stays the requested size.
    reach = channels - 1 if isinstance(channels, int) and channels else MAX_WINDOW
    before, after = min((size - 1) // 2, reach), min(size // 2, reach)
    rest, ones = (0,) * (rank - 2), (1,) * (rank - 1)
    pool = AveragePool(
        kernel=(before + 1 + after, *ones[1:]),
        strides=ones,
        pads_begin=(before, *rest),
        pads_end=(after, *rest),
        dilations=ones,
        include_pad=True,
    )
    square = sh.Squeeze((1,))(pool(sh.Unsqueeze((1,))(ew.Mul()(wide, wide))))
    alpha = n.attr_float("alpha", 1e-4) * (before + 1 + after) / size
    scaled = ew.Mul()(square, scalar(alpha, wide))
    base = ew.Add()(scaled, scalar(n.attr_float("bias", 1.0), wide))
    divisor = ew.Pow()(base, scalar(n.attr_float("beta", 0.75), wide))
    return cast(ew.Div()(wide, divisor), x.dtype)
