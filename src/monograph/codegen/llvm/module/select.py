"""The choice of a kernel for a region on the CPU, and the operands that kernels read."""

from __future__ import annotations

from dataclasses import dataclass

from monograph.codegen.llvm.control import control
from monograph.codegen.llvm.conv import choose as conv
from monograph.codegen.llvm.emit.pointwise import pointwise
from monograph.codegen.llvm.module.host_fallback import of_region
from monograph.codegen.llvm.module.kernel import (
    KERNELS,
    KernelGenerator,
    no_work,
)
from monograph.ir import Value
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.fusion.op_classes import is_native, is_view
from monograph.program.fusion.region import Region
from monograph.program.lowering import CPU_LOWERING, LoweringTarget
from monograph.program.memory.buffer_assignment import Halo


def generator(region: Region) -> KernelGenerator | None:
    """Return the kernel generator of a region; None where it runs on the host."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return None
    if region.anchor is None:
        return pointwise
    entry = KERNELS.find(region.anchor)
    if entry is not None:
        return entry.make
    return no_work if _is_empty(region) else None


def compiles(value: Value) -> bool:
    """Return True if a branch or a loop is compiled: its sizes are known, and all inside too."""
    return all(map(is_native, (value, *value.inputs))) and control.serves(value)


def _is_empty(region: Region) -> bool:
    """Return True if there is nothing to compute, and no operand to check."""
    assert region.anchor is not None
    empty = all(0 in v.tensor.static for v in region.outputs)
    return empty and not region.anchor.op.checks_operands


@dataclass(frozen=True)
class CpuTarget(LoweringTarget):
    """The rules of the CPU's kernels."""

    lowering = CPU_LOWERING
    host_loops = True

    def compiles(self, value: Value) -> bool:
        return compiles(value)

    def host_reason(self, region: Region) -> str:
        return "" if generator(region) is not None else of_region(region)

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        native = all(map(is_native, (user, *user.inputs)))
        entry = KERNELS.find(user) if native else None
        if entry is None:
            return user.op.reads_expressions or not is_view(operand)
        return entry.readable(user, index, operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        """Return the zeros that a padded convolution reads around its input."""
        return conv.halo(user, index)

    def overwrites(self, region: Region) -> bool:
        """Return True for loops over elements, updates, state, and disjoint tiles of layers."""
        if generator(region) is None:
            return False
        if region.anchor is None or region.anchor.op.updates_first:
            return True
        return isinstance(region.anchor.op, (Conv, Dot, Loop, BoundedLoop))
