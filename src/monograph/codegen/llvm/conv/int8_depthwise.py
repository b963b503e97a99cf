"""Depthwise convolution of bytes, channels last: vectors of channels, exact, in 32 bits.

Like that of floats, but bytes are widened as they are loaded.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.conv import int8
from monograph.codegen.llvm.conv.depthwise import Depthwise
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Value
from monograph.ops.conv import Conv


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if not int8.serves(value):
        return False
    assert isinstance(value.op, Conv)
    results, channels = value.inputs[1].tensor.dims[:2]
    return channels == 1 and results == value.op.groups and value.op.groups > 1


def conv_int_depthwise(context: KernelContext) -> Kernel:
    """Generate a kernel for a depthwise convolution of bytes and its epilogue."""
    return _OfBytes(context).emit()


class _OfBytes(Depthwise):
    most_held = 4
    sums = "i32"
    weight = np.int32

    def _loaded(self, place: Reg, lanes: int) -> Reg:
        how = "sext" if self.dtype.is_signed else "zext"
        return LlvmArith(self.b).convert(how, self.b.load(vector(lanes, "i8"), place, 1), "i32")

    def _added(self, x: Reg, w: Reg, total: Reg) -> Reg:
        a = LlvmArith(self.b)
        return a.op("add", total, a.op("mul", x, w))
