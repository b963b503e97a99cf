"""HIP's graphs, held to the runtime's own header: without a device only types can be checked."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from monograph.runtime.gpu.driver import hip_graphs
from monograph.runtime.gpu.driver.graphs import (
    KERNEL,
    MEMCPY,
    ON_DEVICE,
    TO_DEVICE,
    CopyNode,
    GraphError,
)
from monograph.runtime.gpu.driver.hip_graphs import SIGNATURES, VALUES, HipGraphs, KernelNodeParams

HEADERS = Path(triton.__file__).parent / "backends" / "amd" / "include" / "hip"
STRUCTS = {
    "hipKernelNodeParams": hip_graphs.KernelNodeParams,
    "hipMemsetParams": hip_graphs.MemsetParams,
    "hipMemcpy3DParms": hip_graphs.Memcpy3DParms,
    "hipPos": hip_graphs.Pos,
    "hipPitchedPtr": hip_graphs.PitchedPtr,
    "hipExtent": hip_graphs.HipExtent,
}
ENUMS = ("hipMemcpyKind", "hipStreamCaptureMode", "hipStreamCaptureStatus", "hipGraphNodeType")
HANDLES = ("hipStream_t", "hipGraph_t", "hipGraphNode_t", "hipGraphExec_t", "hipEvent_t")
PLAIN = {
    "unsigned long long": ctypes.c_ulonglong,
    "unsigned int": ctypes.c_uint,
    "unsigned": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "hipArray_t": ctypes.c_void_p,
    "dim3": hip_graphs.Dim3,
    **dict.fromkeys(ENUMS, ctypes.c_int),
    **dict.fromkeys(HANDLES, ctypes.c_void_p),
    **STRUCTS,
}


def header() -> str:
    text = "".join((HEADERS / f).read_text() for f in ("hip_runtime_api.h", "driver_types.h"))
    return re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def ctype(declared: str) -> Any:
    """The ctypes form of a C type."""
    words = re.sub(r"\b(const|struct|enum)\b", "", declared).strip()
    stars = words.count("*")
    base = words.replace("*", "").strip()
    if base == "void":
        return ctypes.c_void_p  # also for lists of pointers: they are addresses here
    found = PLAIN[base]
    for _ in range(stars):
        found = ctypes.POINTER(found)
    return found


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_have_their_published_types(name: str) -> None:
    found = re.search(rf"hipError_t\s+{name}\s*\(([^;]*)\)\s*;", header())
    assert found is not None
    declared = [re.sub(r"__dparm\(.*?\)|=\s*NULL", "", a).strip() for a in found[1].split(",")]
    types = [ctype(re.sub(r"\w+$", "", a)) for a in declared]
    assert list(SIGNATURES[name]) == types


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_have_their_published_fields(name: str) -> None:
    found = re.search(rf"typedef struct {name} \{{([^}}]*)\}}", header())
    assert found is not None
    declared = [line.strip() for line in found[1].split(";") if line.strip()]
    fields = [(re.findall(r"\w+$", d)[0], ctype(re.sub(r"\w+$", "", d))) for d in declared]
    assert list(STRUCTS[name]._fields_) == fields


@pytest.mark.parametrize("name", VALUES)
def test_constants_have_their_published_values(name: str) -> None:
    text = header()
    defined = re.search(rf"#define {name}\s+(?:\(\(void\*\))?(0x[0-9a-fA-F]+|\d+)", text)
    given = re.search(rf"\b{name}\s*=\s*(\d+)", text)
    if defined or given:
        number = int((defined or given)[1], 0)  # type: ignore[index]
    else:  # one more than the one before
        found = next(m for m in re.findall(r"enum \w+ \{([^}]*)\}", text) if name in m)
        number = [e.split("=")[0].strip() for e in found.split(",")].index(name)
    assert number == VALUES[name]


class FakeHip:
    """Functions that note their calls; outputs of calls are handles that count up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.errors: dict[str, int] = {}
        for name in SIGNATURES:
            setattr(self, name, _Function(self, name))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


class _Function:
    argtypes: Any = None
    restype: Any = None

    def __init__(self, owner: FakeHip, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(SIGNATURES[self.name])
        for given, kind in zip(arguments, self.argtypes, strict=True):
            kind.from_param(given)  # as ctypes would
        self.owner.calls.append((self.name, arguments))
        first = arguments[0]
        if self.name.startswith(("hipStreamCreate", "hipEventCreate", "hipGraphInst")):
            first._obj.value = len(self.owner.calls)
        if self.name == "hipStreamEndCapture":
            arguments[1]._obj.value = len(self.owner.calls)
        return self.owner.errors.get(self.name, 0)


def graphs() -> tuple[HipGraphs, FakeHip]:
    fake = FakeHip()
    return HipGraphs(torch.device("cuda", 0), fake), fake


def test_what_calls_make_is_freed_once() -> None:
    hip, fake = graphs()
    hip.begin(5)
    graph = hip.end(5)
    executable = hip.instantiate(graph)
    event = hip.event()
    hip.launch(executable, 5)
    for handle in (graph, executable, event):
        handle.close()
        handle.close()
    del graph, executable, event
    gc.collect()
    for name in ("hipGraphDestroy", "hipGraphExecDestroy", "hipEventDestroy"):
        assert len(fake.named(name)) == 1


@pytest.mark.parametrize(
    ("name", "freed"),
    [
        ("hipGraphInstantiateWithFlags", "hipGraphExecDestroy"),
        ("hipStreamEndCapture", "hipGraphDestroy"),
        ("hipEventCreateWithFlags", "hipEventDestroy"),
    ],
)
def test_what_a_failed_call_returns_is_not_freed(name: str, freed: str) -> None:
    hip, fake = graphs()
    graph = hip.end(5)
    fake.errors[name] = 1
    with pytest.raises(GraphError, match=name):
        {"hipGraphInstantiateWithFlags": lambda: hip.instantiate(graph)}.get(
            name, lambda: hip.end(5) if "Capture" in name else hip.event()
        )()
    gc.collect()
    assert fake.named(freed) == []
    assert not graph.closed


def test_a_capture_without_a_graph_is_an_error() -> None:
    hip, fake = graphs()
    ended = fake.hipStreamEndCapture  # type: ignore[attr-defined]

    class Invalidated(_Function):
        argtypes = ended.argtypes

        def __call__(self, *arguments: Any) -> int:
            code = super().__call__(*arguments)
            arguments[1]._obj.value = None
            return code

    hip.hip.hipStreamEndCapture = Invalidated(fake, "hipStreamEndCapture")
    with pytest.raises(GraphError, match="returned no graph"):
        hip.end(5)
    gc.collect()
    assert fake.named("hipGraphDestroy") == []


def test_a_recording_is_ended_and_freed() -> None:
    hip, fake = graphs()
    capturing = fake.hipStreamIsCapturing  # type: ignore[attr-defined]

    class Capturing(_Function):
        argtypes = capturing.argtypes

        def __call__(self, *arguments: Any) -> int:
            arguments[1]._obj.value = VALUES["hipStreamCaptureStatusActive"]
            return super().__call__(*arguments)

    hip.hip.hipStreamIsCapturing = Capturing(fake, "hipStreamIsCapturing")
    hip.abort(5)
    assert len(fake.named("hipStreamEndCapture")) == 1
    assert len(fake.named("hipGraphDestroy")) == 1


def test_kernels_of_our_own_are_read_and_written() -> None:
    hip, fake = graphs()
    values = [ctypes.c_uint64(v) for v in (100, 200, 0, 0)]
    slots = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))

    class Reading(_Function):
        argtypes = SIGNATURES["hipGraphKernelNodeGetParams"]

        def __call__(self, *arguments: Any) -> int:
            native: KernelNodeParams = arguments[1]._obj
            native.kernelParams = ctypes.addressof(slots)
            native.func, native.gridDim.x = 77, 3
            return super().__call__(*arguments)

    hip.hip.hipGraphKernelNodeGetParams = Reading(fake, "hipGraphKernelNodeGetParams")
    assert hip.read(9) is None  # nobody says how many parameters there are
    params = hip.read(9, words=2)
    assert params is not None
    assert (params.kind, params.function, params.shape[0]) == (KERNEL, 77, 3)
    assert [params.word(i, 0).value for i in range(2)] == [100, 200]
    params.word(1, 0).value = 300
    hip.write(hip.instantiate(hip.end(5)), params)
    written = fake.named("hipGraphExecKernelNodeSetParams")[0][2]._obj
    pointers = (ctypes.c_void_p * 4).from_address(written.kernelParams)
    assert [ctypes.c_uint64.from_address(p or 0).value for p in pointers] == [100, 300, 0, 0]
    assert values[1].value == 200  # the recorded graph is left as it is


def test_copies_say_which_way_they_go() -> None:
    hip, fake = graphs()
    hip.copy(5, CopyNode(1 << 40, 2 << 40, 64, TO_DEVICE))
    assert fake.named("hipMemcpyAsync") == [
        (1 << 40, 2 << 40, 64, VALUES["hipMemcpyHostToDevice"], 5)
    ]
    hip.copy(5, CopyNode(3 << 40, 4 << 40, 8, ON_DEVICE))
    assert fake.named("hipMemcpyAsync")[1:] == [
        (3 << 40, 4 << 40, 8, VALUES["hipMemcpyDeviceToDevice"], 5)
    ]


def test_copies_are_read_and_written() -> None:
    """One end of a copy moves, the other stays: so staged ports are moved."""
    hip, fake = graphs()
    kind = VALUES["hipMemcpyDeviceToDevice"]

    class Kind(_Function):
        argtypes = SIGNATURES["hipGraphNodeGetType"]

        def __call__(self, *arguments: Any) -> int:
            arguments[1]._obj.value = VALUES["hipGraphNodeTypeMemcpy"]
            return super().__call__(*arguments)

    class Reading(_Function):
        argtypes = SIGNATURES["hipGraphMemcpyNodeGetParams"]

        def __call__(self, *arguments: Any) -> int:
            native: hip_graphs.Memcpy3DParms = arguments[1]._obj
            native.dstPtr.ptr, native.srcPtr.ptr, native.kind = 1 << 40, 2 << 40, kind
            native.extent = hip_graphs.HipExtent(64, 1, 1)
            return super().__call__(*arguments)

    hip.hip.hipGraphNodeGetType = Kind(fake, "hipGraphNodeGetType")
    hip.hip.hipGraphMemcpyNodeGetParams = Reading(fake, "hipGraphMemcpyNodeGetParams")
    params = hip.read(9)
    assert params is not None
    assert (params.kind, params.shape) == (MEMCPY, (64,))
    assert [params.word(0, at).value for at in (0, 8)] == [1 << 40, 2 << 40]
    params.word(0, 8).value = 3 << 40
    executable = hip.instantiate(hip.end(5))
    hip.write(executable, params)
    (written,) = fake.named("hipGraphExecMemcpyNodeSetParams1D")
    assert written == (executable.value, 9, 1 << 40, 3 << 40, 64, kind)
