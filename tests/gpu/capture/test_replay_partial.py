"""Branches and loops where graphs have no conditional nodes: the host decides, the rest is graphs.

How many graphs there are, `inspect` has said before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monograph.ir import Graph, Value, constant, unpack
from monograph.ops.control import If, Loop
from monograph.ops.elementwise import Add, Mul
from monograph.ops.functions import Exp
from monograph.program.launch_regions import NO_CONDITIONS
from monograph.report.commands.launch_regions import launching_of
from monograph.runtime.counts import RunCounters
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.control import BRANCH, REPEAT, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.capture.launches import Launches
from monograph.runtime.gpu.capture.partial_graphs import PartialGraphs
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import GraphError
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.capture.replay_models import (
    SIZE,
    Default,
    arena,
    below,
    branch,
    chain,
    double,
    expected,
    flag,
    loop,
    plus_one,
    port,
    running,
    slot,
)
from tests.gpu.fake_driver import FakeDevice, FakeDriver, FakeRecord
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.gpu_models import INTERPRETED
from tests.rules.checks import graph_of, value

SHAPE = (3, 5)


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


def split(
    make: Callable[[FakeDriver], GpuProgram], mode: str = "auto"
) -> tuple[Replay, FakeDriver]:
    """An executable on a driver whose graphs look at no condition."""
    driver = FakeDriver()
    graphs = FakeGraphs(driver, conditionals=False, builds=Default.builds)
    return Replay(make(driver), graphs, mode, tally=RunCounters()), driver


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(("make", "graphs"), [(loop, 2), (branch, 1)])
def test_what_is_around_is_graphs(
    make: Callable[..., GpuProgram],
    graphs: int,
    wrap: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    replay, driver = split(make)
    with caplog.at_level(logging.WARNING, "monograph"):
        for turn in range(1, 5):
            first = 2.0 if turn % 2 else 150.0
            (y,) = replay.run({"x": wrap(np.full(SIZE, first, np.float32))})
            doubled = 128 if make is loop else 4
            other = 150 if make is loop else 151
            assert y.tolist() == [doubled if turn % 2 else other] * SIZE
            assert list(replay.stats["fallbacks"].values()) == [turn]
            assert replay.stats["replays"] == graphs * turn
    assert driver.calls["graph launch"] == 4 * graphs
    assert replay.stats["captures"] == graphs
    assert replay.stats["launches_per_run"] == graphs + 1
    assert [NO_CONDITIONS in r.message for r in caplog.records] == [True]
    strict, driver = split(make, "require")
    with pytest.raises(GraphError, match="conditional nodes"):
        strict.run({"x": torch.ones(SIZE)})
    assert driver.ran == []


def test_a_model_without_conditions_is_one_launch_there_too() -> None:
    replay, _ = split(chain)
    x = torch.ones(SIZE)
    for found, right in zip(replay.run({"x": x}), expected(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), right)
    assert replay.stats["launches_per_run"] == replay.stats["captures"] == 1
    assert replay.stats["fallbacks"] == {}


def test_runs_on_several_streams_wait_for_each_other() -> None:
    """Those whose first piece of work is a branch, too."""
    replay, driver = split(branch)
    x = torch.full((SIZE,), 3.0)
    for stream in (0, 7, 7, 0):
        with driver.using(stream):
            (y,) = replay.run({"x": x})
        assert y.tolist() == [6] * SIZE
    assert replay.executable.device.joined == [0, 7]  # type: ignore[attr-defined]


def test_runs_are_started_and_not_waited_for() -> None:
    replay, _ = split(loop)
    pending = replay.run_async({"x": np.full(SIZE, 3, np.float32)})
    assert pending.result()[0].tolist() == [192] * SIZE


def sides(s: Value) -> tuple[Graph, Graph]:
    return Graph((s,), (("y0", Exp()(s)),)), Graph((s,), (("y0", Mul()(s, s)),))


def chosen(x: Value, condition: str = "c") -> Value:
    s = value("f32[3, 5]", "s")
    (found,) = unpack(If(*sides(s))(value("bool[]", condition), x, x))
    return found


def turned(x: Value, turns: Value) -> Value:
    """Adds so many times a half."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[3, 5]", "s")
    half = constant(np.full(SHAPE, 0.5, np.float32))
    body = Graph((i, go, s), (("go", go), ("y0", Add()(s, half))))
    (found,) = unpack(Loop(body, 1)(turns, constant(np.array(True)), x))
    return found


def around() -> Graph:
    """Work before, a branch, work, a loop, work after."""
    x = value("f32[3, 5]", "x")
    return graph_of(Exp()(turned(Exp()(chosen(Exp()(x))), value("i64[]", "n"))))


def in_a_row() -> Graph:
    """A branch behind a branch, and nothing else."""
    return graph_of(chosen(chosen(value("f32[3, 5]", "x")), "d"))


def counted() -> Graph:
    """A loop of which it is known how often it turns: a graph holds it turn by turn."""
    return graph_of(Exp()(turned(value("f32[3, 5]", "x"), constant(np.int64(3)))))


@INTERPRETED
@pytest.mark.parametrize("make", [around, in_a_row, counted])
def test_inspect_has_told(make: Callable[[], Graph]) -> None:
    graph = make()
    told = launching_of(graph, "gpu:gfx942")
    driver = FakeDriver()
    device = FakeDevice(driver)
    executable = GpuExecutable(compile_for_gpu(graph, device.arch), device)
    graphs = FakeGraphs(driver, conditionals=False, builds=Default.builds)
    replay = Replay(executable, graphs, tally=RunCounters())
    given = {"x": np.full(SHAPE, 0.25, np.float32), "c": np.array(True), "d": np.array(False)}
    given |= {"n": np.array(2)}
    feeds = {name: torch.from_numpy(given[name]) for name in graph.input_names}
    right = [t.clone() for t in executable.run(feeds)]
    for turn in range(1, 3):
        for a, b in zip(replay.run(feeds), right, strict=True):
            assert torch.equal(a, b)
        assert replay.stats["replays"] == turn * len(told.regions)
    stats = replay.stats
    assert stats["captures"] == len(told.regions)
    if not told.host:
        assert stats["fallbacks"] == {}
        assert stats["launches_per_run"] == 1
        return
    ((reason, count),) = stats["fallbacks"].items()
    assert count == 2
    assert reason in told.text


def test_a_failure_in_one_part_is_not_that_of_the_others() -> None:
    """A part that could not be recorded is launched step by step, that time."""
    replay, driver = split(loop)
    driver.fail("instantiate")
    for turn in range(3):
        (y,) = replay.run({"x": torch.full((SIZE,), 2.0)})
        assert y.tolist() == [128] * SIZE, turn
    assert replay.stats["captures"] == 2
    assert replay.stats["fallbacks"]["instantiate fails on purpose"] == 1


def test_a_known_number_of_turns_is_no_condition() -> None:
    def made(driver: FakeDriver) -> GpuProgram:
        nest = LaunchTree(REPEAT, (1,), 3)
        works = [
            (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), arena()]),
            (ConditionalLaunch(nest), [flag()]),
            (FakeRecord(driver, "double", double, 2), [arena(), arena()]),
            (FakeRecord(driver, "plus", plus_one, 2), [arena(), port("output:y")]),
        ]
        nests = (LaunchTree(), nest, LaunchTree(), LaunchTree())
        return running(driver, [slot("x")], [slot("y")], works, nests)

    replay, _ = split(made)
    (y,) = replay.run({"x": torch.ones(SIZE)})
    assert y.tolist() == [17] * SIZE
    assert replay.stats["launches_per_run"] == 1
    assert replay.stats["fallbacks"] == {}


def test_a_part_behind_a_branch_does_not_take_it_again() -> None:
    """A step of the host lies between the branch and the rest."""
    driver, nest = FakeDriver(), LaunchTree(BRANCH, (1, 1))
    works = [
        (FakeRecord(driver, "below", below, 2), [port("input:x"), flag()]),
        (ConditionalLaunch(nest), [flag()]),
        (FakeRecord(driver, "double", double, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "more", plus_one, 2), [arena(), port("output:y")]),
    ]
    nests = (LaunchTree(), nest, LaunchTree(), LaunchTree(), LaunchTree())
    model = running(driver, [slot("x")], [slot("y")], works, nests)
    graphs, tally = FakeGraphs(driver, conditionals=False, builds=Default.builds), RunCounters()
    counts = tally.of(model)
    partial = PartialGraphs(Launches(model, graphs, counts), CapturePolicy("auto", counts, tally))
    y = torch.empty(SIZE)
    memory = {"input:x": torch.full((SIZE,), 3.0), "output:y": y}
    memory = {n: t.view(torch.uint8) for n, t in memory.items()}
    for start, stop, names in ((0, 2, ["below", "double"]), (2, 3, ["more"])):
        driver.ran.clear()
        partial.launch(start, stop, memory, 0)
        driver.drain()
        assert driver.ran == names
    assert y.tolist() == [7] * SIZE
    assert counts.captures == 2
