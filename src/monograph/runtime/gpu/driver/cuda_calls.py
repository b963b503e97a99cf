"""Calls of the CUDA driver that graphs need: node parameters, waits and page locks.

Waits and page locks run in relaxed capture mode, so that they do not invalidate captures of other
threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from cuda.bindings import driver as cu
from cuda.bindings import runtime as rt

from monograph.runtime.gpu.driver.graphs import (
    KERNEL,
    MEMCPY,
    MEMSET,
    CopyNode,
    GraphError,
    Handle,
    Params,
)
from monograph.runtime.gpu.host_io.overlapped_upload import THREADS, blocks_of

_BUFFER, _SIZE, _END = 1, 2, 0
"""Keys of `extra`, a driver's list that holds the address and size of packed parameters."""
add_node = getattr(cu, "cuGraphAddNode_v2", cu.cuGraphAddNode)
capture_info = getattr(cu, "cuStreamGetCaptureInfo_v3", cu.cuStreamGetCaptureInfo)
set_dependencies = getattr(
    cu, "cuStreamUpdateCaptureDependencies_v2", cu.cuStreamUpdateCaptureDependencies
)
"""Calls that take edges. Before cuda-bindings 13 only the names with a version do."""

SET_CONDITION = b"""
.version 8.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry set_condition(.param .u64 handle, .param .u64 flag, .param .u32 inverse)
{
  .reg .b32 %r<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [handle];
  ld.param.u64 %d2, [flag];
  ld.param.u32 %r2, [inverse];
  cvta.to.global.u64 %d3, %d2;
  ld.global.u8 %r1, [%d3];
  xor.b32 %r3, %r1, %r2;
  { .param .b64 p; .param .b32 q;
    st.param.b64 [p], %d1;
    st.param.b32 [q], %r3;
    call.uni cudaGraphSetConditional, (p, q); }
  ret;
}
\0"""
"""A kernel that copies a bool to a graph's condition; the driver resolves the call."""


def check(result: Any) -> Any:
    """Return what a driver call returned, or raise its error."""
    error, *values = result
    if int(error):
        raise GraphError(f"the CUDA driver refused a call: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def entry(name: str) -> int:
    """Return the address of a driver function, for native code to call."""
    library = ctypes.CDLL("libcuda.so.1")
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


def _upload_arguments(copy: CopyNode) -> tuple[int, ...]:
    """Return the arguments of the upload kernel."""
    numbers = (copy.to, copy.source, copy.control, copy.nbytes)
    return numbers if copy.narrowed is None else (*numbers, copy.narrow_to)


def launch_upload(function: Any, copy: CopyNode, stream: int) -> None:
    """Launch an overlapped upload on a stream: see `overlapped_upload`."""
    values = _upload_arguments(copy)
    given = (values, (ctypes.c_uint64,) * len(values))
    blocks = blocks_of(copy.nbytes, copy.narrow_to)
    check(cu.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, given, 0))


def add_upload(graph: Any, function: Any, copy: CopyNode, before: list[Any]) -> Any:
    """Add an overlapped upload as a node."""
    words = [ctypes.c_uint64(number) for number in _upload_arguments(copy)]
    blocks = blocks_of(copy.nbytes, copy.narrow_to)
    return _add_kernel(graph, function, (blocks, THREADS), words, before)


def add_condition(
    graph: Any, function: Any, values: tuple[int, int, int], before: list[Any]
) -> Any:
    """Add a node that sets a condition from a bool in memory.

    values: the condition's handle, the address of the bool, and 1 to invert it.
    """
    handle, flag, inverse = values
    words = [ctypes.c_uint64(handle), ctypes.c_uint64(flag), ctypes.c_uint32(inverse)]
    return _add_kernel(graph, function, (1, 1), words, before)


def _add_kernel(
    graph: Any, function: Any, size: tuple[int, int], words: list[Any], before: list[Any]
) -> Any:
    """Add a kernel node of some blocks and threads; the driver copies its parameters."""
    slots = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX, params.gridDimY, params.gridDimZ = size[0], 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = size[1], 1, 1
    params.kernelParams = ctypes.addressof(slots)
    return check(cu.cuGraphAddKernelNode(graph, before, len(before), params))


def read_kernel(node: Any) -> Params:
    """Copy a kernel's parameters to memory that can be written."""
    native = check(cu.cuGraphKernelNodeGetParams(node))
    pointers = ctypes.POINTER(ctypes.c_void_p)
    known = bool(int(native.func))
    if native.kernelParams:
        given = [
            ctypes.string_at(ctypes.cast(native.kernelParams + 8 * i, pointers)[0], size)
            for i, size in enumerate(_sizes(native))
        ]
        blobs = [ctypes.create_string_buffer(b, len(b)) for b in given]
        slots = (ctypes.c_void_p * len(blobs))(*map(ctypes.addressof, blobs))
        kept: list[Any] = [slots]
        native.kernelParams = ctypes.addressof(slots)
    elif native.extra:
        extra = ctypes.cast(native.extra, pointers)
        at = {extra[i] or 0: extra[i + 1] for i in (0, 2)}
        length = ctypes.c_size_t(ctypes.c_size_t.from_address(at[_SIZE] or 0).value)
        packed = ctypes.string_at(at[_BUFFER] or 0, length.value)
        blobs = [ctypes.create_string_buffer(packed, length.value)]
        start = ctypes.addressof(blobs[0])
        slots = (ctypes.c_void_p * 5)(_BUFFER, start, _SIZE, ctypes.addressof(length), _END)
        kept = [slots, length]
        native.extra = ctypes.addressof(slots)
    else:
        blobs, kept = [], []
    shape = (
        native.gridDimX,
        native.gridDimY,
        native.gridDimZ,
        native.blockDimX,
        native.blockDimY,
        native.blockDimZ,
        native.sharedMemBytes,
    )
    code = int(native.func) if known else int(native.kern)
    return Params(node, KERNEL, code, shape, blobs, native, kept)


def _sizes(native: Any) -> Iterator[int]:
    """Yield the bytes of each parameter of a kernel."""
    known, of = int(native.func), cu.cuFuncGetParamInfo
    index = 0
    while True:
        found = of(native.func, index) if known else cu.cuKernelGetParamInfo(native.kern, index)
        if int(found[0]):
            return
        yield int(found[2])
        index += 1


def read_copy(node: Any) -> Params | None:
    """Read a copy of contiguous bytes; return None for other copies."""
    native = check(rt.cudaGraphMemcpyNodeGetParams(rt.cudaGraphNode_t(int(node))))
    extent = native.extent
    if extent.height > 1 or extent.depth > 1 or int(native.srcArray) or int(native.dstArray):
        return None
    words = int(native.dstPtr.ptr) + native.dstPos.x, int(native.srcPtr.ptr) + native.srcPos.x
    blob = ctypes.create_string_buffer(b"".join(w.to_bytes(8, "little") for w in words), 16)
    return Params(node, MEMCPY, 0, (int(extent.width),), [blob], native.kind)


def read_memset(node: Any) -> Params:
    native = check(cu.cuGraphMemsetNodeGetParams(node))
    blob = ctypes.create_string_buffer(int(native.dst).to_bytes(8, "little"), 8)
    shape = (native.width, native.height, native.pitch, native.elementSize, native.value)
    return Params(node, MEMSET, 0, tuple(map(int, shape)), [blob], native)


_RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_EVERYWHERE = cu.CU_MEMHOSTREGISTER_PORTABLE
"""Lock for all devices of the process, because pages can be locked only once."""


def lock_pages(context: Any, address: int, nbytes: int) -> Handle:
    """Lock whole pages. Closing the handle unlocks them, in any thread."""
    with _relaxed(context):
        check(cu.cuMemHostRegister(address, nbytes, _EVERYWHERE))
    return Handle(address, partial(_unlock, context))


def _unlock(context: Any, address: int) -> None:
    with _relaxed(context):
        cu.cuMemHostUnregister(address)


def call_relaxed(call: Any, value: Any) -> Any:
    """Make a call that must not invalidate captures of other threads; return its error."""
    (_, before) = cu.cuThreadExchangeStreamCaptureMode(_RELAXED)
    try:
        return call(value)[0]
    finally:
        cu.cuThreadExchangeStreamCaptureMode(before)


@contextmanager
def _relaxed(context: Any) -> Iterator[None]:
    """Enter the context and the relaxed capture mode."""
    (error,) = cu.cuCtxPushCurrent(context)
    (_, before) = cu.cuThreadExchangeStreamCaptureMode(_RELAXED)
    try:
        yield
    finally:
        cu.cuThreadExchangeStreamCaptureMode(before)
        if not int(error):
            cu.cuCtxPopCurrent()
