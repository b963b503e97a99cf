"""Depthwise convolution, channels last: every channel with its own window, in vectors of channels.

A row of outputs is held in registers; each loaded pixel feeds all taps of the row. The input has a
halo of zeros as wide as the padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.conv.direct import sums_in_f32
from monograph.codegen.llvm.conv.packing import Packing
from monograph.codegen.llvm.conv.tiling import Taps
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import load_elements
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, image
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, pointers, share
from monograph.ir import Array, Value, known
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import strides_of

MOST_ROWS = 14
"""The most outputs of a row that are held in registers."""


def depthwise(context: KernelContext) -> Kernel:
    """Generate a kernel for a depthwise convolution and its epilogue."""
    return Depthwise(context).emit()


def packed_taps(weights: Array, blocks: Sequence[ChannelBlocks], dtype: type[np.generic]) -> Array:
    """Return the weights of separate channels as [block of channels][taps][lanes]."""
    taps = weights.reshape(len(weights), -1).astype(dtype)
    pieces = []
    for block in blocks:
        part = taps[block.start : block.start + block.width * block.count]
        pieces.append(part.reshape(block.count, block.width, -1).transpose(0, 2, 1).reshape(-1))
    return np.concatenate(pieces)


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != CHANNELS_LAST or op.auto or op.groups == 1:
        return False
    w = value.inputs[1]
    one = w.tensor.dims[1] == 1 and w.tensor.dims[0] == op.groups
    return one and sums_in_f32(value)


class Depthwise:
    """The kernel, for floats; subclasses load and sum other element types."""

    most_held = 8
    """The most taps of a row whose weights stay in registers; wider kernels reload them."""
    sums = "float"
    weight: type[np.generic] = np.float32

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Conv)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.kernel = anchor.inputs[1].tensor.static[2:]
        self.shape = anchor.tensor.static
        self.x = image(context, anchor.inputs[0], CHANNELS_LAST)
        self.dtype = anchor.inputs[0].dtype
        self.taps = Taps(self.kernel[-1], self.op.strides[-1], self.op.dilations[-1])
        held = min(self.taps.size, self.most_held)
        room = max(2, context.features.registers - held - 4)
        self.runs = split(self.shape[-2], min(room, MOST_ROWS))
        lanes = context.features.lanes(32) if self.x.channel == 1 else 1
        self.blocks = blocks(self.shape[-1], lanes, 1)

    def emit(self) -> Kernel:
        context, taps = self.context, math.prod(self.kernel)
        self.packing = Packing(context)
        self.packed = self.packing.arguments(self._pack, self.shape[-1] * taps * 4)
        b = self.b = context.builder()
        self.pointers = pointers(b, context.arguments)
        self.epilogue = Epilogue(context, b)
        widest = max(block.lanes for block in self.blocks)
        self.epilogue.reserve(max(run.size for run in self.runs), widest)
        self.packing.emit(b, self._pack_in_run)
        lines = math.prod(self.shape[:-2])
        for run in self.runs:
            b.loop(*share(b, lines * run.count, context.threads), 1, partial(self._strip, run))
        return context.finish(b)

    def _pack(self) -> Array:
        weights = known(self.anchor.inputs[1])
        assert weights is not None
        return packed_taps(weights, self.blocks, self.weight)

    def _pack_in_run(self) -> None:
        """Pack the weights in a run, in the form of `packed_taps`; threads divide blocks."""
        b, taps = self.b, math.prod(self.kernel)
        channel, _, *steps = self.packing.strides
        for block in self.blocks:

            def one(i: Int, _: list[Reg], block: ChannelBlocks = block) -> None:
                c = b.add(b.mul(b.div(i, taps), block.width), block.start)
                tap = b.mod(i, taps)
                at = b.position(b.coordinates(tap, self.kernel), steps, b.mul(c, channel))
                lanes = self.packing.gathered(b, at, block.lanes, block.lanes)
                place = b.add(b.mul(c, taps), b.mul(tap, block.lanes))
                b.store(lanes, b.offset(b.arguments[f"p{self.packed}"], b.mul(place, 4)), 4)

            b.loop(*share(b, block.count * taps, self.context.threads), 1, one)

    def _strip(self, run: Run, i: Int, _: list[Reg]) -> None:
        """Compute some pixels of a row for all channels: memory is read in order."""
        b = self.b
        w0 = b.add(b.mul(b.mod(i, run.count), run.size), run.start)
        line = b.div(i, run.count)
        place = [w0]
        for extent in reversed(self.shape[1:-2]):
            place.insert(0, b.mod(line, extent))
            line = b.div(line, extent)
        first = zip(place, self.op.strides, self.op.pads_begin, strict=True)
        origin = [b.add(b.mul(o, s), -p) for o, s, p in first]
        at = self.x.position(b, line, 0, origin)
        x = b.offset(self.pointers[self.x.source], b.mul(at, self.dtype.itemsize))
        for block in self.blocks:
            b.loop(0, block.count, 1, partial(self._tile, block, x, [line, *place], run))

    def _tile(
        self, block: ChannelBlocks, x: Reg, place: list[Int], run: Run, i: Int, _: list[Reg]
    ) -> None:
        """Compute some pixels of a row for one block of channels."""
        b = self.b
        c = b.add(b.mul(i, block.width), block.start)
        x = b.offset(x, b.mul(c, self.dtype.itemsize * self.x.channel))
        w = b.offset(b.arguments[f"p{self.packed}"], b.mul(c, math.prod(self.kernel) * 4))
        lanes = block.lanes if block.lanes > 1 else 0
        zero = b.number(0, self.sums, lanes)
        sums = self._outer_taps(x, w, [zero] * run.size, run, lanes, 0, 0)
        *outer, w0 = place

        def store(r: Int, _: int, total: Reg) -> None:
            self.epilogue.store([*outer, b.add(w0, r), c], total, block.lanes)

        self.epilogue.store_rows(sums, run.size, store)

    def _outer_taps(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, lanes: int, axis: int, tap: Int
    ) -> list[Reg]:
        """Add the products of all taps from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.kernel) - 1:
            return self._row(x, b.offset(w, b.mul(tap, max(lanes, 1) * 4)), sums, run, lanes)
        step = self.op.dilations[axis] * self.x.spatial[axis] * self.dtype.itemsize
        stride = strides_of(self.kernel)[axis]

        def one(k: Int, inner: list[Reg]) -> list[Reg]:
            at = b.add(tap, b.mul(k, stride))
            xk = b.offset(x, b.mul(k, step))
            return self._outer_taps(xk, w, inner, run, lanes, axis + 1, at)

        return b.loop(0, self.kernel[axis], 1, one, sums)

    def _row(self, x: Reg, w: Reg, sums: list[Reg], run: Run, lanes: int) -> list[Reg]:
        """Add the products of one row of taps."""
        b = self.b
        kind = vector(lanes, self.sums)
        held: dict[int, Reg] = {}
        sums = list(sums)
        for pixel in self.taps.pixels(run.size):
            place = b.offset(x, pixel * self.x.spatial[-1] * self.dtype.itemsize)
            loaded = self._loaded(place, lanes)
            for r, k in self.taps.uses(pixel, run.size):
                if k not in held:
                    held[k] = b.load(kind, b.offset(w, k * max(lanes, 1) * 4), 4)
                sums[r] = self._added(loaded, held[k], sums[r])
        return sums

    def _loaded(self, place: Reg, lanes: int) -> Reg:
        """Load elements of the input in the type of the sums."""
        loaded: Reg = load_elements(self.b, self.dtype, place, lanes).reg
        return loaded

    def _added(self, x: Reg, w: Reg, total: Reg) -> Reg:
        return self.b.intrinsic("fmuladd", x, w, total)
