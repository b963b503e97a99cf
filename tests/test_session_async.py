"""Runs that are not waited for, and the words of capture, on targets without a GPU."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph import calls
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.runtime.counts import DATA_DECIDE
from monograph.session import Session
from tests.test_donation import cache_model, step
from tests.test_session import affine, feeds, model_of

Load = Callable[..., Session]
WORDS = ("captures", "replays", "rebinds", "staged_copies", "fallbacks", "launches_per_run")


@pytest.fixture(params=["cpu", "reference"])
def load(request: pytest.FixtureRequest) -> Load:
    def made(model: onnx.ModelProto | None = None, **options: Any) -> Session:
        return monograph.load(model or affine(), target=request.param, cache_dir="", **options)

    return made


def strings() -> onnx.ModelProto:
    """2x, and whether words are equal."""
    return model_of(
        [
            helper.make_node("Add", ["x", "x"], ["y"], "twice"),
            helper.make_node("StringConcat", ["a", "a"], ["b"], "words"),
        ],
        [("x", TensorProto.FLOAT, [3]), ("a", TensorProto.STRING, [1])],
        [("y", TensorProto.FLOAT, [3]), ("b", TensorProto.STRING, [1])],
    )


def nonzero() -> onnx.ModelProto:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Add", ["at", "at"], ["y"]),
    ]
    return model_of(nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.INT64, [1, "k"])])


class Held:
    """Lets runs of a session begin only when asked to."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        plain = session._run_checked

        def waiting(*given: Any) -> Any:
            assert self.gate.wait(60)
            return plain(*given)

        monkeypatch.setattr(session, "_run_checked", waiting)


def test_arrays_may_change_as_soon_as_it_returns(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load()
    held = Held(session, monkeypatch)
    fed = feeds()
    pending = session.run_async(fed)
    assert not pending.done()
    fed["x"][:] = 9
    held.gate.set()
    y, same = pending.result()
    assert pending.done()
    assert y.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert same.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert pending.result()[0] is y


def test_runs_come_one_after_the_other(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    session = load()
    held = Held(session, monkeypatch)
    x = np.ones((2, 3), np.float32)
    y = np.empty((2, 3), np.float32)
    b = np.zeros((2, 1), np.float32)
    runs = [session.run_async({"x": x * i, "b": b}, out={"y": y}) for i in range(4)]
    threading.Timer(0.01, held.gate.set).start()
    # A plain run waits for those before it: the last one to write is the last that was asked for.
    session.run({"x": x * 7, "b": b}, out={"y": y})
    assert y.tolist() == [[7, 14, 21]] * 2
    assert all(r.done() for r in runs)
    assert runs[0].result()[0] is y
    assert runs[2].result()[1].tolist() == [[2, 2, 2]] * 2


def test_threads_that_begin_at_once_share_a_worker(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers would make runs of one session at the same time, over the same memory."""
    made = []
    both = threading.Barrier(2)

    class Slow(calls.Worker):
        def __init__(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                both.wait(60)
            made.append(self)
            super().__init__()

    monkeypatch.setattr(calls, "Worker", Slow)
    session = load()
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(session.run_async, [feeds(), feeds()]))
    for pending in runs:
        assert pending.result()[0].tolist() == [[1, 2, 3]] * 2
    assert len(made) == 1


def test_outputs_stay_while_later_runs_go_on(load: Load) -> None:
    session = load()
    runs = [session.run_async({**feeds(), "b": np.full((2, 1), i, "f4")}) for i in range(5)]
    for i, pending in enumerate(runs):
        assert pending.result()[0].tolist() == [[1 + i, 2 + i, 3 + i]] * 2


def test_what_is_wrong_is_told_at_once(load: Load) -> None:
    session = load()
    with pytest.raises(FeedError, match="missing"):
        session.run_async({"x": np.ones((2, 3), np.float32)})
    with pytest.raises(FeedError, match="expected the shape"):
        session.run_async(feeds(), out={"y": np.empty((2, 4), np.float32)})
    with pytest.raises(FeedError, match="mapping"):
        session.run_async([1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="only a GPU has streams"):
        session.run_async(feeds(), stream=3)


def test_an_error_comes_with_the_result(load: Load) -> None:
    node = helper.make_node("Gather", ["table", "at"], ["y"], "row")
    table = helper.make_tensor("table", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    ports = [("at", TensorProto.INT64, [1])], [("y", TensorProto.FLOAT, [1])]
    session = load(model_of([node], *ports, [table]))
    wrong, right = (session.run_async({"at": np.array([i])}) for i in (7, 2))
    for _ in range(2):
        with pytest.raises(ExecutionError, match="row"):
            wrong.result()
    assert right.result()[0].tolist() == [3]


def test_state_is_written_in_place(load: Load) -> None:
    session = load(cache_model(), donate={"present": "past"})
    right = state = np.zeros((2, 16, 4), np.float32)
    mine = state
    for turn, position in enumerate((3, 9, 3)):
        right = monograph.load(cache_model(), target="reference").run(step(right, position))[0]
        after, _ = session.run_async(step(state, position)).result()
        assert turn == 0 or after is state
        state = after
        np.testing.assert_array_equal(state, right)
    assert not mine.any()
    session.run_async(step(mine, 1), out={"present": mine}).result()
    assert mine.any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_worker_of_its_own(load: Load) -> None:
    session = load()
    session.run_async(feeds()).result()
    child = os.fork()
    if child == 0:
        fine = session.run_async(feeds()).result()[0].tolist() == [[1, 2, 3]] * 2
        fine = fine and session.run(feeds())[0].tolist() == [[1, 2, 3]] * 2
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sessions_are_not_copied(load: Load, way: Callable[[Any], Any]) -> None:
    with pytest.raises(ExecutionError, match="neither copied nor pickled"):
        way(load())


class Foreign:
    """Data of a library that knows DLPack and nothing else of ours."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


def test_arrays_of_other_libraries(load: Load) -> None:
    session, fed = load(), feeds()
    right = session.run(fed)[0].tolist()
    for x in (Foreign(fed["x"]), fed["x"].__dlpack__()):
        assert session.run({**fed, "x": x})[0].tolist() == right
    assert session.run_async({**fed, "x": Foreign(fed["x"])}).result()[0].tolist() == right
    with pytest.raises(FeedError, match="x: its memory is not the host's"):
        session.run({**fed, "x": Foreign(fed["x"], device=2)})


def cpu(model: onnx.ModelProto, **options: Any) -> Session:
    return monograph.load(model, target="cpu", cache_dir="", **options)


def test_words_of_capture_on_the_cpu() -> None:
    session = cpu(affine(), capture="require", max_cached_shapes=1, specialise="now")
    for size in (2, 2, 3):
        session.run(feeds(size))
    session.run({**feeds(3), "x": np.ones((3, 3), np.float32, order="F")})
    found = {word: session.stats[word] for word in WORDS}
    assert found == {
        "captures": 2,  # the first has made room for the second
        "replays": 4,
        "rebinds": 0,
        "staged_copies": {"x: it is strided": 1},
        "fallbacks": {},
        "launches_per_run": 1,
    }


def test_code_from_disk_counts_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    ports = [("x", TensorProto.FLOAT, [3])], [("y", TensorProto.FLOAT, [3])]
    (tmp_path / "exp.onnx").write_bytes(model_of(nodes, *ports).SerializeToString())
    for found in range(2):  # it is made, then found
        session = monograph.load(tmp_path / "exp.onnx", target="cpu", cache_dir=str(tmp_path / "c"))
        session.run({"x": np.zeros(3, np.float32)})
        assert session.stats["from_disk"] == found
        assert (session.stats["captures"], session.stats["replays"]) == (1, 1)


def test_capture_off_counts_nothing() -> None:
    session = cpu(affine(), capture="off")
    session.run(feeds())
    assert session.stats["captures"] == session.stats["replays"] == 0
    assert session.stats["runs"] == 1


def test_steps_on_the_host_are_counted_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    fed = {"x": np.ones(3, np.float32), "a": np.array(["ab"], object)}
    session = cpu(strings())
    with caplog.at_level(logging.INFO, "monograph"):
        for _ in range(2):
            y, b = session.run(fed)
    assert (y.tolist(), b.tolist()) == ([2, 2, 2], ["abab"])
    (reason,) = session.stats["fallbacks"]
    assert reason.startswith("the host takes part in a run")
    assert session.stats["fallbacks"][reason] == session.stats["replays"] == 2
    assert sum(reason in r.message for r in caplog.records) == 1
    with pytest.raises(ExecutionError, match="the host takes part"):
        cpu(strings(), capture="require").run(fed)


def test_sizes_that_data_decide_are_counted_or_refused() -> None:
    fed = {"x": np.array([1, 0, 3, 0], np.float32)}
    session = cpu(nonzero())
    for _ in range(2):
        assert session.run(fed)[0].tolist() == [[0, 4]]
    ((reason, count),) = session.stats["fallbacks"].items()
    assert count == 2
    assert reason.startswith(f"{DATA_DECIDE} (non_zero")
    with pytest.raises(ExecutionError, match="data decide sizes"):
        cpu(nonzero(), capture="require").run(fed)


def test_options_of_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such capture"):
        cpu(affine(), capture="always")
    with pytest.raises(ConfigError, match="needs a target that launches kernels"):
        monograph.load(affine(), target="reference", capture="require")
    monkeypatch.setenv("MONOGRAPH_CAPTURE", "require")
    assert cpu(affine()).config.capture == "require"
    # A default for targets that launch does not apply to one that does not.
    assert monograph.load(affine(), target="reference").config.capture == "auto"


def test_a_run_is_a_future(load: Load) -> None:
    session = load()
    pending = session.run_async(feeds())
    assert isinstance(pending, Future)
    done, left = wait([pending], timeout=30)
    assert (done, left) == ({pending}, set())
    assert next(as_completed([pending])) is pending
    assert [x.tolist() for x in pending.result(5)] == [x.tolist() for x in session.run(feeds())]
    assert pending.exception(5) is None
    assert repr(pending) == "<Pending done>"


def test_callbacks_of_a_run(load: Load) -> None:
    called = threading.Event()
    found: list[Any] = []
    pending = load().run_async(feeds())
    pending.add_done_callback(lambda given: (found.append(given), called.set()))
    assert called.wait(30)
    assert found == [pending]


def test_a_run_is_awaited(load: Load) -> None:
    session = load()

    async def both() -> list[Any]:
        return await asyncio.gather(session.run_async(feeds()), session.run_async(feeds()))

    first, second = asyncio.run(both())
    assert first[0].tolist() == second[0].tolist() == session.run(feeds())[0].tolist()


def test_errors_of_an_awaited_run(load: Load) -> None:
    session = load(gathering())

    async def work() -> None:
        await session.run_async({"x": np.ones(3, np.float32), "i": np.array([9])})

    with pytest.raises(ExecutionError):
        asyncio.run(work())
    pending = session.run_async({"x": np.ones(3, np.float32), "i": np.array([9])})
    assert isinstance(pending.exception(), ExecutionError)


def gathering() -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, [3]), ("i", TensorProto.INT64, [1])]
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT, [1])])


def held_worker(session: Session) -> tuple[threading.Event, threading.Event]:
    """Let the thread of a session wait; return the events that it has begun and may go on."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> list[Any]:
        begun.set()
        go_on.wait(30)
        return []

    session._worker.start(hold)
    return begun, go_on


def test_timeout_of_a_run(load: Load) -> None:
    session = load()
    begun, go_on = held_worker(session)
    assert begun.wait(30)
    pending = session.run_async(feeds())
    assert pending.running()
    with pytest.raises(TimeoutError):
        pending.result(0.01)
    with pytest.raises(TimeoutError):
        pending.exception(0.01)
    go_on.set()
    assert len(pending.result(30)) == 2
    assert not pending.running()


def test_only_runs_that_have_not_begun_are_cancelled(load: Load) -> None:
    session = load()
    begun, go_on = held_worker(session)
    assert begun.wait(30)
    pending, later = session.run_async(feeds()), session.run_async(feeds())
    assert pending.cancel()
    assert pending.cancelled()
    assert pending.done()
    go_on.set()
    with pytest.raises(CancelledError):
        pending.result(30)
    assert len(later.result(30)) == 2
    assert not later.cancel()
    assert len(session.run(feeds())) == 2


def test_a_cancelled_last_run_does_not_disturb_the_next(load: Load) -> None:
    session = load()
    begun, go_on = held_worker(session)
    assert begun.wait(30)
    assert session.run_async(feeds()).cancel()
    go_on.set()
    assert len(session.run(feeds())) == 2
    session.close()
