"""Rows of 16-bit floats, widened once for all columns that they are multiplied with.

A product reads each element of its rows alone. A vector of them is converted in the time of one.
"""

from __future__ import annotations

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import pieces
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import KernelContext, LlvmScratch
from monograph.ir import DType
from monograph.ir.dtype import f32

PADDING = 16
"""Elements between rows, so that they do not share sets of the nearest cache."""


class WideRows:
    """The memory of each thread for the rows of a tile in f32."""

    def __init__(self, context: KernelContext, rows: int, depth: int) -> None:
        self.stride = depth + PADDING
        self._lanes = context.features.lanes(f32.bits)
        self._size = rows * self.stride * f32.itemsize
        self._number = context.argument(LlvmScratch(self._size * context.threads))

    def fill(
        self,
        b: Builder,
        scalars: LlvmScalars,
        x: tuple[Reg, DType],
        step: int,
        rows: int,
        depth: int,
    ) -> Reg:
        """Convert so many rows from an address on, `step` elements apart; return where they are."""
        first, dtype = x
        own = b.offset(b.arguments[f"p{self._number}"], b.mul(b.arguments["tid"], self._size))
        lanes = self._lanes

        def some(k: Int, width: int) -> None:
            for r in range(rows):
                at = b.offset(first, b.mul(b.add(k, r * step), dtype.itemsize))
                found = scalars.load(dtype, at, width if width > 1 else 0).reg
                target = b.mul(b.add(k, r * self.stride), f32.itemsize)
                b.store(found, b.offset(own, target), f32.itemsize)

        whole = depth // lanes * lanes
        b.loop(0, whole, lanes, lambda k, _: some(k, lanes))
        for start, width in pieces(depth - whole):
            some(whole + start, width)
        return own
