"""Device fault reports, their cost, and the order of streams; on a fake driver."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError
from monograph.runtime.counts import RunCounters
from monograph.runtime.gpu.bound_program import DeviceFaultText, GpuProgram
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.capture import recording
from monograph.runtime.gpu.capture.capture_policy import Eager
from monograph.runtime.gpu.host_io.transfer_policy import MeasuredTransferModes
from tests.gpu.capture.replay_models import (
    SIZE,
    Default,
    chain,
    check,
    expected,
    kept,
    plus_one,
    port,
    replayed,
    running,
    slot,
    some,
)
from tests.gpu.capture.test_replay_ports import faulty
from tests.gpu.fake_driver import FakeDriver, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


GOOD, BAD = torch.ones(SIZE), torch.full((SIZE,), -3.0)


def raises() -> Any:
    return pytest.raises(ExecutionError, match="a number is negative")


def test_a_thread_that_launches_between_a_run_and_its_look() -> None:
    replay, driver = replayed(faulty)
    for _ in range(2):
        replay.run({"x": GOOD})
    launched, beside = threading.Event(), threading.Event()
    pending: list[Any] = []

    def other() -> None:
        assert launched.wait(10)
        pending.append(replay.run_async({"x": BAD}))
        beside.set()

    def finish() -> None:
        if threading.current_thread() is not thread and not launched.is_set():
            launched.set()
            assert beside.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    driver.hooks["finish"] = finish
    (y,) = replay.run({"x": GOOD})
    thread.join(10)
    assert y.tolist() == [2] * SIZE
    with raises():
        pending[0].result()


def test_measuring_how_arrays_come_leaves_pending_faults_alone() -> None:
    replay, _ = replayed(faulty, measured=MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": GOOD})
    pending = replay.run_async({"x": BAD})
    (y,) = replay.run({"x": GOOD.numpy()})
    assert y.tolist() == [2] * SIZE
    with raises():
        pending.result()


def wants_more_than_nought(driver: FakeDriver) -> GpuProgram:
    """Says that a number is not above nought, as those of trials are not."""

    def noting(words: list[int]) -> None:
        if numbers(words[0], SIZE)[0] <= 0:
            (ctypes.c_int64 * 2).from_address(words[1])[0] = 1
        plus_one([words[0], words[2]])

    fault = DeviceFaultText("a number is negative", "", "node", "Op", 0)
    places = [port("input:x"), kept(), port("output:y")]
    works = [(FakeRecord(driver, "noting", noting, 3), places)]
    return running(driver, [slot("x")], [slot("y")], works, faults=(fault,))


def test_what_trials_note_is_no_fault_of_a_run() -> None:
    measured = MeasuredTransferModes(TuningCache(None), "here")
    replay, _ = replayed(wants_more_than_nought, measured=measured)
    for x, bad in ((GOOD, False), (BAD, True), (GOOD, False)):
        if bad:
            with raises():
                replay.run({"x": x.numpy()})
        else:
            assert replay.run({"x": x.numpy()})[0].tolist() == [2] * SIZE


def test_first_recorded_run_on_tensors_does_not_report_an_earlier_fault() -> None:
    replay, _ = replayed(faulty, measured=MeasuredTransferModes(TuningCache(None), "here"))
    with raises():
        replay.run({"x": BAD.numpy()})
    assert replay.run({"x": GOOD})[0].tolist() == [2] * SIZE


def test_what_notes_cost() -> None:
    """A copy behind every run, and one before it only if the last may have noted something."""
    replay, _ = replayed(faulty)
    device: Any = replay.executable.device
    replay.run({"x": GOOD})

    def copies(run: Any) -> int:
        before = device.copies
        run()
        return int(device.copies - before)

    for x in (GOOD, GOOD.numpy()):
        replay.run({"x": x})
        assert [copies(lambda x=x: replay.run({"x": x})) for _ in range(3)] == [1, 1, 1]
    runs: list[Any] = []
    assert copies(lambda: runs.append(replay.run_async({"x": GOOD}))) == 1
    assert copies(lambda: runs.append(replay.run_async({"x": GOOD}))) == 2
    runs[0].result()
    assert copies(lambda: runs.append(replay.run_async({"x": GOOD}))) == 2
    runs[2].result()
    assert copies(lambda: replay.run({"x": GOOD})) == 1


def test_where_nothing_can_be_wrong_nothing_is_noted() -> None:
    replay, driver = replayed()
    x = some()
    check(replay, x)
    before = Counter(driver.calls)
    for _ in range(3):
        replay.try_run({"x": x})
    assert set(driver.calls - before) <= {"graph launch", "write"}
    replay.run({"x": x.numpy()})
    assert replay.executable.device.copies == 0  # type: ignore[attr-defined]
    assert replay.executable.notes is None


def test_faults_of_arrays_that_nobody_asks_for() -> None:
    replay, _ = replayed(faulty)
    for _ in range(5):
        replay.run_async({"x": BAD.numpy()})
        (y,) = replay.run({"x": GOOD.numpy()})
        assert y.tolist() == [2] * SIZE
        with raises():
            replay.run({"x": BAD.numpy()})


def test_memory_of_notes_is_used_again() -> None:
    replay, driver = replayed(faulty)
    replay.run({"x": GOOD})
    notes: Any = replay.executable.notes
    driver.lazy = True
    y = torch.empty(SIZE)  # the fake driver does not know when memory goes
    for x in (GOOD, BAD) * 20:  # nobody asks for them, and all are still queued
        replay.run_async({"x": x}, out={"y": y})
    runs = [replay.run_async({"x": x}) for x in (GOOD, BAD) * 20]
    for number, run in enumerate(runs):
        if number % 2:
            with raises():
                run.result()
        else:
            run.result()
    runs.clear()
    del run
    gc.collect()
    assert len(notes._free) == 40


def test_the_first_run_on_another_stream_waits_for_the_memory() -> None:
    replay, driver = replayed()
    with driver.using(3):
        check(replay, some())
    assert replay.executable.device.joined == [0]  # type: ignore[attr-defined]
    assert replay.graphs.marked == [3]  # type: ignore[attr-defined]


def test_runs_without_graphs_wait_and_mark_too() -> None:
    driver = FakeDriver()
    eager = chain(driver)
    device: Any = eager.device
    for stream in (3, 3, 4, 3):
        with driver.using(stream):
            found = eager.run({"x": some()})
        np.testing.assert_array_equal(found[0].numpy(), expected(some())[0])
    assert device.joined == [0, 3, 4]
    assert device.marked == [3, 4]


def test_a_stream_that_is_captured_now_is_not_waited_for() -> None:
    replay, driver = replayed()
    graphs: Any = replay.graphs
    with driver.using(5):
        check(replay, some())
        check(replay, some())
    graphs.begin(5)
    with driver.using(6):
        for x in (some(1), some(1).numpy()):
            with pytest.raises(ExecutionError, match="is being captured"):
                replay.run({"x": x})
        assert not graphs.capturing_now()
    with driver.using(5):
        replay.run({"x": some()})
    graphs.end(5)
    with driver.using(6):
        check(replay, some(1))
    assert replay.executable.device.joined == [0, 5]  # type: ignore[attr-defined]


def test_the_stream_of_a_capture_is_not_that_of_the_last_run() -> None:
    """The run under capture has not happened: the next run waits for the one before the capture."""
    driver = FakeDriver()
    eager, graphs = chain(driver), FakeGraphs(driver)
    eager.run({"x": some()})
    graphs.begin(5)
    with driver.using(5):
        eager.run({"x": some()})
    graphs.end(5)
    with driver.using(6):
        eager.run({"x": some()})
    assert eager.device.joined == [0]  # type: ignore[attr-defined]


def one_of_ten() -> torch.Tensor:
    """As dense as one element is, whatever its stride."""
    found = torch.arange(10.0).reshape(1, 10)[:, -1]
    assert found.stride() == (10,)
    return found


def test_bytes_of_one_element_of_any_stride() -> None:
    from monograph.runtime.gpu.tensors import raw

    x = one_of_ten()
    assert raw(x).view(torch.float32).tolist() == [9]
    assert raw(x).data_ptr() == x.data_ptr()
    assert raw(torch.empty(0, 3)).numel() == 0
    assert raw(torch.tensor(3.0)).numel() == 4


def negated() -> torch.Tensor:
    """Numbers that are negated when they are read, and lie in memory as they are not."""
    found = torch.complex(torch.zeros(SIZE), some()).conj().imag
    assert found.is_neg()
    dense = torch._neg_view(found.resolve_neg())
    assert dense.is_neg()
    assert dense.is_contiguous()
    return dense


@pytest.mark.parametrize("captured", [True, False])
def test_numbers_that_are_negated_when_read(captured: bool) -> None:
    replay, _ = replayed()
    runs: Any = replay if captured else replay.executable
    for _ in range(2):
        runs.run({"x": some()})
        x = negated()
        for a, b in zip(runs.run({"x": x}), expected(x.resolve_neg()), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    y = negated()
    found = runs.run({"x": some()}, {"y": y})
    assert found[0] is y
    np.testing.assert_array_equal(y.resolve_neg().numpy(), expected(some())[0])
    if captured:
        reason = "it is negated when read"
        assert replay.stats["staged_copies"] == {f"x: {reason}": 2, f"y: {reason}": 1}


def test_strided_outputs_without_graphs() -> None:
    y = torch.zeros(SIZE, 4)[:, 0]
    chain(FakeDriver()).run({"x": some()}, {"y": y})
    np.testing.assert_array_equal(y.numpy(), expected(some())[0])


class Slow(Counter[str]):
    """Counts whose reader gives others time to read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def __getitem__(self, key: str) -> int:
        found = super().__getitem__(key)
        with suppress(threading.BrokenBarrierError):
            self.both.wait(0.3)
        return found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_threads_count_together(asynchronous: bool) -> None:
    eager = Eager(chain(FakeDriver()), "no graphs here", "auto", RunCounters())
    eager.counts.fallbacks = Slow()
    run = eager.start if asynchronous else eager.run
    threads = [threading.Thread(target=run, args=({"x": some()},)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert dict(eager.counts.fallbacks) == {"no graphs here": 2}


def test_nothing_is_collected_until_the_last_recording_has_ended() -> None:
    first, second = (recording(FakeGraphs(FakeDriver()), 1, None, []) for _ in range(2))
    assert gc.isenabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    try:
        assert not gc.isenabled()
    finally:
        second.__exit__(None, None, None)
    assert gc.isenabled()
