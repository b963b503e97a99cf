"""Windows clamped to the data, shared by convolutions and pools of any form.

Along each spatial axis a table states, for every output, the taps that read inside of the data: the
first one, their number, and the position that the first one reads. Kernels loop over these without
bounds checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.kernel import KernelContext, LlvmPacked, share
from monograph.ir import Array, Value
from monograph.ir.sizes import any_open, is_open, proven
from monograph.ops.shape import Broadcast, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_LAST
from monograph.program.fusion.op_classes import is_view
from monograph.program.memory.strided import strided

STRIDED = (Broadcast, Slice, Squeeze, Transpose, Unsqueeze)
"""Views that strides always describe."""
TapBody: TypeAlias = Callable[[list[Int], list[Int], list[Reg]], list[Reg]]
"""The work at a tap, given the positions it reads, its indices in the kernel, carried values."""


def strided_view(user: Value, index: int, operand: Value) -> bool:
    """Return True if all views of an operand are described by strides."""
    while is_view(operand):
        if not isinstance(operand.op, STRIDED):
            return False
        operand = operand.inputs[0]
    return True


@dataclass(frozen=True)
class TapSpan:
    """For every output along an axis: the taps first, first + tap_step ... that read inside."""

    first: Array
    count: Array
    place: Array
    """The position that the first tap reads; the next one is `place_step` further."""
    tap_step: int
    place_step: int
    inner: tuple[int, int] = (0, 0)
    """The range of outputs whose windows are entirely inside, `stride` elements apart."""
    stride: int = 0


@dataclass(frozen=True)
class OpenTapSpan:
    """The taps of windows along an axis of open size: they are computed at run time."""

    outputs: int
    size: int
    kernel: int
    stride: int
    place_step: int
    pad: int
    tap_step: int = 1

    @property
    def inner(self) -> tuple[int, int]:
        """The range of outputs whose windows are entirely inside; it may be empty."""
        reach = (self.kernel - 1) * self.place_step
        return -(-self.pad // self.stride), (self.size + self.pad - reach - 1) // self.stride + 1

    def taps(self, b: Builder, output: Int) -> tuple[Int, Int, Int]:
        """Return the first tap that reads inside, the number of such taps and the first place."""
        start = b.sub(b.mul(output, self.stride), self.pad)

        def steps(distance: Int) -> Int:
            room = b.add(b.maximum(distance, 0), self.place_step - 1)
            return b.div(room, self.place_step)

        first = steps(b.sub(0, start))
        stop = b.minimum(steps(b.sub(self.size, start)), self.kernel)
        count = b.maximum(b.sub(stop, first), 0)
        return first, count, b.add(start, b.mul(first, self.place_step))


def correlated(
    outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int
) -> TapSpan | OpenTapSpan:
    """The taps of a convolution or a pool."""
    if any_open((outputs, size)):
        return OpenTapSpan(outputs, size, kernel, stride, dilation, pad)
    start = np.arange(outputs) * stride - pad
    first = np.maximum(0, -(start // dilation))
    stop = np.minimum(kernel, -((start - size) // dilation))
    count = np.maximum(0, stop - first)
    whole = np.flatnonzero((first == 0) & (count == kernel))
    inner = (int(whole[0]), int(whole[-1]) + 1) if whole.size else (0, 0)
    return TapSpan(first, count, start + first * dilation, 1, dilation, inner, stride)


def all_taps(outputs: int, _: int, kernel: int, stride: int, dilation: int, pad: int) -> TapSpan:
    """Return all taps of a convolution; those that read padding have positions outside."""
    start = np.arange(outputs) * stride - pad
    return TapSpan(np.zeros_like(start), np.full_like(start, kernel), start, 1, dilation)


def transposed(
    outputs: int, size: int, kernel: int, stride: int, dilation: int, pad: int
) -> TapSpan:
    """The taps k of a transposed convolution: output + pad - k * dilation = place * stride."""
    common = math.gcd(stride, dilation)
    first = np.zeros(outputs, np.int64)
    count = np.zeros(outputs, np.int64)
    place = np.zeros(outputs, np.int64)
    for o in range(outputs):
        reads = [(k, divmod(o + pad - k * dilation, stride)) for k in range(kernel)]
        inside = [(k, i) for k, (i, rest) in reads if rest == 0 and 0 <= i < size]
        count[o] = len(inside)
        if inside:
            first[o], place[o] = inside[0]
    return TapSpan(first, count, place, stride // common, -(dilation // common))


class Windows:
    """Loops over the taps of windows; create it before the builder, bind it after."""

    def __init__(self, context: KernelContext, spans: Sequence[TapSpan | OpenTapSpan]) -> None:
        self.context = context
        self.spans = spans
        self.columns = {
            i: np.stack([s.first, s.count, s.place], 1).astype(np.int64)
            for i, s in enumerate(spans)
            if isinstance(s, TapSpan)
        }
        self.tables = {i: context.argument(LlvmPacked(c)) for i, c in self.columns.items()}

    def look_up(self, b: Builder, axis: int, output: Int, column: int) -> Int:
        """Return an entry of a table; a literal if all entries are equal."""
        span = self.spans[axis]
        if isinstance(span, OpenTapSpan):
            return span.taps(b, output)[column]
        entries = self.columns[axis][:, column]
        if isinstance(output, int) or (entries == entries[0]).all():
            return int(entries[output if isinstance(output, int) else 0])
        row = b.offset(b.arguments[f"p{self.tables[axis]}"], b.mul(output, 24))
        return b.load("i64", b.offset(row, column * 8), 8)

    def count(self, b: Builder, outputs: Sequence[Int]) -> Int:
        """Return the number of taps that read inside of the data."""
        total: Int = 1
        for axis, o in enumerate(outputs):
            total = b.mul(total, self.look_up(b, axis, o, 1))
        return total

    def each(
        self, b: Builder, outputs: Sequence[Int], body: TapBody, carried: Sequence[Reg]
    ) -> list[Reg]:
        """Runs a body at every tap inside the data, the last axis innermost."""
        return self._axis(b, list(outputs), body, list(carried), [], [])

    @property
    def all_inside(self) -> bool:
        """True if every window of fixed sizes is entirely inside of the data."""
        return all(isinstance(s, TapSpan) and s.inner == (0, len(s.first)) for s in self.spans)

    def inside(self, b: Builder, outputs: Sequence[Int]) -> Reg | bool:
        """Return True if a window is entirely inside of the data."""
        result: Reg | bool = True
        for span, o in zip(self.spans, outputs, strict=True):
            low, high = span.inner
            size = span.outputs if isinstance(span, OpenTapSpan) else len(span.first)
            if proven(high, "<=", low):
                return False
            ends = (("sge", low, 0), ("slt", high, size))
            for how, bound, end in ends:
                if not proven(end, "==", bound):
                    fits = b.compare(how, b.i64(o), b.i64(bound))
                    both = f"and i1 {result}, {fits}"
                    result = fits if isinstance(result, bool) else b.set("i1", both)
        return result

    def each_inside(
        self, b: Builder, outputs: Sequence[Int], body: TapBody, carried: Sequence[Reg]
    ) -> list[Reg]:
        """Run a body at every tap of a window that is entirely inside, unrolled."""
        starts = []
        for span, o in zip(self.spans, outputs, strict=True):
            if isinstance(span, OpenTapSpan):
                origin = -span.pad
            else:
                origin = int(span.place[span.inner[0]]) - span.inner[0] * span.stride
            starts.append(b.add(b.mul(o, span.stride), origin))
        made = list(carried)
        sizes = (s.kernel if isinstance(s, OpenTapSpan) else int(s.count.max()) for s in self.spans)
        for taps in np.ndindex(*sizes):
            steps = zip(starts, taps, self.spans, strict=True)
            places = [b.add(start, k * span.place_step) for start, k, span in steps]
            made = body(places, list(taps), made)
        return made

    def _axis(
        self,
        b: Builder,
        outputs: list[Int],
        body: TapBody,
        carried: list[Reg],
        places: list[Int],
        taps: list[Int],
    ) -> list[Reg]:
        axis = len(places)
        if axis == len(outputs):
            return body(places, taps, carried)
        span = self.spans[axis]
        first, count, place = (self.look_up(b, axis, outputs[axis], k) for k in range(3))

        def one(t: Int, inner: list[Reg]) -> list[Reg]:
            here = b.add(place, b.mul(t, span.place_step))
            tap = b.add(first, b.mul(t, span.tap_step))
            return self._axis(b, outputs, body, inner, [*places, here], [*taps, tap])

        return b.loop(0, count, 1, one, carried)


@dataclass(frozen=True)
class Image:
    """A value [N, C, *S] in memory, in any order of its dimensions."""

    source: Value
    offset: int
    batch: int
    channel: int
    spatial: tuple[int, ...]
    """Strides, in elements."""

    def position(self, b: Builder, n: Int, c: Int, places: Sequence[Int]) -> Int:
        at = b.add(b.add(self.offset, b.mul(n, self.batch)), b.mul(c, self.channel))
        for place, stride in zip(places, self.spatial, strict=True):
            at = b.add(at, b.mul(place, stride))
        return at


def image(context: KernelContext, value: Value, layout: str) -> Image:
    """Return the location and strides of an operand of windows."""
    found = strided(value, context.program.places.storage)
    assert found is not None
    n, *rest = found.strides
    *spatial, c = rest if layout == CHANNELS_LAST else (*rest[1:], rest[0])
    return Image(found.source, found.offset, n, c, tuple(spatial))


def dims(shape: Sequence[int], layout: str) -> tuple[int, int, tuple[int, ...]]:
    """(N, C, S) of a shape in a layout."""
    if layout == CHANNELS_LAST:
        return shape[0], shape[-1], tuple(shape[1:-1])
    return shape[0], shape[1], tuple(shape[2:])


def index_in(layout: str, n: Int, c: Int, spatial: Sequence[Int]) -> list[Int]:
    """The index of an element in a layout."""
    return [n, *spatial, c] if layout == CHANNELS_LAST else [n, c, *spatial]


@dataclass(frozen=True)
class ChannelBlocks:
    """`count` equal blocks of channels: `vectors` of `lanes`, the first at `start`."""

    start: int
    lanes: int
    vectors: int
    count: int

    @property
    def width(self) -> int:
        return self.lanes * self.vectors


def blocks(channels: int, lanes: int, most: int) -> list[ChannelBlocks]:
    """Divide channels into blocks of at most `most` vectors; narrower vectors take the rest."""
    if is_open(channels):
        return _open_blocks(channels, lanes, most if lanes > 1 else 1)
    found = []
    start = 0
    most = most if lanes > 1 else 1
    while start < channels:
        vectors = min(most, (channels - start) // lanes)
        if vectors:
            count = (channels - start) // (lanes * vectors)
            found.append(ChannelBlocks(start, lanes, vectors, count))
            start += lanes * vectors * count
        lanes = lanes if channels - start >= lanes else max(1, lanes // 2)
    return found


def _open_blocks(channels: int, lanes: int, most: int) -> list[ChannelBlocks]:
    """Divide an open number of channels; the blocks of the rest have counts of 0 or 1."""
    found = []
    start, left = 0, channels
    vectors = most
    while lanes:
        count = left // (lanes * vectors)
        found.append(ChannelBlocks(start, lanes, vectors, count))
        start, left = start + lanes * vectors * count, left - lanes * vectors * count
        lanes, vectors = (lanes, vectors // 2) if vectors > 1 else (lanes // 2, 1)
    return found


Unit: TypeAlias = Callable[[Int, Int, list[Int], ChannelBlocks], None]
"""Work on one block of channels of one pixel: batch, first channel, place, the block."""


def each_pixel(
    b: Builder,
    threads: int,
    batch: int,
    spatial: Sequence[int],
    runs: Sequence[ChannelBlocks],
    unit: Unit,
) -> None:
    """Run every block of channels of every pixel, divided among the threads."""
    for run in runs:
        total = batch * math.prod(spatial) * run.count

        def one(i: Int, _: list[Reg], run: ChannelBlocks = run) -> None:
            c = b.add(b.mul(b.mod(i, run.count), run.width), run.start)
            pixel = b.div(i, run.count)
            place: list[Int] = []
            for extent in reversed(spatial):
                place.insert(0, b.mod(pixel, extent))
                pixel = b.div(pixel, extent)
            unit(pixel, c, place, run)

        b.loop(*share(b, total, threads), 1, one)
