"""Depthwise convolution of bytes, channels last: vectors of channels, exact, in 32 bits.

A row of outputs stands in registers; each pixel that is loaded feeds all taps of the row. Bytes are
widened as they are loaded. The input has a halo of zeros as wide as the padding.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from monograph.codegen.llvm import conv_int
from monograph.codegen.llvm.arith import Arith
from monograph.codegen.llvm.builder import Int, Reg, vector
from monograph.codegen.llvm.conv_plan import Taps
from monograph.codegen.llvm.depthwise import packed_taps
from monograph.codegen.llvm.epilogue import Epilogue
from monograph.codegen.llvm.kernel import Kernel, KernelContext, Packed, pointers, share
from monograph.codegen.llvm.tiles import Run, split
from monograph.codegen.llvm.windows import Block, blocks, image
from monograph.ir import Array, Value, known
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import strides_of

MOST_HELD = 4
"""Taps of a row whose weights are counted as registers; wider kernels load them as they go."""
MOST_ROWS = 14


def serves(value: Value) -> bool:
    """Whether this kernel computes a value."""
    if not conv_int.serves(value):
        return False
    assert isinstance(value.op, Conv)
    results, channels = value.inputs[1].tensor.dims[:2]
    return channels == 1 and results == value.op.groups and value.op.groups > 1


def conv_int_depthwise(context: KernelContext) -> Kernel:
    """A kernel for a depthwise convolution of bytes and what follows it."""
    return _Depthwise(context).emit()


class _Depthwise:
    def __init__(self, context: KernelContext) -> None:
        anchor = context.step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Conv)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        weights = known(anchor.inputs[1])
        assert weights is not None
        self.weights: Array = weights
        self.kernel = weights.shape[2:]
        self.shape = anchor.tensor.static
        self.x = image(context, anchor.inputs[0], CHANNELS_LAST)
        self.taps = Taps(self.kernel[-1], self.op.strides[-1], self.op.dilations[-1])
        room = context.features.registers - min(self.taps.size, MOST_HELD) - 4
        self.runs = split(self.shape[-2], min(max(2, room), MOST_ROWS))
        lanes = context.features.lanes(32) if self.x.channel == 1 else 1
        self.blocks = blocks(self.shape[-1], lanes, 1)

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        for value in (*region.inputs, *region.outputs):
            if value is not self.anchor.inputs[1]:
                context.argument(value)
        self.packed = context.argument(Packed(packed_taps(self.weights, self.blocks, np.int32)))
        b = self.b = context.builder(len(context.arguments))
        self.a = Arith(b)
        self.pointers = pointers(b, context.arguments)
        self.epilogue = Epilogue(context, b)
        widest = max(block.lanes for block in self.blocks)
        self.epilogue.reserve(max(run.size for run in self.runs), widest)
        lines = math.prod(self.shape[:-2])
        for run in self.runs:
            b.loop(*share(b, lines * run.count, context.threads), 1, partial(self._strip, run))
        return context.finish(b, 2.0 * math.prod(self.shape) * math.prod(self.kernel))

    def _strip(self, run: Run, i: Int, _: list[Reg]) -> None:
        """Some pixels of a row, all channels: memory is read in order."""
        b = self.b
        w0 = b.add(b.mul(b.mod(i, run.count), run.size), run.start)
        line = b.div(i, run.count)
        dims = self.shape[:-2]
        place = [b.mod(b.div(line, s), d) for s, d in zip(strides_of(dims), dims, strict=True)]
        batch, *spatial = [*place, w0]
        first = zip(spatial, self.op.strides, self.op.pads_begin, strict=True)
        origin = [b.add(b.mul(o, s), -p) for o, s, p in first]
        x = b.offset(self.pointers[self.x.source], self.x.position(b, batch, 0, origin))
        for block in self.blocks:
            b.loop(0, block.count, 1, partial(self._tile, block, x, [batch, *spatial], run))

    def _tile(self, block: Block, x: Reg, place: list[Int], run: Run, i: Int, _: list[Reg]) -> None:
        """Some pixels of a row, one block of channels."""
        b = self.b
        c = b.add(b.mul(i, block.width), block.start)
        x = b.offset(x, b.mul(c, self.x.channel))
        w = b.offset(b.arguments[f"p{self.packed}"], b.mul(c, math.prod(self.kernel) * 4))
        lanes = block.lanes if block.lanes > 1 else 0
        zero = b.number(0, "i32", lanes)
        sums = self._outer_taps(x, w, [zero] * run.size, run, lanes, 0, 0)
        *outer, w0 = place

        def store(r: Int, _: int, total: Reg) -> None:
            self.epilogue.store([*outer, b.add(w0, r), c], total, block.lanes)

        self.epilogue.store_rows(sums, run.size, store)

    def _outer_taps(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, lanes: int, axis: int, tap: Int
    ) -> list[Reg]:
        """Adds the products of all taps from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.kernel) - 1:
            return self._row(x, b.offset(w, b.mul(tap, max(lanes, 1) * 4)), sums, run, lanes)
        step = self.op.dilations[axis] * self.x.spatial[axis]
        stride = strides_of(self.kernel)[axis]

        def one(k: Int, inner: list[Reg]) -> list[Reg]:
            at = b.add(tap, b.mul(k, stride))
            return self._outer_taps(b.offset(x, b.mul(k, step)), w, inner, run, lanes, axis + 1, at)

        return b.loop(0, self.kernel[axis], 1, one, sums)

    def _row(self, x: Reg, w: Reg, sums: list[Reg], run: Run, lanes: int) -> list[Reg]:
        """Adds the products of one row of taps."""
        b, a = self.b, self.a
        how = "sext" if self.anchor.inputs[0].dtype.is_signed else "zext"
        held: dict[int, Reg] = {}
        sums = list(sums)
        for pixel in self.taps.pixels(run.size):
            bytes_ = b.load(vector(lanes, "i8"), b.offset(x, pixel * self.x.spatial[-1]), 1)
            loaded = a.convert(how, bytes_, "i32")
            for r, k in self.taps.uses(pixel, run.size):
                if k not in held:
                    held[k] = b.load(vector(lanes, "i32"), b.offset(w, k * max(lanes, 1) * 4), 4)
                sums[r] = a.op("add", sums[r], a.op("mul", loaded, held[k]))
        return sums
