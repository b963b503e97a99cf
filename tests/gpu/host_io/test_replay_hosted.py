"""Transfers of host arrays to the device: the mode that measures fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError
from monograph.ir import dtype
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.driver.graphs import GraphError
from monograph.runtime.gpu.host_io import (
    host_io_graphs,
    overlapped_upload,
    pinned_staging,
    transfer_policy,
)
from monograph.runtime.gpu.host_io.transfer_policy import (
    BASIC,
    FULL_WIDTH,
    OVERLAPPED,
    PIECEWISE,
    PLAIN,
    MeasuredTransferModes,
    TransferMode,
    candidate_modes,
    time_all,
)
from tests.gpu.capture.replay_models import SIZE, Default, chain, counter, expected, loop
from tests.gpu.capture.test_replay_ports import faulty
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

COPIES = {
    PLAIN: 2,
    TransferMode(writes=True): 1,
    TransferMode(True, True): 0,
}
COPIES |= {mode: 0 if mode.writes else 1 for mode in OVERLAPPED}
"""Of a graph; those ahead of it come with every run."""
SMALL = 16
"""Bytes of a piece here: two make an input."""


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)
    for name, size in {"PIECE": SMALL, "ALIGNMENT": SMALL, "LARGE": 1 << 20}.items():
        monkeypatch.setattr(pinned_staging, name, size)
    monkeypatch.setattr(overlapped_upload, "GRAIN", SMALL)


def some(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


class Clock:
    """Says which mode is fastest, once it has seen all of them run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, best: TransferMode) -> None:
        self.best = best
        self.asked = 0
        monkeypatch.setattr(host_io_graphs, "time_all", self)

    def __call__(
        self, runs: Mapping[TransferMode, Callable[[], None]]
    ) -> dict[TransferMode, float]:
        self.asked += 1
        large = pinned_staging.control_bytes(2 * SMALL) == 0
        assert set(runs) == {*BASIC, *(PIECEWISE if large else OVERLAPPED)}
        time_all(runs)
        return {mode: 1.0 if mode == self.best else 2.0 for mode in runs}


def replayed(
    measured: MeasuredTransferModes, make: Callable[[FakeDriver], GpuProgram] = chain
) -> tuple[Replay, FakeDriver]:
    driver = FakeDriver()
    graphs = FakeGraphs(driver, builds=Default.builds)
    return Replay(make(driver), graphs, measured=measured), driver


@pytest.mark.parametrize("best", [*FULL_WIDTH, *PIECEWISE], ids=str)
def test_the_fastest_way_is_taken_and_kept(
    best: TransferMode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if best.pieces:
        monkeypatch.setattr(overlapped_upload, "LARGEST", 4)
    clock = Clock(monkeypatch, best)
    for turn in range(2):
        cache = TuningCache.open(tmp_path / "tuning.json")
        replay, driver = replayed(MeasuredTransferModes(cache, "here"))
        for seed in range(5):
            x = some(seed)
            np.testing.assert_array_equal(replay.run({"x": x}), expected(x))
        assert clock.asked == 1, "what was measured is measured again"
        assert replay.stats["captures"] == 1
        assert replay.stats["replays"] == 5  # the trials are none
        assert replay.executable.runs == 5
        assert driver.live["graph"] == driver.live["executable"] == 1
        if turn:
            copies = (0 if best.writes else 1) + 5 * 2 if best.pieces else COPIES[best]
            assert driver.calls["copy"] == copies
    (entry,) = TuningCache.open(tmp_path / "tuning.json").of("here").values()
    assert entry["winner"] == str(best)
    assert entry["problem"] == "arrays of the host: 32 bytes in, 64 bytes out"
    assert set(entry["us"]) == {
        str(mode) for mode in (*BASIC, *(PIECEWISE if best.pieces else OVERLAPPED))
    }


@pytest.mark.parametrize("best", OVERLAPPED, ids=str)
def test_what_was_measured_elsewhere_stays_as_it_is(
    best: TransferMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches that wait for the device would wait for ever for a graph that waits for them."""
    clock = Clock(monkeypatch, best)
    measured = MeasuredTransferModes(TuningCache(None), "here")
    replayed(measured)[0].run({"x": some()})
    replay, driver = replayed(measured)
    monkeypatch.setattr(replay.graphs, "waits_for_inputs", False)
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert driver.calls["copy"] == COPIES[TransferMode(writes=best.writes)]
    assert clock.asked == 1
    assert measured.find(replay.executable.layout) == best


def test_what_a_debugger_measures_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    measured = MeasuredTransferModes(TuningCache(None), "here")
    replay, _ = replayed(measured)
    monkeypatch.setattr(replay.graphs, "waits_for_inputs", False)
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert measured.find(replay.executable.layout) is None


def test_the_hopeless_are_not_timed_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, runs = 0.0, {"fast": 0, "close": 0, "slow": 0}

    def run(name: str, takes: float) -> None:
        nonlocal clock
        clock += takes
        runs[name] += 1

    monkeypatch.setattr(transfer_policy.time, "perf_counter", lambda: clock)
    found = time_all(
        {
            "fast": lambda: run("fast", 1e-3),
            "close": lambda: run("close", 1.2e-3),
            "slow": lambda: run("slow", 9e-3),
        }
    )
    assert found == pytest.approx({"fast": 1e3, "close": 1.2e3, "slow": 9e3})
    assert runs["fast"] == runs["close"] == transfer_policy.ROUNDS * (transfer_policy.RUNS + 1)
    assert runs["slow"] == 2 * (transfer_policy.RUNS + 1)


def test_slow_models_are_timed_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def run() -> None:
        nonlocal clock
        clock += 1.0

    monkeypatch.setattr(transfer_policy.time, "perf_counter", lambda: clock)
    assert time_all({"only": run}) == {"only": pytest.approx(1e6)}
    assert clock == 2 * (transfer_policy.RUNS + 1)


@pytest.mark.parametrize("best", FULL_WIDTH, ids=str)
def test_runs_in_flight_have_slabs_of_their_own(
    best: TransferMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, best)
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    driver.lazy = True
    runs = []
    for seed in range(8):
        x = some(seed)
        runs.append(replay.run_async({"x": x}))
        x[:] = 0
    for seed, pending in enumerate(runs):
        np.testing.assert_array_equal(pending.result(), expected(some(seed)))


def test_other_sizes_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, PLAIN)
    measured = MeasuredTransferModes(TuningCache(None), "here")
    for make in (chain, faulty, chain):
        replay, _ = replayed(measured, make)
        replay.run({"x": np.ones(SIZE, np.float32)})
    assert clock.asked == 2
    elsewhere, _ = replayed(MeasuredTransferModes(measured.cache, "there"))
    elsewhere.run({"x": some()})
    assert clock.asked == 3


@pytest.mark.parametrize("make", [counter, loop])
def test_state_and_loops_are_not_tried_out(
    make: Callable[[FakeDriver], GpuProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, TransferMode(True, True))
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"), make)
    feeds = {"x": np.ones(SIZE, np.float32), "past": np.zeros(SIZE, np.float32)}
    replay.run({n: x for n, x in feeds.items() if make is counter or n == "x"})
    assert clock.asked == 0
    assert driver.calls["copy"] == 2


def test_what_scratch_numbers_break_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that finds a number out of range is no fault of the caller's."""
    Clock(monkeypatch, PLAIN)
    replay, _ = replayed(MeasuredTransferModes(TuningCache(None), "here"), faulty)
    monkeypatch.setattr(host_io_graphs.np, "zeros", lambda *about: -np.ones(*about))
    (y,) = replay.run({"x": np.ones(SIZE, np.float32)})
    assert y.tolist() == [2] * SIZE


def test_a_way_that_fails_is_a_failed_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, PLAIN)
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    driver.fail("instantiate", 2)
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert replay.stats["fallbacks"] == {"instantiate fails on purpose": 1}
    assert not driver.leaks().get("graph")
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert replay.stats["captures"] == 1


def test_trials_that_fail_leave_no_fault_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is made without a graph then, and what its trials noted is not its fault."""

    def broken(runs: Mapping[TransferMode, Callable[[], None]]) -> dict[TransferMode, float]:
        time_all(runs)
        raise GraphError("the clock stands still")

    monkeypatch.setattr(host_io_graphs, "time_all", broken)
    monkeypatch.setattr(host_io_graphs.np, "zeros", lambda *about: -np.ones(*about))
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"), faulty)
    (y,) = replay.run({"x": np.ones(SIZE, np.float32)})
    assert y.tolist() == [2] * SIZE
    assert replay.stats["fallbacks"] == {"the clock stands still": 1}
    assert not driver.leaks().get("graph")


@pytest.mark.parametrize("asked_again", [True, False])
def test_an_interrupted_run_keeps_its_staging_buffer(asked_again: bool) -> None:
    """It has not ended: another run in the buffer would overwrite inputs that are still read."""
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    driver.lazy = True
    first = replay.run_async({"x": some(1)})

    def interrupt() -> None:
        raise KeyboardInterrupt

    driver.hooks["finish"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        first.result()
    del driver.hooks["finish"]
    # As many as there are buffers: the last one waits for the first run.
    later = [replay.run_async({"x": some(seed)}) for seed in range(2, 2 + pinned_staging.RING)]
    if asked_again:
        np.testing.assert_array_equal(first.result(), expected(some(1)))
    for seed, pending in enumerate(later, 2):
        np.testing.assert_array_equal(pending.result(), expected(some(seed)))
    np.testing.assert_array_equal(first.result(), expected(some(1)))


def test_strided_inputs_go_ahead_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped_upload, "LARGEST", 4)
    Clock(monkeypatch, PIECEWISE[0])
    replay, _ = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    x = np.repeat(some(), 2)[::2]
    assert not x.flags.c_contiguous
    for _ in range(2):
        np.testing.assert_array_equal(replay.run({"x": x}), expected(x))


@pytest.mark.parametrize("kind", ["strided", "list", "other type"])
def test_what_has_to_be_gathered_first_arrives_too(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, OVERLAPPED[0])
    replay, _ = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    x = np.repeat(some(), 2)[::2]
    given = {"strided": x, "list": x.tolist(), "other type": x.astype(np.float64)}[kind]
    for _ in range(2):
        np.testing.assert_array_equal(replay.run({"x": given}), expected(x))


def test_a_device_that_waits_in_vain_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, OVERLAPPED[0])
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    driver.late = True
    with pytest.raises(ExecutionError, match="waited 5 s for host arrays, and gave up"):
        replay.run({"x": some(1)})
    driver.late = False
    np.testing.assert_array_equal(replay.run({"x": some(2)}), expected(some(2)))


class Made(dict[str, np.ndarray]):
    """A mapping that makes its arrays when it is asked, as files of arrays do."""

    def __getitem__(self, name: str) -> np.ndarray:
        return super().__getitem__(name).copy()

    def get(self, name: str, _: object = None) -> np.ndarray:  # type: ignore[override]
        return self[name]


@pytest.mark.parametrize("best", FULL_WIDTH, ids=str)
def test_arrays_live_until_they_are_taken(
    best: TransferMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, best)
    replay, _ = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    launch = replay._launches.launch
    others: list[np.ndarray] = []

    def launched(*about: Any) -> None:
        others.extend(np.full(SIZE, 7, np.float32) for _ in range(50))  # where a freed one was
        launch(*about)

    monkeypatch.setattr(replay._launches, "launch", launched)
    for seed in range(5):
        np.testing.assert_array_equal(replay.run(Made(x=some(seed))), expected(some(seed)))
    assert others


@pytest.mark.parametrize("call", ["start", "record"])
def test_an_interrupt_behind_the_launch_spoils_no_later_run(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph is on its way then, and takes what has arrived when its turn comes."""
    Clock(monkeypatch, OVERLAPPED[0])
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    carry_out = getattr(replay.graphs, call)
    driver.lazy = True

    def interrupted(*about: Any) -> None:
        carry_out(*about)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replay.graphs, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            replay.run({"x": some(1)})
    for seed in (2, 3):
        np.testing.assert_array_equal(replay.run({"x": some(seed)}), expected(some(seed)))
    driver.lazy = False


def test_a_trial_that_came_late_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    tried = host_io_graphs.time_all

    def timed(runs: Mapping[TransferMode, Callable[[], None]]) -> dict[TransferMode, float]:
        driver.late = True
        found = tried(runs)
        driver.late = False
        return {mode: 1.0 if mode == OVERLAPPED[0] else us for mode, us in found.items()}

    monkeypatch.setattr(host_io_graphs, "time_all", timed)
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))


def test_a_launch_that_fails_leaves_nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch does not take the arrivals of another."""
    Clock(monkeypatch, OVERLAPPED[0])
    replay, driver = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    replay.run({"x": some()})
    driver.fail("graph launch", error=ExecutionError("the driver refused to launch"))
    with pytest.raises(ExecutionError, match="refused to launch"):
        replay.run({"x": some(1)})
    assert all(not staging._control.any() for staging in replay._ring._buffers)
    np.testing.assert_array_equal(replay.run({"x": some(2)}), expected(some(2)))


def test_without_inputs_there_is_nothing_to_send() -> None:
    layout = GpuLayout((), (DevicePort("y", dtype("f32"), (2,)),), (), 0, 0, (), ())
    assert candidate_modes(pinned_staging.StagingLayout(layout), True) == BASIC


def test_large_inputs_do_not_hold_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped_upload, "LARGEST", 4)
    replay, _ = replayed(MeasuredTransferModes(TuningCache(None), "here"))
    assert candidate_modes(replay._ring.layout, True) == (*BASIC, *PIECEWISE)
