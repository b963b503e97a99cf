"""Rules that run a 1x1 convolution before an image is enlarged, on fewer pixels."""

from __future__ import annotations

from functools import reduce

import numpy as np

from monograph.ir import Array, Constant, Value, constant, known
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add
from monograph.ops.resample import CROP
from monograph.ops.resize import Resize
from monograph.ops.shape import Concat
from monograph.ops.window import CHANNELS_FIRST
from monograph.rewrite import Context, Reject, Work, rewrite
from monograph.rules.convolution import conv_work


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
        return Reject("no part of the input is enlarged for this convolution only", "a resize")
    if source not in parts and context.use_count(source) > 1:
        return Reject("others read the concat", 1, context.use_count(source))
    assert isinstance(value.op, Conv)
    pieces = dict(zip(parts, _weights(value, parts), strict=True))
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
    if not isinstance(source.op, (Concat, Resize)):
        return Reject("nothing is resized", "a resize", source.op.name)
    if not isinstance(weights.op, Constant):
        return Reject("the weights are not constant", "constant", weights.op.name)
    shapes = (value, *source.inputs, source)
    if not all(v.tensor.is_static for v in shapes) or 0 in value.tensor.static:
        return Reject("the shapes are not static", None, value.type)
    if not value.dtype.is_float or value.dtype.bits < 32 or op.out is not None:
        # A narrow sum would be rounded once more, in the middle.
        return Reject("the element type is not a wide float", "f32", value.dtype)
    if any(k != 1 for k in weights.tensor.static[2:]) or op.groups != 1:
        return Reject("the kernel is not 1x1", "1x1", weights.type)
    if any((*op.pads_begin, *op.pads_end)) or any(s != 1 for s in op.strides):
        return Reject("the convolution pads or skips pixels", "neither", op.strides)
    return None


def _enlarged(value: Value, context: Context) -> bool:
    """Return True for an image with more pixels than its source, and with one user."""
    op = value.op
    if not isinstance(op, Resize) or op.coordinates == CROP or context.use_count(value) > 1:
        return False
    spatial = all(axis >= 2 for axis in op.axes) and value.tensor.rank > 2
    return spatial and value.tensor.size > value.inputs[0].tensor.size


def _weights(value: Value, parts: tuple[Value, ...]) -> list[Value]:
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
