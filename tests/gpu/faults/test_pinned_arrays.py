"""Arrays that come back are fetched from where they are: never others, and never too late."""

from __future__ import annotations

import gc
import logging
import mmap
import os
from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError
from monograph.ir import constant
from monograph.ops.elementwise import Add, Mul
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.host_io import pinned_arrays
from monograph.runtime.gpu.host_io.pinned_arrays import (
    OFTEN,
    PINNED_ARRAYS,
    PinnedArrayRegistry,
    whole_pages,
)
from monograph.runtime.gpu.host_io.pinned_staging import free_finished
from tests.gpu.faults.rig import ON_DEVICE, Rig, fault, side_by_side
from tests.rules.checks import graph_of, value

SIZES = (1 << 18, 3, 50_001) if ON_DEVICE else (1 << 14, 3, 9_001)
"""Elements of the inputs: the first and the last are large."""
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_DEVICE:
        monkeypatch.setattr(pinned_arrays, "SMALLEST", 1 << 15)


def scaled(rig: Rig, **options: Any) -> Replay:
    """Three inputs, each scaled and moved by itself."""
    two, one = constant(np.float32(2)), constant(np.float32(1))
    inputs = [value(f"f32[{n}]", f"x{i}") for i, n in enumerate(SIZES)]
    graph = graph_of(*(Add()(Mul()(x, two), one) for x in inputs))
    return Replay(rig.compiled(graph), rig.graphs, **options)


def alone(nbytes: int) -> np.ndarray:
    """Some bytes on pages that nothing else is on: of two arrays on one page, one is locked."""
    whole = np.empty(nbytes + 2 * mmap.PAGESIZE, np.uint8)
    return whole[-whole.ctypes.data % mmap.PAGESIZE :][:nbytes]


def empty() -> Arrays:
    return {f"x{i}": alone(4 * n).view(np.float32) for i, n in enumerate(SIZES)}


def refill(arrays: Arrays, seed: int) -> Arrays:
    """The same arrays with other numbers."""
    r = np.random.default_rng(seed)
    for x in arrays.values():
        x[...] = r.standard_normal(x.shape)
    return arrays


def check(found: list[np.ndarray], arrays: Arrays) -> None:
    for y, x in zip(found, arrays.values(), strict=True):
        np.testing.assert_array_equal(y, x * np.float32(2) + np.float32(1))


def come_back(replay: Replay, arrays: Arrays, runs: int = OFTEN + 2) -> None:
    """Runs on the same arrays; the first one records, and does not look at where they are."""
    for seed in range(runs):
        check(replay.run(refill(arrays, seed)), arrays)


@fault
def test_arrays_that_come_back_are_fetched(rig: Rig) -> None:
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays, OFTEN + 1)
    assert replay.stats["pinned_input_runs"] == 0
    come_back(replay, arrays, 20)
    assert replay.stats["pinned_input_runs"] == 20
    assert replay.stats["captures"] == 2
    assert replay.stats["fallbacks"] == {}


@fault
def test_fresh_arrays_are_gathered(rig: Rig) -> None:
    """Also where each lies at the address of the one before, and is numbered like it."""
    replay = scaled(rig)
    for seed in range(3 * OFTEN):
        arrays = refill(empty(), seed)
        check(replay.run(arrays), arrays)
        del arrays
    assert replay.stats["pinned_input_runs"] == 0
    assert PINNED_ARRAYS.nbytes == 0


@fault
def test_pages_are_let_go_with_their_array(rig: Rig) -> None:
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    large = [whole_pages(x.ctypes.data, x.nbytes)[1] for x in arrays.values() if x.size > 3]
    assert PINNED_ARRAYS.nbytes == sum(large)
    for again in range(1, 4):
        del arrays
        gc.collect()
        assert PINNED_ARRAYS.nbytes == 0
        arrays = empty()
        check(replay.run(refill(arrays, again)), arrays)
        come_back(replay, arrays)
        assert PINNED_ARRAYS.nbytes == sum(large)
        assert replay.stats["pinned_input_runs"] == 1 + 3 * again
    assert replay.stats["captures"] == 2


@fault
def test_memory_that_is_locked_again_is_told_to_the_graph(rig: Rig) -> None:
    """At the very addresses of the arrays before, which were let go: other pages all the same."""
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    for turn in range(1, 3):
        for x in arrays.values():
            seen = PINNED_ARRAYS._seen.get((id(x.base), x.ctypes.data))
            if seen is not None and seen.pages is not None:
                seen.pages.close()
                seen.pages, seen.runs = None, OFTEN  # as of an array that is new and lies there
        come_back(replay, arrays, 3)
        assert replay.stats["pinned_input_runs"] == 1 + 3 * turn


@fault
def test_two_sets_of_arrays_take_turns(rig: Rig) -> None:
    replay, both = scaled(rig), (empty(), empty())
    for seed in range(2 * OFTEN + 20):
        arrays = refill(both[seed % 2], seed)
        check(replay.run(arrays), arrays)
    assert replay.stats["pinned_input_runs"] >= 18
    assert replay.stats["captures"] == 2
    assert replay.stats["rebinds"] >= 18


@fault
def test_views_of_one_array_come_back(rig: Rig) -> None:
    """A view is new in every run; what it shows is not."""
    replay = scaled(rig)
    whole = np.zeros((2, 3, max(SIZES)), np.float32)
    for seed in range(OFTEN + 6):
        arrays = {f"x{i}": whole[1, i, :n] for i, n in enumerate(SIZES)}
        check(replay.run(refill(arrays, seed)), arrays)
    assert replay.stats["pinned_input_runs"] >= 4


@fault
def test_memory_of_others_is_not_locked(rig: Rig) -> None:
    replay = scaled(rig)
    blocks = {f"x{i}": mmap.mmap(-1, 4 * n) for i, n in enumerate(SIZES)}
    arrays = {name: np.frombuffer(block, np.float32) for name, block in blocks.items()}
    come_back(replay, arrays, 2 * OFTEN)
    assert replay.stats["pinned_input_runs"] == 0


@fault
def test_what_is_not_waited_for_is_not_fetched(rig: Rig) -> None:
    """The caller may change arrays as soon as the call has returned."""
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    fetched = replay.stats["pinned_input_runs"]
    kept, runs = [], []
    with rig.busy():
        for seed in range(5):
            kept.append({name: x.copy() for name, x in refill(arrays, seed).items()})
            runs.append(replay.run_async(arrays))
            for x in arrays.values():
                x[...] = np.nan
    for pending, right in zip(runs, kept, strict=True):
        check(pending.result(), right)
    assert replay.stats["pinned_input_runs"] == fetched


@fault
def test_what_lies_apart_is_gathered(rig: Rig) -> None:
    replay = scaled(rig)
    arrays = {f"x{i}": np.empty(2 * n, np.float32)[::2] for i, n in enumerate(SIZES)}
    come_back(replay, arrays, 2 * OFTEN)
    assert replay.stats["pinned_input_runs"] == 0


@fault
def test_pages_that_cannot_be_locked_are_asked_for_once(rig: Rig) -> None:
    replay, arrays = scaled(rig), empty()
    rig.graphs.fail("lock_pages")
    come_back(replay, arrays, 3 * OFTEN)
    assert not rig.graphs.waiting
    assert replay.stats["pinned_input_runs"] == 0
    assert rig.graphs.calls["lock_pages"] == 2  # one for each large array


@fault
def test_a_graph_that_cannot_be_made_is_done_without(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    replay, arrays = scaled(rig, mode="require"), empty()
    come_back(replay, arrays, OFTEN + 1)
    rig.graphs.fail("instantiate")
    with caplog.at_level(logging.INFO, "monograph"):
        come_back(replay, arrays, OFTEN)
    assert not rig.graphs.waiting
    assert "fails on purpose" in caplog.text
    assert replay.stats["pinned_input_runs"] == 0
    assert replay.stats["captures"] == 1


@fault
def test_nothing_is_locked_where_that_is_not_wanted(rig: Rig) -> None:
    replay, arrays = scaled(rig, locks=False), empty()
    come_back(replay, arrays, 2 * OFTEN)
    assert replay.stats["pinned_input_runs"] == 0
    assert PINNED_ARRAYS.nbytes == 0


@fault
def test_an_interrupt_keeps_the_arrays_that_are_fetched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device goes on reading: memory may go only when it is done."""
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    rig.graphs.fail("finish", error=KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        replay.run(arrays)
    del arrays
    gc.collect()
    assert PINNED_ARRAYS.nbytes > 0
    for seed in range(4):  # all buffers take their turn, that of the run as well
        again = refill(empty(), seed)
        pending = [replay.run_async(again) for _ in range(4)]
        for run in pending:
            check(run.result(), again)
    del pending, run
    gc.collect()
    assert PINNED_ARRAYS.nbytes == 0


@fault
def test_a_run_that_cannot_be_waited_for_keeps_its_arrays(rig: Rig) -> None:
    """The device may still read them: neither they nor the staging buffer are freed."""
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    with rig.busy():
        rig.graphs.fail("finish", error=ExecutionError("it cannot be waited for"))
        with pytest.raises(ExecutionError, match="cannot be waited for") as raised:
            replay.run(arrays)
        del arrays, raised
        gc.collect()
        assert PINNED_ARRAYS.nbytes > 0
        (lost,) = replay._ring._lost
        assert lost not in replay._ring._buffers
        del lost
    for seed in range(5):
        again = refill(empty(), seed)
        check(replay.run(again), again)
    rig.synchronise()
    del replay, again
    gc.collect()
    free_finished(rig.graphs)
    gc.collect()
    assert PINNED_ARRAYS.nbytes == 0


@fault
def test_slabs_of_runs_that_cannot_be_waited_for_are_not_used_again(rig: Rig) -> None:
    replay = scaled(rig)
    replay.run(refill(empty(), 0))
    with rig.busy():
        arrays = [refill(empty(), seed) for seed in range(3)]
        runs = [replay.run_async(x) for x in arrays]
        rig.graphs.fail("finish", error=ExecutionError("it cannot be waited for"))
        later = refill(empty(), 9)  # the ring is full: this one waits for the oldest
        runs.append(replay.run_async(later))
    with pytest.raises(ExecutionError, match="cannot be waited for"):
        runs[0].result()
    for run, given in zip(runs[1:], [*arrays[1:], later], strict=True):
        check(run.result(), given)
    rig.synchronise()
    del replay, runs, run
    gc.collect()
    free_finished(rig.graphs)


def test_pages_are_of_the_device_that_they_were_locked_for() -> None:
    one, other = Rig(), Rig()
    returning, array = PinnedArrayRegistry(), alone(1 << 16)
    address = array.ctypes.data
    for _ in range(OFTEN + 1):
        found = returning.find(array, address, one.graphs)
    assert found
    assert returning.find(array, address, other.graphs) is None
    assert returning.find(array, address, one.graphs) is found


@fault
def test_a_fork_ends_what_was_locked_before(rig: Rig) -> None:
    replay, arrays = scaled(rig), empty()
    come_back(replay, arrays)
    fetched = replay.stats["pinned_input_runs"]
    assert fetched
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    come_back(replay, arrays, 2 * OFTEN)
    assert replay.stats["pinned_input_runs"] == fetched
    others = empty()
    come_back(replay, others, OFTEN + 3)
    assert replay.stats["pinned_input_runs"] == fetched + 3


@fault
def test_threads_feed_arrays_of_their_own(rig: Rig) -> None:
    replay = scaled(rig)
    replay.run(refill(empty(), 0))
    sets = [empty() for _ in range(4)]

    def feed(part: int) -> None:
        for seed in range(OFTEN + 10):
            check(replay.run(refill(sets[part], seed)), sets[part])

    side_by_side(4, feed)
    assert replay.stats["pinned_input_runs"] > 0


def test_no_more_is_locked_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    returning = PinnedArrayRegistry()
    arrays = [alone(1 << 16) for _ in range(3)]
    room = sum(whole_pages(x.ctypes.data, x.nbytes)[1] for x in arrays[:2])
    monkeypatch.setattr(pinned_arrays, "MOST", room)
    for _ in range(OFTEN):
        assert not any(returning.find(x, x.ctypes.data, rig.graphs) for x in arrays)
    found = [bool(returning.find(x, x.ctypes.data, rig.graphs)) for x in arrays]
    assert found == [True, True, False]
    assert returning.nbytes == room
    del arrays[0]
    assert returning.find(arrays[1], arrays[1].ctypes.data, rig.graphs)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    returning = PinnedArrayRegistry()
    monkeypatch.setattr(pinned_arrays, "KNOWN", 4)
    arrays = [np.zeros(64, np.uint8) for _ in range(100)]
    for x in arrays:
        assert not returning.find(x, x.ctypes.data, rig.graphs)
        assert len(returning._seen) <= 4


def test_more_of_an_array_than_is_locked_is_gathered() -> None:
    rig = Rig()
    returning = PinnedArrayRegistry()
    array = np.zeros(1 << 16, np.uint8)
    part, address = array[: 1 << 12], array.ctypes.data
    for _ in range(OFTEN):
        assert not returning.find(part, address, rig.graphs)
    assert returning.find(part, address, rig.graphs)
    for _ in range(2 * OFTEN):
        assert not returning.find(array, address, rig.graphs)
    assert returning.find(part, address, rig.graphs)


@pytest.mark.parametrize(
    ("address", "nbytes", "right"),
    [(0, 1, (0, 1)), (10, 5, (0, 1)), (-1, 2, (-1, 2)), (-1, 1, (-1, 1))],
)
def test_pages_are_whole(address: int, nbytes: int, right: tuple[int, int]) -> None:
    """Of memory in a page, across two, and at the end of one; counted from the tenth page."""
    page = mmap.PAGESIZE
    start, count = whole_pages(10 * page + address, nbytes)
    assert (start // page - 10, count // page) == right
    assert start % page == count % page == 0
