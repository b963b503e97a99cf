"""Composition of a convolution with the 1x1 convolution after it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from monograph.ir import Array, Constant, Value, is_finite, known
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add
from monograph.ops.window import CHANNELS_FIRST
from monograph.rewrite import Context, Reject, Work, rewrite
from monograph.rules.rounding import rounded


@rewrite(Conv, exact=False)
def compose_pointwise(value: Value, context: Context) -> Value | Reject:
    """Conv(Conv(x, W1) + b, W2) -> Conv(x, W2 W1) + W2 b, for a W2 of size 1x1"""
    parts = _inner(value)
    if isinstance(parts, Reject):
        return parts
    inner, bias = parts
    refused = _check(value, inner, context)
    if refused is not None:
        return refused
    first, second = inner.op, value.op
    assert isinstance(first, Conv)
    assert isinstance(second, Conv)
    w1, w2 = _weights(inner), _weights(value)
    groups = math.gcd(first.groups, second.groups)
    composed = _product(w1, first.groups, w2, second.groups, groups)
    composed = composed.reshape(*composed.shape[:2], *inner.inputs[1].tensor.static[2:])
    strides = tuple(a * b for a, b in zip(first.strides, second.strides, strict=True))
    op = replace(first, strides=strides, groups=groups)
    weights = rounded(composed, inner.dtype)
    if isinstance(weights, Reject):
        return weights
    result = op(inner.inputs[0], weights)
    slower = _slower([inner, value], [result], context)
    if slower is not None:
        return slower
    if bias is None:
        return result
    moved = _block_diagonal(w2, second.groups)[:, :, 0] @ bias
    shape = (-1, *(1,) * (value.tensor.rank - 2))
    between = rounded(moved.reshape(shape), value.dtype)
    return between if isinstance(between, Reject) else Add()(result, between)


def _inner(value: Value) -> tuple[Value, Array | None] | Reject:
    """Return the convolution before this one, and the bias between them."""
    before = value.inputs[0]
    if isinstance(before.op, Conv):
        return before, None
    if not isinstance(before.op, Add):
        return Reject("the input is no convolution", "conv or conv + bias", before.op.name)
    for conv, bias in (before.inputs, before.inputs[::-1]):
        if isinstance(conv.op, Conv) and isinstance(bias.op, Constant):
            per_channel = channel_vector(bias, conv)
            if per_channel is None or before.type != conv.type:
                return Reject("the addend is no bias per channel", conv.type, bias.type)
            return conv, per_channel
    return Reject("the input is no convolution", "conv or conv + bias", "add")


def channel_vector(bias: Value, conv: Value) -> Array | None:
    """Return a constant as one number per channel of axis 1; None if it varies elsewhere."""
    data = known(bias)
    if data is None or not conv.tensor.is_static:
        return None
    shape = conv.tensor.static
    aligned = data.reshape((1,) * (len(shape) - data.ndim) + data.shape)
    if aligned.ndim != len(shape) or any(d != 1 for i, d in enumerate(aligned.shape) if i != 1):
        return None
    if aligned.shape[1] not in (1, shape[1]):
        return None
    return np.broadcast_to(aligned.reshape(-1).astype(np.float64), (shape[1],))


def _check(value: Value, inner: Value, context: Context) -> Reject | None:
    """Return the reason why two convolutions do not compose; None if they do."""
    first, second = inner.op, value.op
    assert isinstance(first, Conv)
    assert isinstance(second, Conv)
    for op in (first, second):
        if op.layout != CHANNELS_FIRST:
            return Reject("the layout is not channels first", CHANNELS_FIRST, op.layout)
    for conv in (inner, value):
        if not isinstance(conv.inputs[1].op, Constant):
            return Reject("the weights are not constant", "constant", conv.inputs[1].op.name)
        if not is_finite(conv.inputs[1]):
            return Reject("the weights are not finite", "finite numbers", conv.inputs[1].type)
    if not (inner.tensor.is_static and value.tensor.is_static):
        return Reject("the shapes are not static", None, inner.type)
    if not value.dtype.is_float or second.out is not None or first.out is not None:
        return Reject("the element type is not a plain float", "floats", value.dtype)
    kernel = value.inputs[1].tensor.static[2:]
    if any(k != 1 for k in kernel):
        return Reject("the second kernel is not 1x1", "1x1", kernel)
    if any((*second.pads_begin, *second.pads_end)):
        pads = (second.pads_begin, second.pads_end)
        return Reject("the second convolution pads its input", "no padding", pads)
    users = max(context.use_count(inner), context.use_count(value.inputs[0]))
    if users > 1:
        return Reject("a value between the convolutions has another user", 1, users)
    return None


def _weights(conv: Value) -> Array:
    """Return the weights as [out, in per group, taps], widened."""
    data = known(conv.inputs[1])
    assert data is not None
    return data.reshape(*data.shape[:2], -1).astype(np.float64)


def _block_diagonal(weights: Array, groups: int) -> Array:
    """Return the weights of a grouped convolution as those of a dense one: [out, in, taps]."""
    out, per_group, taps = weights.shape
    dense = np.zeros((out, per_group * groups, taps))
    rows = out // groups
    for g in range(groups):
        columns = slice(g * per_group, (g + 1) * per_group)
        dense[g * rows : (g + 1) * rows, columns] = weights[g * rows : (g + 1) * rows]
    return dense


def _product(w1: Array, groups1: int, w2: Array, groups2: int, groups: int) -> Array:
    """Compute W2 W1 within each of `groups` blocks of both convolutions."""
    blocks = []
    for first, second in zip(np.split(w1, groups), np.split(w2, groups), strict=True):
        a = _block_diagonal(first, groups1 // groups)
        b = _block_diagonal(second, groups2 // groups)[:, :, 0]
        blocks.append(np.einsum("om,mct->oct", b, a))
    return np.concatenate(blocks)


def conv_work(conv: Value) -> Work:
    """Return the work of one convolution: its products, and every byte read and written once."""
    taps = math.prod(conv.inputs[1].tensor.static[1:])
    moved = sum(v.tensor.nbytes for v in (*conv.inputs, conv))
    return Work(1, 2.0 * conv.tensor.size * taps, moved)


def _slower(before: list[Value], after: list[Value], context: Context) -> Reject | None:
    old = sum(context.cost.seconds(conv_work(v)) for v in before)
    new = sum(context.cost.seconds(conv_work(v)) for v in after)
    if new < old:
        return None
    return Reject("one convolution is slower", f"below {old * 1e6:.2f} us", f"{new * 1e6:.2f} us")
