"""CUDA's graphs against bindings that note their calls: what is owned, how branches are made."""

from __future__ import annotations

import gc
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monograph.errors import ExecutionError
from monograph.runtime.gpu.capture.control import REPEAT, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.driver import cuda_calls, cuda_graphs, torch_driver
from monograph.runtime.gpu.driver.graphs import IF, KERNEL, WHILE, GraphError, Handle
from monograph.runtime.gpu.driver.torch_driver import TorchGraphs
from tests.gpu.driver.bindings import GOOD, Bindings, real

BAD = real.CUresult.CUDA_ERROR_INVALID_VALUE
MAKE = {
    "cuGraphCreate": "cuGraphDestroy",
    "cuStreamEndCapture": "cuGraphDestroy",
    "cuGraphInstantiate": "cuGraphExecDestroy",
    "cuEventCreate": "cuEventDestroy",
    "cuStreamCreate": "cuStreamDestroy",
    "cuModuleLoadData": "cuModuleUnload",
}
"""Calls that make something, and what frees it."""


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bindings]:
    made = Bindings()
    monkeypatch.setattr(cuda_graphs, "cu", made)
    for name, call in (
        ("add_node", made.cuGraphAddNode),
        ("capture_info", made.cuStreamGetCaptureInfo),
        ("set_dependencies", made.cuStreamUpdateCaptureDependencies),
        ("add_condition", made.add_condition),
    ):
        monkeypatch.setattr(cuda_graphs, name, call)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "guard", lambda self: nullcontext())
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "using", lambda self, *_: nullcontext())
    yield made
    gc.collect()  # what an error has kept until now is freed here, and by no real driver


def graphs() -> cuda_graphs.CudaGraphs:
    return cuda_graphs.CudaGraphs(torch.device("cuda", 0))


def test_a_capture_without_a_graph_is_an_error(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graphs()
    made.begin(5)
    null = real.CUgraph(0)
    monkeypatch.setattr(bindings, "cuStreamEndCapture", lambda stream: (GOOD, null), raising=False)
    with pytest.raises(GraphError, match="returned no graph"):
        made.end(5)
    gc.collect()
    assert bindings.named("cuGraphDestroy") == []


def make(cuda: cuda_graphs.CudaGraphs, call: str) -> Any:
    """Has a call made, by the method that makes it."""
    if call == "cuStreamCreate":
        cuda.streams(1)
        return cuda._streams
    if call == "cuModuleLoadData":
        cuda.prepare(ConditionalLaunch(LaunchTree(REPEAT, (1,))))
        return cuda
    return {
        "cuGraphCreate": cuda.create,
        "cuStreamEndCapture": lambda: cuda.end(5),
        "cuGraphInstantiate": lambda: cuda.instantiate(SimpleNamespace(value=1)),  # type: ignore[arg-type]
        "cuEventCreate": cuda.event,
    }[call]()


@pytest.mark.parametrize("call", MAKE)
def test_what_a_call_makes_is_freed_once(call: str, bindings: Bindings) -> None:
    cuda = graphs()
    made = make(cuda, call)
    assert bindings.named(MAKE[call]) == []
    if hasattr(made, "close"):
        made.close()
        made.close()
    del made, cuda
    gc.collect()
    assert len(bindings.named(MAKE[call])) == 1


@pytest.mark.parametrize("call", MAKE)
def test_what_a_failed_call_returns_is_nobodys(call: str, bindings: Bindings) -> None:
    cuda = graphs()
    bindings.errors[call] = BAD
    with pytest.raises(GraphError, match="CUDA_ERROR_INVALID_VALUE"):
        make(cuda, call)
    del cuda
    gc.collect()
    assert bindings.named(MAKE[call]) == []


@pytest.mark.parametrize("call", ["cuModuleGetFunction", "cuFuncLoad"])
def test_a_module_without_its_function_is_unloaded(call: str, bindings: Bindings) -> None:
    cuda = graphs()
    bindings.errors[call] = BAD
    with pytest.raises(GraphError):
        make(cuda, "cuModuleLoadData")
    gc.collect()
    assert len(bindings.named("cuModuleUnload")) == 1
    bindings.errors.clear()
    make(cuda, "cuModuleLoadData")
    assert "set_condition" in cuda._functions


def test_an_abandoned_recording_is_ended_and_freed(bindings: Bindings) -> None:
    cuda = graphs()
    cuda.abort(5)
    assert bindings.named("cuStreamEndCapture") == []
    cuda.begin(5)
    cuda.abort(5)
    assert len(bindings.named("cuStreamEndCapture")) == len(bindings.named("cuGraphDestroy")) == 1
    cuda.begin(5)
    bindings.errors["cuStreamEndCapture"] = BAD  # a spoilt one has nothing to be freed
    cuda.abort(5)
    assert len(bindings.named("cuGraphDestroy")) == 1


@pytest.mark.parametrize(
    ("version", "builds", "conditionals", "else_bodies"),
    [
        (12020, False, False, False),
        (12030, True, False, False),
        (12040, True, True, False),
        (12080, True, True, True),
        (13000, True, True, True),
    ],
)
def test_what_drivers_can_do(
    version: int, builds: bool, conditionals: bool, else_bodies: bool, bindings: Bindings
) -> None:
    bindings.version = version
    cuda = graphs()
    assert (cuda.builds, cuda.conditionals) == (builds, conditionals)
    assert cuda.else_bodies == else_bodies


def _decided(cuda: cuda_graphs.CudaGraphs, kind: str, count: int) -> list[Any]:
    """Records a conditional node; the graphs that its bodies were given."""
    seen: list[Any] = []

    def fill(graph: Handle) -> list[Any]:
        seen.append(graph.value)
        return [f"end of {graph.value}"]

    cuda.prepare(ConditionalLaunch(LaunchTree(REPEAT, (1,))))
    cuda.conditional(5, kind, 4096, [fill] * count)
    return seen


@pytest.mark.parametrize("else_bodies", [True, False])
def test_a_branch_is_one_node_or_two(else_bodies: bool, bindings: Bindings) -> None:
    cuda = graphs()
    cuda.else_bodies = else_bodies
    filled = _decided(cuda, IF, 2)
    assert filled == (["body 0", "body 1"] if else_bodies else ["body 0", "body 0"])
    nodes = bindings.named("cuGraphAddNode")
    assert [n[-1].conditional.size for n in nodes] == ([2] if else_bodies else [1, 1])
    conditions = bindings.named("add_condition")
    assert [c[0] for c in conditions] == ["graph"] * len(nodes)
    assert [c[2][2] for c in conditions] == ([0] if else_bodies else [0, 1])
    order = [name for name, _ in bindings.calls if name in ("add_condition", "cuGraphAddNode")]
    assert order == sorted(order)  # all conditions first
    assert bindings.named("cuStreamBeginCaptureToGraph") == []


def test_each_node_of_a_branch_is_behind_the_one_before_it(bindings: Bindings) -> None:
    cuda = graphs()
    cuda.else_bodies = False
    _decided(cuda, IF, 2)
    first, second = bindings.named("add_condition")
    assert len(second[3]) == 1
    assert first[3] != second[3]
    one, two = bindings.named("cuGraphAddNode")
    assert one[1] != two[1]
    (moved,) = bindings.named("cuStreamUpdateCaptureDependencies")
    assert moved[0] == 5
    assert len(moved[1]) == 1
    assert moved[1] != two[1]


def test_a_loop_looks_again_at_the_end_of_its_body(bindings: Bindings) -> None:
    cuda = graphs()
    assert _decided(cuda, WHILE, 1) == ["body 0"]
    before, again = bindings.named("add_condition")
    assert (before[0], again[0]) == ("graph", "body 0")
    assert again[3] == ["end of body 0"]
    assert before[2] == again[2]
    assert before[2][1:] == (4096, 0)
    assert len(bindings.named("cuGraphConditionalHandleCreate")) == 1


def test_a_body_may_hold_another(bindings: Bindings) -> None:
    cuda = graphs()
    cuda.prepare(ConditionalLaunch(LaunchTree(REPEAT, (1,))))
    seen: list[Any] = []

    def inner(graph: Handle) -> list[Any]:
        seen.append(graph.value)
        return []

    def outer(graph: Handle) -> list[Any]:
        return cuda.add_conditional(graph, WHILE, 8192, [], [inner])

    cuda.conditional(5, WHILE, 4096, [outer])
    assert seen == ["body 0"]
    assert [n[0] for n in bindings.named("cuGraphAddNode")] == ["graph", "body 0"]
    handles = [c[0] for c in bindings.named("cuGraphConditionalHandleCreate")]
    assert handles == ["graph", "body 0"]  # each is of the graph that its node is in


@pytest.mark.parametrize("kind", [IF, WHILE])
def test_a_body_that_fails_frees_nothing(kind: str, bindings: Bindings) -> None:
    """Bodies are the outer graph's, and that is the recording's."""
    cuda = graphs()
    cuda.prepare(ConditionalLaunch(LaunchTree(REPEAT, (1,))))

    def fails(graph: Handle) -> list[Any]:
        raise RuntimeError("a kernel raises")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="a kernel raises"):
            cuda.conditional(5, kind, 4096, [fails])
        assert bindings.recording == set()
    gc.collect()
    assert bindings.named("cuGraphDestroy") == []


class Launching:
    """A library's launch, which may go wrong."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.streams: list[int] = []

    def launch(self, stream: int) -> None:
        self.streams.append(stream)
        if self.error is not None:
            raise self.error


def test_what_a_library_launches_is_recorded_apart(bindings: Bindings) -> None:
    cuda, record = graphs(), Launching()
    whole: Any = SimpleNamespace(value="whole")
    made = [cuda.add_foreign(whole, record, ["before"]) for _ in range(2)]
    assert made[0] != made[1]
    assert len(set(record.streams)) == len(bindings.named("cuStreamCreate")) == 1  # used again
    added = bindings.named("cuGraphAddChildGraphNode")
    assert [a[:2] for a in added] == [(whole.value, ["before"])] * 2
    # The nodes have copies: what was recorded is freed, and nothing else is.
    assert [d[0] for d in bindings.named("cuGraphDestroy")] == [a[3] for a in added]
    assert bindings.recording == set()


@pytest.mark.parametrize("call", ["launch", "cuStreamEndCapture", "cuGraphAddChildGraphNode"])
def test_a_library_that_fails_leaves_no_recording(call: str, bindings: Bindings) -> None:
    cuda, whole = graphs(), SimpleNamespace(value="whole")
    record = Launching(RuntimeError("on purpose") if call == "launch" else None)
    if call != "launch":
        bindings.errors[call] = BAD
    with pytest.raises((RuntimeError, GraphError)):
        cuda.add_foreign(whole, record, [])  # type: ignore[arg-type]
    bindings.errors.clear()
    destroyed = len(bindings.named("cuGraphDestroy"))
    assert destroyed == (0 if call == "cuStreamEndCapture" else 1)
    if call == "launch":
        assert bindings.recording == set()


def test_what_is_sent_goes_to_its_stream(bindings: Bindings) -> None:
    cuda = graphs()
    for stream in (0, 5, 5):
        cuda.send(stream, 4096, 8192, 100)
    sent = bindings.named("cuMemcpyHtoDAsync")
    assert [call[:3] for call in sent] == [(4096, 8192, 100)] * 3
    assert [int(call[3]) for call in sent] == [0, 5, 5]
    bindings.errors["cuMemcpyHtoDAsync"] = BAD
    with pytest.raises(GraphError):
        cuda.send(0, 4096, 8192, 100)


def test_a_thread_that_is_new_to_the_device(bindings: Bindings) -> None:
    """It has no context: it is given the device's, and the call is made again, once."""
    cuda = graphs()
    executable = cuda.instantiate(cuda.create())
    missing = real.CUresult.CUDA_ERROR_INVALID_CONTEXT
    bindings.errors["cuGraphLaunch"] = missing
    with pytest.raises(ExecutionError, match="CUDA_ERROR_INVALID_CONTEXT"):
        cuda.launch(executable, 0)
    assert len(bindings.named("cuGraphLaunch")) == 2
    assert bindings.named("cuCtxSetCurrent") == [(cuda._context,)]
    bindings.errors["cuGraphLaunch"] = BAD  # anything else may have launched something
    with pytest.raises(ExecutionError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.launch(executable, 0)
    assert len(bindings.named("cuGraphLaunch")) == 3
    params = SimpleNamespace(kind=KERNEL, node=1, native=2)
    bindings.errors["cuGraphExecKernelNodeSetParams"] = missing
    with pytest.raises(GraphError, match="CUDA_ERROR_INVALID_CONTEXT"):
        cuda.write(executable, params)  # type: ignore[arg-type]
    assert len(bindings.named("cuGraphExecKernelNodeSetParams")) == 2
    assert len(bindings.named("cuCtxSetCurrent")) == 2


@pytest.mark.parametrize("name", ["add_node", "capture_info", "set_dependencies"])
def test_calls_that_know_about_edges(name: str) -> None:
    text = getattr(cuda_calls, name).__doc__ or ""
    assert ("edgeData_out" if name == "capture_info" else "dependencyData") in text


class Pools:
    """torch's pools of memory: who uses each, by its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users: Counter[Any] = Counter()
        self.allocating: list[Any] = []
        self.emptied = 0
        self.capturing = False
        functions = {
            "_cuda_beginAllocateCurrentThreadToPool": self.begin,
            "_cuda_endAllocateToPool": self.end,
            "_cuda_releasePool": self.release,
            "_cuda_clearCublasWorkspaces": lambda: None,
            "_cuda_isCurrentStreamCapturing": lambda: self.capturing,
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch._C, name, function, raising=False)
        numbers = iter(range(1, 1000))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(numbers)))
        monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    def begin(self, device: int, number: Any) -> None:
        assert number not in self.allocating
        self.users[number] += 1
        self.allocating.append(number)

    def end(self, device: int, number: Any) -> None:
        self.allocating.remove(number)

    def release(self, device: int, number: Any) -> None:
        self.users[number] -= 1
        assert self.users[number] >= 0

    def empty(self) -> None:
        if self.allocating:
            raise RuntimeError("captures_underway.empty()")
        self.emptied += 1


def test_a_pool_lives_as_long_as_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    pools, made = Pools(monkeypatch), TorchGraphs(torch.device("cuda", 0))
    pool = made.pool()
    number = pool.value
    for failing in (False, True):
        with pytest.raises(RuntimeError) if failing else nullcontext(), made.using(5, pool):
            assert pools.users[number] == 2
            assert pools.allocating == [number]
            if failing:
                raise RuntimeError("a kernel raises")
        assert pools.users[number] == 1
        assert pools.allocating == []
    pool.close()
    pool.close()
    assert pools.users[number] == 0


def test_a_pool_is_given_back_during_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is freed then, nor while a caller records: the process would be ended by that."""
    pools, made = Pools(monkeypatch), TorchGraphs(torch.device("cuda", 0))
    monkeypatch.setattr(torch_driver, "_IDLE_POOLS", 3)
    used = made.pool()
    with made.using(5, used):
        for _ in range(5):
            made.pool().close()
        assert pools.emptied == 0
        assert pools.allocating == [used.value]
    pools.capturing = True
    for _ in range(5):
        made.pool().close()
    assert pools.emptied == 0
    pools.capturing = False
    for _ in range(10):
        made.pool().close()
    assert pools.emptied == 4  # at once, and after every three
    assert +pools.users == {used.value: 1}
    used.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_stream_is_the_current_one_for_a_while(
    elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pools(monkeypatch)
    streams = [(11, 0, 1)]
    made: list[int] = []

    def external(number: int, place: torch.device) -> SimpleNamespace:
        made.append(number)
        return SimpleNamespace(stream_id=number, device_index=0, device_type=1)

    def switch(stream_id: int, device_index: int, device_type: int) -> None:
        streams.append((stream_id, device_index, device_type))

    for name, function in {
        "_cuda_getDevice": lambda: int(elsewhere),
        "_cuda_getCurrentStream": lambda index: streams[-1],
        "_cuda_setStream": switch,
    }.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    graphs = TorchGraphs(torch.device("cuda", 0))
    for _ in range(2):
        with suppress(RuntimeError), graphs.using(5):
            assert streams[-1] == ((11, 0, 1) if elsewhere else (5, 0, 1))
            raise RuntimeError("inside")
        assert streams[-1] == (11, 0, 1)
    assert made == [5]  # it is made once
    assert len(streams) == (1 if elsewhere else 5)  # elsewhere torch switches devices, too


def test_torch_still_switches_streams_as_it_did() -> None:
    text = inspect.getsource(torch.cuda._set_stream_by_id)
    for name in ("stream_id", "device_index", "device_type"):
        assert f"{name}={name}" in text
    assert "_cuda_setStream(" in text
    assert "_cuda_getCurrentStream(" in inspect.getsource(torch.cuda.current_stream)


def test_torch_still_has_what_pools_are_made_by() -> None:
    text = inspect.getsource(torch.cuda.memory.use_mem_pool)
    for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"):
        assert f"_cuda_{name}(device_index, pool.id)" in text


def test_an_event_that_has_not_come_yet_is_no_error(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_calls, "cu", bindings)  # asks without invalidating a capture
    cuda = graphs()
    event = cuda.event()
    bindings.errors["cuEventQuery"] = real.CUresult.CUDA_ERROR_NOT_READY
    assert not cuda.done(event)
    bindings.errors["cuEventQuery"] = BAD
    with pytest.raises(GraphError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.done(event)
    bindings.errors.clear()
    assert cuda.done(event)
