"""Windows over images: their sizes, and their elements for a block of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile
from monograph.codegen.triton.module.kernel import KernelWriter
from monograph.ir import Value
from monograph.ir.sizes import hint_of, proven
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.pad_tile import Tile as Repeat
from monograph.ops.shape import Broadcast
from monograph.ops.window import CHANNELS_LAST
from monograph.program.fusion.op_classes import is_view
from monograph.program.index import Counter, Index


@dataclass(frozen=True)
class Window:
    """The sizes of a convolution, in any layout of its images."""

    batch: int
    sizes: tuple[int, ...]
    """The spatial shape of the input."""
    results: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    channels: int
    """The input channels of a group."""
    columns: int
    """The result channels of a group."""
    transposed: bool
    last: bool
    """True if channels are the last dimension."""

    @property
    def rows(self) -> int:
        return self.batch * math.prod(self.results)

    @property
    def hint(self) -> Window:
        """The sizes by which tilings are chosen: open ones as in the compiling run."""
        results = tuple(map(hint_of, self.results))
        return replace(self, batch=hint_of(self.batch), results=results)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def depth(self) -> int:
        return self.taps * self.channels

    @property
    def depthwise(self) -> bool:
        return self.channels == 1 and self.columns == 1 and self.groups > 1


def readable(user: Value, index: int, operand: Value) -> bool:
    """Return True if an operand has no broadcast view: repeated elements have no edges."""
    while is_view(operand):
        if isinstance(operand.op, (Broadcast, Repeat)):
            return False
        operand = operand.inputs[0]
    return True


def window(anchor: Value) -> Window:
    op = anchor.op
    assert isinstance(op, (Conv, ConvTranspose))
    x, w = (v.tensor.static for v in anchor.inputs)
    y = anchor.tensor.static
    last = op.layout == CHANNELS_LAST
    channels = x[-1] if last else x[1]
    results = y[-1] if last else y[1]
    spatial = slice(1, -1) if last else slice(2, None)
    return Window(
        x[0], x[spatial], y[spatial], w[2:], op.strides, op.pads_begin, op.dilations, op.groups,
        channels // op.groups, results // op.groups, isinstance(op, ConvTranspose), last,
    )  # fmt: skip


@dataclass
class WindowReader:
    """Reads the elements under a window for a block of results."""

    k: KernelWriter
    t: ResultTile
    x: Value
    g: Window
    places: tuple[str, ...]
    """The index of the result along each spatial dimension."""
    image: str
    mask: str | None

    def at(self, taps: Sequence[str], channel: str, mask: str | None) -> str:
        """Load x under a tap of the window; 0 outside of the image."""
        return self.under(taps, channel, mask)[0]

    def under(self, taps: Sequence[str], channel: str, mask: str | None) -> tuple[str, str | None]:
        """The same with its mask; None if it is always inside."""
        w, g = self.k.w, self.g
        numbers, masks = [], [m for m in (self.mask, mask) if m]
        for d, tap in enumerate(taps):
            number, inside = self.along(d, tap)
            numbers.append(w.let(number, "s"))
            masks += [m.format(numbers[-1]) for m in inside]
        whole = w.let(" & ".join(f"({m})" for m in masks), "m") if masks else None
        shape = self.x.tensor.static
        order = [self.image, *numbers, channel] if g.last else [self.image, channel, *numbers]
        counters = [Counter(f"x{i}", d) for i, d in enumerate(shape)]
        point = {c: BlockAxis(text, whole, True) for c, text in zip(counters, order, strict=True)}
        at = tuple(Index(0, ((c, 1),)) for c in counters)
        return self.t.elements.through_views(self.x, at, point), whole

    def along(self, d: int, tap: str) -> tuple[str, list[str]]:
        """Return the position in a dimension that a tap reads, and its masks."""
        g = self.g
        place, stride, pad = self.places[d], g.strides[d], g.pads[d]
        reach = f"({tap}) * {g.dilations[d]}" if g.dilations[d] != 1 else f"({tap})"
        if not g.transposed:
            start = f"({place}) * {stride}" if stride != 1 else f"({place})"
            number = f"{start} - {pad} + {reach}" if pad else f"{start} + {reach}"
            most = (g.results[d] - 1) * stride - pad + (g.kernel[d] - 1) * g.dilations[d]
            inside = ["{} >= 0"] if pad else []
            if not proven(most, "<", g.sizes[d]):
                inside.append("{} < " + str(g.sizes[d]))
            return number, inside
        spread = self.k.w.let(f"({place}) + {pad} - {reach}", "s")
        fits = f"({spread} >= 0) & ({spread} % {stride} == 0)"
        return f"{spread} // {stride}", [fits, "{} < " + str(g.sizes[d])]


def reader_of(
    k: KernelWriter, t: ResultTile, anchor: Value, g: Window, row: str, mask: str | None
) -> WindowReader:
    """Return a reader for the results of a block of rows."""
    rank = len(t.shape)
    spatial = range(1, rank - 1) if g.last else range(2, rank)
    t.batch(row, [0, *spatial], mask)
    places = tuple(t.point[t.counter(d)].text for d in spatial)
    return WindowReader(k, t, anchor.inputs[0], g, places, t.point[t.counter(0)].text, mask)


def split_tap(k: KernelWriter, g: Window, tap: str) -> list[str]:
    """Return the position in the window along each dimension, from its number."""
    found, step = [], g.taps
    for d, size in enumerate(g.kernel):
        step //= size
        if size == 1:
            found.append("0")
            continue
        text = tap if step == 1 else f"({tap}) // {step}"
        found.append(
            k.w.let(f"({text}) % {size}" if d and math.prod(g.kernel[:d]) > 1 else text, "t")
        )
    return found


def read_weights(t: ResultTile, weights: Value, texts: Sequence[str], mask: str | None) -> str:
    """Load weights at an index, if they are not packed."""
    counters = [Counter(f"w{i}", d) for i, d in enumerate(weights.tensor.static)]
    point = {c: BlockAxis(text, mask, True) for c, text in zip(counters, texts, strict=True)}
    at = tuple(Index(0, ((c, 1),)) for c in counters)
    return t.elements.through_views(weights, at, point)
