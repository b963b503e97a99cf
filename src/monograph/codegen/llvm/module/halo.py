"""Halos of zeros around buffers: cleared in each run, because the memory is shared."""

from __future__ import annotations

import math
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.bounds_checks import Extent
from monograph.codegen.llvm.module.kernel import NAME, Kernel, finished, share
from monograph.ir import Value
from monograph.program.index import strides_of
from monograph.program.memory.buffer_assignment import Buffer, described


def zero_halo(value: Value, buffer: Buffer, threads: int, checked: bool = False) -> Kernel:
    """Generate a kernel that clears the halo of a value's buffer, and nothing else."""
    b = Builder(NAME, [("p0", "ptr"), ("tid", "i64")], checked=checked)
    size = buffer.dtype.itemsize
    padded = buffer.padded
    strides = strides_of(padded)
    for axis, (before, after) in enumerate(buffer.halo):
        if not before and not after:
            continue
        # Elements of all outer indices: before and after along this axis, memory is contiguous.
        count = math.prod(padded[:axis])
        whole = padded[axis] * strides[axis] * size
        front = before * strides[axis] * size
        back = after * strides[axis] * size

        clear = partial(_clear, b, whole, ((0, front), (whole - back, back)))
        b.loop(*share(b, count, threads), 1, clear)
    b.ret()
    return finished(b, [value], [Extent(buffer.nbytes, described(buffer))])


def _clear(
    b: Builder, whole: int, ranges: tuple[tuple[int, int], ...], i: Int, _: list[Reg]
) -> None:
    """Clear ranges of (start, length) in one of many equal blocks of bytes."""
    start = b.offset(b.arguments["p0"], b.mul(i, whole))
    zero, no = Reg("0", "i8"), Reg("false", "i1")
    for at, length in ranges:
        if length:
            count = Reg(str(length), "i64")
            b.call("llvm.memset.p0.i64", "void", b.offset(start, at), zero, count, no)
