"""Packed weights of convolutions: constants, or memory that each run fills.

Weights that are known only in a run are packed by all threads at its start.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import load_elements
from monograph.codegen.llvm.module.kernel import (
    KernelContext,
    LlvmPacked,
    LlvmScratch,
    Sync,
    synchronise,
)
from monograph.ir import Array, known
from monograph.program.memory.strided import strided


class Packing:
    """Create it before the builder; `arguments` requests the pointers, `emit` writes the code."""

    def __init__(self, context: KernelContext) -> None:
        self.context, self.weights = context, context.anchor.inputs[1]
        self.constant = known(self.weights) is not None
        found = None if self.constant else strided(self.weights, context.program.places.storage)
        self.source = found.source if found else self.weights
        self.offset = found.offset if found else 0
        self.strides = found.strides if found else ()

    def arguments(self, pack: Callable[[], Array], nbytes: int) -> int:
        """Request the values of the region and the packed weights; return the latter's position."""
        context, region = self.context, self.context.step.region
        read = region.inputs_besides(1) if self.constant else region.inputs
        context.add(*read, *region.outputs)
        if self.constant:
            return context.argument(LlvmPacked(pack()))
        self.barrier = context.argument(Sync())
        return context.argument(LlvmScratch(nbytes))

    def emit(self, b: Builder, pack: Callable[[], None]) -> None:
        """Pack weights that are known only in a run, and wait for all threads."""
        if self.constant or 0 in self.weights.tensor.static:
            return
        self.pointer = b.arguments[f"p{self.context.argument(self.source)}"]
        pack()
        synchronise(b, self.barrier, self.context.threads)

    def gathered(self, b: Builder, at: Int, valid: int, lanes: int) -> Reg:
        """Load the weights of consecutive results as f32 lanes; beyond the valid ones they are 0.

        `at` is the offset of the first in elements.
        """
        size, kind = self.weights.dtype.itemsize, vector(lanes, "float")
        whole = Reg("zeroinitializer", kind)
        for k in range(valid):
            where = b.mul(b.add(at, k * self.strides[0] + self.offset), size)
            one = load_elements(b, self.weights.dtype, b.offset(self.pointer, where))
            whole = b.insert(whole, one.reg, k)
        return whole
