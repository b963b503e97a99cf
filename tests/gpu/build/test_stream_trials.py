"""Trials of streams: they leave nothing behind, and how they are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from monograph.ir import Graph, Input, TensorType, constant
from monograph.ir.dtype import f32, i64
from monograph.ops.elementwise import Add, Sub
from monograph.ops.index import Gather
from monograph.ops.random import RandomUniform
from monograph.runtime.gpu.build import stream_tuning
from monograph.runtime.gpu.build.stream_plans import planned
from monograph.runtime.gpu.build.stream_tuning import (
    MeasuredStreams,
    Recorder,
    time_queued,
    untried_reason,
)
from monograph.runtime.gpu.capture.capture import launch_order
from monograph.runtime.gpu.capture.control import REPEAT, LaunchTree
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.executable import compile_for_gpu
from tests.gpu import gpu_models
from tests.gpu.build.stream_models import SIZE, Clock, replayed, some, somewhere, three_sums
from tests.gpu.capture.replay_models import Default, branch, loop
from tests.gpu.fake_driver import FakeDevice, FakeDriver

pytestmark = gpu_models.INTERPRETED


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


def stateful() -> Graph:
    """Sums, and a state that is written over: present = past + x."""
    sums = three_sums()
    past = Input("past", TensorType(f32, (4, SIZE)))()
    outputs = (*sums.outputs, ("present", Add()(past, sums.inputs[0])))
    return Graph((*sums.inputs, past), outputs, donations=(("present", "past"),))


def test_state_advances_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 2)
    replay, _ = replayed(stateful(), somewhere())
    x, past = torch.from_numpy(some()), torch.from_numpy(some(1))
    kept, before = x.clone(), past.clone()
    replay.run({"x": x, "past": past}, {"present": past})
    assert len(clock.seen) == 1
    assert torch.equal(past, before + x)
    assert torch.equal(x, kept)
    assert replay.executable.runs == replay.stats["replays"] == 1
    replay.run({"x": x, "past": past}, {"present": past})
    assert torch.equal(past, before + x + x)


def test_trials_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(some())
    addresses: list[int] = []
    plain = Recorder.record

    def record(self: Recorder, memory: Any, *copies: Any) -> Any:
        addresses.extend(m.data_ptr() for m in memory.values())
        return plain(self, memory, *copies)

    def clock(runs: Mapping[int, Callable[[int], None]]) -> dict[int, float]:
        assert len(addresses) == 3 * len(runs)  # x, y and z, for each rival
        assert x.data_ptr() not in addresses
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(Recorder, "record", record)
    monkeypatch.setattr(stream_tuning, "time_queued", clock)
    replay, _ = replayed(three_sums(), somewhere())
    replay.run({"x": x})
    assert x.data_ptr() in addresses  # the graph that was kept


def looking_up() -> Graph:
    """Sums, and rows of a table at - 100: zeros are no place in it."""
    sums = three_sums()
    at = Input("at", TensorType(i64, (2,)))()
    table = constant(np.arange(15, dtype=np.float32).reshape(5, 3))
    rows = Gather(0)(table, Sub()(at, constant(np.full(2, 100, np.int64))))
    return Graph((*sums.inputs, at), (*sums.outputs, ("rows", rows)))


def test_what_scratch_numbers_break_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 3)
    replay, _ = replayed(looking_up(), somewhere())
    assert replay.executable.layout.faults
    feeds = {"x": torch.from_numpy(some()), "at": torch.tensor([101, 103])}
    rows = replay.run(feeds)[-1]
    assert len(clock.seen) == 1
    assert rows.tolist() == [[3, 4, 5], [9, 10, 11]]


def drawing() -> Graph:
    sums = three_sums()
    drawn = RandomUniform((4,), f32, seed=3.0, uid=-11)()
    return Graph(sums.inputs, (*sums.outputs, ("drawn", drawn)))


def test_draws_are_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 3)
    replay, _ = replayed(drawing(), somewhere())
    assert stream_tuning.order_of(replay.executable).streams > 1
    replay.run({"x": torch.from_numpy(some())})
    assert clock.seen == []
    assert replay.streams == 1


def test_what_is_not_tried_out_has_memory_for_one_stream() -> None:
    module = compile_for_gpu(drawing(), FakeDevice(FakeDriver()).arch)
    assert launch_order(module.works).streams > 1
    assert launch_order(planned(module, somewhere()).works).streams == 1


def test_only_loops_that_surely_end_are_tried_out() -> None:
    driver = FakeDriver()
    assert "loop" in untried_reason(False, loop(driver).layout.nests)
    assert untried_reason(False, (LaunchTree(REPEAT, (1,), 3), LaunchTree())) == ""
    assert untried_reason(False, branch(driver).layout.nests) == ""


def test_a_trial_that_fails_is_a_failed_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 3)
    replay, driver = replayed(three_sums(), somewhere())
    driver.fail("instantiate", 1)
    x = torch.from_numpy(some())
    eager = replay.executable.run({"x": x})
    assert torch.equal(replay.run({"x": x})[0], eager[0])
    assert replay.stats["fallbacks"] == {"instantiate fails on purpose": 1}
    assert not driver.leaks().get("graph")
    assert not driver.leaks().get("executable")
    assert torch.equal(replay.run({"x": x})[0], eager[0])
    assert replay.stats["captures"] == 1
    assert replay.streams == 3


def test_without_memory_for_trials_there_is_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, streams = Clock(monkeypatch, 3), somewhere()

    def none(*_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as context:
        context.setattr(stream_tuning.torch, "zeros", none)
        replay, _ = replayed_with_memory(streams)
        replay.run({"x": torch.from_numpy(some())})
    assert clock.seen == []
    assert replay.streams == replay.stats["captures"] == 1
    assert not streams.cache.of("here")  # there may be more the next time


def replayed_with_memory(streams: MeasuredStreams) -> tuple[Replay, FakeDriver]:
    """With memory of its own that is there already."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(torch, "zeros", lambda *shape, **kind: torch.empty(*shape, **kind).zero_())
        return replayed(three_sums(), streams)


# The clock


def test_the_clock_takes_turns_and_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0.0, []

    def rival(name: int, takes: float) -> Callable[[int], None]:
        def run(count: int) -> None:
            nonlocal now
            now += takes * count + 1e-5  # to wait
            order.append((name, count))

        return run

    monkeypatch.setattr(stream_tuning.time, "perf_counter", lambda: now)
    found = time_queued({1: rival(1, 1e-4), 6: rival(6, 2e-4)})
    waiting = 10 / stream_tuning.QUEUED
    assert found == {1: pytest.approx(100 + waiting), 6: pytest.approx(200 + waiting)}
    timed = [(name, count) for name, count in order if count > 1]
    assert timed == [(1, stream_tuning.QUEUED), (6, stream_tuning.QUEUED)] * stream_tuning.ROUNDS


def test_slow_models_are_timed_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, runs = 0.0, 0

    def run(count: int) -> None:
        nonlocal now, runs
        now += 1.0 * count
        runs += count

    monkeypatch.setattr(stream_tuning.time, "perf_counter", lambda: now)
    assert time_queued({1: run}) == {1: pytest.approx(1e6)}
    assert runs == 4
