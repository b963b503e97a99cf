"""Replay of what is not plain: arrays of the host, libraries' launches, branches, whole models."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError, FeedError
from monograph.runtime.gpu.bound_program import DeviceFaultText, GpuProgram
from monograph.runtime.gpu.capture.control import BRANCH, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.capture.pointer_params import ALIGNED, distinct_addresses
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.cpu.against import feeds_for
from tests.gpu.capture.replay_models import (
    SIZE,
    Default,
    arena,
    below,
    branch,
    counter,
    double,
    expected,
    flag,
    kept,
    loop,
    plus_one,
    port,
    replayed,
    running,
    slot,
    three_towers,
    total,
)
from tests.gpu.fake_driver import FakeDevice, FakeDriver, FakeLibrary, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.gpu_models import INTERPRETED


def some(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


WAYS = pytest.mark.parametrize("host", ["direct", "copy"])


@WAYS
def test_arrays_in_and_out(host: str) -> None:
    replay, driver = replayed(host=host)
    for seed in range(5):
        found = replay.run({"x": some(seed)})
        np.testing.assert_array_equal(found, expected(some(seed)))
    assert driver.calls["graph launch"] == 5
    assert driver.calls["launch"] == 3
    assert driver.calls["copy"] == (2 if host == "copy" else 0)
    assert driver.calls["write"] == 0  # one staging buffer, used again
    assert replay.stats["captures"] == 1
    assert replay.stats["staged_copies"] == {}


@WAYS
def test_arrays_may_change_as_soon_as_run_async_returns(host: str) -> None:
    replay, driver = replayed(host=host)
    replay.run({"x": some()})
    driver.lazy = True
    x = some(1)
    pending = replay.run_async({"x": x})
    assert not pending.done()
    x[:] = 0
    np.testing.assert_array_equal(pending.result(), expected(some(1)))
    assert pending.done()
    assert pending.result() is pending.result()


@WAYS
def test_more_runs_in_flight_than_slabs(host: str) -> None:
    replay, driver = replayed(host=host)
    driver.lazy = True
    runs = [replay.run_async({"x": some(seed)}) for seed in range(10)]
    for seed, pending in enumerate(runs):
        np.testing.assert_array_equal(pending.result(), expected(some(seed)))
    assert len(replay._ring._buffers) == 3


@WAYS
def test_results_nobody_asks_for(host: str) -> None:
    replay, driver = replayed(host=host)
    driver.lazy = True
    for seed in range(10):
        replay.run_async({"x": some(seed)})
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))


def test_arrays_of_the_caller_for_outputs() -> None:
    replay, _ = replayed()
    mine = np.empty(SIZE, np.float32)
    found = replay.run({"x": some()}, {"z": mine})
    assert found[1] is mine
    np.testing.assert_array_equal(found, expected(some()))
    with pytest.raises(FeedError):
        replay.run({"x": some()}, {"z": np.empty(SIZE + 1, np.float32)})


def test_state_in_arrays() -> None:
    replay, driver = replayed(counter)
    state = np.zeros(SIZE, np.float32)
    for turn in range(1, 4):
        state, y = replay.run({"x": np.ones(SIZE, np.float32), "past": state})
        assert state.tolist() == [turn] * SIZE
        assert y.tolist() == [10 * turn] * SIZE
    assert driver.calls["copy"] == 2  # recorded once, one each way
    assert driver.ran == ["total"] * 3


def test_arrays_and_tensors_by_turns() -> None:
    replay, _ = replayed(host="copy")
    for seed in range(4):
        x = some(seed)
        np.testing.assert_array_equal(replay.run({"x": x}), expected(x))
        found = replay.run({"x": torch.from_numpy(x)})
        np.testing.assert_array_equal([t.numpy() for t in found], expected(x))
    assert replay.stats["captures"] == 2


def test_a_failed_recording_of_copies() -> None:
    replay, driver = replayed(host="copy")
    driver.fail("copy", 1)
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert replay.stats["fallbacks"] == {"copy fails on purpose": 1}
    assert not driver._recording
    np.testing.assert_array_equal(replay.run({"x": some()}), expected(some()))
    assert replay.stats["captures"] == 1


def test_a_failed_run_on_host_data_gives_its_slab_back() -> None:
    replay, driver = replayed()
    replay.run({"x": some()})
    driver.fail("finish", error=ExecutionError("the device failed"))
    with pytest.raises(ExecutionError, match="the device failed"):
        replay.run({"x": some()})
    np.testing.assert_array_equal(replay.run({"x": some(1)}), expected(some(1)))
    assert len(replay._ring._buffers) == 1


def _noting(words: list[int]) -> None:
    """Says that a number is negative, and which."""
    wrong = numbers(words[0], SIZE)
    if wrong[0] < 0:
        note = (ctypes.c_int64 * 2).from_address(words[1])
        note[0], note[1] = 1, int(wrong[0])
    plus_one([words[0], words[2]])


def faulty(driver: FakeDriver) -> GpuProgram:
    places = [port("input:x"), kept(), port("output:y")]
    fault = DeviceFaultText("a number is negative", "", "node", "Op", 0)
    works = [(FakeRecord(driver, "noting", _noting, 3), places)]
    return running(driver, [slot("x")], [slot("y")], works, faults=(fault,))


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_faults_are_raised_when_results_are_asked_for(wrap: Callable[..., Any]) -> None:
    replay, driver = replayed(faulty)
    replay.run({"x": wrap(np.ones(SIZE, np.float32))})
    driver.lazy = True
    pending = replay.run_async({"x": wrap(np.full(SIZE, -3, np.float32))})
    for _ in range(2):
        with pytest.raises(ExecutionError, match="a number is negative"):
            pending.result()
    driver.lazy = False
    found = replay.run({"x": wrap(np.ones(SIZE, np.float32))})
    assert np.asarray(found[0]).tolist() == [2] * SIZE


def library(kind: str) -> Callable[[FakeDriver], GpuProgram]:
    """y = (x + 1) * 2, the first by a library whose parameters are of a kind."""

    def made(driver: FakeDriver) -> GpuProgram:
        turns = iter(range(1000))

        def plain(words: list[int], stream: int) -> None:
            """A struct with both addresses in it, the second not at a multiple of eight."""
            ends = words[0] + 4 * SIZE
            body = b"".join(w.to_bytes(8, "little") for w in (7, words[0], ends)) + b"odd!"
            driver.launch(stream, "library", struct, [body + words[1].to_bytes(8, "little")])

        def struct(blobs: list[bytes]) -> None:
            x, end, y = (int.from_bytes(blobs[0][i : i + 8], "little") for i in (8, 16, 28))
            assert end == x + 4 * SIZE
            plus_one([x, y])

        def packed(words: list[int]) -> None:
            plus_one(words)

        def hashed(words: list[int], stream: int) -> None:
            """Also a word that depends on an address by a formula."""
            odd = (words[0] * 3 + 1) % 2**64
            parts = [w.to_bytes(8, "little") for w in (*words, odd)]
            driver.launch(stream, "library", packed, parts)

        def changing(words: list[int], stream: int) -> None:
            parts = [w.to_bytes(8, "little") for w in (*words, next(turns))]
            driver.launch(stream, "library", packed, parts)

        table: list[Any] = []

        def hidden(words: list[int], stream: int) -> None:
            """The input's address is in memory, not among the parameters."""
            table.append(ctypes.c_uint64(words[0]))
            where = ctypes.addressof(table[0])
            ctypes.c_uint64.from_address(where).value = words[0]
            fixed = [where.to_bytes(8, "little"), words[1].to_bytes(8, "little")]
            driver.launch(stream, "library", indirect, fixed)

        def indirect(words: list[int]) -> None:
            plus_one([ctypes.c_uint64.from_address(words[0]).value, words[1]])

        call = {"plain": plain, "hashed": hashed, "changing": changing, "hidden": hidden}[kind]
        works = [
            (FakeLibrary(call, 2), [port("input:x"), arena()]),
            (FakeRecord(driver, "double", double, 2), [arena(), port("output:y")]),
        ]
        return running(driver, [slot("x")], [slot("y")], works)

    return made


def at_a_boundary(data: np.ndarray, skipped: int = 0) -> torch.Tensor:
    """A tensor as aligned as a device's are, some elements skipped."""
    block = torch.zeros(SIZE + ALIGNED)
    start = -block.data_ptr() % ALIGNED // 4 + skipped
    return block[start : start + SIZE].copy_(torch.from_numpy(data))


@pytest.mark.parametrize("kind", ["plain", "hashed", "changing", "hidden"])
def test_launches_of_libraries(kind: str) -> None:
    replay, driver = replayed(library(kind))
    for seed in range(5):
        x = at_a_boundary(some(seed))
        found = replay.run({"x": x})
        np.testing.assert_array_equal(found[0].numpy(), (some(seed) + 1) * 2)
    assert replay.stats["captures"] == 1
    assert driver.leaks().get("graph") == 1
    staged = replay.stats["staged_copies"]
    if kind == "plain":
        assert staged == {}
        assert replay.stats["rebinds"] >= 4
    else:
        assert sum(staged.values()) == 5
        assert all(key.startswith("x: a library's launch uses it") for key in staged)


def test_a_library_is_tried_on_scratch_memory_only() -> None:
    replay, driver = replayed(library("plain"))
    x = torch.from_numpy(some())
    before = x.clone()
    replay.run({"x": x})
    assert driver.ran == ["library", "library", "double"]  # the first one on scratch memory
    assert torch.equal(x, before)


def test_less_alignment_than_a_library_saw_is_staged() -> None:
    replay, _ = replayed(library("plain"))
    for x in (at_a_boundary(some()), at_a_boundary(some(), skipped=4)):
        found = replay.run({"x": x})
        np.testing.assert_array_equal(found[0].numpy(), (some() + 1) * 2)
    assert replay.stats["staged_copies"] == {"x: it is misaligned for a library": 1}


def test_distances_are_all_different() -> None:
    sizes = {f"p{i}": 100 * i for i in range(20)}
    starts = [{n: 4096 * i for i, n in enumerate(sizes)}]
    for _ in range(2):
        found = distinct_addresses(sizes, starts, 1 << 20)
        for start in starts:
            assert len({found[n] - start[n] for n in sizes}) == len(sizes)
        ranges = sorted((found[n], found[n] + sizes[n]) for n in sizes)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
        assert all(found[n] % ALIGNED == starts[0][n] % ALIGNED for n in sizes)
        starts.append(found)


def test_a_loop_is_one_launch() -> None:
    replay, driver = replayed(loop)
    for first, turns in ((1.0, 7), (60.0, 1), (100.0, 0), (0.001, 17)):
        x = np.full(SIZE, first, np.float32)
        (y,) = replay.run({"x": torch.from_numpy(x)})
        np.testing.assert_array_equal(y.numpy(), x * np.float32(2) ** turns)
    assert driver.calls["graph launch"] == 4
    assert replay.stats["captures"] == 1
    assert replay.stats["staged_copies"] == {}


def test_a_branch_that_uses_ports_stages_them() -> None:
    replay, _ = replayed(branch)
    for x in (some(), np.full(SIZE, 200, np.float32), some(1)):
        (y,) = replay.run({"x": torch.from_numpy(x)})
        np.testing.assert_array_equal(y.numpy(), x * 2 if x[0] < 100 else x + 1)
    reason = "a branch or a loop uses it"
    assert replay.stats["staged_copies"] == {f"x: {reason}": 3, f"y: {reason}": 3}
    assert replay.stats["captures"] == 1


def test_state_that_a_branch_writes_is_staged_with_its_partner() -> None:
    """Input and output of a state are one memory: neither goes where the other does not."""

    def stateful(driver: FakeDriver) -> GpuProgram:
        """present = past + x, y = 10 * present, in either side of a branch."""
        nest = LaunchTree(BRANCH, (1, 1))
        places = [port("input:x"), port("output:present"), port("output:y")]
        works = [
            (FakeRecord(driver, "below", below, 2), [port("input:x"), flag()]),
            (ConditionalLaunch(nest), [flag()]),
            (FakeRecord(driver, "total", total, 3), places),
            (FakeRecord(driver, "total", total, 3), places),
        ]
        outputs = [slot("present", over="past"), slot("y")]
        nests = (LaunchTree(), nest, LaunchTree(), LaunchTree())
        return running(driver, [slot("x"), slot("past")], outputs, works, nests)

    replay, _ = replayed(stateful)
    state = torch.zeros(SIZE)
    for turn in range(1, 4):
        x = torch.ones(SIZE)
        present, y = replay.run({"x": x, "past": state}, {"present": state})
        assert present is state
        assert state.tolist() == [turn] * SIZE
        assert y.tolist() == [10 * turn] * SIZE
    staged = replay.stats["staged_copies"]
    assert staged["past: what shares its memory is staged"] == 3
    assert staged["present: a branch or a loop uses it"] == 3


@INTERPRETED  # its kernels are real ones, on the memory of the fake device: the host's
@pytest.mark.parametrize("builds", [False, True])
def test_streams_of_a_model_run_side_by_side(builds: bool) -> None:
    graph = three_towers()
    driver = FakeDriver()
    device = FakeDevice(driver)
    module = compile_for_gpu(graph, device.arch)
    executable = GpuExecutable(module, device)
    assert len({b.stream for b in module.works}) > 1
    replay = Replay(executable, FakeGraphs(driver, builds=builds))
    for seed in range(3):
        feeds = feeds_for(graph, seed)
        eager = executable.run(feeds)
        tensors = {n: torch.from_numpy(x) for n, x in feeds.items()}
        for a, b, c in zip(eager, replay.run(feeds), replay.run(tensors), strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c.numpy())
    assert replay.stats["fallbacks"] == {}
