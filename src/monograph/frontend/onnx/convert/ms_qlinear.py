"""Ops on quantised tensors in the com.microsoft domain, as in models in QOperator form.

Operands are dequantised, the plain op is applied, and its result is quantised again, as in models
with explicit Q/DQ pairs. Products of quantised matrices accumulate exactly in i32.
"""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.conv import quantised_conv
from monograph.frontend.onnx.convert.linear import matmul
from monograph.frontend.onnx.convert.ms_attention import attend_packed
from monograph.frontend.onnx.convert.ms_fused import default, embedded
from monograph.frontend.onnx.convert.quant import (
    MICROSOFT,
    centred,
    collapsed,
    integer_dot,
    requantized,
    scaled,
)
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import broadcast_onto
from monograph.ir import DType, Value, constant
from monograph.ir.dtype import i32
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.quant import Dequantize, Quantize


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
