"""Direct convolutions of an image without a halo (an input of the model), and of groups.

Copying an input into memory with a halo would cost more than handling its edges. Taps outside of
the image are skipped: across lines by loop bounds, along a line by special tiles at its ends, at
literal positions.

In a grouped convolution each panel of results reads its own channels. A panel is inside one group,
so the last vector of every group may have unused lanes. Joining groups would fill them, but zeros
between groups would turn infinities into NaN.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.conv import direct
from monograph.codegen.llvm.conv.direct import DirectConv, Spot, sums_in_f32
from monograph.codegen.llvm.conv.tiling import LONG, ConvTiling, make_plan
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Array, Input, TensorType, Value, is_finite
from monograph.ir.sizes import any_open
from monograph.ops.conv import Conv
from monograph.ops.shape import Transpose
from monograph.ops.window import CHANNELS_LAST

FEW = 8
"""The most channels of an image that is read in any order."""


def conv_edges(context: KernelContext) -> Kernel:
    """Generate a kernel for a padded convolution of an input, and its epilogue."""
    return _EdgeConv(context).emit()


def serves_edges(value: Value) -> bool:
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
    few = few and not any_open(x.tensor.dims)  # the ends of lines are at literal positions
    few = few and max(w.tensor.static[2:]) <= LONG
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


def conv_grouped(context: KernelContext) -> Kernel:
    """Generate a kernel for a grouped convolution and its epilogue."""
    return _GroupedConv(context).emit()


def serves_groups(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != CHANNELS_LAST or op.auto or op.groups == 1:
        return False
    return sums_in_f32(value) and 0 not in (*value.tensor.static, *value.inputs[1].tensor.static)


class _GroupedConv(DirectConv):
    def __init__(self, context: KernelContext) -> None:
        super().__init__(context)
        assert isinstance(self.anchor.op, Conv)
        self.groups = self.anchor.op.groups
        self.results = self.out // self.groups
        self.block = -(-self.results // self.lanes)
        """The vectors of a group."""

    def _plan(self) -> ConvTiling:
        """Return the tiling of one group."""
        op, dtype = self.anchor.op, self.anchor.dtype
        assert isinstance(op, Conv)
        (*image, _), (results, *taps) = (v.tensor.static for v in self.anchor.inputs)
        x = Input("group", TensorType(dtype, (*image, taps[0])))()
        w = Input("weights", TensorType(dtype, (results // op.groups, *taps)))()
        group = replace(op, groups=1)(x, w)
        return make_plan(group, self.context.features)

    def _panel_runs(self) -> list[tuple[Run, bool]]:
        """Return the run over the groups for each panel of a group."""
        places = [
            (run.start + i * run.size, run.size)
            for run in split(self.block, self.plan.tile.vectors)
            for i in range(run.count)
        ]
        return [(Run(start, size, self.groups), False) for start, size in places]

    def _first_vector(self, panel: Run, i: Int) -> Int:
        return self.b.add(self.b.mul(i, self.block), panel.start)

    def _packed_bytes(self) -> int:
        return self.groups * self.block * self.lanes * self.channels * math.prod(self.kernel) * 4

    def _pack(self) -> Array:
        """Pack as [group][panel][outer taps][channel][tap][lanes of the panel], zeros beyond
        results.
        """
        panels = [run for run, _ in self._panel_runs()]
        width = self.block * self.lanes
        pieces = []
        for group in np.split(self._taps_last(), self.groups):
            wide = np.zeros((width, *group.shape[1:]), np.float32)
            wide[: self.results] = group
            for run in panels:
                some = wide[run.start * self.lanes : (run.start + run.size) * self.lanes]
                pieces.append(some.transpose(2, 1, 3, 0).reshape(-1))
        return np.concatenate(pieces)

    def _products(self, spot: Spot, w: Reg, sums: list[Reg]) -> list[Reg]:
        first = self.b.mul(spot.number, self.channels)
        return self._taps(self._start(spot, first), w, sums, spot, 0)[0]

    def _channel(self, spot: Spot, v: int) -> tuple[Int, int]:
        inside = (spot.panel.start + v) * self.lanes
        first = self.b.add(self.b.mul(spot.number, self.results), inside)
        return first, min(self.results - inside, self.lanes)
