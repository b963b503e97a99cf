"""Pinned memory whose owner goes while the device uses it: put aside, until that is done."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import GraphError
from monograph.runtime.gpu.host_io import pinned_staging
from monograph.runtime.gpu.host_io.pinned_staging import (
    IDLE,
    LAUNCHED,
    MARKED,
    StagingBuffer,
    free_finished,
)
from tests.gpu.capture.replay_models import expected, replayed, some
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.host_io.test_pinned_staging import layout_of


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    gc.collect()
    before = list(pinned_staging._DEFERRED)
    yield
    gc.collect()
    assert before == pinned_staging._DEFERRED


class Held:
    """Something that the device reads, in the place of an array."""


def staging(graphs: FakeGraphs, state: int) -> tuple[StagingBuffer, weakref.ref[Any]]:
    """A staging buffer of which the device makes some use, and what it holds."""
    made, held = StagingBuffer(layout_of((5,)), graphs), Held()
    made.use.held = {"x": held}
    made.use.state = state
    made.user = made  # type: ignore[assignment]  # as by a run: it goes in a collection
    return made, weakref.ref(held)


def test_what_is_in_use_stays_with_all_that_is_read() -> None:
    driver = FakeDriver()
    graphs = FakeGraphs(driver)
    made, held = staging(graphs, MARKED)
    driver.lazy = True
    graphs.record(made.event, 0)
    del made
    gc.collect()
    free_finished(graphs)
    assert held() is not None
    assert driver.live["event"] == 1
    driver.drain()
    graphs.begin(0)
    free_finished(graphs)  # a caller who records is not disturbed
    assert held() is not None
    graphs.abort(0)
    free_finished(FakeGraphs(driver))  # another device's
    assert held() is not None
    free_finished(graphs)
    assert held() is None
    assert driver.leaks() == {}


def test_what_is_idle_goes_at_once() -> None:
    driver = FakeDriver()
    made, held = staging(FakeGraphs(driver), IDLE)
    del made
    gc.collect()
    assert held() is None
    assert driver.leaks() == {}


def test_nothing_is_asked_of_the_driver_where_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may be freed in a collection, in any thread, while somebody records."""
    driver = FakeDriver()
    graphs = FakeGraphs(driver)
    made, held = staging(graphs, MARKED)
    for name in ("done", "finish", "record", "event", "capturing_now"):
        monkeypatch.setattr(graphs, name, None)
    del made
    gc.collect()
    assert held() is not None
    monkeypatch.undo()
    free_finished(graphs)
    assert held() is None


def test_a_forked_child_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    made, held = staging(FakeGraphs(driver), LAUNCHED)
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    del made
    gc.collect()
    assert held() is None
    assert driver.leaks() == {"event": 1}, "it is the parent's"


def test_a_forked_child_leaves_alone_what_was_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    graphs = FakeGraphs(driver)
    made, held = staging(graphs, MARKED)
    del made
    gc.collect()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    free_finished(graphs)
    assert held() is not None
    monkeypatch.undo()
    free_finished(graphs)
    assert held() is None


def test_a_device_that_failed_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = FakeGraphs(FakeDriver())
    made, held = staging(graphs, MARKED)
    del made
    gc.collect()

    def fails(event: Any) -> bool:
        raise GraphError("the device failed")

    monkeypatch.setattr(graphs, "done", fails)
    free_finished(graphs)
    assert held() is not None
    monkeypatch.undo()
    free_finished(graphs)
    assert held() is None


def launched_once(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the next run on arrays fail right behind its launch."""

    def fails(*_: Any) -> None:
        monkeypatch.undo()
        raise GraphError("record fails")

    monkeypatch.setattr(replay.graphs, "record", fails)
    with pytest.raises(GraphError, match="record fails"):
        replay.run_async({"x": some(1).numpy()})


def test_a_launch_that_may_have_been_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run would write its inputs where that one still reads."""
    replay, driver = replayed()
    replay.run({"x": some().numpy()})
    driver.lazy = True
    launched_once(replay, monkeypatch)
    assert driver._queue == []
    assert len(replay._ring._buffers) == 1
    assert replay._ring._lost == []
    pending = replay.run_async({"x": some(2).numpy()})
    np.testing.assert_array_equal(pending.result(), expected(some(2)))


def test_a_launch_that_cannot_be_waited_for_keeps_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay, driver = replayed()
    replay.run({"x": some().numpy()})
    driver.lazy = True
    driver.fail("finish")
    launched_once(replay, monkeypatch)
    (lost,) = replay._ring._lost
    assert lost not in replay._ring._buffers
    assert driver._queue, "the device is at work"
    pending = replay.run_async({"x": some(2).numpy()})
    assert replay._ring._buffers[0] is not lost
    np.testing.assert_array_equal(pending.result(), expected(some(2)))
    lost.release()
