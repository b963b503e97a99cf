"""Which kernel computes a region, and what kernels ask of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.llvm.conv import conv, serves
from monograph.codegen.llvm.dot import dot
from monograph.codegen.llvm.kernel import Kernel, KernelContext
from monograph.codegen.llvm.pointwise import pointwise
from monograph.ir import Input, Value
from monograph.ir.dtype import f32
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.program.kinds import is_view
from monograph.program.place import Halo
from monograph.program.region import Region

Generator = Callable[[KernelContext], Kernel]


def generator(region: Region) -> Generator | None:
    """The kernel generator for a region; None where it has to run on the host."""
    if region.anchor is None:
        return pointwise
    if isinstance(region.anchor.op, Conv):
        return conv if serves(region.anchor) else None
    if isinstance(region.anchor.op, Dot):
        return dot if region.anchor.dtype == f32 else None
    return None


@dataclass(frozen=True)
class CpuTarget:
    """What the CPU's kernels say of their operands while values are placed."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        if is_view(operand):
            return False
        padded = self.halo(user, index) is not None
        return not (padded and isinstance(operand.op, Input))

    def halo(self, user: Value, index: int) -> Halo | None:
        """Padded convolutions read zeros around their input."""
        if index or not serves(user) or not isinstance(user.op, Conv):
            return None
        pads = tuple(zip(user.op.pads_begin, user.op.pads_end, strict=True))
        return ((0, 0), *pads, (0, 0)) if any(map(any, pads)) else None
