"""Memory behind values: arrays on the host, torch tensors on a GPU, and raw addresses."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_HOST = (1, 3)
"""DLPack's numbers for memory that the host can read."""


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """Return the numpy type for a numpy type or the number of an ONNX type."""
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        from monograph.frontend.onnx.dtypes import from_onnx

        return from_onnx(element_type).numpy
    made: np.dtype[Any] = np.dtype(element_type)
    return made


def is_on_gpu(data: Any) -> bool:
    """Return True for a tensor in the memory of a GPU."""
    if isinstance(data, (np.ndarray, np.generic)) or not hasattr(data, "__dlpack_device__"):
        return False
    return int(data.__dlpack_device__()[0]) not in _HOST


def gpu_type(tensor: Any) -> np.dtype[Any]:
    """Return the numpy type of a torch tensor's elements."""
    import ml_dtypes

    name = str(tensor.dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))


def to_gpu(array: npt.NDArray[Any], place: str) -> Any:
    """Copy an array into a torch tensor on a GPU."""
    from monograph.ir import from_numpy
    from monograph.runtime.gpu import tensors

    raw = tensors.from_numpy(array).to(place, copy=True)
    return raw.view(tensors.torch_type(from_numpy(array.dtype))).reshape(array.shape)


def to_host(data: Any) -> npt.NDArray[Any]:
    """Return a tensor as an array: a copy from a GPU."""
    if not is_on_gpu(data):
        return np.asarray(data)
    from monograph.ir import from_numpy
    from monograph.runtime.gpu import tensors

    return tensors.to_numpy(data.contiguous(), from_numpy(gpu_type(data)), tuple(data.shape))


def host_array_at(address: int, element_type: Any, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return the array at an address of the host that the caller owns."""
    dtype, sizes = numpy_type(element_type), tuple(int(size) for size in shape)
    memory: Any = (ctypes.c_char * (math.prod(sizes) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(sizes)


def gpu_tensor_at(address: int, element_type: Any, shape: Sequence[int], place: str) -> Any:
    """Return the tensor at an address of a GPU that the caller owns."""
    import torch

    from monograph.ir import from_numpy
    from monograph.runtime.gpu.tensors import torch_type

    dtype, sizes = numpy_type(element_type), tuple(int(size) for size in shape)
    described = {
        "data": (address, False),
        "shape": (math.prod(sizes) * dtype.itemsize,),
        "typestr": "|u1",
        "version": 3,
    }
    memory = type("Memory", (), {"__cuda_array_interface__": described})()
    return torch.as_tensor(memory, device=place).view(torch_type(from_numpy(dtype))).reshape(sizes)
