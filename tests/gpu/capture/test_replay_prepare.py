"""Launches before a recording, on scratch memory: they change nothing."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from monograph.runtime.counts import RunCounters
from monograph.runtime.gpu.bound_program import DeviceFaultText, GpuLayout, GpuProgram
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.captured_graph import GraphBuilder
from monograph.runtime.gpu.capture.launches import Launches
from monograph.runtime.gpu.capture.partial_graphs import PartialGraphs
from monograph.runtime.gpu.capture.replay import Replay
from tests.gpu.capture.replay_models import (
    SIZE,
    arena,
    double,
    expected,
    kept,
    plus_one,
    port,
    running,
    slot,
    some,
)
from tests.gpu.fake_driver import FakeDevice, FakeDriver, FakeLibrary, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs


def library(driver: FakeDriver, name: str, run: Any, arguments: int) -> FakeLibrary:
    """A kernel that is launched as a library would."""

    def call(words: list[int], stream: int) -> None:
        driver.launch(stream, name, run, [w.to_bytes(8, "little") for w in words])

    return FakeLibrary(call, arguments)


def draw(words: list[int]) -> None:
    """The next number of a state."""
    numbers(words[0], 1)[:] += 1
    numbers(words[1], SIZE)[:] = numbers(words[0], 1)[0]


def drawing(driver: FakeDriver) -> GpuProgram:
    """y is drawn by a library from a state that the executable holds."""
    work = library(driver, "draw", draw, 2)
    places = (port("input:state"), port("output:y"))
    layout = GpuLayout((), (slot("y"),), (places,), 1024, 256, (), ())
    held = {"state": torch.zeros(4)}
    device, block = FakeDevice(driver), np.zeros(1, np.uint8)
    return GpuProgram(layout, lambda: [work], device, block, held=held)


def test_a_state_advances_once_in_the_first_run_too() -> None:
    driver = FakeDriver()
    replay = Replay(drawing(driver), FakeGraphs(driver))
    drawn = [float(replay.run({}, {"y": torch.empty(SIZE)})[0][0]) for _ in range(3)]
    assert drawn == [1, 2, 3]
    assert replay.stats["captures"] == 1
    assert replay.stats["replays"] == 3


def nonzero(words: list[int]) -> None:
    """Copies numbers, and notes where the first is nought."""
    data = numbers(words[0], SIZE)
    numbers(words[1], SIZE)[:] = data
    if data[0] == 0:
        ctypes.c_int64.from_address(words[2]).value = 1


def test_what_scratch_numbers_do_wrong_is_no_fault_of_the_callers() -> None:
    driver = FakeDriver()
    places = [port("input:x"), port("output:y"), kept()]
    works = [(library(driver, "nonzero", nonzero, 3), places)]
    fault = DeviceFaultText("a number is nought", "", "", "Check", 0)
    model = running(driver, [slot("x")], [slot("y")], works, faults=(fault,))
    replay = Replay(model, FakeGraphs(driver))
    x = torch.ones(SIZE)
    (found,) = replay.run({"x": x})
    assert torch.equal(found, x)
    assert driver.ran.count("nonzero") == 2, "it was launched on scratch memory before"


@pytest.mark.parametrize("builds", [True, False], ids=["built", "recorded"])
def test_a_partial_graph_finds_what_the_one_before_has_left(builds: bool) -> None:
    """A library's launch writes where an earlier one of the same graph has still to read."""
    driver = FakeDriver()
    works = [
        (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "double", double, 2), [arena(), port("output:y")]),
        (library(driver, "more", plus_one, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "more", plus_one, 2), [arena(), port("output:z")]),
    ]
    model = running(driver, [slot("x")], [slot("y"), slot("z")], works)
    graphs, tally = FakeGraphs(driver, builds=builds), RunCounters()
    counts = tally.of(model)
    launches = Launches(model, graphs, counts)
    partial = PartialGraphs(launches, CapturePolicy("require", counts, tally))
    x, y, z = some(), torch.empty(SIZE), torch.empty(SIZE)
    ports = {"input:x": x, "output:y": y, "output:z": z}
    memory = {n: t.view(torch.uint8) for n, t in ports.items()}
    for start, stop in ((0, 1), (1, 4)):
        partial.launch(start, stop, memory, 0)
    for found, right in zip((y, z), expected(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), right)
    assert counts.captures == 2


def test_scratch_memory_is_launched_on_once() -> None:
    """A second graph of the same launches finds them prepared."""
    driver = FakeDriver()
    works = [(library(driver, "more", plus_one, 2), [port("input:x"), port("output:y")])]
    maker = GraphBuilder(running(driver, [slot("x")], [slot("y")], works), FakeGraphs(driver))
    ports = {"input:x": some(), "output:y": torch.empty(SIZE)}
    memory = {n: t.view(torch.uint8) for n, t in ports.items()}
    for _ in range(2):
        maker.prepare(memory)
    driver.drain()
    assert driver.ran == ["more"]
