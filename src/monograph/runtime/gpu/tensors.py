"""Memory as torch tensors: typed views of bytes, strided as values lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from monograph.codegen.triton.module.launch import stored
from monograph.ir import Array, DType

TORCH = {
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "half": torch.float16,
    "bfloat": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}
"""The torch type of elements in memory, by the LLVM name of their storage."""
_OWN = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "f8e5m2fnuz": torch.float8_e5m2fnuz,
}


def torch_type(dtype: DType) -> torch.dtype:
    """The torch type of an element type, as callers know it."""
    return _OWN.get(dtype.name) or TORCH[stored(dtype)]


def typed(memory: torch.Tensor, offset: int, dtype: DType) -> torch.Tensor:
    """Bytes from an offset on, as a flat tensor of a type as kernels see it."""
    size = dtype.itemsize
    usable = (memory.numel() - offset) // size * size
    return memory[offset : offset + usable].view(TORCH[stored(dtype)])


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor."""
    # One element is dense whatever its stride, but torch views only a stride of one as bytes.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose bytes are its numbers: torch negates and conjugates some when it reads."""
    return tensor.resolve_conj().resolve_neg()


def is_plain(tensor: torch.Tensor) -> bool:
    return not (tensor.is_neg() or tensor.is_conj())


def from_numpy(array: Array) -> torch.Tensor:
    """The bytes of an array, as a tensor in the same memory where that can be written to."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not flat.size:  # numpy gives it a stride that torch does not take
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())


def to_numpy(tensor: torch.Tensor, dtype: DType, shape: tuple[int, ...]) -> Array:
    """An array of bytes on the host."""
    host: Any = tensor.reshape(-1).view(torch.uint8).cpu().numpy()
    return np.asarray(host.view(dtype.numpy).reshape(shape))
