"""Other candidates of convolutions: rows of few channels as contiguous runs, and libraries.

With channels last, the elements under a row of a window are contiguous, whatever the number of
channels. So a step of the sum is a piece of such a run, and addresses need no division. cuDNN's or
MIOpen's convolution, through torch, is a candidate beside the generated kernels.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.image.windows import Window
from monograph.codegen.triton.matmul.dot import (
    TYPES,
    DotTiling,
    ProductShape,
    destination,
    guess,
    multiply,
    tiles,
)
from monograph.codegen.triton.matmul.product import packed_operand
from monograph.codegen.triton.module.kernel import (
    Argument,
    Call,
    Candidate,
    GpuContext,
    KernelWriter,
    TritonPacked,
    Work,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.module.library import LibraryCall
from monograph.ir import Array, Value, known
from monograph.ir.sizes import divides, hint_of
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import strides_of
from monograph.program.memory.strided import Strided, strided

FEW_CHANNELS = 16
"""From this many channels on, a step of the sum is within one tap anyway."""


def serves_runs(context: GpuContext, anchor: Value, g: Window) -> bool:
    """Return True if the image is dense, and its windows are rows without gaps."""
    x = anchor.inputs[0]
    storage = context.program.places.storage.get(x)
    plain = g.last and g.groups == 1 and not g.transposed and len(g.kernel) == 2
    if not plain or storage is None or g.dilations[1] != 1 or g.channels > FEW_CHANNELS:
        return False
    return storage.strides == strides_of(x.tensor.static) and known(anchor.inputs[1]) is not None


def run_candidates(context: GpuContext, anchor: Value, g: Window) -> list[Candidate]:
    """Return kernels for runs, the most promising first."""
    run = g.kernel[1] * g.channels
    dtype, rows = anchor.inputs[0].dtype, hint_of(g.rows)
    fitting = [c for c in tiles(rows, g.columns, run, dtype) if c.k <= max(32, power(run))]
    shape = ProductShape(1, rows, g.columns, g.kernel[0] * run)
    ordered = sorted(fitting, key=lambda c: guess(shape, c, dtype) * -(-run // c.k) * c.k / run)
    return variants("runs", ordered, partial(_run_kernel, context, anchor, g))


def _packed(weights: Array, g: Window, k: int) -> Array:
    """Pack weights as [columns, rows of the window, run], runs padded with zeros."""
    run = g.kernel[1] * g.channels
    turned = weights.transpose(0, 2, 3, 1).reshape(g.columns, g.kernel[0], run)
    whole = np.zeros((g.columns, g.kernel[0], -(-run // k) * k), weights.dtype)
    whole[..., :run] = turned
    return whole


def _run_kernel(context: GpuContext, anchor: Value, g: Window, c: DotTiling) -> Launch:
    k = context.kernel()
    t, w = tile(k), k.w
    data = known(anchor.inputs[1])
    assert data is not None
    packed = TritonPacked(_packed(data, g, c.k), anchor.inputs[1].dtype)
    weights = k.pointer(packed_operand(context, packed))
    run = g.kernel[1] * g.channels
    pieces = -(-run // c.k)
    across = -(-g.columns // c.n)
    pid = k.program_id()
    row = w.let(f"({pid} // {across}) * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"({pid} % {across}) * {c.n} + tl.arange(0, {c.n})", "rn")
    mask = None if divides(c.m, g.rows) else w.let(f"{row}[:, None] < {g.rows}", "m")
    beyond = None if divides(c.n, g.columns) else w.let(f"{column} < {g.columns}", "m")
    t.batch(w.let(f"{row}[:, None]"), [0, 1, 2], mask)
    t.axis(3, w.let(f"{column}[None, :]"), w.let(f"{beyond}[None, :]") if beyond else None)
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {register_type(accumulator(anchor.dtype))})")
    k.wait()
    with w.block(f"for j in range({g.kernel[0] * pieces})"):
        x = _image(k, t, anchor, g, (c, pieces, mask))
        size = g.kernel[0] * pieces * c.k
        where = f"{weights} + {column}[:, None] * {size} + j * {c.k} + tl.arange(0, {c.k})[None, :]"
        inside = f", mask={beyond}[:, None], other=0" if beyond else ""
        y = w.let(f"tl.trans(tl.load({where}{inside}))", "y")
        pair = (x, anchor.inputs[0].dtype), (y, anchor.inputs[1].dtype)
        product = multiply(context, t.elements, *pair, anchor.dtype, rounds_right=False)
        w.line(f"acc = {product}")
    k.trigger()
    t.finish("acc")
    return k.launch((-(-g.rows // c.m) * across,), c.warps, c.stages)


def _image(
    k: KernelWriter, t: ResultTile, anchor: Value, g: Window, how: tuple[DotTiling, int, str | None]
) -> str:
    """Load a piece of a run under each window, 0 outside of the image."""
    c, pieces, mask = how
    w = k.w
    image, down, along = (t.point[t.counter(d)].text for d in range(3))
    tap = "j" if pieces == 1 else w.let(f"j // {pieces}", "tap")
    first = "0" if pieces == 1 else w.let(f"(j % {pieces}) * {c.k}", "first")
    place = w.let(f"{first} + tl.arange(0, {c.k})", "kk")
    line = w.let(f"({down}) * {g.strides[0]} - {g.pads[0]} + {tap} * {g.dilations[0]}", "s")
    start = w.let(f"(({along}) * {g.strides[1]} - {g.pads[1]}) * {g.channels}", "s")
    at = w.let(f"{start} + {place}[None, :]", "s")
    height, width = g.sizes[0], g.sizes[1] * g.channels
    inside = [
        f"({line} >= 0) & ({line} < {height})",
        f"({at} >= 0) & ({at} < {width})",
        f"({place}[None, :] < {g.kernel[1] * g.channels})",
        *([mask] if mask else []),
    ]
    pointer = t.elements.pointers[anchor.inputs[0]]
    where = f"{pointer} + (({image}) * {height} + {line}) * {width} + {at}"
    whole = w.let(" & ".join(inside), "m")
    return w.let(f"tl.load({where}, mask={whole}, other=0)", "x")


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
    x_view = (*_channels_second(shape, image.strides, last), first_x)
    if lying is None:
        packed = (w_shape[0], *w_shape[2:], w_shape[1])
        w_view = (*_channels_second(packed, strides_of(packed), True), 0)
    else:
        first_w = lying.offset - storage[lying.source].offset
        w_view = (*_channels_second(w_shape, lying.strides, False), first_w)
    made = anchor.tensor.static
    y_view = (*_channels_second(made, strides_of(made), last), 0)
    # Lines are images of one row.
    flat = len(op.strides) == 1
    padding = [0, *op.pads_begin] if flat else [*op.pads_begin]
    stride = [1, *op.strides] if flat else [*op.strides]
    dilation = [1, *op.dilations] if flat else [*op.dilations]
    options = {
        "views": (x_view, w_view, y_view),
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
        "groups": op.groups,
        "tf32": context.tf32,
    }
    convolve = LibraryCall("conv", options)
    result, finish = destination(context)
    return (Call("conv", (image.source, weights, result), convolve), *finish)


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
