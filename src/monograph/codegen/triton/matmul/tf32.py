"""TF32 products of f32: the devices that have them, and the rounding of operands.

The units read f32 and drop its last 13 bits. That truncates: every operand and every product
shrinks a little, and over many layers this adds up. So operands are rounded to the nearest TF32
first: constant weights on the host, all others in the kernel.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import GpuContext, TritonPacked
from monograph.ir import Array, DType
from monograph.ir.dtype import f32

DROPPED = 13
"""The bits of f32 that TF32 does not have."""
HALF, KEPT = 1 << (DROPPED - 1), -(1 << DROPPED)
LIMIT = 2.0**128 - 2.0**116
"""Smaller numbers round to a finite one; others are not rounded, nor are infinity and NaN."""

ADD, OFF = "add", "off"
"""Arithmetic on the bits, which every device has; and truncation, for comparisons only."""


def multiplies_tf32(context: GpuContext) -> bool:
    """Return True if products of f32 may and do run in TF32.

    Of AMD's devices only gfx942 has it; Triton rejects the precision on the others.
    """
    arch = context.arch
    return context.tf32 and (arch.backend == "cuda" or arch.name == "gfx942")


def rounds(context: GpuContext, dtype: DType) -> bool:
    """Return True if operands of a type have to be rounded for a product."""
    return dtype == f32 and multiplies_tf32(context)


def dot_precision(context: GpuContext) -> str:
    """Return the precision of a product of f32 in Triton's source."""
    return '"tf32"' if multiplies_tf32(context) else '"ieee"'


def rounding() -> str:
    """Return the rounding method of kernels.

    NVIDIA's own instruction (`cvt.rna.tf32.f32`) saves 2% of YOLOv10n, but turns the largest finite
    numbers into infinity.
    """
    return ADD


def rounded(context: GpuContext, w: Writer, x: str, dtype: DType) -> str:
    """Return the operand of a product, rounded to the nearest TF32 if the units would
    truncate it.
    """
    if not rounds(context, dtype):
        return x
    if rounding() == OFF:
        return x
    x = w.let(x, "x")
    bits = w.let(f"({x}.to(tl.int32, bitcast=True) + {HALF}) & {KEPT}", "b")
    near = f"{bits}.to(tl.float32, bitcast=True)"
    return w.let(f"tl.where(tl.abs({x}) < {LIMIT!r}, {near}, {x})", "t")


def round_array(x: Array) -> Array:
    """Round numbers of f32 to the nearest TF32, ties away from zero, as kernels do."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    with np.errstate(over="ignore"):
        near = ((bits + np.int32(HALF)) & np.int32(KEPT)).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x) < LIMIT, near, x).reshape(np.shape(x))


def packed_operand(context: GpuContext, packed: TritonPacked) -> TritonPacked:
    """Return constant weights, rounded once for all runs if the units would truncate them."""
    if not rounds(context, packed.dtype):
        return packed
    return TritonPacked(round_array(packed.array), packed.dtype)
