"""The order of what graphs with branches and loops hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from monograph.program.memory.schedules import Schedule
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture import Recorder
from monograph.runtime.gpu.capture.control import REPEAT, ConditionalLaunch, LaunchTree
from tests.gpu.capture.replay_models import (
    arena,
    branch,
    double,
    flag,
    plus_one,
    port,
    running,
    slot,
)
from tests.gpu.fake_driver import FakeDriver, FakeRecord
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.faults.models import fake_models


def in_two_streams(count: int) -> Schedule:
    """Launches by turns in two streams, none of which waits for the other."""
    return Schedule(tuple(i % 2 for i in range(count)), ((),) * count, (0,) * count)


@pytest.mark.parametrize(("make", "streams"), [(branch, 2), (fake_models.decided, 1)])
def test_what_libraries_do_inside_bodies_shares_its_memory(make: Any, streams: int) -> None:
    """So no two of them may run side by side; kernels of our own may."""
    driver = FakeDriver()
    executable = make(driver)
    order = in_two_streams(len(executable.records))
    recorder = Recorder(executable, FakeGraphs(driver, builds=True), order)
    assert recorder.order.streams == streams


def without_turns(driver: FakeDriver) -> GpuProgram:
    """y = 2 (x + 1), and between the two a loop of no turns."""
    nest = LaunchTree(REPEAT, (1,), 0)
    works = [
        (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), arena()]),
        (ConditionalLaunch(nest), [flag()]),
        (FakeRecord(driver, "never", plus_one, 2), [arena(), arena()]),
        (FakeRecord(driver, "double", double, 2), [arena(), port("output:y")]),
    ]
    return running(
        driver, [slot("x")], [slot("y")], works, (LaunchTree(), nest, LaunchTree(), LaunchTree())
    )


def test_nothing_waits_twice_for_what_is_before_a_loop_of_no_turns() -> None:
    driver = FakeDriver()
    executable = without_turns(driver)
    # The loop is in a stream of its own, and the last launch waits for both.
    order = Schedule((0, 1, 0), ((), (0,), (1,)), (0, 1, 3))
    ports = {
        name: torch.zeros(1 << 12, dtype=torch.uint8) for name, *_ in executable.port_arguments
    }
    taken = Recorder(executable, FakeGraphs(driver, builds=True), order).record(ports)
    assert [len(taken.nodes[i]) for i in range(3)] == [1, 0, 1]
    taken.graph.close()
