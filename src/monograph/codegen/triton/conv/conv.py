"""Convolutions as products of tiles: windows are gathered while they are read.

Rows are results, columns are channels of the result, and sums run over the window and its channels.
Windows are masked at the edges, so nothing is padded. Images of any rank and layout are served;
contiguous channels are read fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from monograph.codegen.triton.conv.variants import convolutions, run_candidates, serves_runs
from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import (
    ResultTile,
    accumulator,
    each,
    finish_from,
    register,
    tile,
)
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.image.windows import (
    Window,
    WindowReader,
    read_weights,
    readable,
    reader_of,
    split_tap,
    window,
)
from monograph.codegen.triton.matmul.dot import DotTiling, ProductShape, guess, multiply, tiles
from monograph.codegen.triton.matmul.product import packed_operand
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonPacked,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Array, DType, Value, is_finite, known
from monograph.ir.sizes import divides
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.program.index import Counter, Index


def exact_candidates(context: GpuContext) -> list[Candidate]:
    """Return kernels of a transposed convolution whose weights may not be finite.

    A product of tiles also multiplies weights by the zeros between the elements of the image, which
    gives 0 only for finite weights. Here each result is summed alone, over existing products.
    """
    return each(context, _summed)


def _summed(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the sum of each result, over the channels of its group and its taps in the image."""
    anchor = k.context.anchor
    g, w, s = window(anchor), k.w, t.elements.scalars
    rank, wide = len(t.shape), accumulator(anchor.dtype)
    texts = [t.point[t.counter(d)].text for d in range(rank)]
    spatial = range(1, rank - 1) if g.last else range(2, rank)
    result = texts[-1] if g.last else texts[1]
    reader = WindowReader(
        k, t, anchor.inputs[0], g, tuple(texts[d] for d in spatial), texts[0], mask
    )
    first = w.let(f"({result}) // {g.columns} * {g.channels}", "c")
    column = w.let(f"({result}) % {g.columns}", "n")
    w.line(f"acc = tl.zeros_like({result}).to({register_type(wide)})")

    with w.block(f"for j in range(0, {g.depth})"):
        channel = w.let(f"{first} + j // {g.taps}", "c")
        taps = split_tap(k, g, w.let(f"j % {g.taps}", "tap"))
        x, inside = reader.under(taps, channel, mask)
        y = read_weights(t, anchor.inputs[1], [channel, column, *taps], inside)
        a = s.cast(s.decoded(x, anchor.inputs[0].dtype), wide).reg
        b = s.cast(s.decoded(y, anchor.inputs[1].dtype), wide).reg
        w.line(f"acc += tl.where({inside}, {a} * {b}, 0)" if inside else f"acc += {a} * {b}")
    return s.encoded(s.cast(register(w, "acc", wide), anchor.dtype))


BUSY = 264
"""The programs that keep a large device busy."""


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, (Conv, ConvTranspose)) and not anchor.op.auto


@kernel_for(Conv, ConvTranspose, when=serves, readable=readable)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.anchor
    g = window(anchor)
    if g.transposed and not is_finite(anchor.inputs[1]):
        return exact_candidates(context)
    if g.depthwise:
        found = variants("depthwise", _channel_configs(g.hint), partial(_depthwise, context, g))
        return [*found[:2], *convolutions(context), *found[2:]]
    found = variants(
        "implicit", _configs(g.hint, anchor.inputs[0].dtype), partial(_implicit, context, g)
    )
    if serves_runs(context, anchor, g):
        runs = run_candidates(context, anchor, g)
        found = [*runs[:4], *found[:4], *runs[4:], *found[4:]]
    # Early enough for a fast search; never the default, which must not need a library.
    return [*found[:2], *convolutions(context), *found[2:]]


def _configs(g: Window, dtype: DType) -> list[DotTiling]:
    """Return the tilings to try, the most promising first."""
    shape = ProductShape(g.groups, g.rows, g.columns, g.depth)
    found = tiles(g.rows, g.columns, g.depth, dtype)
    if g.last and g.groups == 1 and g.depth >= 1024:
        found += [replace(c, split=s) for c in found for s in (2, 4) if g.depth // s >= 4 * c.k]

    def cost(c: DotTiling) -> float:
        # A step within one tap needs less address arithmetic.
        return guess(shape, c, dtype) * (1.0 if g.channels % c.k == 0 else 1.2)

    return sorted(found, key=cost)


def _channel_configs(g: Window) -> list[DotTiling]:
    across = min(power(g.groups), 128)
    found = [
        DotTiling(m, n, 1, warps, 1)
        for n in dict.fromkeys((min(64, across), across, min(32, across)))
        for m, warps in ((32, 4), (16, 4), (64, 4), (8, 2), (64, 8))
    ]
    programs = [-(-g.rows // c.m) * -(-g.groups // c.n) for c in found]
    order = sorted(range(len(found)), key=lambda i: (programs[i] < BUSY, i))
    return [found[i] for i in order]


# Weights


def packed(weights: Array, g: Window) -> Array:
    """Constant weights as [groups, columns, taps, channels]."""
    if g.transposed:
        whole = weights.reshape(g.groups, g.channels, g.columns, g.taps)
        return np.ascontiguousarray(whole.transpose(0, 2, 3, 1))
    whole = weights.reshape(g.groups, g.columns, g.channels, g.taps)
    return np.ascontiguousarray(whole.transpose(0, 1, 3, 2))


@dataclass
class ConvWeights:
    """Reads a tile of weights [columns, depth]."""

    k: KernelWriter
    t: ResultTile
    value: Value
    g: Window

    def __post_init__(self) -> None:
        data = known(self.value)
        self.pointer = None
        if data is not None:
            weights = TritonPacked(packed(data, self.g), self.value.dtype)
            self.pointer = self.k.pointer(packed_operand(self.k.context, weights))

    def at(self, column: str, place: tuple[str, Sequence[str], str], mask: str | None) -> str:
        """Load w[column, depth], or the weight of a tap and a channel."""
        depth, taps, channel = place
        group = self.k.program_id(1) if self.g.groups > 1 else "0"
        if self.pointer is not None:
            size = self.g.columns * self.g.depth
            where = f"{self.pointer} + {group} * {size} + ({column}) * {self.g.depth} + ({depth})"
            return self.k.w.let(
                f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})", "w"
            )
        first = f"{group} * {self.g.channels if self.g.transposed else self.g.columns} + "
        pair = (
            (first + f"({channel})", column)
            if self.g.transposed
            else (first + f"({column})", channel)
        )
        counters = [Counter(f"w{i}", d) for i, d in enumerate(self.value.tensor.static)]
        texts = (*pair, *taps)
        point = {c: BlockAxis(text, mask, True) for c, text in zip(counters, texts, strict=True)}
        at = tuple(Index(0, ((c, 1),)) for c in counters)
        return self.t.elements.through_views(self.value, at, point)


# Kernels


def _implicit(context: GpuContext, g: Window, c: DotTiling) -> tuple[Work, ...]:
    anchor = context.anchor
    if c.split == 1:
        return (_implicit_kernel(context, g, c, None),)
    wide = accumulator(anchor.dtype)
    parts = TritonScratch(c.split * anchor.tensor.size * wide.itemsize, wide)
    return (_implicit_kernel(context, g, c, parts), finish_from(context, parts, c.split))


def _implicit_kernel(
    context: GpuContext, g: Window, c: DotTiling, parts: TritonScratch | None
) -> Launch:
    anchor = context.anchor
    k = context.kernel()
    t, w = tile(k), k.w
    across = -(-g.columns // c.n)
    pid = k.program_id()
    row = w.let(f"({pid} // {across}) * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"({pid} % {across}) * {c.n} + tl.arange(0, {c.n})", "rn")
    mask = None if divides(c.m, g.rows) else w.let(f"{row}[:, None] < {g.rows}", "m")
    reader = reader_of(k, t, anchor, g, w.let(f"{row}[:, None]"), mask)
    beyond = None if divides(c.n, g.columns) else w.let(f"{column} < {g.columns}", "m")
    first = f"{k.program_id(1)} * {g.columns} + " if g.groups > 1 else ""
    channel_dimension = len(t.shape) - 1 if g.last else 1
    t.axis(
        channel_dimension,
        w.let(f"{first}{column}[None, :]"),
        w.let(f"{beyond}[None, :]") if beyond else None,
    )
    weights = ConvWeights(k, t, anchor.inputs[1], g)
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {register_type(accumulator(anchor.dtype))})")
    steps = w.let(f"tl.arange(0, {c.k})", "rk")
    k.wait()
    length = -(-g.depth // (c.k * c.split)) * c.k
    with w.block(f"for {'j' if parts else 'k0'} in range(0, {length}, {c.k})"):
        if parts is not None:
            w.line(f"k0 = {k.program_id(2)} * {length} + j")
        x, y = _tiles(k, reader, weights, (column, beyond), c, steps)
        pair = (x, anchor.inputs[0].dtype), (y, anchor.inputs[1].dtype)
        ready = weights.pointer is not None
        product = multiply(context, t.elements, *pair, anchor.dtype, rounds_right=not ready)
        w.line(f"acc = {product}")
    k.trigger()
    if parts is None:
        t.finish("acc")
    else:
        masks = [m for m in (mask, f"{beyond}[None, :]" if beyond else None) if m]
        first = f"({k.program_id(2)} * {g.rows} + {row}[:, None]) * {g.columns}"
        where = f"{k.pointer(parts)} + {first} + {column}[None, :]"
        w.line(f"tl.store({where}, acc{', mask=' + ' & '.join(masks) if masks else ''})")
    return k.launch((-(-g.rows // c.m) * across, g.groups, c.split), c.warps, c.stages)


def _tiles(
    k: KernelWriter,
    reader: WindowReader,
    weights: ConvWeights,
    columns: tuple[str, str | None],
    c: DotTiling,
    steps: str,
) -> tuple[str, str]:
    """Load tiles [m, k] of the image and [k, n] of the weights for one step of the sum."""
    w, g = k.w, reader.g
    depth = w.let(f"k0 + {steps}", "kk")
    inside = w.let(f"{depth} < {g.depth}", "m") if g.depth % (c.k * c.split) else None
    if g.channels % c.k == 0:
        # The whole step is within one tap.
        taps = (
            split_tap(k, g, w.let(f"k0 // {g.channels}", "tap"))
            if g.taps > 1
            else ["0"] * len(g.kernel)
        )
        one = g.channels == c.k
        channel = steps if one else w.let(f"k0 % {g.channels} + {steps}" if g.taps > 1 else depth)
        spread = taps
    else:
        tap = w.let(f"{depth} // {g.channels}", "tap")
        taps = split_tap(k, g, tap) if g.taps > 1 else ["0"] * len(g.kernel)
        channel = depth
        if g.taps > 1:
            channel = w.let(f"{depth} % {g.channels}", "c") if g.channels > 1 else "0"
        spread = [t if t == "0" else w.let(f"{t}[None, :]") for t in taps]
    own = channel if channel == "0" else w.let(f"{channel}[None, :]")
    group = f"{k.program_id(1)} * {g.channels} + " if g.groups > 1 else ""
    masked = w.let(f"{inside}[None, :]") if inside else None
    x = reader.at(spread, w.let(f"{group}{own}"), masked)
    column, beyond = columns
    masks = [w.let(f"{m}") for m in (masked, w.let(f"{beyond}[:, None]") if beyond else None) if m]
    where = w.let(f"{column}[:, None]"), (w.let(f"{depth}[None, :]"), spread, own)
    y = weights.at(*where, w.let(" & ".join(masks), "m") if masks else None)
    x = w.let(f"tl.broadcast_to({x}, ({c.m}, {c.k}))", "a")
    y = w.let(f"tl.trans(tl.broadcast_to({y}, ({c.n}, {c.k})))", "b")
    return x, y


def _depthwise(context: GpuContext, g: Window, c: DotTiling) -> Launch:
    """Depthwise convolution: a tile of results and channels, one tap at a time."""
    anchor = context.anchor
    k = context.kernel()
    t, w = tile(k), k.w
    across = -(-g.groups // c.n)
    pid = k.program_id()
    row = w.let(f"({pid} // {across}) * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"({pid} % {across}) * {c.n} + tl.arange(0, {c.n})", "rc")
    mask = None if divides(c.m, g.rows) else w.let(f"{row}[:, None] < {g.rows}", "m")
    reader = reader_of(k, t, anchor, g, w.let(f"{row}[:, None]"), mask)
    lane = w.let(f"{column}[None, :]")
    beyond = w.let(f"{lane} < {g.groups}", "m") if g.groups % c.n else None
    t.axis(len(t.shape) - 1 if g.last else 1, lane, beyond)
    data = known(anchor.inputs[1])
    scalars, wide = t.elements.scalars, accumulator(anchor.dtype)
    if data is not None:
        turned = np.ascontiguousarray(data.reshape(g.groups, g.taps).T)
        pointer = k.pointer(TritonPacked(turned, anchor.inputs[1].dtype))
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {register_type(wide)})")
    k.wait()
    for number, taps in enumerate(np.ndindex(*g.kernel)):
        place = [str(tap) for tap in taps]
        x = reader.at(place, lane, beyond)
        if data is not None:
            where = f"{pointer} + {number * g.groups} + {lane}"
            y = w.let(
                f"tl.load({where}, mask={beyond}, other=0)" if beyond else f"tl.load({where})", "w"
            )
        else:
            y = read_weights(t, anchor.inputs[1], [lane, "0", *place], beyond)
        a = scalars.cast(scalars.decoded(x, anchor.inputs[0].dtype), wide).reg
        b = scalars.cast(scalars.decoded(y, anchor.inputs[1].dtype), wide).reg
        w.line(f"acc += {a} * {b}")
    k.trigger()
    t.finish("acc")
    return k.launch((-(-g.rows // c.m) * across,), c.warps, c.stages)
