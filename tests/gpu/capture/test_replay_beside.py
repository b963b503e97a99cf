"""Replay beside others: callers who record, streams, processes, and the end of things."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError
from monograph.runtime.gpu.capture import launches
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import Handle
from tests.gpu.capture.replay_models import (
    KERNELS,
    SIZE,
    Default,
    chain,
    check,
    expected,
    replayed,
    some,
)
from tests.gpu.fake_graphs import FakeGraphs


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


def test_a_caller_who_records_gets_our_kernels() -> None:
    replay, driver = replayed()
    graphs = FakeGraphs(driver)
    x = some()
    graphs.begin(5)
    with driver.using(5):
        found = replay.run({"x": x})
    graph = graphs.end(5)
    assert len(graphs.nodes(graph)) == KERNELS
    assert driver.ran == []
    graphs.launch(graphs.instantiate(graph), 5)
    np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])
    assert replay.stats["caller_captures"] == 1
    check(replay, some(1))
    graphs.begin(5)
    with driver.using(5), pytest.raises(ExecutionError, match="arrays of the host"):
        replay.run({"x": x.numpy()})
    graphs.abort(5)


def test_streams_wait_for_each_other() -> None:
    replay, driver = replayed()
    device = replay.executable.device
    check(replay, some())
    with driver.using(3):
        check(replay, some())
        check(replay, some())
    check(replay, some())
    assert device.joined == [0, 3]  # type: ignore[attr-defined]
    assert replay.graphs.marked == [3, 0]  # type: ignore[attr-defined]


def test_memory_is_said_to_be_used_on_a_stream_once() -> None:
    replay, driver = replayed()
    check(replay, some())
    for _ in range(3):
        for stream in (3, 0):
            with driver.using(stream):
                check(replay, some())
    assert replay.executable.device.joined == [0, 3, 0, 3, 0, 3]  # type: ignore[attr-defined]
    assert replay.graphs.marked == [3, 0]  # type: ignore[attr-defined]


def test_a_later_graph_is_said_to_be_used_on_a_stream_too() -> None:
    replay, driver = replayed()
    check(replay, some())
    with driver.using(3):
        check(replay, some())
    check(replay, some())
    replay.run({"x": some().numpy()})
    with driver.using(3):
        replay.run({"x": some().numpy()})
    assert replay.graphs.marked == [3, 0, 3]  # type: ignore[attr-defined]


def test_run_async_on_another_stream_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, driver = replayed()
    x = some(1)
    check(replay, x)
    monkeypatch.setattr(replay, "_start", None)  # the long way
    for stream in (4, 4, 5, 0):
        pending = replay.run_async({"x": x}, stream=stream)
        np.testing.assert_array_equal(pending.result()[0].numpy(), expected(x)[0])
        assert driver.current == 0
    assert replay.stats["replays"] == 5


def enqueued(replay: Replay, way: str, feeds: dict[str, Any], out: dict[str, Any]) -> Any:
    """A run on stream 4 while stream 0 is the caller's."""
    if way == "run_async":
        return replay.run_async(feeds, stream=4, out=out)
    pending = replay.try_start(feeds, out, stream=4)
    assert pending is not None, "it is not ready to be started at once"
    return pending


@pytest.mark.parametrize("way", ["run_async", "try_start"])
def test_run_async_on_another_stream_holds_its_inputs(way: str) -> None:
    """Memory that a caller frees on their stream goes to others, unless a run still uses it."""
    replay, driver = replayed()
    check(replay, some())
    check(replay, some())
    driver.lazy = True
    x = some(1)
    right = expected(x)[0].copy()
    pending = enqueued(replay, way, {"x": x}, {})
    replay.graphs.free(x)  # type: ignore[attr-defined]
    driver.drain()
    np.testing.assert_array_equal(pending.result()[0].numpy(), right)
    assert driver.current == 0
    replay.graphs.free(x)  # type: ignore[attr-defined]
    assert np.isnan(x.numpy()).all(), "it is held longer than the run takes"


def test_run_async_on_another_stream_holds_what_it_writes() -> None:
    replay, driver = replayed()
    x, own = some(1), torch.zeros(SIZE)
    check(replay, x)
    driver.lazy = True
    pending = replay.run_async({"x": x}, stream=4, out={"y": own})
    assert replay.graphs.free(own) == 4, "others get what is still written"  # type: ignore[attr-defined]
    driver.drain()
    np.testing.assert_array_equal(pending.result()[0].numpy(), expected(x)[0])


def test_a_forked_child_is_told() -> None:
    replay, _ = replayed()
    check(replay, some())
    replay._launches.process = -1
    with pytest.raises(ExecutionError, match="forked"):
        replay.run({"x": some()})


def test_a_child_knows_that_it_is_one() -> None:
    child = os.fork()
    if not child:
        os._exit(0 if launches.HERE[0] == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert launches.HERE[0] == os.getpid()


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(way: Any) -> None:
    replay, _ = replayed()
    with pytest.raises(ExecutionError, match="neither copied nor pickled"):
        way(replay)


def test_deleted_while_in_flight() -> None:
    replay, driver = replayed()
    x = some()
    check(replay, x)
    driver.lazy = True
    found = replay.run({"x": x})
    executable = replay.executable  # its memory outlives what is queued
    del replay
    gc.collect()
    assert driver.leaks() == {}
    driver.drain()
    np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])
    assert executable.runs == 2


def test_many_come_and_go() -> None:
    replay, driver = replayed()
    executable = replay.executable
    for seed in range(200):
        one = Replay(executable, replay.graphs)
        check(one, some(seed))
        if seed % 2:
            one.close()
        del one
    gc.collect()
    assert driver.leaks() == {}


def test_several_executables_share_a_driver() -> None:
    replay, driver = replayed()
    others = [Replay(chain(driver), replay.graphs) for _ in range(3)]
    for seed in range(5):
        for one in (replay, *others):
            check(one, some(seed))
    assert [o.stats["captures"] for o in others] == [1] * 3


def test_handles_are_freed_once() -> None:
    freed: list[int] = []
    handle = Handle(7, freed.append)
    assert not handle.closed
    handle.close()
    handle.close()
    del handle
    gc.collect()
    assert freed == [7]
