"""Callers who record a graph of their own: what it cannot hold is refused before it is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.errors import ExecutionError
from monograph.program.memory.schedules import Schedule
from monograph.runtime.gpu import target
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture import order_of
from monograph.session import Session
from tests.gpu import gpu_models as models
from tests.gpu.capture.replay_models import SIZE, FakeRecord, port, replayed, running, slot, some
from tests.gpu.fake_driver import FakeDevice, FakeDriver, numbers
from tests.gpu.fake_graphs import FakeGraphs

STREAM = 5


@contextmanager
def refused(driver: FakeDriver, match: str) -> Iterator[None]:
    """A run that has to fail, in a recording that nothing may become part of."""
    graphs = FakeGraphs(driver)
    graphs.begin(STREAM)
    try:
        with driver.using(STREAM), pytest.raises(ExecutionError, match=match):
            yield
        assert graphs.recorded(STREAM) == []
        graphs.end(STREAM)  # it is not spoilt
    finally:
        graphs.abort(STREAM)


def both(driver: FakeDriver) -> GpuProgram:
    """y = x + x2."""

    def add(words: list[int]) -> None:
        numbers(words[2], SIZE)[:] = numbers(words[0], SIZE) + numbers(words[1], SIZE)

    places = [port("input:x"), port("input:x2"), port("output:y")]
    return running(
        driver, [slot("x"), slot("x2")], [slot("y")], [(FakeRecord(driver, "add", add, 3), places)]
    )


@pytest.mark.parametrize("first", [True, False], ids=["first run", "later"])
def test_arrays_beside_tensors(first: bool) -> None:
    replay, driver = replayed(both)
    x, array = some(), np.ones(SIZE, np.float32)
    if not first:
        replay.run({"x": x, "x2": some(1)})
    with refused(driver, "caller's graph"):
        replay.run({"x": x, "x2": array})
    with refused(driver, "caller's graph"):
        replay.run({"x": x, "x2": x}, {"y": array})
    assert replay.stats["caller_captures"] == 0
    assert replay.stats["staged_copies"] == {}


def made_up(driver: FakeDriver) -> GpuProgram:
    """y = 7, of nothing."""

    def seven(words: list[int]) -> None:
        numbers(words[0], SIZE)[:] = 7

    works = [(FakeRecord(driver, "seven", seven, 1), [port("output:y")])]
    return running(driver, [], [slot("y")], works)


def test_a_model_without_inputs_is_given_tensors_for_its_outputs() -> None:
    replay, driver = replayed(made_up)
    with refused(driver, "arrays of the host"):
        replay.run({})
    mine, graphs = torch.zeros(SIZE), FakeGraphs(driver)
    graphs.begin(STREAM)
    with driver.using(STREAM):
        replay.run({}, {"y": mine})
    graphs.launch(graphs.instantiate(graphs.end(STREAM)), STREAM)
    assert mine.tolist() == [7] * SIZE


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Session, FakeDriver]]:
    def made(model: Any, **options: Any) -> tuple[Session, FakeDriver]:
        driver = FakeDriver()
        device = FakeDevice(driver, FakeGraphs(driver, builds=True))
        with monkeypatch.context() as patch:
            patch.setattr(target, "open_device", lambda _: device)
            session = monograph.load(model, target="gpu:interpreter", cache_dir="", **options)
        return session, driver

    return made


@models.INTERPRETED
def test_new_shapes_are_for_before(load: Callable[..., tuple[Session, FakeDriver]]) -> None:
    """Memory that is made and filled while a caller records would be filled by their graph."""
    session, driver = load(models.linear())
    x = torch.ones(2, 33)
    with refused(driver, "new shapes"):
        session.run({"x": x})
    assert session.stats["compiled"] == 0
    (right,) = session.run({"x": x})
    graphs = FakeGraphs(driver)
    graphs.begin(STREAM)
    with driver.using(STREAM):
        (found,) = session.run({"x": x})
        with pytest.raises(ExecutionError, match="new shapes"):
            session.run({"x": torch.ones(3, 33)})
    graphs.launch(graphs.instantiate(graphs.end(STREAM)), STREAM)
    assert torch.equal(found, right)


@models.INTERPRETED
def test_sizes_that_data_decide(load: Callable[..., tuple[Session, FakeDriver]]) -> None:
    session, driver = load(models.cut())
    feeds = {"x": torch.arange(6.0), "count": torch.tensor([4])}
    (right,) = session.run(feeds)
    with refused(driver, "sizes data decide"):
        session.run(feeds)
    (found,) = session.run(feeds)
    np.testing.assert_array_equal(found, right)


def test_the_order_of_launches_is_that_of_their_works_or_stated_or_one_by_one() -> None:
    """A package has no works and states the order; a part of a run has neither for its launches."""

    def order(launches: int, works: int = 0, streams: tuple[int, ...] = ()) -> Schedule:
        bound = [SimpleNamespace(stream=i % 2, waits=(0,) * (i > 1), position=i)
                 for i in range(works)]  # fmt: skip
        waits = ((),) * len(streams)
        layout = SimpleNamespace(streams=streams, waits=waits)
        made: Any = SimpleNamespace(records=[None] * launches, works=bound, layout=layout)
        return order_of(made)

    assert order(3, works=3).stream == (0, 1, 0)
    assert order(3, works=3, streams=(0, 1, 2)).waits == ((), (), (0,))
    assert order(3, streams=(0, 1, 2)).stream == (0, 1, 2)
    assert order(3, works=5, streams=(0, 1, 2)).stream == (0, 1, 2)
    for part in (order(3), order(3, works=5), order(3, works=5, streams=(0, 1, 0, 1))):
        assert part.stream == (0, 0, 0)
        assert part.before == (0, 1, 3)
