"""Quantisation: linear quantisation and products of quantised matrices.

Integer products accumulate exactly in i32. A result that is quantised again comes as
`Quantize(Dequantize(product))`, the same form that models with explicit Q/DQ pairs have.
"""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.convert.linear import matmul
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import DType, Value, constant, known
from monograph.ir.dtype import i32, u8
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops import shape as sh
from monograph.ops.cast import Cast
from monograph.ops.quant import Dequantize, Quantize

MICROSOFT = "com.microsoft"


def collapsed(p: Value) -> Value:
    """A parameter of one element as a scalar; any other as it is."""
    dims = p.tensor.shape
    return sh.Reshape(())(p) if dims and all(d == 1 for d in dims) else p


def present(*values: Value | None) -> tuple[Value, ...]:
    return tuple(v for v in values if v is not None)


def dtype_or_none(n: Node, name: str) -> DType | None:
    """Return an element type attribute; None for 0, which means that it is absent."""
    if n.attr_int(name, 0) == 0:
        return None
    found: DType = n.attr_dtype(name)
    return found


def _parameters(n: Node) -> tuple[Value, Value | None, int | None, int]:
    """Scale, zero point, axis and block of a quantise or dequantise node."""
    scale, zero = n.input(1), n.optional(2)
    block = n.attr_int("block_size", 0)
    if block < 0:
        n.fail("the block size must be positive", given=block)
    if block == 0:
        scale = collapsed(scale)
        zero = collapsed(zero) if zero is not None else None
    dims = scale.tensor.shape
    if dims is not None and block == 0 and len(dims) > 1:
        n.fail("the scale must be a scalar or a vector unless in blocks", given=scale.type)
    axis = None if dims is not None and not dims else n.attr_int("axis", 1)
    return scale, zero, axis, block


@converter("QuantizeLinear", since=10)
@converter("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(n: Node) -> Value:
    scale, zero, axis, block = _parameters(n)
    declared = dtype_or_none(n, "output_dtype")
    to = zero.dtype if zero is not None else declared or u8
    if declared is not None and declared != to:
        n.fail("output_dtype differs from the zero point's type", expected=to, given=declared)
    saturate = n.attr_flag("saturate", True)
    op = Quantize(to, axis, block, saturate, dtype_or_none(n, "precision"))
    return op(n.input(0), scale, *present(zero))


@converter("DequantizeLinear", since=10)
@converter("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(n: Node) -> Value:
    scale, zero, axis, block = _parameters(n)
    to = dtype_or_none(n, "output_dtype") or scale.dtype
    return Dequantize(to, axis, block)(n.input(0), scale, *present(zero))


def dynamic_quantize(x: Value) -> tuple[Value, Value, Value]:
    """(y, scale, zero point) with y in u8, the range of x and 0 spread over 0..255."""
    # All axes, so that layout passes may permute the dimensions.
    whole = sh.Reshape((sh.INFER,))(x) if x.tensor.shape is None else x
    axes = tuple(range(whole.tensor.rank))
    nought = constant(0, x.dtype)
    top = ew.Max()(rd.ReduceMax(axes)(whole), nought)
    bottom = ew.Min()(rd.ReduceMin(axes)(whole), nought)
    step = ew.Div()(ew.Sub()(top, bottom), constant(255, x.dtype))
    # If all of x is zero, any scale but zero is right.
    scale = ew.Where()(ew.Equal()(step, nought), constant(1, x.dtype), step)
    place = ew.Div()(ew.Sub()(nought, bottom), scale)
    zero = Cast(u8)(ew.Clip(0.0, 255.0)(ew.Round()(place)))
    return Quantize(u8)(x, scale, zero), scale, zero


@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: Node) -> tuple[Value, ...]:
    return dynamic_quantize(n.input(0))


def is_zero(p: Value | None) -> bool:
    """Return True if a zero point is absent or known to be zero."""
    data = known(p)
    return p is None or (data is not None and not np.any(data.astype(np.float32)))


def along(p: Value, axis: int) -> Value:
    """Reshape one parameter per row (axis -2) or column (-1) of matrices for broadcasting."""
    p = collapsed(p)
    return sh.Unsqueeze((1,))(p) if axis == -2 and p.tensor.rank == 1 else p


def centred(x: Value, zero: Value | None, axis: int) -> Value:
    """x - zero point, in i32."""
    wide = Cast(i32)(x)
    return wide if zero is None or is_zero(zero) else ew.Sub()(wide, Cast(i32)(along(zero, axis)))


def integer_dot(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """The product of quantised matrices without their scales, exactly, in i32."""
    if is_zero(a_zero) and is_zero(b_zero):
        return matmul(a, b, i32)
    return matmul(centred(a, a_zero, -2), centred(b, b_zero, -1), i32)


@converter("MatMulInteger")
def matmul_integer(n: Node) -> Value:
    return integer_dot(n.input(0), n.input(1), n.optional(2), n.optional(3))


def scaled(product: Value, a_scale: Value, b_scale: Value) -> Value:
    """An i32 product times the scales of its operands."""
    a_scale, b_scale = along(a_scale, -2), along(b_scale, -1)
    scale = ew.Mul()(a_scale, b_scale)
    if scale.tensor.rank == 0:
        return Dequantize(scale.dtype)(product, scale)
    if scale.tensor.rank == 1:
        return Dequantize(scale.dtype, axis=-1)(product, scale)
    return ew.Mul()(Cast(scale.dtype)(product), scale)


def real(x: Value, scale: Value, zero: Value | None, axis: int) -> Value:
    """Apply scale and zero point of each row or column to x."""
    data = Cast(scale.dtype)(x)
    if zero is not None and not is_zero(zero):
        data = ew.Sub()(data, Cast(scale.dtype)(along(zero, axis)))
    return ew.Mul()(data, along(scale, axis))


@converter("QLinearMatMul")
def qlinear_matmul(n: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero = (n.input(i) for i in range(6))
    y_scale, y_zero = n.input(6), n.input(7)
    if a.dtype.is_integer:
        y = scaled(integer_dot(a, b, a_zero, b_zero), a_scale, b_scale)
    else:
        y = matmul(real(a, a_scale, a_zero, -2), real(b, b_scale, b_zero, -1))
    return requantized(n, y, y_scale, y_zero)


def requantized(n: Node, y: Value, scale: Value, zero: Value) -> Value:
    """Quantise y with one parameter, or one per row."""
    scale, zero = collapsed(scale), collapsed(zero)
    if scale.tensor.rank == 0:
        return Quantize(zero.dtype)(y, scale, zero)
    if scale.tensor.rank == 1:
        return Quantize(zero.dtype, axis=-2)(y, scale, zero)
    columns = y.tensor.dim(-1)
    if not isinstance(columns, int):
        n.undecided("a scale for each row needs a known number of columns", given=y.type)
    return Quantize(zero.dtype, axis=-1, block=columns)(y, scale, zero)
