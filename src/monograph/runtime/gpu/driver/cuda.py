"""NVIDIA devices through the CUDA driver: kernels are loaded once and launched directly."""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cu

from monograph.codegen.triton.module.launch import Arch, BufferRef, Launch
from monograph.errors import ExecutionError
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary, request
from monograph.runtime.gpu.driver.torch_driver import TorchDevice

_SHARED_BYTES = 48 << 10
"""Bytes of shared memory that a kernel may use without an attribute."""
_HIDDEN_POINTERS = 2
"""Pointers that Triton adds after a kernel's own, to scratch memory that Monograph does not use."""


def check(result: Any) -> Any:
    """Return what a driver call returned, or raise its error."""
    error, *values = result
    if int(error):
        _, name = cu.cuGetErrorName(error)
        _, text = cu.cuGetErrorString(error)
        shown = f"{(name or b'').decode()}: {(text or b'').decode()}"
        raise ExecutionError(f"the CUDA driver refused a call: {shown}")
    return values[0] if len(values) == 1 else tuple(values)


class CudaKernel:
    """Machine code in a device's memory."""

    def __init__(self, binary: KernelBinary) -> None:
        self.binary = binary
        self._module = check(cu.cuModuleLoadData(binary.code))
        self.function = check(cu.cuModuleGetFunction(self._module, binary.name.encode()))
        if binary.shared > _SHARED_BYTES:
            which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(self.function, which, binary.shared))
        weakref.finalize(self, _unload, self._module).atexit = False


class CudaRecord:
    """A kernel with its grid and its parameters."""

    def __init__(
        self,
        kernel: CudaKernel,
        grid: tuple[int, int, int],
        arguments: int,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.kernel = kernel
        count = arguments + len(sizes) + _HIDDEN_POINTERS
        self.words = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self.words)
        self._pointers = (ctypes.c_void_p * count)(*(start + 8 * i for i in range(count)))
        for position, size in enumerate(sizes):
            # The low half of a word holds a number of 32 bits.
            self.words[arguments + position] = size
        self.params = ctypes.addressof(self._pointers)
        self.grid = grid
        self.empty = 0 in grid
        """True if it has nothing to do."""
        self._stream = -1

    @cached_property
    def config(self) -> Any:
        """The driver's description of the launch. A launch that only becomes a node needs none."""
        kernel, grid = self.kernel, self.grid
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.binary.threads, 1, 1
        config.sharedMemBytes = kernel.binary.shared
        if kernel.binary.dependent:
            attribute = cu.CUlaunchAttribute()
            attribute.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attribute.value = value
            config.attrs = [attribute]
            config.numAttrs = 1
        return config

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        self.words[position] = memory.data_ptr() + offset

    def launch(self, stream: int) -> None:
        if self.empty:
            return
        if stream != self._stream:
            self.config.hStream = cu.CUstream(stream)
            self._stream = stream
        error = cu.cuLaunchKernelEx(self.config, self.kernel.function, self.params, 0)
        if int(error[0]):
            check(error)


class CudaDevice(TorchDevice):
    """One NVIDIA GPU. Equal kernels are loaded once and freed with the device."""

    keeps_code = True

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        major, minor = torch.cuda.get_device_capability(index)
        self.arch = Arch("cuda", f"sm_{major}{minor}")
        self.driver = _driver_version()
        self._context = check(cu.cuCtxGetCurrent())
        self._kernels: dict[CompileRequest, CudaKernel] = {}
        self._loaded: dict[KernelBinary, CudaKernel] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this device's context current.

        A thread that is new to CUDA has no context, and torch creates one only when it must.
        """
        with torch.cuda.device(self.place):
            check(cu.cuCtxSetCurrent(self._context))
            yield

    def record(self, launch: Launch, arguments: Sequence[BufferRef], stem: str) -> CudaRecord:
        dtypes = tuple(a.dtype for a in arguments)
        wanted = request(launch, dtypes, tuple(a.aligned for a in arguments), stem)
        return CudaRecord(self.kernel(wanted), launch.grid, len(arguments), launch.sizes)

    def loaded(
        self,
        binary: KernelBinary,
        grid: tuple[int, int, int],
        arguments: Sequence[BufferRef],
        sizes: tuple[int, ...] = (),
    ) -> CudaRecord:
        with self.active():
            if binary not in self._loaded:
                self._loaded[binary] = CudaKernel(binary)
            return CudaRecord(self._loaded[binary], grid, len(arguments), sizes)

    def kernel(self, wanted: CompileRequest) -> CudaKernel:
        if wanted not in self._kernels:
            from monograph.runtime.gpu.build.compiler import build

            self.load(wanted, build(wanted, self.arch))
        return self._kernels[wanted]

    def has(self, wanted: CompileRequest) -> bool:
        return wanted in self._kernels

    def load(self, wanted: CompileRequest, binary: KernelBinary) -> None:
        with self.active():
            self._kernels[wanted] = CudaKernel(binary)

    def code(self, wanted: CompileRequest) -> KernelBinary:
        """Return the machine code of a kernel."""
        return self.kernel(wanted).binary


_ABOUT_DRIVER = Path("/proc/driver/nvidia/version")


def _driver_version() -> str:
    """Return the driver's version as Linux reports it, else the newest CUDA it supports."""
    with suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", _ABOUT_DRIVER.read_text())
        if found is not None:
            return found[1]
    number = int(check(cu.cuDriverGetVersion()))
    return f"of CUDA {number // 1000}.{number % 1000 // 10}"


def _unload(module: Any) -> None:
    """Free a kernel's memory. A context that is gone has freed it already."""
    cu.cuModuleUnload(module)
