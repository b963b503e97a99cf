"""Which kernel computes a region, and what kernels ask of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.llvm.dot import dot
from monograph.codegen.llvm.kernel import Kernel, KernelContext
from monograph.codegen.llvm.pointwise import pointwise
from monograph.ir import Op, Value
from monograph.ops.linear import Dot
from monograph.program.kinds import is_view
from monograph.program.place import Halo
from monograph.program.region import Region

Generator = Callable[[KernelContext], Kernel]
_KERNELS: dict[type[Op], Generator] = {Dot: dot}


def generator(region: Region) -> Generator | None:
    """The kernel generator for a region; None where it has to run on the host."""
    if region.anchor is None:
        return pointwise
    return _KERNELS.get(type(region.anchor.op))


@dataclass(frozen=True)
class CpuTarget:
    """What the CPU's kernels say of their operands while values are placed."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        return not is_view(operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        return None
