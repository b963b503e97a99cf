"""OrtValue and OrtDevice: data on the host or on a GPU, under ONNX Runtime's names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from monograph.onnxruntime.errors import OrtNotImplemented
from monograph.onnxruntime.memory import gpu_type, is_on_gpu, numpy_type, to_gpu, to_host

if TYPE_CHECKING:
    from monograph.ir import DType, Type

_NAMES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "str": "string",
    "bool": "bool", "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8e4m3fn", "f8e4m3fnuz": "float8e4m3fnuz", "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz", "f8e8m0": "float8e8m0", "f4e2m1": "float4e2m1",
    "f6e2m3": "float6e2m3", "f6e3m2": "float6e3m2",
    **{f"i{n}": f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "npu": 3, "cann": 3, "dml": 4, "webgpu": 1}
_VENDORS = {"cuda": 0x10DE, "dml": 0x1414, "cann": 0x19E5}


def element_name(given: DType) -> str:
    """Return ONNX Runtime's name of an element type."""
    return _NAMES[given.name]


def type_text(given: Type | None) -> str:
    """Return ONNX Runtime's text of a type: `tensor(float)`, `seq(map(int64,tensor(float)))`."""
    from monograph.ir import MapType, OptionalType, SequenceType, TensorType

    if isinstance(given, SequenceType):
        return f"seq({type_text(given.element)})"
    if isinstance(given, OptionalType):
        return f"optional({type_text(given.element)})"
    if isinstance(given, MapType):
        return f"map({element_name(given.key)},tensor({element_name(given.value)}))"
    return f"tensor({element_name(given.dtype)})" if isinstance(given, TensorType) else ""


class OrtDeviceVendorId(IntEnum):
    """Numbers of the vendors of devices."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtDevice:
    """A device by its name and number."""

    def __init__(self, name: str, number: int, vendor: int) -> None:
        self.name = name
        self._number, self._vendor = number, vendor

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return a device; raise for a name that ONNX Runtime does not know."""
        if ort_device_name not in _DEVICE_TYPES:
            raise Exception("Unsupported device type: " + ort_device_name)
        vendor = _VENDORS.get(ort_device_name, 0) if vendor_id < 0 else int(vendor_id)
        return OrtDevice(ort_device_name, device_id, vendor)

    def device_id(self) -> int:
        """Return the number of the device."""
        return self._number

    def device_type(self) -> int:
        """Return the number of the kind of device."""
        return _DEVICE_TYPES[self.name]

    def device_vendor_id(self) -> int:
        """Return the number of the vendor."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Return the number of the kind of memory: the default one."""
        return 0

    @property
    def on_host(self) -> bool:
        """True for the memory of the host."""
        return self.name == "cpu"

    def torch_name(self) -> str:
        """Return torch's name of a GPU; raise if this machine cannot allocate memory on it."""
        from monograph.onnxruntime.providers import get_available_providers

        if self.device_type() != 1 or len(get_available_providers()) < 2:
            raise RuntimeError(
                f"Can't allocate memory on the device {self.name!r}: this machine has no such"
                " device that Monograph can use"
            )
        return f"cuda:{self._number}"


class OrtValue:
    """A tensor, a sequence, a map or nothing, on the host or on a GPU."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: npt.NDArray[Any],
        /,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Hold an array: its own memory on the host, a copy on a GPU."""
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "USO":
            raise RuntimeError(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        device = OrtDevice.make(device_type.lower(), device_id, vendor_id)
        # An array without dimensions is contiguous; ascontiguousarray would give it one.
        plain = numpy_obj if numpy_obj.flags.c_contiguous else np.ascontiguousarray(numpy_obj)
        return cls(plain if device.on_host else to_gpu(plain, device.torch_name()))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: npt.NDArray[Any], /, onnx_element_type: int
    ) -> OrtValue:
        """Hold an array whose bytes are of an ONNX type of the same width."""
        wanted = numpy_type(onnx_element_type)
        if wanted.itemsize != data.dtype.itemsize:
            raise ValueError(f"{data.dtype} has not the width of {wanted}")
        return cls(data.view(wanted))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Allocate a tensor. Its elements are zeros."""
        made = np.zeros(tuple(shape), numpy_type(element_type))
        device = OrtDevice.make(device_type.lower(), device_id, vendor_id)
        return cls(made if device.on_host else to_gpu(made, device.torch_name()))

    @classmethod
    def from_dlpack(cls, data: Any, /, *_: Any) -> OrtValue:
        """Hold the memory of another library's tensor, or of a DLPack capsule."""
        if isinstance(data, np.ndarray):
            return cls(data)
        if is_on_gpu(data):
            import torch  # the only library that Monograph's gpu target shares memory with

            return cls(torch.from_dlpack(data))
        from monograph.runtime.feeds import arrays_of

        return cls(np.asarray(arrays_of({"data": data})["data"]))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> OrtValue:
        """Refuse a sparse tensor."""
        raise OrtNotImplemented("Monograph has no sparse tensors", hint="use a dense tensor")

    @property
    def content(self) -> Any:
        """The array, the torch tensor, the list, the dict or None that it holds."""
        return self._data

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._tensor().ctypes.data if self._on_host() else self._tensor().data_ptr())

    def device_name(self) -> str:
        """Return "cpu" or "cuda"."""
        return "cpu" if self._on_host() else "cuda"

    def shape(self) -> list[int]:
        """Return the sizes of a tensor, or the length of a sequence."""
        if self.is_tensor():
            return [int(size) for size in self._data.shape]
        return [len(self._data)] if isinstance(self._data, list) else []

    def data_type(self) -> str:
        """Return the type, for example `tensor(int64)`."""
        if self.is_tensor():
            return f"tensor({element_name(self._element())})"
        if isinstance(self._data, list):
            return f"seq({OrtValue(self._data[0]).data_type() if self._data else ''})"
        return "map" if isinstance(self._data, Mapping) else ""

    def element_type(self) -> int:
        """Return the number of the ONNX type of a tensor's elements."""
        from monograph.frontend.onnx.dtypes import to_onnx

        self._tensor()
        return to_onnx(self._element())

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of a tensor."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """Return False for an optional without a value."""
        return self._data is not None

    def is_tensor(self) -> bool:
        """Return True for a tensor."""
        return hasattr(self._data, "shape")

    def is_sparse_tensor(self) -> bool:
        """Return False: Monograph has no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return True for a sequence."""
        return isinstance(self._data, list)

    def numpy(self) -> npt.NDArray[Any]:
        """Return a tensor as an array: its own memory on the host, a copy from a GPU."""
        return to_host(self._tensor())

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the memory."""
        return self.__dlpack__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return a tensor as an array, for numpy."""
        if copy is None:
            return np.asarray(self.numpy(), dtype=dtype)
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule of the memory."""
        return self._tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind and the number of the device by DLPack's numbers."""
        kind, number = self._tensor().__dlpack_device__()
        return int(kind), int(number)

    def update_inplace(self, data: npt.NDArray[Any] | OrtValue) -> None:
        """Copy elements into the memory of this value."""
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        mine, given = self._tensor(), data.numpy() if isinstance(data, OrtValue) else data
        if math.prod(mine.shape) != given.size:
            raise RuntimeError(
                "The input size of numpy arrays does not match the size of the OrtValue."
            )
        if self._element().numpy != given.dtype:
            raise RuntimeError(f"The OrtValue holds {self.data_type()}, got {given.dtype}")
        given = given.reshape(tuple(mine.shape))
        if self._on_host():
            np.copyto(mine, given)
        else:
            mine.copy_(to_gpu(given, str(mine.device)))

    @property
    def _ortvalue(self) -> OrtValue:
        """The value itself: programs reach for ONNX Runtime's native value by this name."""
        return self

    def _tensor(self) -> Any:
        if not self.is_tensor():
            raise RuntimeError("Only OrtValues that are Tensors/SparseTensors are supported")
        return self._data

    def _on_host(self) -> bool:
        return not is_on_gpu(self._data)

    def _element(self) -> DType:
        from monograph.ir import from_numpy

        return from_numpy(gpu_type(self._data) if is_on_gpu(self._data) else self._data.dtype)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy the elements of values into the memory of others."""
    for given, mine in zip(src, dst, strict=True):
        mine.update_inplace(given)
