"""Loads and stores of elements: between their form in memory and registers."""

from __future__ import annotations

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import decode, encode, storage
from monograph.codegen.llvm.emit.arith import LlvmArith
from monograph.codegen.llvm.emit.builder import Builder
from monograph.ir import DType
from monograph.ops.scalar import Scalar


def load_elements(b: Builder, dtype: DType, pointer: Reg, lanes: int = 0) -> Scalar:
    """An element of a type in memory, or adjacent elements as lanes."""
    stored = b.load(vector(lanes, storage(dtype)), pointer, dtype.itemsize)
    return Scalar(decode(LlvmArith(b), dtype, stored), dtype)


def store_elements(b: Builder, dtype: DType, x: Scalar, pointer: Reg) -> None:
    """Stores an element, or lanes as adjacent elements, in the form of its type."""
    b.store(encode(LlvmArith(b), dtype, x.reg), pointer, dtype.itemsize)
