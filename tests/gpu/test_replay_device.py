"""Capture and replay on a device; without MONOGRAPH_TEST_DEVICE=cuda nothing of this runs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from monograph.codegen.triton.layout import ARENA, PORT, Where
from monograph.errors import ExecutionError
from monograph.ir import constant, unpack
from monograph.ir.dtype import f32
from monograph.ops.control import Loop
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from monograph.runtime.gpu.replay import Replay
from monograph.runtime.gpu.running import GpuLayout, Running, Slot
from tests.gpu.against import device
from tests.gpu.replay_models import three_towers
from tests.rules.checks import graph_of, value

if os.environ.get("MONOGRAPH_TEST_DEVICE", "") != "cuda":
    pytest.skip("replay on a device: set MONOGRAPH_TEST_DEVICE=cuda", allow_module_level=True)

from monograph.runtime.gpu.cuda_graphs import CudaGraphs, cuda_graphs

SLEEP = 20_000_000
"""Cycles of the device, about ten milliseconds."""


BOTH = pytest.mark.parametrize("builds", [True, False], ids=["built", "recorded"])


def graphs_of_a_kind(builds: bool) -> CudaGraphs:
    """Graphs that are built node by node, or recorded from streams."""
    made = CudaGraphs(torch.device("cuda", 0))
    made.builds = builds
    return made


def towers(
    mode: str = "auto", rows: int = 4, builds: bool = True, **options: Any
) -> tuple[Replay, GpuExecutable]:
    """A model with lanes, and the same once more to run eagerly."""
    module = compile_for_gpu(three_towers(rows), device().arch)
    eager = GpuExecutable(module, device())
    graphs = graphs_of_a_kind(builds)
    return Replay(GpuExecutable(module, device()), graphs, mode, **options), eager


def some(seed: int = 0, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 16, generator=generator).cuda()


def check(replay: Replay, eager: Running, x: torch.Tensor) -> list[torch.Tensor]:
    """Equal bits, eagerly and replayed."""
    found = replay.run({"x": x})
    for a, b in zip(found, eager.run({"x": x}), strict=True):
        assert torch.equal(a, b)
    return found


def hook(replay: Replay, number: int, what: Callable[[], None]) -> None:
    """Has something happen before a launch becomes a node, once."""
    record: Any = replay.executable._records[number]
    graphs: Any = replay.graphs
    done: list[bool] = []

    def once() -> None:
        if not done:
            done.append(True)
            what()

    launch, add = record.launch, graphs.add_kernel

    def hooked(stream: int) -> None:
        once()
        launch(stream)

    def added(graph: Any, other: Any, *rest: Any) -> Any:
        if other is record:
            once()
        return add(graph, other, *rest)

    record.launch, graphs.add_kernel = hooked, added


class Call:
    """A function of torch on tensors of shapes, as a library's launch."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        self.function, self.shapes = function, shapes
        self.tensors: list[Any] = [None] * len(shapes)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        shape = self.shapes[position]
        size = 4 * int(np.prod(shape))
        self.tensors[position] = memory[offset : offset + size].view(torch.float32).view(shape)

    def launch(self, stream: int) -> None:
        self.function(*self.tensors)


def library(
    calls: Sequence[tuple[Call, Sequence[str]]],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    over: dict[str, str] | None = None,
) -> Running:
    """An executable of calls; arguments are ports, or offsets in the arena."""

    def where(name: str) -> Where:
        if name.isdigit():
            return Where(ARENA, int(name), f32)
        return Where(PORT, 0, f32, f"{'input' if name in inputs else 'output'}:{name}")

    layout = GpuLayout(
        tuple(Slot(n, f32, s) for n, s in inputs.items()),
        tuple(Slot(n, f32, s, (over or {}).get(n, "")) for n, s in outputs.items()),
        tuple(tuple(map(where, names)) for _, names in calls),
        1 << 24,
        256,
        (),
        (),
    )
    return Running(layout, lambda: [c for c, _ in calls], device(), np.zeros(1, np.uint8))


def mm(rows: int = 128, width: int = 256) -> Running:
    """y = (x w) w, through the arena."""
    torch.manual_seed(0)
    weights = torch.randn(width, width, device="cuda") / width**0.5

    def first(x: torch.Tensor, to: torch.Tensor) -> None:
        torch.mm(x, weights, out=to)

    shape = (rows, width)
    return library(
        [(Call(first, shape, shape), ("x", "0")), (Call(first, shape, shape), ("0", "y"))],
        {"x": shape},
        {"y": shape},
    )


@BOTH
def test_equal_bits_on_many_inputs(builds: bool) -> None:
    replay, eager = towers(builds=builds)
    for seed in range(100):
        check(replay, eager, some(seed))
    assert replay.stats["captures"] == 1
    assert replay.stats["fallbacks"] == {}
    assert replay.launches == 1


def test_a_new_address_on_every_call() -> None:
    replay, eager = towers()
    block = torch.empty(1000, 4, 16, device="cuda")
    block.copy_(torch.randn(1000, 4, 16))
    held = []
    for x in block:
        held.append(replay.run({"x": x}))
    for x, found in zip(block, held, strict=True):
        for a, b in zip(found, eager.run({"x": x}), strict=True):
            assert torch.equal(a, b)
    assert replay.stats["captures"] == 1
    assert replay.stats["staged"] == {}
    assert replay.stats["rebinds"] >= 999


@BOTH
@pytest.mark.parametrize("number", range(7))
def test_a_raise_at_each_kernel_of_a_recording(number: int, builds: bool) -> None:
    replay, eager = towers(builds=builds)

    def fail() -> None:
        raise RuntimeError("a kernel raises")

    hook(replay, number % len(replay.executable._records), fail)
    check(replay, eager, some())
    assert replay.stats["fallbacks"] == {"a kernel raises": 1}
    check(replay, eager, some(1))
    assert replay.stats["captures"] == 1


def in_thread(work: Callable[[], None]) -> list[BaseException]:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return failures


def _allocate() -> None:
    tensors = [torch.empty(1 << 22, device="cuda").fill_(i) for i in range(4)]
    assert float(tensors[3][0]) == 3


def _synchronise() -> None:
    torch.cuda.synchronize()


def _pin() -> None:
    pinned = torch.empty(1 << 22, dtype=torch.uint8, pin_memory=True)
    pinned.fill_(3)
    assert int(pinned.cuda(non_blocking=True)[5]) == 3


@BOTH
@pytest.mark.parametrize("work", [_allocate, _synchronise, _pin])
def test_other_threads_work_during_a_recording(work: Callable[[], None], builds: bool) -> None:
    replay, eager = towers(builds=builds)
    failures: list[BaseException] = []
    hook(replay, 1, lambda: failures.extend(in_thread(work)))
    check(replay, eager, some())
    # No driver lets anybody wait for a whole device while a stream of it records.
    assert failures == [] or (not builds and work is _synchronise)
    check(replay, eager, some(1))
    assert replay.stats["captures"] == 1


@BOTH
def test_graphs_are_destroyed_during_a_recording(builds: bool) -> None:
    replay, eager = towers(builds=builds)
    others = [towers(builds=builds)[0], Replay(mm(), replay.graphs)]
    others[0].run({"x": some()})
    others[1].run({"x": torch.randn(128, 256, device="cuda")})

    def destroy() -> None:
        others.clear()
        gc.collect()

    hook(replay, 1, destroy)
    check(replay, eager, some())
    check(replay, eager, some(1))
    assert replay.stats["captures"] == 1


def test_threads_with_streams_of_their_own() -> None:
    replay, eager = towers()
    inputs = [some(i) for i in range(40)]
    right = [[t.clone() for t in eager.run({"x": x})] for x in inputs]
    torch.cuda.synchronize()
    failures: list[Any] = []

    def work(part: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(200):
                i = (7 * turn + part) % len(inputs)
                found = replay.run({"x": inputs[i]})
                stream.synchronize()
                if not all(torch.equal(a, b) for a, b in zip(found, right[i], strict=True)):
                    failures.append((part, turn))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert replay.stats["captures"] == 1


def test_a_hidden_synchronisation() -> None:
    executable = mm()
    call: Any = executable._records[0]
    plain, turns = call.function, []

    def waits(*tensors: torch.Tensor) -> None:
        plain(*tensors)
        turns.append(1)
        if len(turns) == 2:  # the first is on scratch memory
            torch.cuda.current_stream().synchronize()

    call.function = waits
    replay, eager = Replay(executable, cuda_graphs(0)), mm()
    x = torch.randn(128, 256, device="cuda")
    check(replay, eager, x)
    assert len(replay.stats["fallbacks"]) == 1
    check(replay, eager, x)
    assert replay.stats["captures"] == 1


def test_libraries_are_rebound_or_staged() -> None:
    replay, eager = Replay(mm(), cuda_graphs(0)), mm()
    for _ in range(20):
        check(replay, eager, torch.randn(128, 256, device="cuda"))
    assert replay.stats["captures"] == 1
    assert replay.stats["fallbacks"] == {}
    print("staged:", replay.stats["staged"], "rebinds:", replay.stats["rebinds"])


def test_temporaries_and_workspaces_stay_theirs() -> None:
    """What a library allocates while recording is not given to others; nor is it outgrown."""

    def through_temporaries(x: torch.Tensor, to: torch.Tensor) -> None:
        to.copy_((x * 3 + 1).relu() @ x.t().contiguous() @ x)

    def make(rows: int) -> Running:
        shape = (rows, 256)
        calls = [(Call(through_temporaries, shape, shape), ("x", "y"))]
        return library(calls, {"x": shape}, {"y": shape})

    replays = {rows: (Replay(make(rows), cuda_graphs(0)), make(rows)) for rows in (64, 512, 2048)}
    for turn in range(6):
        for rows, (replay, eager) in replays.items():
            x = torch.randn(rows, 256, device="cuda")
            found = replay.run({"x": x})
            poison = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(4)]
            del poison
            assert torch.equal(found[0], eager.run({"x": x})[0]), (turn, rows)
            torch.cuda.empty_cache()
    assert all(r.stats["captures"] == 1 for r, _ in replays.values())


def test_state_advances_once_a_call() -> None:
    def advance(x: torch.Tensor, state: torch.Tensor) -> None:
        state.add_(x)

    shape = (64,)
    calls = [(Call(advance, shape, shape), ("x", "present"))]
    running = library(calls, {"x": shape, "past": shape}, {"present": shape}, {"present": "past"})
    replay = Replay(running, cuda_graphs(0))
    state, x = torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")
    for turn in range(1, 10):
        assert replay.run({"x": x, "past": state}, {"present": state})[0] is state
        assert state.tolist() == [turn] * 64
    alias = torch.full((64,), 2.0, device="cuda")
    replay.run({"x": alias, "past": alias}, {"present": alias})
    assert alias.tolist() == [4] * 64


def test_outputs_are_held_and_fed_again() -> None:
    replay, eager = towers()
    x = some()
    first = check(replay, eager, x)
    kept = [t.clone() for t in first]
    second = check(replay, eager, first[0])
    check(replay, eager, second[0])
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


def test_the_caller_frees_a_bound_input() -> None:
    replay, eager = towers()
    x = some()
    right = [t.clone() for t in check(replay, eager, x)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    given = x.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
    pending = replay.run_async({"x": given}, stream=stream)
    del given
    poison = [torch.full_like(x, float("nan")) for _ in range(50)]
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(pending.result(), right, strict=True))
    assert poison


@pytest.mark.parametrize("host", ["direct", "copy"])
def test_arrays_of_the_host(host: str) -> None:
    replay, eager = towers(host=host)
    for seed in range(20):
        x = some(seed).cpu().numpy()
        for a, b in zip(replay.run({"x": x}), eager.run({"x": x}), strict=True):
            np.testing.assert_array_equal(a, b)
    torch.cuda._sleep(SLEEP)
    x = some(5).cpu().numpy()
    right = eager.run({"x": x.copy()})
    torch.cuda._sleep(SLEEP)
    runs = []
    for _ in range(5):
        runs.append(replay.run_async({"x": x}))
        x += 1
    x -= 5
    for a, b in zip(runs[0].result(), right, strict=True):
        np.testing.assert_array_equal(a, b)
    for turn, pending in enumerate(runs):
        for a, b in zip(pending.result(), eager.run({"x": x + turn}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert replay.stats["captures"] == 1


def test_run_async_returns_at_once() -> None:
    replay, eager = towers()
    x = some()
    right = [t.clone() for t in check(replay, eager, x)]
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * SLEEP)
    pending = replay.run_async({"x": x})
    assert not pending.done()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        copies = [t.clone() for t in pending.result()]
    other.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(copies, right, strict=True))
    assert pending.done()


def test_a_caller_who_records() -> None:
    replay, eager = towers()
    x = some()
    check(replay, eager, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = replay.run({"x": x})
    x.copy_(some(3))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, eager.run({"x": x}), strict=True))
    check(replay, eager, some(4))
    with pytest.raises(ExecutionError, match="arrays of the host"), torch.cuda.graph(graph):
        replay.run({"x": np.zeros((4, 16), np.float32)})
    check(replay, eager, some(5))


def test_deleted_while_in_flight() -> None:
    replay, eager = towers()
    x = some()
    right = [t.clone() for t in check(replay, eager, x)]
    torch.cuda._sleep(SLEEP)
    found = replay.run({"x": x})
    del replay
    gc.collect()
    poison = [torch.full((1 << 16,), float("nan"), device="cuda") for _ in range(50)]
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert poison


def test_many_come_and_go_without_growth() -> None:
    module = compile_for_gpu(three_towers(), device().arch)
    executable = GpuExecutable(module, device())
    x = some()
    free = []
    for turn in range(1000):
        replay = Replay(executable, cuda_graphs(0))
        replay.run({"x": x})
        del replay
        if turn in (99, 999):
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[1] <= 4 << 20


def test_a_loop_is_one_launch() -> None:
    from tests.gpu.test_control import counting_loop

    data = np.full((17, 17), 0.01, np.float32)
    operands = value("i64[]", "n"), value("bool[]", "go"), value("f32[3, 17]"), constant(data)
    outer = graph_of(*unpack(Loop(counting_loop(5.0), 1)(*operands)))
    module = compile_for_gpu(outer, device().arch)
    eager, executable = GpuExecutable(module, device()), GpuExecutable(module, device())
    replay = Replay(executable, cuda_graphs(0), "require")
    for trips, go in ((0, True), (7, False), (1, True), (100, True), (3, True)):
        feeds = {
            "x": torch.zeros(3, 17, device="cuda"),
            "n": torch.tensor(trips, device="cuda"),
            "go": torch.tensor(go, device="cuda"),
        }
        for a, b in zip(replay.run(feeds), eager.run(feeds), strict=True):
            assert torch.equal(a, b)
    assert replay.stats["captures"] == 1
    assert replay.launches == 1
    assert executable.syncs == 0


FORKED = """
import os, sys, torch
from tests.gpu.test_replay_device import towers, some
from monograph.errors import ExecutionError
replay, _ = towers()
x = some()
replay.run({"x": x})
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    try:
        replay.run({"x": x})
    except ExecutionError as e:
        os._exit(0 if "forked" in str(e) else 3)
    os._exit(4)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
replay.run({"x": x})
torch.cuda.synchronize()
sys.exit(code)
"""
FAILED = """
import sys, torch
from tests.gpu.test_replay_device import towers, some
replay, _ = towers()
x = some()
replay.run({"x": x})
torch.cuda.synchronize()
try:
    torch._assert_async(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
except Exception:
    pass
for _ in range(2):
    try:
        print([t.cpu() for t in replay.run({"x": x})])
    except Exception as e:
        print("raised", type(e).__name__, str(e).splitlines()[0])
    else:
        sys.exit(5)
"""


@pytest.mark.parametrize("script", [FORKED, FAILED], ids=["forked", "failed device"])
def test_in_a_process_of_its_own(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_agree() -> None:
    script = (
        "import hashlib, torch\n"
        "from tests.gpu.test_replay_device import towers, some\n"
        "replay, _ = towers()\n"
        "outs = [t.cpu().numpy().tobytes() for s in range(3) for t in replay.run({'x': some(s)})]\n"
        "print(hashlib.sha256(b''.join(outs)).hexdigest())\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = {p.communicate(timeout=120)[0].split()[-1] for p in started}
    assert len(found) == 1
