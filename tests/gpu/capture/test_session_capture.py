"""Sessions that capture: on a device whose driver records, and without one."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import monograph
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.runtime.counts import DATA_DECIDE
from monograph.runtime.gpu import target
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.replay import Replay
from monograph.session import Session
from tests.gpu import gpu_models as models
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

pytestmark = models.INTERPRETED
Load = Callable[..., tuple[Session, FakeDriver]]


class Recording(FakeDevice):
    """The interpreter with a driver that has graphs."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(driver)
        self.graphs = FakeGraphs(driver, builds=True)

    def synchronise(self) -> None:
        self.fake.drain()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    def made(model: onnx.ModelProto, **options: Any) -> tuple[Session, FakeDriver]:
        driver = FakeDriver()
        with monkeypatch.context() as patch:
            patch.setattr(target, "open_device", lambda _: Recording(driver))
            session = monograph.load(model, target="gpu:interpreter", cache_dir="", **options)
        return session, driver

    return made


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 33)).astype(np.float32)


def eagerly(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return monograph.load(model, target="gpu:interpreter", cache_dir="", capture="off").run(feeds)


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_runs_are_captured_once_and_replayed(load: Load, wrap: Any) -> None:
    session, driver = load(models.linear())
    for seed in range(4):
        x = rows(3, seed)
        (found,) = session.run({"x": wrap(x)})
        assert isinstance(found, type(wrap(x)))
        np.testing.assert_array_equal(found, eagerly(models.linear(), {"x": x})[0])
    stats = session.stats
    assert stats["captures"] == 1
    assert stats["replays"] == stats["runs"] == 4
    assert stats["launches_per_run"] == 1
    assert stats["staged_copies"] == stats["fallbacks"] == {}
    assert driver.calls["graph launch"] == 4


def test_later_runs_check_nothing_twice(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = load(models.linear())
    x, y = torch.from_numpy(rows(3)), torch.from_numpy(rows(3, 1))
    (right,) = session.run({"x": x})
    session.run({"x": x.numpy()})

    def fail(*_: Any) -> None:
        raise AssertionError("checked again")

    for name in ("_run_checked", "_begin"):
        monkeypatch.setattr(session, name, fail)
    monkeypatch.setattr(session._known, "_run_known", fail)
    assert torch.equal(session.run({"x": x})[0], right)
    np.testing.assert_array_equal(session.run({"x": x.numpy()})[0], right)
    for fed in (x, x.numpy()):
        np.testing.assert_array_equal(session.run_async({"x": fed}).result()[0], right)
    assert not torch.equal(session.run({"x": y})[0], right)


def test_two_shapes_alternate(load: Load) -> None:
    session, _ = load(models.linear())
    for count in (2, 3, 2, 3, 3, 2):
        x = rows(count, count)
        (found,) = session.run({"x": torch.from_numpy(x)})
        np.testing.assert_array_equal(found, eagerly(models.linear(), {"x": x})[0])
    assert session.stats["captures"] == 2
    with pytest.raises(FeedError, match="rank 2"):
        session.run({"x": torch.zeros(33)})
    with pytest.raises(FeedError, match="expected f32"):
        session.run({"x": torch.zeros(2, 33, dtype=torch.float64)})
    with pytest.raises(FeedError, match="no such input"):
        session.run({"x": torch.zeros(2, 33), "z": torch.zeros(1)})


def test_shapes_that_are_dropped_free_their_graphs_and_stay_counted(load: Load) -> None:
    session, driver = load(models.linear(), max_cached_shapes=2)
    for count in range(1, 9):
        session.run({"x": torch.from_numpy(rows(count))})
    assert driver.live["graph"] == driver.live["executable"] == 2  # without a collection
    stats = session.stats
    assert stats["compiled"] == 2
    assert stats["captures"] == stats["replays"] == 8
    del session
    gc.collect()
    assert driver.leaks() == {}


def test_off_is_the_plain_path(load: Load) -> None:
    session, driver = load(models.linear(), capture="off")
    x = rows(3)
    for fed in (x, torch.from_numpy(x)):
        np.testing.assert_array_equal(
            session.run({"x": fed})[0], eagerly(models.linear(), {"x": x})[0]
        )
    assert isinstance(session.executable({"x": x}), GpuProgram)
    assert driver.calls["graph launch"] == 0
    stats = session.stats
    assert stats["captures"] == stats["replays"] == 0
    assert stats["fallbacks"] == {}
    (found,) = session.run_async({"x": torch.from_numpy(x)}).result()
    np.testing.assert_array_equal(found, eagerly(models.linear(), {"x": x})[0])


def test_a_failed_capture_falls_back(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    session, driver = load(models.linear())
    driver.fail("instantiate")
    x = rows(2)
    with caplog.at_level(logging.WARNING, "monograph"):
        (found,) = session.run({"x": x})
    np.testing.assert_array_equal(found, eagerly(models.linear(), {"x": x})[0])
    assert session.stats["fallbacks"] == {"instantiate fails on purpose": 1}
    assert sum("instantiate fails" in r.message for r in caplog.records) == 1
    session.run({"x": x})
    assert session.stats["captures"] == 1
    strict, driver = load(models.linear(), capture="require")
    driver.fail("instantiate")
    with pytest.raises(ExecutionError, match="instantiate fails on purpose"):
        strict.run({"x": x})
    strict.run({"x": x})
    assert strict.stats["captures"] == 1


def test_without_graphs_runs_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def opened(**options: Any) -> Session:
        return monograph.load(models.linear(), target="gpu:interpreter", cache_dir="", **options)

    session = opened()
    with caplog.at_level(logging.WARNING, "monograph"):
        for count in (2, 3, 2):
            session.run({"x": rows(count)})
            session.run_async({"x": torch.from_numpy(rows(count))}).result()
    reason = "Triton's interpreter has no graphs"
    assert session.stats["fallbacks"] == {reason: 6}
    assert sum(reason in r.message for r in caplog.records) == 1
    with pytest.raises(ExecutionError, match="cannot be captured"):
        opened(capture="require").run({"x": rows(2)})
    with pytest.raises(ConfigError, match="no such capture"):
        opened(capture="always")
    with pytest.raises(ConfigError, match="no streams"):
        session.run_async({"x": rows(2)}, stream=3)


def test_what_lies_between_steps_of_the_host_is_captured(load: Load) -> None:
    session, driver = load(models.sequences())
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
        right = eagerly(models.sequences(), {"x": x})[0]
        np.testing.assert_array_equal(session.run({"x": x})[0], right)
        (found,) = session.run({"x": torch.from_numpy(x)})
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found, right)
    stats = session.stats
    assert stats["captures"] == stats["launches_per_run"] == 2
    assert stats["replays"] == driver.calls["graph launch"] == 12
    (reason,) = stats["fallbacks"]
    assert reason.startswith("the host takes part in a run")
    assert stats["fallbacks"][reason] == 6
    with pytest.raises(ExecutionError, match="the host takes part"):
        load(models.sequences(), capture="require")[0].run({"x": x})


def test_stages_are_captured_each(load: Load) -> None:
    session, driver = load(models.cut())
    x = np.arange(6, dtype=np.float32)
    for count in (2, 5, 2, 5):
        (found,) = session.run({"x": x, "count": np.array([count])})
        np.testing.assert_allclose(found, 2 * np.exp(x[:count]), rtol=1e-6)
    assert session.stats["captures"] == 3
    assert session.stats["replays"] == driver.calls["graph launch"] == 8
    ((reason, count),) = session.stats["fallbacks"].items()
    assert count == 4
    assert reason.startswith(DATA_DECIDE)
    with pytest.raises(ExecutionError, match="data decide sizes"):
        load(models.cut(), capture="require")[0].run({"x": x, "count": np.array([1])})


def test_arrays_may_change_as_soon_as_run_async_returns(load: Load) -> None:
    session, driver = load(models.linear())
    session.run({"x": rows(3)})
    driver.lazy = True
    x = rows(3, 1)
    pending = session.run_async({"x": x})
    assert not pending.done()
    x[:] = 0
    others = [session.run_async({"x": rows(3, seed)}) for seed in (2, 3, 4, 5)]
    for seed, one in enumerate((pending, *others), 1):
        right = eagerly(models.linear(), {"x": rows(3, seed)})[0]
        np.testing.assert_array_equal(one.result()[0], right)
    assert pending.done()


def test_outputs_stay_while_later_runs_go_on(load: Load) -> None:
    session, driver = load(models.linear())
    session.run({"x": torch.from_numpy(rows(3))})
    driver.lazy = True
    inputs = [torch.from_numpy(rows(3, seed)) for seed in range(6)]
    runs = [session.run_async({"x": x}) for x in inputs]
    place = torch.empty(3, 20)
    last = session.run_async({"x": inputs[0]}, out={"y": place})
    assert not runs[0].done()
    driver.drain()
    assert runs[0].done()
    for x, pending in zip(inputs, runs, strict=True):
        right = eagerly(models.linear(), {"x": x.numpy()})[0]
        np.testing.assert_array_equal(pending.result()[0], right)
    assert last.result()[0] is place
    np.testing.assert_array_equal(place, runs[0].result()[0])
    assert session.stats["captures"] == 1


def test_a_run_on_another_stream_leaves_the_current_one(load: Load) -> None:
    session, driver = load(models.linear())
    x = torch.from_numpy(rows(2))
    (right,) = session.run({"x": x})
    pending = session.run_async({"x": x}, stream=7)
    assert driver.current == 0
    assert torch.equal(pending.result()[0], right)
    device = session.gpu.device  # type: ignore[union-attr]
    assert device.joined == [0]
    assert 7 in device.graphs.marked


def test_a_run_on_another_stream_is_not_checked_again(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, driver = load(models.linear())
    x = torch.from_numpy(rows(2))
    (right,) = session.run({"x": x})
    monkeypatch.setattr(session, "_begin", None)  # what checks feeds
    for stream in (7, 7, 0, None):
        assert torch.equal(session.run_async({"x": x}, stream=stream).result()[0], right)
        assert driver.current == 0


def total() -> onnx.ModelProto:
    """present = past + x, written over past; and ten times x."""
    nodes = [
        helper.make_node("Add", ["past", "x"], ["present"]),
        helper.make_node("MatMul", ["x", "W"], ["y"]),
    ]
    inputs: Any = {"past": (models.FLOAT, [1, 8]), "x": (models.FLOAT, [1, 8])}
    outputs: Any = {"present": (models.FLOAT, [1, 8]), "y": (models.FLOAT, [1, 8])}
    return models.model(nodes, inputs, outputs, {"W": 10 * np.eye(8, dtype=np.float32)})


@pytest.mark.parametrize("later", [False, True])
def test_state_advances_once_in_every_run(load: Load, later: bool) -> None:
    session, driver = load(total(), donate={"present": "past"})
    mine = state = torch.zeros(1, 8)
    for turn in range(1, 5):
        feeds = {"past": state, "x": torch.ones(1, 8)}
        found = session.run_async(feeds).result() if later else session.run(feeds)
        assert turn == 1 or found[0] is state
        state = found[0]
        assert state.tolist() == [[turn] * 8]
        assert found[1].tolist() == [[10] * 8]
    assert not mine.any()
    assert session.stats["captures"] == 1
    assert session.stats["replays"] == driver.calls["graph launch"] == 4
    assert session.stats["donation_copies"] == 1


def test_state_is_quick_too(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = load(total(), donate={"present": "past"})
    feeds = {"past": torch.zeros(1, 8), "x": torch.ones(1, 8)}
    state, _ = session.run(feeds)
    monkeypatch.setattr(session, "_begin", None)
    after, y = session.run(feeds | {"past": state})
    assert after is state
    assert after.tolist() == [[2] * 8]
    assert y.tolist() == [[10] * 8]
    after, _ = session.run_async(feeds | {"past": state}).result()
    assert after is state
    assert after.tolist() == [[3] * 8]


def test_state_with_a_place_is_quick_too(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who holds the state names its place in every run."""
    session, _ = load(total(), donate={"present": "past"})
    state = torch.zeros(1, 8)
    feeds, out = {"past": state, "x": torch.ones(1, 8)}, {"present": state}
    session.run(feeds, out=out)
    monkeypatch.setattr(Session, "_begin", lambda *_: pytest.fail("checked twice"))
    assert session.run(feeds, out=out)[0] is state
    assert session.run_async(feeds, out=out).result()[0] is state
    assert state.tolist() == [[3] * 8]


def test_state_among_the_inputs_is_not_quick(load: Load) -> None:
    """State that a run writes over is not read as another input."""
    session, _ = load(total(), donate={"present": "past"})
    state, _ = session.run({"past": torch.zeros(1, 8), "x": torch.ones(1, 8)})
    with pytest.raises(FeedError, match="lies in the memory of the input"):
        session.run({"past": state, "x": state})


def test_a_caller_who_records(load: Load) -> None:
    session, driver = load(models.linear())
    graphs = session.gpu.device.graphs  # type: ignore[union-attr]
    x = torch.from_numpy(rows(2))
    (right,) = session.run({"x": x})
    graphs.begin(5)
    with driver.using(5):
        (found,) = session.run({"x": x})
        with pytest.raises(ExecutionError, match="arrays of the host"):
            session.run({"x": x.numpy()})
    graph = graphs.end(5)
    assert session.stats["caller_captures"] == 1
    found.zero_()
    graphs.launch(graphs.instantiate(graph), 0)
    assert torch.equal(found, right)


class Foreign:
    """Data of a library that knows DLPack and nothing else of ours."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def test_tensors_of_other_libraries(load: Load) -> None:
    session, _ = load(models.linear())
    x = torch.from_numpy(rows(2))
    right = session.run({"x": x})[0]
    for fed in (Foreign(x), torch.utils.dlpack.to_dlpack(x)):
        (found,) = session.run({"x": fed})
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, right)
    assert torch.equal(session.run_async({"x": Foreign(x)}).result()[0], right)
    assert session.stats["captures"] == 1


def test_no_memory_for_outputs(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session, driver = load(models.linear())
    x = torch.from_numpy(rows(2))
    (right,) = session.run({"x": x})

    def none_left(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    with monkeypatch.context() as patch:
        for name in ("empty", "empty_strided"):
            patch.setattr(torch, name, none_left)
        with pytest.raises(ExecutionError, match="not enough memory") as caught:
            session.run({"x": x})
    assert "3 GiB" in str(caught.value)
    assert torch.equal(session.run({"x": x})[0], right)
    assert driver.calls["graph launch"] == 2


def test_a_thread_that_is_new_gets_a_context(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = load(models.linear())
    right = session.run({"x": rows(2)})[0]
    entered: list[int] = []

    def active(_: Any) -> AbstractContextManager[None]:
        entered.append(threading.get_ident())
        return nullcontext()

    monkeypatch.setattr(Recording, "active", active)
    found: list[Any] = []
    pending = session.run_async({"x": rows(2)})
    thread = threading.Thread(target=lambda: found.append(pending.result()[0]))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], right)
    assert entered == [thread.ident]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sessions_are_not_copied(load: Load, way: Callable[[Any], Any]) -> None:
    session, _ = load(models.linear())
    with pytest.raises(ExecutionError, match="neither copied nor pickled"):
        way(session)


def test_a_forked_child_is_told(load: Load) -> None:
    session, _ = load(models.linear())
    for fed in (rows(2), torch.from_numpy(rows(2))):
        session.run({"x": fed})
        executable: Any = session.executable({"x": fed})
        assert isinstance(executable, Replay)
        process, executable._launches.process = executable._launches.process, -1
        with pytest.raises(ExecutionError, match="forked"):
            session.run({"x": fed})
        executable._launches.process = process
