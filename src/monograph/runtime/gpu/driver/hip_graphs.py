"""HIP graphs through the HIP runtime. Follows its published signatures; not tried on hardware yet.

HIP has no conditional nodes, so the host runs branches and loops. HIP does not tell how many
parameters a kernel has: those of library kernels cannot be read, and their ports are staged.
Generated kernels start with a known number of pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

import torch

from monograph.errors import ExecutionError
from monograph.runtime.gpu.driver.graphs import (
    EMPTY,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_GRAPH,
    ON_DEVICE,
    OTHER,
    TO_DEVICE,
    TO_HOST,
    CopyNode,
    Fill,
    GraphError,
    Handle,
    Params,
    UncapturableError,
)
from monograph.runtime.gpu.driver.torch_driver import TorchGraphs


class Dim3(ctypes.Structure):
    """dim3"""

    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class KernelNodeParams(ctypes.Structure):
    """hipKernelNodeParams"""

    _fields_ = (
        ("blockDim", Dim3),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("gridDim", Dim3),
        ("kernelParams", c_void_p),
        ("sharedMemBytes", c_uint),
    )


class MemsetParams(ctypes.Structure):
    """hipMemsetParams"""

    _fields_ = (
        ("dst", c_void_p),
        ("elementSize", c_uint),
        ("height", c_size_t),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("width", c_size_t),
    )


class Pos(ctypes.Structure):
    """hipPos"""

    _fields_ = (("x", c_size_t), ("y", c_size_t), ("z", c_size_t))


class PitchedPtr(ctypes.Structure):
    """hipPitchedPtr"""

    _fields_ = (("ptr", c_void_p), ("pitch", c_size_t), ("xsize", c_size_t), ("ysize", c_size_t))


class HipExtent(ctypes.Structure):
    """hipExtent"""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("depth", c_size_t))


class Memcpy3DParms(ctypes.Structure):
    """hipMemcpy3DParms"""

    _fields_ = (
        ("srcArray", c_void_p),
        ("srcPos", Pos),
        ("srcPtr", PitchedPtr),
        ("dstArray", c_void_p),
        ("dstPos", Pos),
        ("dstPtr", PitchedPtr),
        ("extent", HipExtent),
        ("kind", c_int),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipStreamBeginCapture": (c_void_p, c_int),
    "hipStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "hipStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "hipStreamGetCaptureInfo_v2": (
        c_void_p,
        POINTER(c_int),
        POINTER(c_ulonglong),
        POINTER(c_void_p),
        POINTER(POINTER(c_void_p)),
        POINTER(c_size_t),
    ),
    "hipGraphGetNodes": (c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "hipGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "hipGraphKernelNodeGetParams": (c_void_p, POINTER(KernelNodeParams)),
    "hipGraphExecKernelNodeSetParams": (c_void_p, c_void_p, POINTER(KernelNodeParams)),
    "hipGraphMemcpyNodeGetParams": (c_void_p, POINTER(Memcpy3DParms)),
    "hipGraphExecMemcpyNodeSetParams1D": (
        c_void_p,
        c_void_p,
        c_void_p,
        c_void_p,
        c_size_t,
        c_int,
    ),
    "hipGraphMemsetNodeGetParams": (c_void_p, POINTER(MemsetParams)),
    "hipGraphExecMemsetNodeSetParams": (c_void_p, c_void_p, POINTER(MemsetParams)),
    "hipGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "hipGraphLaunch": (c_void_p, c_void_p),
    "hipGraphExecDestroy": (c_void_p,),
    "hipGraphDestroy": (c_void_p,),
    "hipMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "hipStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipStreamDestroy": (c_void_p,),
    "hipEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "hipEventSynchronize": (c_void_p,),
    "hipEventQuery": (c_void_p,),
    "hipEventDestroy": (c_void_p,),
}
"""The functions that are called, and the types of their arguments; all return hipError_t."""
VALUES = {
    "hipStreamCaptureModeRelaxed": 2,
    "hipStreamCaptureStatusNone": 0,
    "hipStreamCaptureStatusActive": 1,
    "hipGraphNodeTypeKernel": 0,
    "hipGraphNodeTypeMemcpy": 1,
    "hipGraphNodeTypeMemset": 2,
    "hipGraphNodeTypeEmpty": 5,
    "hipMemcpyHostToDevice": 1,
    "hipMemcpyDeviceToHost": 2,
    "hipMemcpyDeviceToDevice": 3,
    "hipErrorNotReady": 600,
    "hipEventDisableTiming": 2,
    "hipStreamNonBlocking": 1,
    "HIP_LAUNCH_PARAM_BUFFER_POINTER": 1,
    "HIP_LAUNCH_PARAM_BUFFER_SIZE": 2,
    "HIP_LAUNCH_PARAM_END": 3,
}
"""The constants that are used, by their names in HIP."""
_KINDS = {0: KERNEL, 1: MEMCPY, 2: MEMSET, 5: EMPTY}
_COPIES = {TO_DEVICE: 1, TO_HOST: 2, ON_DEVICE: 3}
_HIDDEN = 2
"""Pointers that Triton adds after a kernel's own."""


def typed(library: Any) -> Any:
    """The HIP runtime with the types of its functions."""
    for name, types in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = list(types)
        function.restype = c_int
    return library


class HipGraphs(TorchGraphs):
    """The graphs of one AMD device."""

    name = "hip"
    conditionals = False
    builds = False
    waits_for_inputs = False

    def __init__(self, place: torch.device, library: Any = None) -> None:
        super().__init__(place)
        self.hip = typed(ctypes.CDLL("libamdhip64.so") if library is None else library)
        self._streams: list[Handle] = []

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self.hip, name)(*arguments)
        if error:
            raise GraphError(f"the HIP runtime refused {name}", given=f"error {error}")

    def _made(self, name: str, free: str, *arguments: Any) -> Handle:
        """Return the object that a call creates; it is owned once the call has succeeded."""
        value = c_void_p()
        self._call(name, ctypes.byref(value), *arguments)
        return Handle(value.value, getattr(self.hip, free))

    def streams(self, count: int) -> list[int]:
        while len(self._streams) < count:
            flags = VALUES["hipStreamNonBlocking"]
            made = self._made("hipStreamCreateWithFlags", "hipStreamDestroy", flags)
            self._streams.append(made)
        return [int(s.value) for s in self._streams[:count]]

    def create(self) -> Handle:
        raise NotImplementedError("graphs are recorded from streams")

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        raise NotImplementedError("graphs are recorded from streams")

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        raise NotImplementedError("graphs are recorded from streams")

    def prepare(self, record: Any) -> None:
        """Do nothing: Triton loads a kernel at its first launch."""

    def begin(self, stream: int) -> None:
        self._call("hipStreamBeginCapture", stream, VALUES["hipStreamCaptureModeRelaxed"])

    def end(self, stream: int) -> Handle:
        graph = c_void_p()
        self._call("hipStreamEndCapture", stream, ctypes.byref(graph))
        if not graph.value:
            raise GraphError(NO_GRAPH)
        return Handle(graph.value, self.hip.hipGraphDestroy)

    def abort(self, stream: int) -> None:
        if self.capturing(stream):
            graph = c_void_p()
            if not self.hip.hipStreamEndCapture(stream, ctypes.byref(graph)) and graph.value:
                self.hip.hipGraphDestroy(graph)

    def capturing(self, stream: int) -> bool:
        status = c_int()
        self._call("hipStreamIsCapturing", stream, ctypes.byref(status))
        return status.value != VALUES["hipStreamCaptureStatusNone"]

    def _info(self, stream: int) -> tuple[int | None, list[int]]:
        """Return the graph that a stream records, and what the next node would wait for."""
        status, number, graph, count = c_int(), c_ulonglong(), c_void_p(), c_size_t()
        nodes = POINTER(c_void_p)()
        places = (status, number, graph, nodes, count)
        self._call("hipStreamGetCaptureInfo_v2", stream, *map(ctypes.byref, places))
        if status.value != VALUES["hipStreamCaptureStatusActive"]:
            raise GraphError("a capture was invalidated by a call that is not allowed during one")
        return graph.value, [nodes[i] or 0 for i in range(count.value)]

    def tails(self, stream: int) -> list[Any]:
        return list(self._info(stream)[1])

    def recorded(self, stream: int) -> list[Any]:
        return self._nodes(self._info(stream)[0])

    def nodes(self, graph: Handle) -> list[Any]:
        return self._nodes(graph.value)

    def _nodes(self, graph: int | None) -> list[Any]:
        count = c_size_t()
        self._call("hipGraphGetNodes", graph, None, ctypes.byref(count))
        if not count.value:
            return []
        found = (c_void_p * count.value)()
        self._call("hipGraphGetNodes", graph, found, ctypes.byref(count))
        return [found[i] or 0 for i in range(count.value)]

    def kind(self, node: Any) -> str:
        kind = c_int()
        self._call("hipGraphNodeGetType", node, ctypes.byref(kind))
        return _KINDS.get(kind.value, OTHER)

    def function(self, record: Any) -> int | None:
        """Return None: Triton launches generated kernels, and their nodes are read like others."""
        return None

    def read(self, node: Any, words: int = 0) -> Params | None:
        kind = self.kind(node)
        if kind == KERNEL:
            return self._kernel(node, words)
        if kind == MEMCPY:
            return self._copy(node)
        return self._memset(node) if kind == MEMSET else None

    def _kernel(self, node: Any, words: int) -> Params | None:
        native = KernelNodeParams()
        self._call("hipGraphKernelNodeGetParams", node, ctypes.byref(native))
        if native.extra:
            blobs, kept = _packed(native)
        elif native.kernelParams and words:
            pointers = (c_void_p * (words + _HIDDEN)).from_address(native.kernelParams)
            given = [ctypes.string_at(p or 0, 8) for p in pointers]
            blobs = [ctypes.create_string_buffer(b, 8) for b in given]
            slots = (c_void_p * len(blobs))(*map(ctypes.addressof, blobs))
            kept = [slots]
            native.kernelParams = ctypes.addressof(slots)
        else:
            return None
        grid, block = native.gridDim, native.blockDim
        shape = (grid.x, grid.y, grid.z, block.x, block.y, block.z, native.sharedMemBytes)
        return Params(node, KERNEL, native.func or 0, shape, blobs, native, kept)

    def _copy(self, node: Any) -> Params | None:
        native = Memcpy3DParms()
        self._call("hipGraphMemcpyNodeGetParams", node, ctypes.byref(native))
        extent = native.extent
        if extent.height > 1 or extent.depth > 1 or native.srcArray or native.dstArray:
            return None
        words = ((native.dstPtr, native.dstPos), (native.srcPtr, native.srcPos))
        both = b"".join(((p.ptr or 0) + at.x).to_bytes(8, "little") for p, at in words)
        blob = ctypes.create_string_buffer(both, 16)
        return Params(node, MEMCPY, 0, (extent.width,), [blob], native.kind)

    def _memset(self, node: Any) -> Params:
        native = MemsetParams()
        self._call("hipGraphMemsetNodeGetParams", node, ctypes.byref(native))
        blob = ctypes.create_string_buffer((native.dst or 0).to_bytes(8, "little"), 8)
        shape = (native.width, native.height, native.pitch, native.elementSize, native.value)
        return Params(node, MEMSET, 0, shape, [blob], native)

    def instantiate(self, graph: Handle) -> Handle:
        return self._made("hipGraphInstantiateWithFlags", "hipGraphExecDestroy", graph.value, 0)

    def write(self, executable: Handle, params: Params) -> None:
        if params.kind == KERNEL:
            name, rest = "hipGraphExecKernelNodeSetParams", (ctypes.byref(params.native),)
            self._call(name, executable.value, params.node, *rest)
        elif params.kind == MEMCPY:
            to, source = (params.word(0, 8 * i).value for i in range(2))
            name = "hipGraphExecMemcpyNodeSetParams1D"
            size = params.shape[0]
            self._call(name, executable.value, params.node, to, source, size, params.native)
        else:
            params.native.dst = params.word(0, 0).value
            name = "hipGraphExecMemsetNodeSetParams"
            self._call(name, executable.value, params.node, ctypes.byref(params.native))

    def launch(self, executable: Handle, stream: int) -> None:
        error = self.hip.hipGraphLaunch(executable.value, stream)
        if error:
            # A part may have run, so no fallback may run it again.
            raise ExecutionError("the HIP runtime refused to launch", given=f"error {error}")

    def add_foreign(self, graph: Handle, record: Any, before: Sequence[Any]) -> Any:
        raise UncapturableError("HIP graphs cannot hold library calls")

    def add_conditional(
        self, graph: Handle, kind: str, flag: int, before: Sequence[Any], bodies: Sequence[Fill]
    ) -> list[Any]:
        raise UncapturableError("HIP graphs have no conditional nodes")

    def conditional(self, stream: int, kind: str, flag: int, bodies: Sequence[Fill]) -> None:
        raise UncapturableError("HIP graphs have no conditional nodes")

    def copy(self, stream: int, copy: CopyNode) -> None:
        way = _COPIES[copy.kind]
        self._call("hipMemcpyAsync", copy.to, copy.source, copy.nbytes, way, stream)

    def send(self, stream: int, to: int, source: int, nbytes: int) -> None:
        self.copy(stream, CopyNode(to, source, nbytes, TO_DEVICE))

    def event(self) -> Handle:
        flags = VALUES["hipEventDisableTiming"]
        return self._made("hipEventCreateWithFlags", "hipEventDestroy", flags)

    def record(self, event: Handle, stream: int) -> None:
        self._call("hipEventRecord", event.value, stream)

    def wait(self, stream: int, event: Handle) -> None:
        self._call("hipStreamWaitEvent", stream, event.value, 0)

    def finish(self, event: Handle) -> None:
        error = self.hip.hipEventSynchronize(event.value)
        if error:
            raise ExecutionError("the device failed", given=f"HIP error {error}")

    def done(self, event: Handle) -> bool:
        error = self.hip.hipEventQuery(event.value)
        if error not in (0, VALUES["hipErrorNotReady"]):
            raise ExecutionError("the device failed", given=f"HIP error {error}")
        return not error


def _packed(native: KernelNodeParams) -> tuple[list[Any], list[Any]]:
    """Copy packed parameters to memory that can be written."""
    end, at = VALUES["HIP_LAUNCH_PARAM_END"], {}
    extra = (c_void_p * 5).from_address(native.extra)
    for i in (0, 2):
        at[extra[i]] = extra[i + 1] or 0
    buffer, length = (
        VALUES["HIP_LAUNCH_PARAM_BUFFER_POINTER"],
        VALUES["HIP_LAUNCH_PARAM_BUFFER_SIZE"],
    )
    size = c_size_t(c_size_t.from_address(at[length]).value)
    blob = ctypes.create_string_buffer(ctypes.string_at(at[buffer], size.value), size.value)
    starts = (buffer, ctypes.addressof(blob), length, ctypes.addressof(size), end)
    slots = (c_void_p * 5)(*starts)
    native.extra = ctypes.addressof(slots)
    return [blob], [slots, size]


@cache
def hip_graphs(index: int) -> HipGraphs:
    """Return the graphs of a device: one object, because its streams are shared."""
    return HipGraphs(torch.device("cuda", index))
