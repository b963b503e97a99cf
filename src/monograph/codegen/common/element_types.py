"""The types of elements in memory, by their LLVM names."""

from __future__ import annotations

from monograph.ir import DType
from monograph.ir.dtype import f32, f64


def storage(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    if dtype == f32:
        return "float"
    return "double" if dtype == f64 else f"i{8 * dtype.itemsize}"
