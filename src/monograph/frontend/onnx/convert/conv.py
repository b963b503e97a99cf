"""Convolutions: plain, transposed, of integers, of quantised tensors, deformable; and pools.

A bias is an addition of its own, so that rules see one form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monograph.frontend.onnx.convert.common import cast, mean, per_channel, widened
from monograph.frontend.onnx.convert.quant import is_zero
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Value, constant
from monograph.ir.dtype import i32
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops import shape as sh
from monograph.ops import window as wi
from monograph.ops.conv import Conv, DeformConv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.deferred import deferred
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, MaxUnpool
from monograph.ops.quant import Dequantize, Quantize

_AUTO = {"NOTSET": "", "VALID": "", "SAME_UPPER": wi.SAME_UPPER, "SAME_LOWER": wi.SAME_LOWER}


@dataclass(frozen=True)
class Geometry:
    """The attributes of a window that convolutions and pools have in common."""

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    auto: str

    @property
    def fixed(self) -> dict[str, Any]:
        """The fields of an op that has no automatic padding."""
        return {k: v for k, v in vars(self).items() if k != "auto"}


def geometry(n: Node, spatial: int) -> Geometry:
    """Strides, padding and dilations of a node over this many spatial axes."""
    mode = n.attr_string("auto_pad", "NOTSET")
    if mode not in _AUTO:
        n.fail("unknown auto_pad", expected=" or ".join(_AUTO), given=mode)
    pads = n.attr_ints("pads", (0,) * (2 * spatial))
    if len(pads) != 2 * spatial:
        n.fail(
            "pads must have two numbers per spatial axis", expected=2 * spatial, given=list(pads)
        )
    if mode != "NOTSET":
        pads = (0,) * (2 * spatial)
    ones = (1,) * spatial
    return Geometry(
        n.attr_ints("strides", ones),
        pads[:spatial],
        pads[spatial:],
        n.attr_ints("dilations", ones),
        _AUTO[mode],
    )


def check_kernel_shape(n: Node, w: Value) -> None:
    """Raise an error if `kernel_shape` contradicts the shape of the weights."""
    declared, given = n.attr_ints("kernel_shape", None), w.tensor.dims[2:]
    if declared is None:
        return
    fits = len(declared) == len(given) and all(
        isinstance(g, str) or d == g for d, g in zip(declared, given, strict=True)
    )
    if not fits:
        n.fail("kernel_shape differs from the weights", expected=list(given), given=list(declared))


def with_bias(y: Value, bias: Value | None) -> Value:
    return y if bias is None else ew.Add()(y, per_channel(bias, y.tensor.rank))


@converter("Conv")
def conv(n: Node) -> Value:
    x, w = n.input(0), n.input(1)
    check_kernel_shape(n, w)
    g = geometry(n, w.tensor.rank - 2)
    y = Conv(**vars(g), groups=n.attr_int("group", 1))(x, w)
    return with_bias(y, n.optional(2))


@converter("ConvTranspose")
def conv_transpose(n: Node) -> Value:
    x, w = n.input(0), n.input(1)
    check_kernel_shape(n, w)
    spatial = w.tensor.rank - 2
    g = geometry(n, spatial)
    sizes = n.attr_ints("output_shape", None)
    if sizes is not None and len(sizes) == spatial + 2:
        sizes = sizes[2:]
    extra = n.attr_ints("output_padding", (0,) * spatial)
    op = ConvTranspose(**vars(g), output_padding=extra, groups=n.attr_int("group", 1), sizes=sizes)
    return with_bias(op(x, w), n.optional(2))


def _integer_conv(n: Node, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None) -> Value:
    """Return the exact convolution in i32, without scales; padding is the zero point."""
    check_kernel_shape(n, w)
    rank = w.tensor.rank
    op = Conv(**vars(geometry(n, rank - 2)), groups=n.attr_int("group", 1), out=i32)
    if is_zero(x_zero) and is_zero(w_zero):
        return op(x, w)
    return op(_centred(x, x_zero), _centred(w, w_zero))


def _parameter(p: Value) -> Value:
    """A scale or zero point as a scalar, unless there is one for each result."""
    dims = p.tensor.dims
    return sh.Reshape(())(p) if dims and all(d == 1 for d in dims) else p


def _centred(x: Value, zero: Value | None) -> Value:
    """x - zero point in i32, the zero point given for all of x or along its first axis."""
    wide = cast(x, i32)
    if zero is None or is_zero(zero):
        return wide
    zero = _parameter(zero)
    if zero.tensor.rank == 1:
        zero = per_channel(zero, x.tensor.rank + 1)
    return ew.Sub()(wide, cast(zero, i32))


@converter("ConvInteger")
def conv_integer(n: Node) -> Value:
    return _integer_conv(n, n.input(0), n.input(1), n.optional(2), n.optional(3))


@converter("QLinearConv")
def qlinear_conv(n: Node) -> Value:
    return quantised_conv(n, n.input(0))


def quantised_conv(n: Node, x: Value) -> Value:
    """The exact integer convolution of x, scaled and quantised again."""
    x_scale, x_zero, w, w_scale, w_zero = (n.input(i) for i in range(1, 6))
    y_scale, y_zero = _parameter(n.input(6)), _parameter(n.input(7))
    y = with_bias(_integer_conv(n, x, w, x_zero, w_zero), n.optional(8))
    scale = ew.Mul()(_parameter(x_scale), _parameter(w_scale))
    axis = None if scale.tensor.rank == 0 else 1
    return Quantize(y_zero.dtype)(Dequantize(scale.dtype, axis)(y, scale), y_scale, y_zero)


@converter("DeformConv")
def deform_conv(n: Node) -> Value:
    x, w, offset = (n.input(i) for i in range(3))
    mask = n.optional(4)
    check_kernel_shape(n, w)
    op = DeformConv(
        **geometry(n, w.tensor.rank - 2).fixed,
        groups=n.attr_int("group", 1),
        offset_groups=n.attr_int("offset_group", 1),
    )
    y = op(x, w, offset) if mask is None else op(x, w, offset, mask)
    return with_bias(y, n.optional(3))


def _window(n: Node) -> dict[str, Any]:
    """Return the fields that every pool has."""
    kernel = n.attr_ints("kernel_shape")
    g = geometry(n, len(kernel))
    return {"kernel": kernel, "ceil": n.attr_flag("ceil_mode"), **vars(g)}


@converter("MaxPool")
def max_pool(n: Node) -> Sequence[Value | None]:
    window = _window(n)
    y = MaxPool(**window)(n.input(0))
    if not n.wants(1):
        return (y,)
    column_major = n.attr_flag("storage_order")
    return (y, ArgMaxPool(**window, column_major=column_major)(n.input(0)))


@converter("AveragePool")
def average_pool(n: Node) -> Value:
    return AveragePool(**_window(n), include_pad=n.attr_flag("count_include_pad"))(n.input(0))


@converter("LpPool", since=2)
def lp_pool(n: Node) -> Value:
    return LpPool(**_window(n), p=n.attr_int("p", 2))(n.input(0))


@converter("LpPool")
def lp_pool_1(n: Node) -> Value:
    """Convert LpPool version 1, whose p may be fractional."""
    p = n.attr_float("p", 2.0)
    if p != int(p):
        n.unsupported("an LpPool whose p is not a whole number")
    return LpPool(**_window(n), p=int(p))(n.input(0))


@converter("MaxUnpool")
def max_unpool(n: Node) -> Value:
    kernel = n.attr_ints("kernel_shape")
    g = geometry(n, len(kernel)).fixed
    del g["dilations"]
    x, indices, sizes = n.input(0), n.input(1), n.optional(2)
    if sizes is None:
        return MaxUnpool(kernel, **g)(x, indices)
    return deferred(MaxUnpool, (x, indices), {"sizes": sizes}, kernel=kernel, **g)


def _spatial_axes(n: Node) -> tuple[int, ...]:
    rank = n.rank(0)
    if rank < 3:
        n.fail("the input of a global pool must be x[N, C, *spatial]", given=n.input(0).type)
    return tuple(range(2, rank))


@converter("GlobalMaxPool")
def global_max_pool(n: Node) -> Value:
    return rd.ReduceMax(_spatial_axes(n), keep=True)(n.input(0))


@converter("GlobalAveragePool")
def global_average_pool(n: Node) -> Value:
    x = widened(n.input(0))
    return cast(mean(x, _spatial_axes(n)), n.input(0).dtype)


@converter("GlobalLpPool")
def global_lp_pool(n: Node) -> Value:
    axes = _spatial_axes(n)
    x = n.input(0)
    p = n.attr_int("p", 2) if n.opset >= 2 else n.attr_float("p", 2.0)
    if p <= 0:
        n.fail("the order of a norm must be positive", given=p)
    powers = ew.Pow()(ew.Abs()(x), constant(p, x.dtype))
    total = rd.ReduceSum(axes, keep=True)(powers)
    return ew.Pow()(total, constant(1.0 / p, x.dtype))
