"""Convolutions by cuDNN or MIOpen, through torch, as candidates beside generated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from monograph.codegen.triton.matmul.dot import TYPES, destination, viewed
from monograph.codegen.triton.matmul.product import packed_operand
from monograph.codegen.triton.module.kernel import (
    Argument,
    Call,
    Candidate,
    GpuContext,
    TritonPacked,
    Work,
)
from monograph.ir import Array, Value, known
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import strides_of
from monograph.program.memory.strided import Strided, strided


def convolutions(context: GpuContext) -> list[Candidate]:
    """Return a library's convolution, if the image is strided and its padding symmetric."""
    anchor = context.anchor
    op, (x, w) = anchor.op, anchor.inputs
    if not isinstance(op, Conv) or op.pads_begin != op.pads_end or len(op.strides) > 3:
        return []
    if x.dtype not in TYPES or {x.dtype, w.dtype, anchor.dtype} != {x.dtype}:
        return []
    found = strided(x, context.program.places.storage)
    weights = _weights(context, w)
    if found is None or weights is None:
        return []
    return [Candidate("library conv", lambda: _convolution(context, anchor, found, *weights))]


def _weights(context: GpuContext, value: Value) -> tuple[Argument, Strided | None] | None:
    """Return weights as an argument: constants with contiguous channels, data as stored."""
    data = known(value)
    if data is not None:
        return packed_operand(context, TritonPacked(_channels_last(data), value.dtype)), None
    found = strided(value, context.program.places.storage)
    return None if found is None else (found.source, found)


def _channels_last(weights: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(weights, 1, -1))


def _convolution(
    context: GpuContext, anchor: Value, image: Strided, weights: Argument, lying: Strided | None
) -> tuple[Work, ...]:
    op, (x, w) = anchor.op, anchor.inputs
    assert isinstance(op, Conv)
    storage, last = context.program.places.storage, op.layout == CHANNELS_LAST
    shape, w_shape = x.tensor.static, w.tensor.static
    first_x = image.offset - storage[image.source].offset
    x_view = viewed(*_channels_second(shape, image.strides, last), first_x)
    if lying is None:
        packed = (w_shape[0], *w_shape[2:], w_shape[1])
        w_view = viewed(*_channels_second(packed, strides_of(packed), True), 0)
    else:
        first_w = lying.offset - storage[lying.source].offset
        w_view = viewed(*_channels_second(w_shape, lying.strides, False), first_w)
    made = anchor.tensor.static
    y_view = viewed(*_channels_second(made, strides_of(made), last), 0)
    # Lines are images of one row.
    flat = len(op.strides) == 1
    padding = [0, *op.pads_begin] if flat else [*op.pads_begin]
    stride = [1, *op.strides] if flat else [*op.strides]
    dilation = [1, *op.dilations] if flat else [*op.dilations]
    groups, tf32 = op.groups, context.tf32

    def convolve(given: Any, kernel: Any, out: Any) -> None:
        a, b, y = x_view(given), w_view(kernel), y_view(out)
        _into(y, a, b, padding, stride, dilation, groups, tf32)

    result, finish = destination(context)
    return (Call("conv", (image.source, weights, result), convolve), *finish)


def _into(
    y: Any,
    x: Any,
    w: Any,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    tf32: bool,
) -> None:
    """Convolve into our memory; through the library's own memory if it can only allocate."""
    import torch

    if y.is_cuda and torch.version.hip is None:
        torch.ops.aten.cudnn_convolution.out(
            x, w, padding, stride, dilation, groups, True, False, tf32, out=y
        )
        return
    function = torch.nn.functional.conv3d if len(stride) == 3 else torch.nn.functional.conv2d
    y.copy_(function(x, w, None, stride, padding, dilation, groups))


def _channels_second(
    shape: tuple[int, ...], strides: tuple[int, ...], last: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes and strides in torch's order: channels before the spatial dimensions."""
    order = [0, len(shape) - 1, *range(1, len(shape) - 1)] if last else list(range(len(shape)))
    sizes, steps = [shape[i] for i in order], [strides[i] for i in order]
    if len(shape) == 3:
        sizes.insert(2, 1)
        steps.insert(2, steps[-1] * sizes[-1])
    return tuple(sizes), tuple(steps)
