"""Ports that cannot move: their copies are nodes of the graph, and a run is one launch still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from monograph.program.memory.schedules import Schedule
from monograph.runtime.gpu.bound_program import DevicePort, GpuProgram
from monograph.runtime.gpu.capture.capture import Recorder, Recording
from monograph.runtime.gpu.capture.captured_graph import INSIDE, SHARES
from monograph.runtime.gpu.capture.control import BRANCH, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import (
    KERNEL,
    MEMCPY,
    ON_DEVICE,
    CopyNode,
    GraphError,
    Handle,
    Params,
)
from tests.gpu.capture.replay_models import (
    BYTES,
    SIZE,
    Default,
    below,
    branch,
    chain,
    double,
    expected,
    f32,
    flag,
    port,
    replayed,
    running,
    slot,
    total,
)
from tests.gpu.capture.test_replay_ports import at_a_boundary, library
from tests.gpu.fake_driver import FakeDriver, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs

PLACES = [port("input:x"), port("output:present"), port("output:y")]


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


def some(seed: int = 0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def either(driver: FakeDriver, body: Any, places: Sequence[Any]) -> Any:
    """A branch that does the same in either case, as works and nests."""
    nest = LaunchTree(BRANCH, (1, 1))
    works = [
        (FakeRecord(driver, "below", below, 2), [port("input:x"), flag()]),
        (ConditionalLaunch(nest), [flag()]),
        *((FakeRecord(driver, "body", body, len(places)), places) for _ in range(2)),
    ]
    return works, (LaunchTree(), nest, LaunchTree(), LaunchTree())


def stateful(driver: FakeDriver) -> GpuProgram:
    """present = past + x, written over past, and y = 10 * present; all in a branch."""
    works, nests = either(driver, total, PLACES)
    outputs = [slot("present", over="past"), slot("y")]
    return running(driver, [slot("x"), slot("past")], outputs, works, nests)


def chosen(x: torch.Tensor) -> torch.Tensor:
    """Return what `branch` computes."""
    return x * 2 if x[0] < 100 else x + 1


def calls_of(driver: FakeDriver, run: Callable[[], Any]) -> Counter[str]:
    """Return what the driver was asked to do meanwhile."""
    before = driver.calls.copy()
    run()
    return driver.calls - before


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("something was copied beside the graph")


def test_a_staged_run_is_one_launch_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, driver = replayed(branch)
    x = some()
    replay.run({"x": x})
    monkeypatch.setattr(torch.Tensor, "copy_", refuse)
    kept = []
    for seed in range(1, 5):
        x = some(seed)
        calls = calls_of(driver, lambda x=x: kept.append((x, replay.run({"x": x}))))
        assert calls["graph launch"] == 1
        assert set(calls) <= {"graph launch", "write"}
    for x, (y,) in kept:
        assert torch.equal(y, chosen(x))
    assert replay.stats["launches_per_run"] == 1
    assert replay.stats["captures"] == 1
    assert replay.stats["replays"] == 5


def test_a_staged_run_takes_the_quick_way_and_is_counted() -> None:
    replay, _ = replayed(branch)
    assert replay.try_run({"x": some()}) is None
    replay.run({"x": some()})
    counted = {f"x: {INSIDE}": 1, f"y: {INSIDE}": 1}
    assert replay.stats["staged_copies"] == counted
    same = some(7)
    for turn, x in enumerate((some(1), same, same, torch.full((SIZE,), 200.0)), 2):
        found = replay.try_run({"x": x})
        assert found is not None
        assert torch.equal(found[0], chosen(x))
        del found  # the next output may lie where this one was
        assert replay.stats["staged_copies"] == dict.fromkeys(counted, turn)


def test_moved_ports_are_moved_in_the_copies_only() -> None:
    """One word of one node for each port, however many launches use it."""
    replay, driver = replayed(branch)
    held = [some(), *replay.run({"x": some()})]
    calls = calls_of(driver, lambda: held.extend(replay.run({"x": held[0]})))
    assert calls["write"] == 2
    assert replay.stats["rebinds"] == 2


def test_runs_in_flight_keep_their_addresses() -> None:
    replay, driver = replayed(branch)
    replay.run({"x": some()})
    driver.lazy = True
    fed = [some(seed) for seed in range(1, 5)]
    fed[2] += 200
    pending = [replay.run_async({"x": x}) for x in fed]
    driver.drain()
    for x, run in zip(fed, pending, strict=True):
        assert torch.equal(run.result()[0], chosen(x))


def test_runs_on_several_streams_share_the_memory_in_turn() -> None:
    """Nothing is brought to where an earlier run, on another stream, still reads."""
    replay, driver = replayed(branch)
    replay.run({"x": some()})
    driver.lazy = True
    fed = [some(seed) for seed in (1, 2)]
    pending = [replay.run_async({"x": x}, stream=40 + i) for i, x in enumerate(fed)]
    assert replay.executable.device.joined == [0, 40]
    driver.drain()
    for x, run in zip(fed, pending, strict=True):
        assert torch.equal(run.result()[0], chosen(x))


def test_staged_state_advances_once_in_each_run_wherever_it_is() -> None:
    replay, driver = replayed(stateful)
    states = [torch.zeros(SIZE), torch.full((SIZE,), 50.0)]
    for turn in range(1, 4):
        for start, state in zip((0, 50), states, strict=True):
            feeds = {"x": torch.ones(SIZE), "past": state}
            found: list[Any] = []
            calls = calls_of(
                driver, lambda f=feeds, s=state, to=found: to.extend(replay.run(f, {"present": s}))
            )
            assert calls["graph launch"] == 1
            present, y = found
            assert present is state
            assert state.tolist() == [start + turn] * SIZE
            assert y.tolist() == [10 * (start + turn)] * SIZE
    assert replay.stats["staged_copies"] == {
        f"{name}: {reason}": 6
        for name, reason in {"x": INSIDE, "past": SHARES, "present": INSIDE, "y": INSIDE}.items()
    }


def test_a_run_that_moves_nothing_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(driver: FakeDriver) -> GpuProgram:
        """present = 2 * past, written over past, in a branch that looks at x."""
        works, nests = either(driver, double, [port("output:present"), port("output:present")])
        outputs = [slot("present", over="past")]
        return running(driver, [slot("x"), slot("past")], outputs, works, nests)

    replay, _ = replayed(alone)
    state = torch.ones(SIZE)
    feeds = {"x": torch.ones(SIZE), "past": state}
    replay.run(feeds, {"present": state})
    monkeypatch.setattr(replay._launches, "launch", refuse)
    for turn in range(2, 4):
        assert replay.try_run(feeds, {"present": state}) is not None
        assert state.tolist() == [2**turn] * SIZE
        assert set(replay.stats["staged_copies"].values()) == {turn}


def test_staged_state_takes_the_quick_way() -> None:
    replay, _ = replayed(stateful)
    state = torch.zeros(SIZE)
    feeds = {"x": torch.ones(SIZE), "past": state}
    replay.run(feeds, {"present": state})
    found = replay.try_run(feeds, {"present": state})
    assert found is not None
    assert found[0] is state
    assert state.tolist() == [2] * SIZE


def test_state_that_is_not_given_back_is_left_as_it_is() -> None:
    replay, _ = replayed(stateful)
    state = torch.zeros(SIZE)
    for turn in range(3):
        present, _ = replay.run({"x": torch.full((SIZE,), float(turn)), "past": state})
        assert present.tolist() == [turn] * SIZE
        assert state.tolist() == [0] * SIZE


@pytest.mark.parametrize("kind", ["hashed", "changing", "hidden"])
def test_what_a_library_hides_is_copied_by_the_graph(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, driver = replayed(library(kind))
    replay.run({"x": at_a_boundary(some().numpy())})
    fed = [at_a_boundary(some(seed).numpy()) for seed in range(1, 4)]
    monkeypatch.setattr(torch.Tensor, "copy_", refuse)
    for x in fed:
        found: list[Any] = []
        calls = calls_of(driver, lambda x=x, to=found: to.extend(replay.try_run({"x": x}) or ()))
        assert calls["graph launch"] == 1
        assert set(calls) <= {"graph launch", "write"}
        assert torch.equal(found[0], (x + 1) * 2)
    assert list(replay.stats["staged_copies"].values()) == [4]


def test_a_copy_takes_any_address() -> None:
    """Neither what kernels read at once nor what a library saw at first limits what is copied."""
    for make, wanted in ((branch, chosen), (library("hashed"), lambda x: (x + 1) * 2)):
        replay, _ = replayed(make)
        replay.run({"x": at_a_boundary(some().numpy())})
        x = at_a_boundary(some(1).numpy(), skipped=1)
        assert x.data_ptr() % 16
        found = replay.try_run({"x": x})
        assert found is not None
        assert torch.equal(found[0], wanted(x))
        assert not any("misaligned" in key for key in replay.stats["staged_copies"])


def test_ports_without_bytes_are_not_copied() -> None:
    def empty(driver: FakeDriver) -> GpuProgram:
        def body(words: list[int]) -> None:
            numbers(words[2], SIZE)[:] = numbers(words[0], SIZE) * 3

        places = [port("input:x"), port("input:none"), port("output:y"), port("output:nil")]
        works, nests = either(driver, body, places)
        inputs = [slot("x"), DevicePort("none", f32, (0,), "")]
        return running(
            driver, inputs, [slot("y"), DevicePort("nil", f32, (0, 4), "")], works, nests
        )

    replay, driver = replayed(empty)
    for seed in range(3):
        y, nil = replay.run({"x": some(seed), "none": torch.zeros(0)})
        assert torch.equal(y, some(seed) * 3)
        assert nil.shape == (0, 4)
    assert driver.calls["copy"] == 2
    assert replay.stats["captures"] == 1


class Unread(FakeGraphs):
    """A driver that says nothing of copies."""

    def read(self, node: Any, words: int = 0) -> Params | None:
        return None if node.kind == MEMCPY else super().read(node, words)


class Astray(FakeGraphs):
    """A driver that records a copy from elsewhere."""

    def copy(self, stream: int, copy: CopyNode) -> None:
        super().copy(stream, CopyNode(copy.to, copy.source + 8, copy.nbytes, copy.kind))


@pytest.mark.parametrize(("kind", "reason"), [(Unread, "as what it is"), (Astray, "addresses")])
def test_copies_that_are_not_what_was_recorded(kind: Any, reason: str) -> None:
    driver = FakeDriver()
    replay = Replay(branch(driver), kind(driver))
    (y,) = replay.run({"x": some()})
    assert torch.equal(y, chosen(some()))
    ((why, count),) = replay.stats["fallbacks"].items()
    assert reason in why
    assert count == 1
    assert not replay.stats["staged_copies"]
    assert not driver.leaks().get("graph")
    with pytest.raises(GraphError, match="cannot be captured"):
        Replay(branch(driver), kind(driver), "require").run({"x": some()})


class Watched(FakeGraphs):
    """Remembers what every node waits for."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(driver, builds=True)
        self.behind: dict[int, list[Any]] = {}

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        node = super().add_kernel(graph, record, before, beside)
        self.behind[int(node)] = list(before)
        return node

    def add_copy(self, graph: Handle, copy: CopyNode, before: Sequence[Any]) -> Any:
        node = super().add_copy(graph, copy, before)
        self.behind[int(node)] = list(before)
        return node


def copies(around: dict[str, torch.Tensor]) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """Copies of everything in and out of other memory."""
    own = {name: torch.zeros(SIZE) for name in around}
    before, after = {}, {}
    for name, tensor in around.items():
        here, there = own[name].data_ptr(), tensor.data_ptr()
        if name.startswith("input:"):
            before[name] = CopyNode(here, there, BYTES, ON_DEVICE)
        else:
            after[name] = CopyNode(there, here, BYTES, ON_DEVICE)
    return before, after, own


def taken_in_streams(graphs: FakeGraphs) -> Recording:
    """`chain` with a second input, in two streams, between copies; run once."""
    x = some()
    around = {"input:x": x, "input:more": some(1)}
    around |= {"output:y": torch.zeros(SIZE), "output:z": torch.zeros(SIZE)}
    before, after, own = copies(around)
    order = Schedule((0, 0, 1), ((), (), (0,)), (0, 1, 1))
    recorder = Recorder(chain(graphs.driver), graphs, order)
    taken = recorder.record(own, before, after)
    assert list(taken.edges) == ["input:x", "input:more", "output:y", "output:z"]
    graphs.launch(graphs.instantiate(taken.graph), 0)
    del recorder  # its memory was in use
    for name, wanted in zip(("output:y", "output:z"), expected(x), strict=True):
        np.testing.assert_array_equal(around[name].numpy(), wanted)
    return taken


def test_kernels_of_a_built_graph_wait_for_all_copies_and_copies_for_all_streams() -> None:
    graphs = Watched(FakeDriver())
    taken = taken_in_streams(graphs)
    first, second, third = (taken.nodes[i][0] for i in range(3))
    brought = [taken.edges[name] for name in ("input:x", "input:more")]
    assert [graphs.behind[int(n)] for n in brought] == [[], []]
    assert graphs.behind[int(first)] == brought
    assert graphs.behind[int(second)] == graphs.behind[int(third)] == [first]
    for name in ("output:y", "output:z"):
        assert graphs.behind[int(taken.edges[name])] == [second, third]


def test_a_recorded_graph_copies_first_and_last() -> None:
    graphs = FakeGraphs(FakeDriver())
    taken = taken_in_streams(graphs)
    kinds = [graphs.kind(n) for n in graphs.nodes(taken.graph)]
    assert kinds == [MEMCPY] * 2 + [KERNEL] * 3 + [MEMCPY] * 2


def test_memory_for_staging_is_counted_and_freed() -> None:
    replay, driver = replayed(stateful)
    state = torch.zeros(SIZE)
    replay.run({"x": torch.ones(SIZE), "past": state}, {"present": state})
    assert replay.own_bytes == replay.executable.own_bytes + 3 * BYTES  # the state's is one
    replay.close()
    assert replay.own_bytes == replay.executable.own_bytes
    assert not driver.leaks().get("graph")
