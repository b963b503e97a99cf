"""Quantised weights and quantised tensors (QOperator form) in the com.microsoft domain.

Weights packed into bytes are unpacked once, at import: a tensor of 2-, 4- or 8-bit integers and a
`Dequantize` with blocks. Values without a zero point are stored around the middle of their range;
they become signed integers without one.
"""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.conv import quantised_conv
from monograph.frontend.onnx.convert.linear import matmul
from monograph.frontend.onnx.convert.ms_attention import attend_packed
from monograph.frontend.onnx.convert.ms_fused import apply_default, default, embedded
from monograph.frontend.onnx.convert.quant import (
    MICROSOFT,
    centred,
    collapsed,
    dynamic_quantize,
    integer_dot,
    present,
    requantized,
    scaled,
)
from monograph.frontend.onnx.fold import weight_data
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import broadcast_onto
from monograph.ir import Array, DType, Value, constant
from monograph.ir.dtype import f32, i2, i4, i8, i32, u2, u4, u8
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.index import Gather
from monograph.ops.quant import Dequantize, Quantize

INTEGERS, LEFT_BITS = 4, 8
"""The accuracy level that allows an integer left operand, and the bits of these integers."""
_UNSIGNED = {2: u2, 4: u4, 8: u8}
_SIGNED = {2: i2, 4: i4, 8: i8}


def unpack_bits(packed: Array, bits: int) -> Array:
    """Unpack values of `bits` bits along the last axis, low bits first; one byte per value."""
    if bits == 8:
        return packed
    each = 8 // bits
    values = np.empty((*packed.shape, each), np.uint8)
    # One numpy pass per position in a byte: numpy is slow along short axes.
    for i in range(each):
        place = values[..., i]
        np.right_shift(packed, np.uint8(i * bits), place)
        np.bitwise_and(place, np.uint8(2**bits - 1), place)
    return values.reshape(*packed.shape[:-1], -1)


def _bits(n: Node, default_bits: int) -> int:
    bits = n.attr_int("bits", default_bits)
    if bits not in _UNSIGNED:
        n.unsupported(f"weights of {bits} bits")
    return bits


def _literal(values: Array, to: DType) -> Value:
    return constant(values.astype(to.numpy))


def _signed(values: Array, bits: int) -> Value:
    """Return unsigned values around the middle of their range as signed ones."""
    # Modulo 256, the difference has the bits of the signed byte.
    return _literal((values - np.uint8(2 ** (bits - 1))).view(np.int8), _SIGNED[bits])


def _constant_bytes(n: Node, i: int, what: str) -> Array:
    data = weight_data(n.optional(i))
    if data is None:
        n.unsupported(f"{what} that are not constants")
    if data.dtype != np.uint8:
        n.fail(f"{what} must be bytes", expected=u8, given=data.dtype)
    return data


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(n: Node) -> Value:
    """x W^T + bias, W[N, K] quantised in blocks along K."""
    x, scale, bias = n.input(0), n.input(2), n.optional(5)
    rows, size, block = n.attr_int("N"), n.attr_int("K"), n.attr_int("block_size")
    bits = _bits(n, 4)
    # The attribute permits lower accuracy; it does not require it.
    permitted = LEFT_BITS if n.attr_int("accuracy_level", 0) == INTEGERS else 0
    if n.attr_flag("weight_prepacked"):
        n.unsupported("weights packed for a device")
    if rows <= 0 or size <= 0 or block < 16 or block & (block - 1):
        n.fail("N, K and block_size must be positive", given=(rows, size, block))
    blocks = -(-size // block)
    packed = _constant_bytes(n, 1, "packed weights")
    if packed.size != rows * blocks * (block * bits // 8):
        n.fail("packed weights have the wrong size", expected=(rows, blocks), given=packed.shape)
    values = unpack_bits(packed.reshape(rows, -1), bits)[:, :size]
    _check_groups(n, size, block)
    scale = sh.Reshape((rows, blocks))(scale)
    zero = n.optional(3)
    zeros: tuple[Value, ...] = ()
    if zero is None:
        weights = _signed(values, bits)
    else:
        weights = _literal(values, _UNSIGNED[bits])
        zeros = (_zero_points(n, zero, rows, blocks, bits),)
    w = Dequantize(x.dtype, 1, block)(weights, scale, *zeros)
    y = matmul(x, sh.Transpose((1, 0))(w), left_bits=permitted)
    return y if bias is None else ew.Add()(y, bias)


def _zero_points(n: Node, zero: Value, rows: int, blocks: int, bits: int) -> Value:
    if zero.dtype.is_float:
        return sh.Reshape((rows, blocks))(zero)
    packed = _constant_bytes(n, 3, "packed zero points")
    each = -(-blocks * bits // 8)
    if packed.size != rows * each:
        n.fail("zero points have the wrong size", expected=(rows, each), given=packed.shape)
    return _literal(unpack_bits(packed.reshape(rows, each), bits)[:, :blocks], _UNSIGNED[bits])


def _check_groups(n: Node, size: int, block: int) -> None:
    """Raise an error if group indices are not simply the indices of the blocks."""
    if n.optional(4) is None:
        return
    groups = n.known_ints(4)
    if groups is not None and groups[:size] == tuple(i // block for i in range(size)):
        return
    n.unsupported("weights in an order of their own (g_idx)")


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(n: Node) -> Value:
    """Convert GatherBlockQuantized: gather first, then dequantise the gathered rows."""
    data, indices, scale, zero = n.input(0), n.input(1), n.input(2), n.optional(3)
    block = n.attr_int("block_size", 128)
    n.permit("bits")  # for data that is not packed, the type gives the bits
    if data.dtype == u8:
        bits = _bits(n, 4)
        values = unpack_bits(_constant_bytes(n, 0, "packed data"), bits)
        if zero is None:
            data = _signed(values, bits)
        else:
            data = _literal(values, _UNSIGNED[bits])
            packed = unpack_bits(_constant_bytes(n, 3, "packed zero points"), bits)
            zero = _literal(packed[..., : scale.tensor.static[-1]], _UNSIGNED[bits])
    rank = data.tensor.rank
    gathered = normalise_axis(n.attr_int("gather_axis", 0), rank)
    axis = normalise_axis(n.attr_int("quantize_axis", 1), rank)
    if block == 0:
        block = data.tensor.static[axis]
    pick = Gather(gathered)
    if gathered == axis:
        return pick(Dequantize(scale.dtype, axis, block)(data, scale, *present(zero)), indices)
    moved = axis + (indices.tensor.rank - 1 if axis > gathered else 0)
    parts = [pick(p, indices) for p in present(data, scale, zero)]
    return Dequantize(scale.dtype, moved, block)(*parts)


# Products


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(n: Node) -> Value:
    b, b_scale, b_zero, bias = n.input(1), n.input(2), n.optional(3), n.optional(4)
    a, a_scale, a_zero = dynamic_quantize(n.input(0))
    y = scaled(integer_dot(a, b, a_zero, b_zero), a_scale, b_scale)
    return y if bias is None else ew.Add()(y, bias)


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(n: Node) -> Value:
    product = integer_dot(n.input(0), n.input(1), n.optional(4), n.optional(5))
    y, bias = scaled(product, n.input(2), n.input(3)), n.optional(6)
    return y if bias is None else ew.Add()(y, bias)


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(n: Node) -> tuple[Value | None, ...]:
    """Convert DynamicQuantizeLSTM as an LSTM with dequantised weights.

    ONNX Runtime may quantise inputs and states to u8: an approximation for speed that is no part of
    what the model computes.
    """
    w = _lstm_weights(n, n.input(1), n.input(8), n.optional(9))
    r = _lstm_weights(n, n.input(2), n.input(10), n.optional(11))
    inputs = (n.input(0), w, r, *(n.optional(i) for i in range(3, 8)))
    return apply_default(n, "LSTM", inputs, n.outputs)


def _lstm_weights(n: Node, w: Value, scale: Value, zero: Value | None) -> Value:
    """Dequantise weights [directions, size, 4 hidden] to [directions, 4 hidden, size]."""
    size = w.tensor.dim(1)
    if not isinstance(size, int):
        n.undecided("the size of the weights is not known", given=w.type)

    def by_column(p: Value) -> Value:
        # One parameter per direction, or one per column of it.
        return sh.Unsqueeze((1, 2))(p) if p.tensor.rank == 1 else sh.Unsqueeze((1,))(p)

    scale, zero = by_column(scale), None if zero is None else by_column(zero)
    data = Dequantize(f32)(w, constant(np.float32(1)))
    if zero is not None:
        data = ew.Sub()(data, Dequantize(f32)(zero, constant(np.float32(1))))
    return sh.Transpose((0, 2, 1))(ew.Mul()(data, scale))


def _real(n: Node, first: int) -> Value:
    """Dequantise an input: data, scale and zero point are consecutive inputs."""
    scale, zero = collapsed(n.input(first + 1)), n.optional(first + 2)
    zeros = () if zero is None else (collapsed(zero),)
    return Dequantize(scale.dtype)(n.input(first), scale, *zeros)


def _quantised(n: Node, y: Value, first: int, to: DType) -> Value:
    """Quantise y with the scale and zero point of the output."""
    scale, zero = collapsed(n.input(first)), n.optional(first + 1)
    zeros = () if zero is None else (collapsed(zero),)
    return Quantize(to)(y, scale, *zeros)


def _channels_first(x: Value) -> Value:
    rank = x.tensor.rank
    return sh.Transpose((0, rank - 1, *range(1, rank - 1)))(x)


def _channels_last(x: Value) -> Value:
    return sh.Transpose((0, *range(2, x.tensor.rank), 1))(x)


# Elementwise ops


@converter("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(n: Node) -> Value:
    op = ew.Add() if n.op_type == "QLinearAdd" else ew.Mul()
    return _quantised(n, op(_real(n, 0), _real(n, 3)), 6, n.input(0).dtype)


@converter("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(n: Node) -> Value:
    return _quantised(n, ew.Sigmoid()(_real(n, 0)), 3, n.input(0).dtype)


@converter("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(n: Node) -> Value:
    return _quantised(n, default(n, "LeakyRelu", _real(n, 0)), 3, n.input(0).dtype)


@converter("QLinearWhere", domain=MICROSOFT)
def qlinear_where(n: Node) -> Value:
    chosen = ew.Where()(n.input(0), _real(n, 1), _real(n, 4))
    return _quantised(n, chosen, 7, n.input(1).dtype)


@converter("MulInteger", domain=MICROSOFT)
def mul_integer(n: Node) -> Value:
    """(a - zero point) * (b - zero point), in i32."""
    a, b = (_centred_whole(n, i) for i in (0, 2))
    return ew.Mul()(a, b)


def _centred_whole(n: Node, i: int) -> Value:
    zero = n.optional(i + 1)
    return centred(n.input(i), None if zero is None else collapsed(zero), -1)


# Rows


@converter("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(n: Node) -> Value:
    """Convert QLinearSoftmax. The `opset` attribute selects the version: before 13 all axes from
    `axis` on are taken together.
    """
    version = n.attr_int("opset")
    return _quantised(n, default(n, "Softmax", _real(n, 0), version=version), 3, n.input(0).dtype)


@converter("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(n: Node) -> Value:
    # Opset 13 is the last one whose axes are an attribute.
    return _quantised(n, default(n, "ReduceMean", _real(n, 0), version=13), 3, n.input(0).dtype)


@converter("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(n: Node) -> Value:
    """Sum 8-bit integers in i32."""
    return default(n, "ReduceSum", cast(n.input(0), i32), version=11)


# Products


@converter("QGemm", domain=MICROSOFT)
def qgemm(n: Node) -> Value:
    """alpha * (A B + C), with C in units of both scales; a float unless the output has a scale."""
    a, b, c = n.input(0), n.input(3), n.optional(6)
    if n.attr_flag("transA"):
        a = sh.Transpose((1, 0))(a)
    if n.attr_flag("transB"):
        b = sh.Transpose((1, 0))(b)
    sums = integer_dot(a, b, n.input(2), n.input(5))
    if c is not None:
        sums = ew.Add()(sums, broadcast_onto(c, sums))
    a_scale = n.input(1)
    alpha = n.attr_float("alpha", 1.0)
    y = scaled(sums, ew.Mul()(a_scale, constant(np.asarray(alpha), a_scale.dtype)), n.input(4))
    if n.optional(7) is None:
        return y
    return requantized(n, y, n.input(7), n.input(8))


@converter("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(n: Node) -> Value:
    return matmul(cast(n.input(0), i32), cast(n.input(1), i32), i32)


@converter("QAttention", domain=MICROSOFT)
def qattention(n: Node) -> tuple[Value | None, ...]:
    """Convert QAttention: project with quantised weights, then apply attention in floats."""
    product = integer_dot(n.input(0), n.input(1), n.optional(6), n.optional(7))
    x = ew.Add()(scaled(product, n.input(3), n.input(4)), n.input(2))
    return attend_packed(n, x, mask=n.optional(5), past=n.optional(8), bias=None)


@converter("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_norm(n: Node) -> tuple[Value | None, ...]:
    """Convert QEmbedLayerNormalization: dequantise tables and parameters, each with one scale."""
    tables: list[Value | None] = []
    for i in range(2, 7):
        data, offset = n.optional(i), i - 2
        scale, zero = n.optional(8 + offset), n.optional(13 + offset)
        if data is None or scale is None:
            tables.append(None)
            continue
        zeros = () if zero is None else (collapsed(zero),)
        tables.append(Dequantize(scale.dtype)(data, collapsed(scale), *zeros))
    y, count, _ = embedded(n, tables, n.optional(7), None)
    return y, count


# Windows


@converter("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(n: Node) -> Value:
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        n.fail("each input has a scale and a zero point", given=len(n.inputs))
    parts = [_real(n, i) for i in range(2, len(n.inputs), 3)]
    return _quantised(n, sh.Concat(n.attr_int("axis"))(*parts), 0, n.input(1).dtype)


@converter("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_pool(n: Node) -> Value:
    x = _real(n, 0)
    last = n.attr_flag("channels_last")
    y = default(n, n.op_type.removeprefix("QLinear"), _channels_first(x) if last else x)
    return _quantised(n, _channels_last(y) if last else y, 3, n.input(0).dtype)


@converter("QLinearConv", domain=MICROSOFT)
def qlinear_conv_layout(n: Node) -> Value:
    """Convert QLinearConv of an image that may be channels last; the weights are channels first."""
    x = n.input(0)
    if not n.attr_flag("channels_last"):
        return quantised_conv(n, x)
    return _channels_last(quantised_conv(n, _channels_first(x)))


@converter("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(n: Node) -> Value:
    return _channels_last(default(n, "MaxPool", _channels_first(n.input(0))))
