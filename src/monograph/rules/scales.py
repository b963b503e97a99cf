"""Rules that fold scales and biases into the weights of the layer beside them, and BatchNorm so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monograph.ir import Array, Constant, Value, constant, is_finite, known
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul, Neg, Sub
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.rewrite import ANY, Context, Reject, const, rewrite, variables
from monograph.rules.arithmetic import rounded
from monograph.rules.convolution import channel_vector

x, y, w = variables("x y w")
a, b, k = const("a"), const("b"), const("k")
CONV = Conv(ANY, ANY, ANY, ANY, ANY, ANY, ANY)


def wide(value: Value) -> Array:
    data = known(value)
    assert data is not None
    return data.astype(np.float64)


def floats(*values: Value) -> Reject | None:
    for v in values:
        if not v.dtype.is_float:
            return Reject("the element type must be a float", "a float type", v.dtype)
    return None


def distributes(k: Value) -> Reject | None:
    """Return the reason why a factor may not go into a sum: inf * 2 - inf * 1 is NaN, not inf."""
    if is_finite(k):
        return None
    return Reject("the constant is not finite", "finite numbers", k.type)


@rewrite(Sub()(x, k), exact=True)
def subtract_constant(x: Value, k: Value) -> Value | Reject:
    """x - k -> x + (-k), so that biases come in one form"""
    if refused := floats(k):
        return refused
    return Add()(x, constant(-wide(k), k.dtype))


@rewrite(Neg()(Mul()(x, k)), exact=True)
def negate_scale(x: Value, k: Value) -> Value | Reject:
    """-(x * k) -> x * (-k)"""
    return floats(k) or Mul()(x, constant(-wide(k), k.dtype))


@rewrite(Add()(Add()(x, a), b), exact=False)
def merge_biases(x: Value, a: Value, b: Value, root: Value) -> Value | Reject:
    """(x + a) + b -> x + (a + b)"""
    if refused := floats(x):
        return refused
    bias = rounded(wide(a) + wide(b), a.dtype)
    return bias if isinstance(bias, Reject) else _same_size(Add()(x, bias), root)


@rewrite(Mul()(Mul()(x, a), b), exact=False)
def merge_scales(x: Value, a: Value, b: Value, root: Value) -> Value | Reject:
    """(x * a) * b -> x * (a * b)"""
    if refused := floats(x):
        return refused
    scale = rounded(wide(a) * wide(b), a.dtype, factors=True)
    return scale if isinstance(scale, Reject) else _same_size(Mul()(x, scale), root)


def _same_size(value: Value, root: Value) -> Value | Reject:
    if value.type != root.type:
        return Reject("the constants broadcast beyond the value", root.type, value.type)
    return value


@rewrite(Mul()(Add()(x, a), k), exact=False)
def scale_through_bias(
    x: Value, a: Value, k: Value, root: Value, context: Context
) -> Value | Reject:
    """(x + a) * k -> x * k + a * k, where x is a layer that takes the scale into its weights"""
    if refused := floats(x) or distributes(k):
        return refused
    if not isinstance(x.op, (Conv, Dot)):
        given = x.op.name
        return Reject("the scaled value is no layer with a bias", "conv or dot", given, near=False)
    biased = next(v for v in root.inputs if isinstance(v.op, Add))
    users = max(context.use_count(x), context.use_count(biased))
    if users > 1:
        return Reject("the layer has another user", 1, users)
    scaled = Mul()(x, k)
    if scaled.type != x.type:
        return Reject("the scale broadcasts beyond the layer", x.type, scaled.type)
    bias = rounded(wide(a) * wide(k), a.dtype)
    return bias if isinstance(bias, Reject) else Add()(scaled, bias)


@rewrite(Mul()(CONV(x, w), k), exact=False)
def scale_into_conv(x: Value, w: Value, k: Value, root: Value, context: Context) -> Value | Reject:
    """Conv(x, W) * k -> Conv(x, W k), for one k per output channel"""
    conv = next(v for v in root.inputs if isinstance(v.op, Conv) and v.inputs == (x, w))
    refused = floats(conv) or distributes(k) or _foldable(conv, w, context)
    if refused:
        return refused
    per_channel = channel_vector(k, conv)
    if per_channel is None or root.type != conv.type:
        return Reject("the scale is not one per channel", conv.type, k.type)
    weights = wide(w)
    scaled = rounded(weights * per_channel.reshape(-1, *(1,) * (weights.ndim - 1)), w.dtype)
    return scaled if isinstance(scaled, Reject) else conv.op(x, scaled)


@rewrite(CONV(Mul()(x, k), w), exact=False)
def conv_of_scaled(x: Value, k: Value, w: Value, root: Value) -> Value | Reject:
    """Conv(x * k, W) -> Conv(x, k W), for one k per input channel; zero padding stays zero"""
    assert isinstance(root.op, Conv)
    if refused := floats(x) or distributes(k) or _constant_weights(w):
        return refused
    if root.inputs[0].type != x.type:
        return Reject("the scale broadcasts beyond the value", x.type, root.inputs[0].type)
    per_channel = channel_vector(k, x)
    if per_channel is None:
        return Reject("the scale is not one per channel", x.type, k.type)
    weights = wide(w)
    out, per_group = weights.shape[:2]
    groups = root.op.groups
    # Output channels of group g read the input channels of group g.
    own = np.repeat(per_channel.reshape(groups, per_group), out // groups, axis=0)
    scaled = rounded(weights * own.reshape(out, per_group, *(1,) * (weights.ndim - 2)), w.dtype)
    return scaled if isinstance(scaled, Reject) else root.op(x, scaled)


@rewrite(CONV(Add()(x, k), w), exact=False)
def conv_of_biased(x: Value, k: Value, w: Value, root: Value) -> Value | Reject:
    """Conv(x + k, W) -> Conv(x, W) + W k, for one k per input channel and no padding"""
    op = root.op
    assert isinstance(op, Conv)
    if refused := floats(x) or distributes(k) or _constant_weights(w):
        return refused
    if op.auto or any((*op.pads_begin, *op.pads_end)):
        pads = (op.pads_begin, op.pads_end)
        return Reject(
            "the padding is zero, which the bias would change", "no padding", op.auto or pads
        )
    if root.inputs[0].type != x.type:
        return Reject("the bias broadcasts beyond the value", x.type, root.inputs[0].type)
    per_channel = channel_vector(k, x)
    if per_channel is None:
        return Reject("the bias is not one per channel", x.type, k.type)
    weights = wide(w)
    out, per_group = weights.shape[:2]
    taps = weights.reshape(out, per_group, -1).sum(axis=2)
    own = np.repeat(per_channel.reshape(op.groups, per_group), out // op.groups, axis=0)
    moved = (taps * own).sum(axis=1).reshape(-1, *(1,) * (weights.ndim - 2))
    bias = rounded(moved, w.dtype)
    return bias if isinstance(bias, Reject) else Add()(op(x, w), bias)


@rewrite(Mul()(Dot(ANY)(x, w), k), exact=False)
def scale_into_dot(x: Value, w: Value, k: Value, root: Value, context: Context) -> Value | Reject:
    """Dot(x, W) * k -> Dot(x, W k), for a scalar k or one per column"""
    dot = next(v for v in root.inputs if isinstance(v.op, Dot) and v.inputs == (x, w))
    refused = floats(dot) or distributes(k) or _foldable(dot, w, context)
    if refused:
        return refused
    factors = wide(k)
    columns = w.tensor.static[-1]
    if factors.size != 1 and not (factors.shape[-1] == columns == factors.size):
        return Reject("the scale is not one per column", columns, k.type)
    if root.type != dot.type:
        return Reject("the scale broadcasts beyond the layer", dot.type, root.type)
    scaled = rounded(wide(w) * factors.reshape(-1), w.dtype)
    return scaled if isinstance(scaled, Reject) else dot.op(x, scaled)


def _constant_weights(w: Value) -> Reject | None:
    if isinstance(w.op, Constant):
        return None
    return Reject("the weights are not constant", "constant", w.op.name)


def _foldable(layer: Value, w: Value, context: Context) -> Reject | None:
    if refused := _constant_weights(w):
        return refused
    users = context.use_count(layer)
    return Reject("the layer has another user", 1, users) if users > 1 else None


@rewrite(CONV(Pad(ANY, ANY, ANY)(x), w), exact=True)
def pad_into_conv(x: Value, w: Value, root: Value) -> Value | Reject:
    """Conv(Pad(x), W) -> Conv(x, W) that pads more, where zeros are added around the image"""
    op, pad = root.op, root.inputs[0].op
    assert isinstance(op, Conv)
    assert isinstance(pad, Pad)
    if pad.mode != "constant":
        return Reject("the padding is not of zeros", "constant", pad.mode)
    if any((*pad.before[:2], *pad.after[:2])):
        return Reject("batch or channels are padded", 0, (pad.before[:2], pad.after[:2]))
    if op.auto:
        return Reject("the convolution's padding is not known yet", "static sizes", op.auto)
    begin = tuple(p + q for p, q in zip(op.pads_begin, pad.before[2:], strict=True))
    end = tuple(p + q for p, q in zip(op.pads_end, pad.after[2:], strict=True))
    if min((*pad.before, *pad.after), default=0) < 0:
        return Reject("the padding removes elements", ">= 0", (pad.before, pad.after))
    return replace(op, pads_begin=begin, pads_end=end)(x, w)


@rewrite(CONV(Pad(ANY, ANY, ANY)(x, k), w), exact=True)
def pad_zero_into_conv(x: Value, k: Value, w: Value, root: Value) -> Value | Reject:
    """Conv(Pad(x, 0), W) -> Conv(Pad(x), W), where the padding is given as a zero"""
    pad = root.inputs[0].op
    assert isinstance(pad, Pad)
    if wide(k).any():
        return Reject("the padding is not of zeros", 0, wide(k).reshape(-1)[0])
    return root.op(pad(x), w)
