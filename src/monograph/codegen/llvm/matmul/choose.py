"""The choice among the kernels of a matrix product, and the operands that they read."""

from __future__ import annotations

from monograph.codegen.llvm.attention import attention
from monograph.codegen.llvm.matmul import dot_int
from monograph.codegen.llvm.matmul.dot_quant import dot_quant
from monograph.codegen.llvm.matmul.open_columns import dot
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, no_work
from monograph.ir import Value
from monograph.ops.linear import Dot
from monograph.program.fusion.op_classes import reads_codes


def _readable(user: Value, index: int, operand: Value) -> bool:
    return reads_codes(user, index) or attention.readable(user, index, operand)


@kernel_for(Dot, readable=_readable)
def choose(context: KernelContext) -> Kernel:
    """Generate the kernel of a dot, by the form of its weights."""
    anchor = context.anchor
    if 0 in anchor.tensor.static:
        return no_work(context)
    if reads_codes(anchor, 1):
        return dot_quant(context)
    if dot_int.serves(anchor):
        return dot_int.dot_int(context)
    return dot(context)
