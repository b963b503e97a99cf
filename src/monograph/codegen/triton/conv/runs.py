"""Convolutions of few channels: a row of the window is one contiguous run of memory.

With channels last, the elements under a row of a window are contiguous, whatever the number of
channels. So a step of the sum is a piece of such a run, and addresses need no division.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.image.windows import Window
from monograph.codegen.triton.matmul.dot import DotTiling, ProductShape, guess, multiply, tiles
from monograph.codegen.triton.matmul.product import packed_operand
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    TritonPacked,
    variants,
)
from monograph.ir import Array, Value, known
from monograph.program.index import strides_of

FEW_CHANNELS = 16
"""From this many channels on, a step of the sum is within one tap anyway."""


def serves(context: GpuContext, anchor: Value, g: Window) -> bool:
    """Return True if the image is dense, and its windows are rows without gaps."""
    x = anchor.inputs[0]
    storage = context.program.places.storage.get(x)
    plain = g.last and g.groups == 1 and not g.transposed and len(g.kernel) == 2
    if not plain or storage is None or g.dilations[1] != 1 or g.channels > FEW_CHANNELS:
        return False
    return storage.strides == strides_of(x.tensor.static) and known(anchor.inputs[1]) is not None


def candidates(context: GpuContext, anchor: Value, g: Window) -> list[Candidate]:
    """Return kernels for runs, the most promising first."""
    run = g.kernel[1] * g.channels
    dtype = anchor.inputs[0].dtype
    fitting = [c for c in tiles(g.rows, g.columns, run, dtype) if c.k <= max(32, power(run))]
    shape = ProductShape(1, g.rows, g.columns, g.kernel[0] * run)
    ordered = sorted(fitting, key=lambda c: guess(shape, c, dtype) * -(-run // c.k) * c.k / run)
    return variants("runs", ordered, partial(_kernel, context, anchor, g))


def _packed(weights: Array, g: Window, k: int) -> Array:
    """Pack weights as [columns, rows of the window, run], runs padded with zeros."""
    run = g.kernel[1] * g.channels
    turned = weights.transpose(0, 2, 3, 1).reshape(g.columns, g.kernel[0], run)
    whole = np.zeros((g.columns, g.kernel[0], -(-run // k) * k), weights.dtype)
    whole[..., :run] = turned
    return whole


def _kernel(context: GpuContext, anchor: Value, g: Window, c: DotTiling) -> Launch:
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
    mask = w.let(f"{row}[:, None] < {g.rows}", "m") if g.rows % c.m else None
    beyond = w.let(f"{column} < {g.columns}", "m") if g.columns % c.n else None
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
