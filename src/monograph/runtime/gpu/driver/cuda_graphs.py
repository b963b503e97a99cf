"""CUDA graphs through cuda-bindings.

Captures are relaxed: work of other threads and allocations of libraries do not invalidate them. A
call that the capturing stream must not make, such as a synchronisation, still fails.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from cuda.bindings import driver as cu
from cuda.bindings import runtime as rt

from monograph.errors import ExecutionError
from monograph.runtime.gpu.capture.control import ConditionalLaunch
from monograph.runtime.gpu.driver.cuda import CudaRecord
from monograph.runtime.gpu.driver.cuda_calls import (
    SET_CONDITION,
    add_condition,
    add_node,
    add_upload,
    call_relaxed,
    capture_info,
    check,
    entry,
    launch_upload,
    lock_pages,
    read_copy,
    read_kernel,
    read_memset,
    set_dependencies,
)
from monograph.runtime.gpu.driver.graphs import (
    CONDITIONAL,
    EMPTY,
    IF,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_GRAPH,
    ON_DEVICE,
    OTHER,
    TO_DEVICE,
    TO_HOST,
    WHILE,
    CopyNode,
    Fill,
    GraphError,
    Handle,
    Params,
    Start,
)
from monograph.runtime.gpu.driver.torch_driver import TorchGraphs
from monograph.runtime.gpu.host_io.overlapped_upload import can_overlap
from monograph.runtime.gpu.host_io.upload_kernel import upload_kernel_name, upload_kernel_text

_RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_ACTIVE = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
_NOT_CAPTURING = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
_SET = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
_UNTIMED = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
_APART = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
_NOT_READY = cu.CUresult.CUDA_ERROR_NOT_READY
_NO_CONTEXT = cu.CUresult.CUDA_ERROR_INVALID_CONTEXT
_KINDS = {
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL: KERNEL,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY: MEMCPY,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET: MEMSET,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY: EMPTY,
    cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL: CONDITIONAL,
}
_COPIES = {
    TO_DEVICE: rt.cudaMemcpyKind.cudaMemcpyHostToDevice,
    TO_HOST: rt.cudaMemcpyKind.cudaMemcpyDeviceToHost,
    ON_DEVICE: rt.cudaMemcpyKind.cudaMemcpyDeviceToDevice,
}
_CONDITIONS = {
    IF: cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF,
    WHILE: cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE,
}
_ENDS = struct.Struct("=QQ")
"""A copy's destination and source."""
_OLDEST_EDGES, _OLDEST_CONDITIONALS, _OLDEST_ELSE = 12030, 12040, 12080
"""The oldest CUDA versions with programmatic edges, with conditional nodes, and with conditional
nodes that have a second body."""
_OLDEST_OVERLAPS = 9
"""The oldest compute capability with dependent launches."""


class CudaGraphs(TorchGraphs):
    """The graphs of one NVIDIA device."""

    name = "cuda"

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        torch.cuda.init()  # before any driver call: torch's context is the one to use
        version = int(check(cu.cuDriverGetVersion()))
        self.conditionals = version >= _OLDEST_CONDITIONALS
        self.builds = self.resizes = version >= _OLDEST_EDGES
        self.waits_for_inputs = can_overlap()
        self.else_bodies = version >= _OLDEST_ELSE
        """One node holds both bodies of a branch. Older drivers need two nodes."""
        self._streams: list[Handle] = []
        self._inner: list[Handle] = []
        self._known: dict[int, Any] = {}
        self._context = check(cu.cuDevicePrimaryCtxRetain(check(cu.cuDeviceGet(self.index))))
        self._functions: dict[str, tuple[Handle, Any]] = {}
        self._entry = 0

    def here(self) -> bool:
        """Return whether this device is current.

        In a thread that is new to CUDA, torch names a device before its context is current.
        """
        return super().here() and bool(int(check(cu.cuCtxGetCurrent())))

    @contextmanager
    def guard(self) -> Iterator[None]:
        with torch.cuda.device(self.place):
            check(cu.cuCtxSetCurrent(self._context))
            yield

    def lock_pages(self, address: int, nbytes: int) -> Handle:
        return lock_pages(self._context, address, nbytes)

    def streams(self, count: int) -> list[int]:
        return self._own_streams(self._streams, count)

    def _own_streams(self, known: list[Handle], count: int) -> list[int]:
        """Return streams of our own: torch hands its streams to callers too."""
        with self.guard():
            while len(known) < count:
                made = check(cu.cuStreamCreate(int(_APART)))
                known.append(Handle(made, _destroy_stream))
        return [int(s.value) for s in known[:count]]

    def prepare(self, record: Any) -> None:
        if isinstance(record, CudaRecord):
            check(cu.cuFuncLoad(record.kernel.function))
        elif isinstance(record, ConditionalLaunch):
            self._function("set_condition", SET_CONDITION)
        elif isinstance(record, CopyNode) and record.control:
            self._upload_kernel(record)

    def _function(self, name: str, text: bytes) -> Any:
        """Return a PTX kernel, loaded once."""
        with self.lock:
            if name not in self._functions:
                module = Handle(check(cu.cuModuleLoadData(text)), _unload)
                function = check(cu.cuModuleGetFunction(module.value, name.encode()))
                check(cu.cuFuncLoad(function))
                self._functions[name] = module, function
            return self._functions[name][1]

    def create(self) -> Handle:
        return Handle(check(cu.cuGraphCreate(0)), _destroy_graph)

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        config = record.config
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        kernel = params.kernel
        kernel.func = record.kernel.function
        for axis in "XYZ":
            # A node with nothing to do is disabled: see `sized_graphs`.
            setattr(kernel, f"gridDim{axis}", max(getattr(config, f"gridDim{axis}"), 1))
            setattr(kernel, f"blockDim{axis}", getattr(config, f"blockDim{axis}"))
        kernel.sharedMemBytes = config.sharedMemBytes
        kernel.kernelParams = record.params
        params.kernel = kernel
        overlaps = beside if record.kernel.binary.dependent else None
        edges = [_edge(overlaps is not None and int(n) == int(overlaps)) for n in before]
        nodes = list(before)
        return check(add_node(graph.value, nodes, edges, len(nodes), params))

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        if copy.control:
            return add_upload(graph.value, self._upload_kernel(copy), copy, list(before))
        nodes = [rt.cudaGraphNode_t(int(n)) for n in before]
        made = check(
            rt.cudaGraphAddMemcpyNode1D(
                rt.cudaGraph_t(int(graph.value)),
                nodes,
                len(nodes),
                copy.to,
                copy.source,
                copy.nbytes,
                _COPIES[copy.kind],
            )
        )
        return cu.CUgraphNode(int(made))

    def begin(self, stream: int) -> None:
        check(cu.cuStreamBeginCapture(stream, _RELAXED))

    def end(self, stream: int) -> Handle:
        graph = check(cu.cuStreamEndCapture(stream))
        if not int(graph):
            raise GraphError(NO_GRAPH)
        return Handle(graph, _destroy_graph)

    def abort(self, stream: int) -> None:
        if self.capturing(stream):
            error, graph = cu.cuStreamEndCapture(stream)
            if not int(error) and int(graph):
                _destroy_graph(graph)

    def capturing(self, stream: int) -> bool:
        return bool(check(cu.cuStreamIsCapturing(stream)) != _NOT_CAPTURING)

    def _info(self, stream: int) -> tuple[Any, list[Any]]:
        """Return the graph that a stream records, and the nodes that the next one waits for."""
        status, _, graph, nodes, *_ = check(capture_info(stream))
        if status != _ACTIVE:
            raise GraphError("a capture was invalidated by a call that is not allowed during one")
        return graph, list(nodes or ())

    def tails(self, stream: int) -> list[Any]:
        return self._info(stream)[1]

    def recorded(self, stream: int) -> list[Any]:
        return _nodes(self._info(stream)[0])

    def nodes(self, graph: Handle) -> list[Any]:
        return _nodes(graph.value)

    def kind(self, node: Any) -> str:
        return _KINDS.get(check(cu.cuGraphNodeGetType(node)), OTHER)

    def function(self, record: Any) -> int | None:
        return int(record.kernel.function) if isinstance(record, CudaRecord) else None

    def read(self, node: Any, words: int = 0) -> Params | None:
        kind = self.kind(node)
        if kind == KERNEL:
            return read_kernel(node)
        if kind == MEMCPY:
            return read_copy(node)
        if kind == MEMSET:
            return read_memset(node)
        return None

    def instantiate(self, graph: Handle) -> Handle:
        return Handle(check(cu.cuGraphInstantiate(graph.value, 0)), _destroy_executable)

    def resize(self, params: Params, record: Any) -> None:
        native = params.native
        native.func = record.kernel.function
        native.gridDimX, native.gridDimY, native.gridDimZ = record.grid
        native.blockDimX = record.kernel.binary.threads
        native.sharedMemBytes = record.kernel.binary.shared
        if len(params.blobs) > len(record.words):
            raise GraphError("a kernel's node has more parameters than its launch")
        for blob, word in zip(params.blobs, record.words, strict=False):
            blob.raw = int(word).to_bytes(8, "little")[: len(blob)]

    def enable(self, executable: Handle, node: Any, enabled: bool) -> None:
        check(cu.cuGraphNodeSetEnabled(executable.value, node, int(enabled)))

    def write(self, executable: Handle, params: Params) -> None:
        error = self._try_write(executable, params)
        if error:
            if error == _NO_CONTEXT:  # a thread that is new to CUDA
                check(cu.cuCtxSetCurrent(self._context))
                error = self._try_write(executable, params)
            check((error,))

    def _try_write(self, executable: Handle, params: Params) -> Any:
        if params.kind == KERNEL:
            found = cu.cuGraphExecKernelNodeSetParams(executable.value, params.node, params.native)
        elif params.kind == MEMCPY:
            to, source = _ENDS.unpack_from(params.blobs[0])  # faster than two words
            found = rt.cudaGraphExecMemcpyNodeSetParams1D(
                rt.cudaGraphExec_t(int(executable.value)),
                rt.cudaGraphNode_t(int(params.node)),
                to,
                source,
                params.shape[0],
                params.native,
            )
        else:
            params.native.dst = params.word(0, 0).value
            found = cu.cuGraphExecMemsetNodeSetParams(
                executable.value, params.node, params.native, self._context
            )
        return found[0]

    def _stream(self, number: int) -> Any:
        """Return a stream as the bindings need it. Creating one costs as much as a call with it."""
        try:
            return self._known[number]
        except KeyError:
            found = self._known[number] = cu.CUstream(number)
            return found

    def launch(self, executable: Handle, stream: int) -> None:
        known = self._known.get(stream) or self._stream(stream)
        error = cu.cuGraphLaunch(executable.value, known)[0]
        if error and error == _NO_CONTEXT:
            # A thread that is new to CUDA: nothing was launched.
            check(cu.cuCtxSetCurrent(self._context))
            error = cu.cuGraphLaunch(executable.value, known)[0]
        if error:
            # A part may have run, so no fallback may run it again.
            raise ExecutionError(f"the CUDA driver refused to launch: {error.name}")

    def start(self, executable: Handle, stream: int, start: Start) -> None:
        if not self._entry:
            self._entry = entry("cuGraphLaunch")
        if error := start(self._entry, int(executable.value), stream):
            name = cu.CUresult(error).name
            raise ExecutionError(f"the CUDA driver refused to launch: {name}")

    def add_foreign(self, graph: Handle, record: Any, before: Sequence[Any]) -> Any:
        (stream,) = self._own_streams(self._inner, 1)
        try:
            self.begin(stream)
            with self.using(stream):
                record.launch(stream)
            made = self.end(stream)
        except BaseException:
            with suppress(GraphError):
                self.abort(stream)
            raise
        nodes = list(before)
        try:
            return check(cu.cuGraphAddChildGraphNode(graph.value, nodes, len(nodes), made.value))
        finally:
            made.close()  # the node has a copy

    def add_conditional(
        self, graph: Handle, kind: str, flag: int, before: Sequence[Any], bodies: Sequence[Fill]
    ) -> list[Any]:
        whole, context = graph.value, check(cu.cuCtxGetCurrent())
        nodes = [bodies] if self.else_bodies else [[body] for body in bodies]
        handles = [check(cu.cuGraphConditionalHandleCreate(whole, context, 0, 0)) for _ in nodes]
        last = list(before)
        # All conditions come before any body: a body might overwrite the bool.
        for number, handle in enumerate(handles):
            last = [self._add_condition(whole, handle, flag, number == 1, last)]
        for handle, inside in zip(handles, nodes, strict=True):
            params = cu.CUgraphNodeParams()
            params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
            about = params.conditional
            about.handle, about.type, about.ctx = handle, _CONDITIONS[kind], context
            about.size = len(inside)
            params.conditional = about
            last = [check(add_node(whole, last, None, len(last), params))]
            places = params.conditional.phGraph_out
            for number, fill in enumerate(inside):
                body = Handle(places[number], _not_ours)
                ends = fill(body)
                if kind == WHILE:
                    self._add_condition(body.value, handle, flag, False, ends)
        return last

    def _add_condition(
        self, graph: Any, handle: Any, flag: int, inverse: bool, before: list[Any]
    ) -> Any:
        """Add a node that sets a condition from the bool in memory, or its inverse."""
        condition = self._function("set_condition", SET_CONDITION)
        return add_condition(graph, condition, (int(handle), flag, int(inverse)), before)

    def conditional(self, stream: int, kind: str, flag: int, bodies: Sequence[Fill]) -> None:
        graph, before = self._info(stream)
        ends = self.add_conditional(Handle(graph, _not_ours), kind, flag, before, bodies)
        check(set_dependencies(stream, ends, None, len(ends), int(_SET)))

    def _upload_kernel(self, copy: CopyNode) -> Any:
        overlaps = torch.cuda.get_device_capability(self.place)[0] >= _OLDEST_OVERLAPS
        return self._function(
            upload_kernel_name(copy.narrowed), upload_kernel_text(overlaps, copy.narrowed)
        )

    def copy(self, stream: int, copy: CopyNode) -> None:
        if copy.control:
            launch_upload(self._upload_kernel(copy), copy, stream)
            return
        check(rt.cudaMemcpyAsync(copy.to, copy.source, copy.nbytes, _COPIES[copy.kind], stream))

    def send(self, stream: int, to: int, source: int, nbytes: int) -> None:
        # The cheapest call: it does not look up the kinds of memory.
        check(cu.cuMemcpyHtoDAsync(to, source, nbytes, self._stream(stream)))

    def event(self) -> Handle:
        return Handle(check(cu.cuEventCreate(int(_UNTIMED))), _destroy_event)

    def record(self, event: Handle, stream: int) -> None:
        check(cu.cuEventRecord(event.value, self._stream(stream)))

    def wait(self, stream: int, event: Handle) -> None:
        check(cu.cuStreamWaitEvent(stream, event.value, 0))

    def finish(self, event: Handle) -> None:
        error = call_relaxed(cu.cuEventSynchronize, event.value)
        if int(error):
            raise ExecutionError(f"the device failed: {error.name}")

    def done(self, event: Handle) -> bool:
        error = call_relaxed(cu.cuEventQuery, event.value)
        if error == _NOT_READY:
            return False
        check((error,))
        return True


@cache
def cuda_graphs(index: int) -> CudaGraphs:
    """Return the graphs of a device: one object, because its streams are shared."""
    return CudaGraphs(torch.device("cuda", index))


def _edge(overlaps: bool) -> Any:
    """Return an edge: wait for the end of a node, or only until it allows dependent launches."""
    edge = cu.CUgraphEdgeData()
    if overlaps:
        edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return edge


def _nodes(graph: Any) -> list[Any]:
    _, count = check(cu.cuGraphGetNodes(graph, 0))
    return list(check(cu.cuGraphGetNodes(graph, count))[0]) if count else []


def _not_ours(_: Any) -> None:
    """Free nothing: the body or the graph belongs to another."""


def _destroy_graph(graph: Any) -> None:
    cu.cuGraphDestroy(graph)


def _destroy_executable(executable: Any) -> None:
    cu.cuGraphExecDestroy(executable)


def _unload(module: Any) -> None:
    cu.cuModuleUnload(module)


def _destroy_stream(stream: Any) -> None:
    cu.cuStreamDestroy(stream)


def _destroy_event(event: Any) -> None:
    cu.cuEventDestroy(event)
