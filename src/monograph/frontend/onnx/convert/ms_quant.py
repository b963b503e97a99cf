"""Products and lookups with quantised weights in the com.microsoft domain.

Weights packed into bytes are unpacked once, at import: a tensor of 2-, 4- or 8-bit integers and a
`Dequantize` with blocks. Values without a zero point are stored around the middle of their range;
they become signed integers without one.
"""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.convert.linear import matmul
from monograph.frontend.onnx.convert.ms_fused import apply_default
from monograph.frontend.onnx.convert.quant import (
    MICROSOFT,
    dynamic_quantize,
    integer_dot,
    present,
    scaled,
)
from monograph.frontend.onnx.fold import weight_data
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Array, DType, Value, constant
from monograph.ir.dtype import f32, i2, i4, i8, u2, u4, u8
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.index import Gather
from monograph.ops.quant import Dequantize

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
