"""Convolutions of any form: any layout, groups, dilation, padding, rank, element type, transposed.

Correct for all, and only as fast as simple loops: output channels in vectors. Neighbouring outputs
that read the same taps share loaded weights. Elsewhere a block with few vectors has several sums,
of different input channels, so that multiply-adds do not wait for each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.conv.packing import Packing
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.windows import (
    ChannelBlocks,
    TapSpan,
    Windows,
    all_taps,
    blocks,
    correlated,
    dims,
    each_pixel,
    image,
    index_in,
    transposed,
)
from monograph.codegen.llvm.matmul.tiles import room
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    pointers,
    share,
)
from monograph.ir import Array, DType, Value, is_finite, known
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import is_open
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.scalar import Scalar
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import strides_of

VECTORS = 6
"""Vectors of output channels that are multiplied with one input element at once."""
SUMS = 8
"""Vectors of sums that hide the latency of multiply-adds."""
MOST_PIXELS = 8
"""The most outputs that share loaded weights."""


@dataclass(frozen=True)
class PixelBlocks:
    """Outputs along the last axis, in blocks that read the same taps."""

    size: int
    """The outputs of a block."""
    apart: int
    """The distance between the outputs of a block."""
    step: int
    """The distance between the places that a tap of theirs reads."""
    starts: Array
    """The first outputs of the blocks."""
    single: Array
    """The outputs in no block."""

    @property
    def lists(self) -> list[tuple[int, Array]]:
        """Return the sizes of blocks, with the first outputs of all blocks of a size."""
        lists = ((self.size, self.starts), (1, self.single))
        return [(size, starts) for size, starts in lists if starts.size]


def pixel_blocks(span: TapSpan, apart: int, size: int) -> PixelBlocks | None:
    """Divide the outputs along an axis into blocks; None if there are none."""
    starts: list[int] = []
    single: list[int] = []
    whole = span.count > 0
    # Most outputs read places of one distance: those at edges do not.
    moved = (span.place[apart:] - span.place[:-apart])[whole[apart:] & whole[:-apart]]
    if not moved.size:
        return None
    steps, times = np.unique(moved, return_counts=True)
    step = int(steps[times.argmax()])
    for first in range(apart):
        rest = list(range(first, len(span.first), apart))
        while rest:
            block = np.array(rest[:size])
            fits = len(block) == size and _same_taps(span, block, step)
            (starts if fits else single).append(rest[0])
            rest = rest[size if fits else 1 :]
    if not starts:
        return None
    lists = (np.array(outputs, np.int64) for outputs in (starts, sorted(single)))
    return PixelBlocks(size, apart, step, *lists)


def _same_taps(span: TapSpan, block: Array, step: int) -> bool:
    places = span.place[block] - step * np.arange(len(block))
    same = (len(np.unique(column[block])) == 1 for column in (span.first, span.count))
    return bool(all(same) and (places == places[0]).all() and span.count[block[0]] > 0)


def window_conv(context: KernelContext) -> Kernel:
    """Generate a kernel for any convolution and its epilogue."""
    return _WindowConv(context).emit()


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if isinstance(value.op, ConvTranspose):
        return not value.op.auto and value.op.sizes is None
    return isinstance(value.op, Conv) and not value.op.auto


def summed_in(value: Value) -> DType:
    """The type that a convolution adds its products in."""
    if not value.dtype.is_float:
        return value.dtype
    return f64 if value.dtype == f64 else f32


class _WindowConv:
    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, (Conv, ConvTranspose))
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.given, self.weights = anchor.inputs
        self.x = image(context, self.given, self.op.layout)
        self.batch, self.results, self.outputs = dims(anchor.tensor.static, self.op.layout)
        _, channels, self.sizes = dims(self.given.tensor.static, self.op.layout)
        self.channels = channels // self.op.groups
        self.group = self.results // self.op.groups
        self.kernel = self.weights.tensor.static[2:]
        self.dtype = summed_in(anchor)
        self.reads_padding = self._reads_padding()

    def _reads_padding(self) -> bool:
        """Return True if padding zeros must be multiplied, because a weight is not finite."""
        op = self.op
        padded = any((*op.pads_begin, *op.pads_end))
        if isinstance(op, ConvTranspose) or not self.dtype.is_float or not padded:
            return False
        return not is_finite(self.weights)

    def emit(self) -> Kernel:
        context, size = self.context, self.weights.tensor.size * self.dtype.itemsize
        self.packing = Packing(context)
        self.packed = self.packing.arguments(self._pack, size)
        form = all_taps if self.reads_padding else correlated
        form = transposed if isinstance(self.op, ConvTranspose) else form
        op = self.op
        axes = (self.outputs, self.sizes, self.kernel, op.strides, op.dilations, op.pads_begin)
        self.windows = Windows(context, [form(*axis) for axis in zip(*axes, strict=True)])
        lanes = context.features.lanes(self.dtype.bits)
        # A block belongs to one group; the groups are handled as an outer spatial axis.
        runs = blocks(self.group, lanes, VECTORS)
        self.pixels = self._pixel_blocks(max((r.vectors for r in runs), default=1))
        listed = self.pixels.lists if self.pixels else []
        tables = [context.argument(LlvmPacked(starts)) for _, starts in listed]
        b = self.b = context.builder()
        self.pointers = pointers(b, context.arguments)
        self.scalars = LlvmScalars(b, context.features)
        self.epilogue = Epilogue(context, b)
        self.packing.emit(b, self._pack_in_run)
        if self.pixels is None:
            each_pixel(b, context.threads, self.batch, (*self.outputs, op.groups), runs, self._unit)
            return context.finish(b)
        for table, (pixels, starts) in zip(tables, listed, strict=True):
            spatial = (*self.outputs[:-1], len(starts), op.groups)
            unit = partial(self._listed, table, pixels)
            each_pixel(b, context.threads, self.batch, spatial, runs, unit)
        return context.finish(b)

    def _pixel_blocks(self, vectors: int) -> PixelBlocks | None:
        """Return the blocks of outputs along the last axis."""
        span = self.windows.spans[-1]
        size = min(room(self.context.features, vectors) // (2 * vectors), MOST_PIXELS)
        if self.reads_padding or not isinstance(span, TapSpan) or size < 2:
            return None
        return pixel_blocks(span, self.op.strides[-1] if self._transposed else 1, size)

    @property
    def _transposed(self) -> bool:
        return isinstance(self.op, ConvTranspose)

    def _listed(
        self, table: int, pixels: int, n: Int, c: Int, place: list[Int], run: ChannelBlocks
    ) -> None:
        """Compute the outputs that start at a place of a table."""
        b = self.b
        *outer, number, group = place
        start = b.offset(b.arguments[f"p{table}"], b.mul(number, 8))
        self._unit(n, c, [*outer, b.load("i64", start, 8), group], run, pixels)

    def _pack(self) -> Array:
        """Pack the weights as [group][taps][channel of the group][result of the group]."""
        weights = known(self.weights)
        assert weights is not None
        groups, taps = self.op.groups, math.prod(self.kernel)
        if isinstance(self.op, ConvTranspose):
            form = weights.reshape(groups, self.channels, self.group, taps).transpose(0, 3, 1, 2)
        else:
            form = weights.reshape(groups, self.group, self.channels, taps).transpose(0, 3, 2, 1)
        return np.ascontiguousarray(form).astype(self.dtype.numpy)

    def _pack_in_run(self) -> None:
        """Pack the weights in a run, in the form of `_pack`; threads divide the rows."""
        b, size = self.b, self.weights.dtype.itemsize
        first, second, *steps = self.packing.strides
        # The first axis has all channels of all groups, or all results of them.
        turned = isinstance(self.op, ConvTranspose)
        channel, result = (first, second) if turned else (second, first)
        group = first * (self.channels if turned else self.group)
        shape = (self.op.groups, *self.kernel, self.channels)

        def row(u: Int, _: list[Reg]) -> None:
            index, strides = b.coordinates(u, shape), (group, *steps, channel)
            at = b.position(index, strides, self.packing.offset)
            line = b.mul(u, self.group * self.dtype.itemsize)
            to = b.offset(b.arguments[f"p{self.packed}"], line)

            def one(k: Int, _: list[Reg]) -> None:
                where = b.mul(b.add(at, b.mul(k, result)), size)
                pointer = b.offset(self.packing.pointer, where)
                loaded = self._loaded(self.weights.dtype, pointer, 0)
                self.scalars.store(loaded, b.offset(to, b.mul(k, self.dtype.itemsize)))

            b.loop(0, self.group, 1, one)

        b.loop(*share(b, math.prod(shape), self.context.threads), 1, row)

    def _unit(self, n: Int, c: Int, place: list[Int], run: ChannelBlocks, pixels: int = 1) -> None:
        """Compute one block of results of one group, at one position or a block of them."""
        b = self.b
        *outputs, group = place
        lanes = run.lanes if run.lanes > 1 else 0
        zero = self.scalars.literal(0, self.dtype, lanes).reg
        tap = partial(self._tap, n, c, group, run, pixels)
        width = run.vectors * pixels
        count = width * self._side_by_side(width)
        sums = self.windows.each(b, outputs, tap, [zero] * count)
        totals = sums[:width]
        for k in range(width, count):
            both = (Scalar(x, self.dtype) for x in (totals[k % width], sums[k]))
            totals[k % width] = self.scalars.add(*both).reg
        first = b.add(b.mul(group, self.group), c)
        apart = self.pixels.apart if self.pixels else 1
        for k, total in enumerate(totals):
            r, v = divmod(k, run.vectors)
            at = [*outputs[:-1], b.add(outputs[-1], r * apart)]
            self._store(n, b.add(first, v * run.lanes), at, total, run.lanes)

    def _side_by_side(self, width: int) -> int:
        """Return the number of input channels that have sums of their own."""
        channels = 1 if is_open(self.channels) else self.channels
        return max(1, min(SUMS // width, channels))

    def _store(self, n: Int, c: Int, outputs: list[Int], total: Reg, lanes: int) -> None:
        layout = self.op.layout
        if layout == CHANNELS_LAST or lanes == 1:
            self.epilogue.store(index_in(layout, n, c, outputs), total, lanes)
            return
        for k in range(lanes):
            at = index_in(layout, n, self.b.add(c, k), outputs)
            self.epilogue.store(at, self.b.extract(total, k), 1)

    def _tap(
        self,
        n: Int,
        c: Int,
        group: Int,
        run: ChannelBlocks,
        pixels: int,
        places: list[Int],
        taps: list[Int],
        totals: list[Reg],
    ) -> list[Reg]:
        """Add the products of one tap, channel by channel."""
        b = self.b
        tap: Int = 0
        for k, stride in zip(taps, strides_of(self.kernel), strict=True):
            tap = b.add(tap, b.mul(k, stride))
        channel = b.mul(group, self.channels)
        places, outside = self._clamped(places)
        x = b.offset(
            self.pointers[self.x.source],
            b.mul(self.x.position(b, n, channel, places), self.given.dtype.itemsize),
        )

        moved = self.pixels.step * self.x.spatial[-1] if self.pixels else 0
        lanes = run.lanes if run.lanes > 1 else 0
        width = run.vectors * pixels
        together = len(totals) // width

        def one(i: Int, sums: list[Reg]) -> list[Reg]:
            weights = self._weights(group, tap, i, c, run)
            made = []
            for r in range(pixels):
                pixel = b.offset(x, r * moved * self.given.dtype.itemsize)
                factor = self.scalars.splat(self._factor(pixel, i, outside), lanes)
                own = sums[r * run.vectors : (r + 1) * run.vectors]
                made += [
                    self.scalars.fma(factor, w, Scalar(total, self.dtype)).reg
                    for w, total in zip(weights, own, strict=True)
                ]
            return made

        def some(i: Int, sums: list[Reg]) -> list[Reg]:
            parts = [sums[k * width : (k + 1) * width] for k in range(together)]
            return [total for k, part in enumerate(parts) for total in one(b.add(i, k), part)]

        whole = self.channels // together * together
        sums = b.loop(0, whole, together, some, totals)
        return b.loop(whole, self.channels, 1, one, sums[:width]) + sums[width:]

    def _factor(self, x: Reg, i: Int, outside: Reg | None) -> Scalar:
        """Return an element of the image, or zero outside of it."""
        b, zero = self.b, self.scalars.literal(0, self.dtype, 0)
        if self.given.tensor.size == 0:
            return zero  # padding around an empty image
        where = b.mul(b.mul(i, self.x.channel), self.given.dtype.itemsize)
        factor = self._loaded(self.given.dtype, b.offset(x, where), 0)
        if outside is None:
            return factor
        return Scalar(self.scalars.a.select(outside, zero.reg, factor.reg), self.dtype)

    def _clamped(self, places: list[Int]) -> tuple[list[Int], Reg | None]:
        """Return positions clamped into the image, and whether they were outside."""
        b, outside = self.b, None
        if not self.reads_padding:
            return places, None
        inner = []
        for place, size in zip(places, self.sizes, strict=True):
            inner.append(b.maximum(b.minimum(place, size - 1), 0))
            moved = b.compare("ne", b.i64(inner[-1]), b.i64(place))
            outside = moved if outside is None else self.scalars.a.op("or", outside, moved)
        return inner, outside

    def _weights(self, group: Int, tap: Int, i: Int, c: Int, run: ChannelBlocks) -> list[Scalar]:
        """Return the weights from one channel to a block of results."""
        b = self.b
        row = b.add(b.mul(group, math.prod(self.kernel)), tap)
        at = b.add(b.mul(b.add(b.mul(row, self.channels), i), self.group), c)
        start = b.offset(b.arguments[f"p{self.packed}"], b.mul(at, self.dtype.itemsize))
        lanes = run.lanes if run.lanes > 1 else 0
        size = lanes * self.dtype.itemsize
        return [
            self.scalars.load(self.dtype, b.offset(start, v * size), lanes)
            for v in range(run.vectors)
        ]

    def _loaded(self, dtype: DType, pointer: Reg, lanes: int) -> Scalar:
        """Load an element in the type of the sums."""
        x = self.scalars.load(dtype, pointer, lanes)
        if dtype.is_float and self.dtype == f32:
            return Scalar(x.reg, f32)
        return self.scalars.cast(x, self.dtype)
