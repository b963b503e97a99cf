"""Direct convolution of an image without a halo: an input of the model.

Copying the image into memory with a halo would cost more than handling its edges. Taps outside of
the image are skipped: across lines by loop bounds, along a line by special tiles at its ends, at
literal positions.
"""

from __future__ import annotations

import math
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.conv import direct
from monograph.codegen.llvm.conv.direct import DirectConv, Spot
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.tiles import Run
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Input, Value, is_finite
from monograph.ops.conv import Conv
from monograph.ops.shape import Transpose

FEW = 8
"""The most channels of an image that is read in any order."""


def conv_edges(context: KernelContext) -> Kernel:
    """Generate a kernel for a padded convolution of an input, and its epilogue."""
    return _EdgeConv(context).emit()


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if not direct.serves(value):
        return False
    assert isinstance(value.op, Conv)
    x, w = value.inputs
    padded = any((*value.op.pads_begin, *value.op.pads_end))
    while isinstance(x.op, Transpose):
        x = x.inputs[0]
    # Winograd's kernel computes dense 3x3 windows, and needs a halo.
    dense = max(value.op.strides) == 1 and w.tensor.static[2:] == (3, 3)
    few = w.tensor.static[1] <= FEW and 0 not in value.tensor.static
    if not padded or not isinstance(x.op, Input) or not few or dense:
        return False
    # A padding zero times an infinity is NaN: such taps must not be skipped.
    return is_finite(w)


class _EdgeConv(DirectConv):
    whole_lines = True

    def __init__(self, context: KernelContext) -> None:
        super().__init__(context)
        self.sizes = self.plan.turned(self.anchor.inputs[0].tensor.static[1:-1])

    def _line(self, panel: Run, h: Int, i: Int, _: list[Reg]) -> None:
        """Compute one line: tiles beyond its ends one by one, those between in a loop."""
        b = self.b
        for run in self.runs:
            inner = [j for j in range(run.count) if self._is_inside(run, j)]
            first, stop = (inner[0], inner[-1] + 1) if inner else (run.count, run.count)
            for j in range(first):
                self._tile(panel, h, i, run, j, [])
            if inner:
                b.loop(first, stop, 1, partial(self._tile, panel, h, i, run))
            for j in range(stop, run.count):
                self._tile(panel, h, i, run, j, [])

    def _is_inside(self, run: Run, j: int) -> bool:
        """Return True if a tile reads only inside of the image along its line."""
        first = self._first(run.start + j * run.size)
        return first >= 0 and first + self.taps.pixels(run.size)[-1] < self.sizes[-1]

    def _first(self, w0: int) -> int:
        """Return the first pixel that an output reads along the line; negative before its start."""
        return w0 * self.strides[-1] - self.pads[-1]

    def _pixels(self, spot: Spot) -> list[int]:
        pixels = super()._pixels(spot)
        if not isinstance(spot.w0, int):
            return pixels
        first = self._first(spot.w0)
        return [p for p in pixels if 0 <= first + p < self.sizes[-1]]

    def _products(self, spot: Spot, w: Reg, sums: list[Reg]) -> list[Reg]:
        b = self.b
        pixels = self._pixels(spot)
        if not pixels:
            return sums
        origin = b.add(b.mul(spot.w0, self.strides[-1]), pixels[0] - self.pads[-1])
        at = b.add(b.mul(origin, self.steps[-1]), self.x.offset)
        at = b.add(at, b.mul(spot.outer[0], self.x.strides[0]))
        return self._inside(at, w, sums, spot, 0)

    def _inside(self, at: Int, w: Reg, sums: list[Reg], spot: Spot, axis: int) -> list[Reg]:
        """Add the products of the taps inside the image, from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.kernel) - 1:
            x = b.offset(self.pointers[self.x.source], b.mul(at, self.dtype.itemsize))
            return self._channels(x, w, sums, spot)[0]
        origin = b.add(b.mul(spot.outer[1 + axis], self.strides[axis]), -self.pads[axis])
        low, high = self._bounds(origin, axis)
        taps = math.prod(self.kernel[axis + 1 :])
        size = self.channels * taps * spot.panel.size * self.lanes * 4

        def one(k: Int, carried: list[Reg]) -> list[Reg]:
            place = b.add(origin, b.mul(k, self.dilations[axis]))
            here = b.add(at, b.mul(place, self.steps[axis]))
            return self._inside(here, b.offset(w, b.mul(k, size)), carried, spot, axis + 1)

        return b.loop(low, high, 1, one, sums)

    def _bounds(self, origin: Int, axis: int) -> tuple[Int, Int]:
        """Return the range of taps that read inside the image along an axis."""
        b, dilation = self.b, self.dilations[axis]

        def steps(distance: Int) -> Int:
            return b.div(b.add(b.maximum(distance, 0), dilation - 1), dilation)

        low = steps(b.sub(0, origin))
        return low, b.minimum(steps(b.sub(self.sizes[axis], origin)), self.kernel[axis])
