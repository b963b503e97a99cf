"""Rules that turn quantised layers into layers of bytes: zero points and scales move behind them.

A layer here is a dot or a convolution with constant weights. Its operand is bytes minus a zero
point. The layer of the bytes alone differs by the zero point times the sum of the weights. Integers
wrap in 32 bits on both sides, so these rules are exact. Rules that move a scale are not exact,
because rounding happens elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import Array, Graph, Value, constant, evaluate
from monograph.ir.dtype import f32, i8, i32, u8
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul, Sub
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.quant import Dequantize, spread
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Reshape, Transpose
from monograph.ops.window import CHANNELS_FIRST
from monograph.rewrite import Reject, rewrite

BYTES = (i8, u8)
LOWEST, HIGHEST = -128, 127


@dataclass(frozen=True)
class Centred:
    """x - zero: the bytes, and the zero point in i32 (None for none)."""

    x: Value
    zero: Value | None


def centred(operand: Value) -> Centred | Reject:
    """Split an integer operand into bytes and zero point."""
    wide, zero = operand, None
    if isinstance(operand.op, Sub):
        wide, zero = operand.inputs
    if not isinstance(wide.op, Cast) or wide.inputs[0].dtype not in BYTES:
        given = operand.op.name
        return Reject(
            "the operand is not bytes less a zero point", "cast(x) - zero", given, near=False
        )
    if operand.type != wide.type:
        return Reject("the zero point broadcasts beyond the operand", wide.type, operand.type)
    return Centred(wide.inputs[0], zero)


def closed_data(value: Value) -> Array | Reject:
    """Return the elements of a value that depends on no input."""
    if not value.closed or not value.tensor.is_static:
        return Reject("the weights are not constant", "constant", value.op.name)
    (data,) = evaluate(Graph((), (("", value),)), {})
    return np.asarray(data)


@dataclass(frozen=True)
class OffsetWeights:
    """W = signed + offset, with an offset for each result."""

    signed: Array
    offset: Array
    total: Array
    """The sum of W for each result."""


def signed_weights(data: Array, axis: int) -> OffsetWeights | Reject:
    """Return whole numbers as signed bytes; results lie along an axis."""
    others = tuple(i for i in range(data.ndim) if i != axis % data.ndim)
    least = data.min(others, keepdims=True, initial=0).astype(np.int64)
    most = data.max(others, keepdims=True, initial=0).astype(np.int64)
    if (most - least > HIGHEST - LOWEST).any():
        return Reject("the weights do not fit bytes", HIGHEST - LOWEST, int((most - least).max()))
    offset = (np.maximum(most - HIGHEST, 0) + np.minimum(least - LOWEST, 0)).astype(np.int32)
    total = data.sum(others, dtype=np.int64).astype(np.int32)
    signed = data - offset if offset.any() else data
    return OffsetWeights(signed.astype(np.int8), offset.reshape(-1), total)


@rewrite(Dot, exact=True)
def dot_of_bytes(value: Value) -> Value | Reject:
    """dot(cast(x) - z, W) -> dot(x, W) - z * sum(W), x and W of bytes"""
    found = centred(value.inputs[0])
    if isinstance(found, Reject):
        return found
    if value.dtype != i32:
        return Reject("the product is not computed in 32 bits", i32, value.dtype)
    data = closed_data(value.inputs[1])
    return data if isinstance(data, Reject) else integer_dot(found, data)


def integer_dot(given: Centred, data: Array) -> Value | Reject:
    """Compute dot(x - zero, W) by a dot of bytes."""
    x, zero = given.x, given.zero
    if data.ndim != 2:
        return Reject("the weights are not one matrix", 2, data.ndim)
    if zero is not None and zero.tensor.rank and zero.tensor.dims[-1] != 1:
        return Reject("the zero points vary along the sums", 1, zero.type)
    weights = signed_weights(data, -1)
    if isinstance(weights, Reject):
        return weights
    made = Dot(i32)(x, constant(weights.signed))
    if weights.offset.any():
        sums = ReduceSum((x.tensor.rank - 1,), keep=True)(Cast(i32)(x))
        made = Add()(made, Mul()(sums, constant(weights.offset)))
    return made if zero is None else Sub()(made, Mul()(zero, constant(weights.total)))


def dot_of_data(value: Value) -> Value | Reject:
    """dot(x - z, w - y) -> dot(x, w) - z * sum(w) - y * sum(x) + depth * z * y, both of data

    Kernels take signed w: bytes from 0 to 255 and their zero point move down by 128.
    """
    left, right = (Centred(v, None) if v.dtype in BYTES else centred(v) for v in value.inputs)
    if isinstance(left, Reject) or isinstance(right, Reject) or value.dtype != i32:
        return Reject("the operands are not bytes less zero points", BYTES, value.type, near=False)
    x, z, w, y = left.x, left.zero, right.x, right.zero
    if z is not None and z.tensor.rank and z.tensor.dims[-1] != 1:
        return Reject("the zero points vary along the sums", 1, z.type)
    if y is not None and y.tensor.rank > 1 and y.tensor.dims[-2] != 1:
        return Reject("the zero points vary along the sums", 1, y.type)
    if w.dtype == u8:
        middle = constant(-LOWEST, i32)
        w = Cast(i8)(Sub()(Cast(i32)(w), middle))
        y = constant(LOWEST, i32) if y is None else Sub()(y, middle)
    made = Dot(i32)(x, w)
    if z is not None:
        columns = ReduceSum((w.tensor.rank - 2,), keep=True)(Cast(i32)(w))
        made = Sub()(made, Mul()(z, columns))
    if y is not None:
        rows = ReduceSum((x.tensor.rank - 1,), keep=True)(Cast(i32)(x))
        if z is not None:
            rows = Sub()(rows, Mul()(z, constant(x.tensor.static[-1], i32)))
        made = Sub()(made, Mul()(y, rows))
    if made.type != value.type:
        return Reject("the zero points broadcast beyond the product", value.type, made.type)
    return made


@rewrite(Conv, exact=True)
def conv_of_bytes(value: Value) -> Value | Reject:
    """conv(cast(x) - z, W) -> conv(pad(x, z), W) - z * sum(W), x and W of bytes"""
    found = centred(value.inputs[0])
    if isinstance(found, Reject):
        return found
    if value.dtype != i32:
        return Reject("the convolution is not computed in 32 bits", i32, value.dtype)
    data = closed_data(value.inputs[1])
    assert isinstance(value.op, Conv)
    return data if isinstance(data, Reject) else integer_conv(value.op, found, data)


def integer_conv(op: Conv, given: Centred, data: Array) -> Value | Reject:
    """Compute conv(x - zero, W) by a convolution of bytes, padded with the zero point."""
    x, zero = given.x, given.zero
    if op.auto or op.layout != CHANNELS_FIRST:
        return Reject("the padding is not known yet", "plain padding", op.auto or op.layout)
    if zero is not None and zero.tensor.rank:
        return Reject("there is more than one zero point", "a scalar", zero.type)
    weights = signed_weights(data, 0)
    if isinstance(weights, Reject):
        return weights
    if weights.offset.any() and op.groups > 1:
        return Reject("a grouped convolution has unsigned weights", 1, op.groups)
    op = replace(op, out=i32)
    if zero is not None and any((*op.pads_begin, *op.pads_end)):
        none = (0,) * len(op.strides)
        pad = Pad((0, 0, *op.pads_begin), (0, 0, *op.pads_end))
        x, op = pad(x, Cast(x.dtype)(zero)), replace(op, pads_begin=none, pads_end=none)
    made = op(x, constant(weights.signed))
    wide = (-1, *(1,) * (data.ndim - 2))
    if weights.offset.any():
        sums = op(x, constant(np.ones((1, *data.shape[1:]), np.int8)))
        made = Add()(made, Mul()(sums, constant(weights.offset.reshape(wide))))
    if zero is None:
        return made
    return Sub()(made, Mul()(zero, constant(weights.total.reshape(wide))))


@dataclass(frozen=True)
class Scaled:
    """(x - zero) * scale: bytes, a zero point in i32, one scale for all."""

    centred: Centred
    scale: Value


def scaled(operand: Value) -> Scaled | Reject:
    """Split a dequantised operand into bytes, zero point and scale."""
    op = operand.op
    if not isinstance(op, Dequantize) or op.to != f32 or operand.inputs[0].dtype not in BYTES:
        reason = "the operand is not dequantised from bytes"
        return Reject(reason, "dequantize", op.name, near=False)
    x, scale, *zero = operand.inputs
    if scale.dtype != f32 or any(p.tensor.rank for p in (scale, *zero)):
        return Reject("there is more than one scale", "a scalar", scale.type)
    if any(z.dtype.is_float for z in zero):
        return Reject("the zero point is no whole number", x.dtype, zero[0].dtype)
    return Scaled(Centred(x, Cast(i32)(zero[0]) if zero else None), scale)


def scaled_weights(weights: Value, axis: int) -> tuple[Array, Array] | Reject:
    """Return constant weights as whole numbers and a scale for each result along an axis."""
    views: list[Value] = []
    while isinstance(weights.op, (Reshape, Transpose)):
        views.append(weights)
        weights = weights.inputs[0]
    op = weights.op
    if not isinstance(op, Dequantize) or weights.inputs[0].dtype not in BYTES or op.to != f32:
        return Reject("the weights are not dequantised from bytes", "dequantize", op.name)
    known = [closed_data(v) for v in weights.inputs]
    if refused := next((k for k in known if isinstance(k, Reject)), None):
        return refused
    x, scale, *zero = (k for k in known if not isinstance(k, Reject))
    if any(z.dtype.kind == "f" for z in zero):
        return Reject("the zero point is no whole number", x.dtype, zero[0].dtype)
    shape = x.shape
    whole = x.astype(np.int32)
    for z in zero:
        whole = whole - spread(z.astype(np.int32), shape, op.axis, op.block)
    scales = np.broadcast_to(spread(scale, shape, op.axis, op.block), shape)
    for v in reversed(views):
        whole, scales = v.op.reference(whole), v.op.reference(scales)
    others = tuple(i for i in range(whole.ndim) if i != axis % whole.ndim)
    if whole.size == 0 or (scales.max(others) != scales.min(others)).any():
        return Reject("the scales vary along the sums", "one for each result", scale.shape)
    return whole, scales.max(others)


@rewrite(Dot, exact=False)
def dot_of_scaled(value: Value) -> Value | Reject:
    """dot(s * (x - z), t * W) -> (s * t) * dot(x - z, W), x and W of bytes"""
    found = scaled(value.inputs[0])
    if isinstance(found, Reject):
        return found
    weights = scaled_weights(value.inputs[1], -1)
    if isinstance(weights, Reject):
        return weights
    made = integer_dot(found.centred, weights[0])
    if isinstance(made, Reject):
        return made
    return Mul()(Cast(f32)(made), Mul()(found.scale, constant(weights[1])))


@rewrite(Conv, exact=False)
def conv_of_scaled_bytes(value: Value) -> Value | Reject:
    """conv(s * (x - z), t * W) -> (s * t) * conv(x - z, W), x and W of bytes"""
    assert isinstance(value.op, Conv)
    found = scaled(value.inputs[0])
    if isinstance(found, Reject):
        return found
    weights = scaled_weights(value.inputs[1], 0)
    if isinstance(weights, Reject):
        return weights
    made = integer_conv(value.op, found.centred, weights[0])
    if isinstance(made, Reject):
        return made
    wide = weights[1].reshape(-1, *(1,) * (weights[0].ndim - 2))
    return Mul()(Cast(f32)(made), Mul()(found.scale, constant(wide)))
