"""Composition of a convolution with the 1x1 convolution after it.

A 1x1 convolution after an enlarged image moves before it, where there are fewer pixels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import numpy as np

from monograph.ir import Array, Constant, Value, constant, is_finite, known
from monograph.ir.sizes import hint_of
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add
from monograph.ops.image import CROP
from monograph.ops.resize import Resize
from monograph.ops.shape import Concat
from monograph.ops.window import CHANNELS_FIRST
from monograph.rewrite import Context, Reject, Work, rewrite
from monograph.rules.arithmetic import rounded


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
        given = before.op.name
        return Reject("the input is no convolution", "conv or conv + bias", given, near=False)
    for conv, bias in (before.inputs, before.inputs[::-1]):
        if isinstance(conv.op, Conv) and isinstance(bias.op, Constant):
            per_channel = channel_vector(bias, conv)
            if per_channel is None or before.type != conv.type:
                return Reject("the addend is no bias per channel", conv.type, bias.type)
            return conv, per_channel
    return Reject("the input is no convolution", "conv or conv + bias", "add", near=False)


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
    return Work(1, 2.0 * hint_of(conv.tensor.size) * taps, hint_of(moved))


def _slower(before: list[Value], after: list[Value], context: Context) -> Reject | None:
    old = sum(context.cost.seconds(conv_work(v)) for v in before)
    new = sum(context.cost.seconds(conv_work(v)) for v in after)
    if new < old:
        return None
    return Reject("one convolution is slower", f"below {old * 1e6:.2f} us", f"{new * 1e6:.2f} us")


@rewrite(Conv, exact=False)
def convolve_before_resize(value: Value, context: Context) -> Value | Reject:
    """Conv(concat(resize(x), y), [V W]) -> resize(Conv(x, V)) + Conv(y, W), for a kernel of 1x1

    The convolution sums over channels and the resize over pixels, so their order does not matter.
    """
    refused = _unfit(value)
    if refused is not None:
        return refused
    source = value.inputs[0]
    parts = source.inputs if isinstance(source.op, Concat) else (source,)
    moved = [v for v in parts if _enlarged(v, context)]
    if not moved:
        reason = "no part of the input is enlarged for this convolution only"
        return Reject(reason, "a resize")
    if source not in parts and context.use_count(source) > 1:
        return Reject("others read the concat", 1, context.use_count(source))
    assert isinstance(value.op, Conv)
    pieces = dict(zip(parts, _part_weights(value, parts), strict=True))
    results, made, resizes = [], [], []
    for v in moved:
        inner = value.op(v.inputs[0], pieces[v])
        made.append(inner)
        results.append(v.op(inner))
        resizes.append(results[-1])
    if rest := [v for v in parts if v not in moved]:
        weights = np.concatenate([_data(pieces[v]) for v in rest], 1)
        joined = Concat(1)(*rest) if len(rest) > 1 else rest[0]
        made.append(value.op(joined, constant(weights)))
        results.append(made[-1])
    old = _seconds([value], moved, context)
    new = _seconds(made, resizes, context)
    if new >= old:
        return Reject(
            "the convolution before the resize is slower",
            f"below {old * 1e6:.2f} us",
            f"{new * 1e6:.2f} us",
        )
    return reduce(Add(), reversed(results))


def _unfit(value: Value) -> Reject | None:
    """Return the reason why this is no 1x1 convolution with constant weights; None if it is."""
    op, weights = value.op, value.inputs[1]
    assert isinstance(op, Conv)
    if op.layout != CHANNELS_FIRST:
        return Reject("the layout is not channels first", CHANNELS_FIRST, op.layout)
    source = value.inputs[0]
    if isinstance(source.op, Concat) and source.op.axis != 1:
        return Reject("the concat is not one of channels", 1, source.op.axis)
    parts = source.inputs if isinstance(source.op, Concat) else (source,)
    if not any(isinstance(v.op, Resize) for v in parts):
        given = ", ".join(v.op.name for v in parts)
        return Reject("nothing is resized", "a resize", given, near=False)
    if not isinstance(weights.op, Constant):
        return Reject("the weights are not constant", "constant", weights.op.name)
    shapes = (value, *source.inputs, source)
    if not all(v.tensor.is_static for v in shapes) or 0 in value.tensor.static:
        return Reject("the shapes are not static", None, value.type)
    if not value.dtype.is_float or value.dtype.bits < 32 or op.out is not None:
        # A narrow sum would be rounded once more, in the middle.
        return Reject("the element type is not a wide float", "f32", value.dtype)
    if any(k != 1 for k in weights.tensor.static[2:]):
        return Reject("the kernel is not 1x1", "1x1", weights.type)
    if op.groups != 1:
        return Reject("the convolution has groups", 1, op.groups)
    if any((*op.pads_begin, *op.pads_end)) or any(s != 1 for s in op.strides):
        return Reject("the convolution pads or skips pixels", "neither", op.strides)
    return None


def _enlarged(value: Value, context: Context) -> bool:
    """Return True for an image with more pixels than its source, and with one user."""
    op = value.op
    if not isinstance(op, Resize) or op.coordinates == CROP or context.use_count(value) > 1:
        return False
    spatial = all(axis >= 2 for axis in op.axes) and value.tensor.rank > 2
    return spatial and hint_of(value.tensor.size) > hint_of(value.inputs[0].tensor.size)


def _part_weights(value: Value, parts: tuple[Value, ...]) -> list[Value]:
    """The weights for each part of the channels."""
    data = _data(value.inputs[1])
    ends = np.cumsum([v.tensor.static[1] for v in parts])
    return [constant(np.ascontiguousarray(w)) for w in np.split(data, ends[:-1], 1)]


def _data(weights: Value) -> Array:
    data = known(weights)
    assert data is not None
    return data


def _seconds(convs: list[Value], resizes: list[Value], context: Context) -> float:
    """Return the time of some convolutions and resizes, one kernel each."""
    work = [conv_work(v) for v in convs]
    for v in resizes:
        work.append(Work(1, v.tensor.size, v.tensor.nbytes + v.inputs[0].tensor.nbytes))
    return sum(map(context.cost.seconds, work))
