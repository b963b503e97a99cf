"""Direct grouped convolution, channels last: each panel of results reads its own channels.

A panel is inside one group, so the last vector of every group may have unused lanes. Joining groups
would fill them, but zeros between groups would turn infinities into NaN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.conv.direct import DirectConv, Spot, sums_in_f32
from monograph.codegen.llvm.conv.tiling import ConvTiling, make_plan
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Array, Input, TensorType, Value, constant
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST


def conv_grouped(context: KernelContext) -> Kernel:
    """Generate a kernel for a grouped convolution and its epilogue."""
    return _GroupedConv(context).emit()


def serves(value: Value) -> bool:
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
        op, shape = self.anchor.op, self.anchor.inputs[0].tensor.static
        assert isinstance(op, Conv)
        weights = self._weights()[: self.anchor.tensor.static[-1] // op.groups]
        type_ = TensorType(self.anchor.dtype, (*shape[:-1], weights.shape[1]))
        group = replace(op, groups=1)(Input("group", type_)(), constant(weights))
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
