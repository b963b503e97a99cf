"""Capture and replay against a driver that misbehaves on purpose."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.runtime.gpu.driver.graphs import GraphError, UncapturableError
from tests.gpu.capture.replay_models import (
    KERNELS,
    SIZE,
    Default,
    check,
    counter,
    expected,
    replayed,
    some,
)


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


def test_the_first_run_records_and_launches_once() -> None:
    replay, driver = replayed()
    check(replay, some())
    assert driver.ran == ["plus", "double", "more"]
    assert driver.calls["launch"] == KERNELS
    assert driver.calls["graph launch"] == 1
    assert replay.stats["captures"] == replay.stats["replays"] == 1
    assert replay.stats["launches_per_run"] == 1


def test_the_same_addresses_cost_one_launch() -> None:
    replay, driver = replayed()
    x, out = some(), {"y": torch.empty(SIZE), "z": torch.empty(SIZE)}
    for turn in range(1, 4):
        replay.run({"x": x}, out)
        assert driver.calls["graph launch"] == turn
    assert driver.calls["write"] == 0
    assert driver.calls["launch"] == KERNELS
    assert replay.stats["rebinds"] == 0


def test_only_what_moved_is_written() -> None:
    replay, driver = replayed()
    first, x = some(), some(1)
    out = {"y": torch.empty(SIZE), "z": torch.empty(SIZE)}
    replay.run({"x": first}, out)
    writes = driver.calls["write"]
    replay.run({"x": x}, out)
    assert driver.calls["write"] == writes + 1
    replay.run({"x": x}, out)
    assert driver.calls["write"] == writes + 1
    np.testing.assert_array_equal(out["y"].numpy(), expected(x)[0])


def test_a_thousand_new_addresses() -> None:
    replay, driver = replayed()
    held = []
    for seed in range(1000):
        x = some(seed)
        held.append((x, check(replay, x)))
    for x, found in held:  # every output stays what it was
        np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])
    assert replay.stats["captures"] == 1
    assert replay.stats["staged_copies"] == {}
    assert driver.calls["launch"] == KERNELS


def test_outputs_are_fed_again() -> None:
    replay, _ = replayed()
    x = some()
    (y, _), first = check(replay, x), expected(x)[0]
    np.testing.assert_array_equal(replay.run({"x": y})[0].numpy(), expected(first)[0])


def test_launches_in_the_queue_keep_their_addresses() -> None:
    replay, driver = replayed()
    check(replay, some())
    driver.lazy = True
    runs = [(x, replay.run({"x": x})) for x in map(some, range(1, 5))]
    driver.drain()
    for x, found in runs:
        np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])


@pytest.mark.parametrize("number", range(KERNELS))
def test_a_raise_at_each_kernel_of_a_recording(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    replay, driver = replayed()
    driver.fail("launch", number, RuntimeError("a kernel raises"))
    with caplog.at_level(logging.WARNING, "monograph"):
        check(replay, some())
    assert driver.ran == ["plus", "double", "more"]  # once, and eagerly
    assert replay.stats["fallbacks"] == {"a kernel raises": 1}
    assert sum("a kernel raises" in r.message for r in caplog.records) == 1
    assert not driver._recording
    assert not driver.leaks().get("graph")
    check(replay, some(1))
    assert replay.stats["captures"] == 1


@pytest.mark.parametrize("call", ["prepare", "begin", "end", "create", "instantiate"])
def test_a_failing_call_of_the_driver(call: str) -> None:
    replay, driver = replayed(builds=call == "create")
    driver.fail(call)
    check(replay, some())
    assert replay.stats["fallbacks"] == {f"{call} fails on purpose": 1}
    assert driver.calls["graph launch"] == 0
    assert not driver.leaks().get("graph")
    check(replay, some(1))
    assert replay.stats["captures"] == 1
    assert replay.launches == 1


def test_out_of_memory_while_recording() -> None:
    replay, driver = replayed()
    driver.fail("launch", 1, torch.OutOfMemoryError("no memory"))
    check(replay, some())
    assert replay.stats["fallbacks"] == {"no memory": 1}
    check(replay, some(1))
    assert replay.stats["captures"] == 1


def test_an_interrupt_ends_the_recording_and_is_not_swallowed() -> None:
    replay, driver = replayed()

    def interrupt() -> None:
        del driver.hooks["launch"]
        raise KeyboardInterrupt

    driver.hooks["launch"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        replay.run({"x": some()})
    assert not driver._recording
    assert driver.ran == []
    assert gc.isenabled()
    check(replay, some())


def test_a_failing_launch_is_an_error_and_no_second_run() -> None:
    replay, driver = replayed()
    check(replay, some())
    driver.fail("graph launch", error=ExecutionError("the device failed"))
    ran = len(driver.ran)
    with pytest.raises(ExecutionError, match="the device failed"):
        replay.run({"x": some()})
    assert len(driver.ran) == ran


def test_a_failing_write_leaves_no_graph_with_unknown_addresses() -> None:
    replay, driver = replayed()
    held = check(replay, some())
    driver.fail("write", 1)
    with pytest.raises(GraphError):
        replay.run({"x": some(1)})
    held += check(replay, some(2))
    assert replay.stats["captures"] == 2


def test_attempts_become_rare() -> None:
    replay, driver = replayed(builds=False)
    for _ in range(40):
        driver._faults.clear()
        driver.fail("end")
        check(replay, some())
    assert driver.calls["begin"] == 6  # the runs 1, 2, 4, 8, 16, 32
    assert sum(replay.stats["fallbacks"].values()) == 40


def test_require_raises_with_the_reason() -> None:
    replay, driver = replayed(mode="require")
    driver.fail("instantiate")
    with pytest.raises(GraphError, match="instantiate fails on purpose"):
        replay.run({"x": some()})
    assert driver.ran == []


def test_off_launches_every_kernel() -> None:
    replay, driver = replayed(mode="off")
    check(replay, some())
    assert driver.calls["begin"] == 0
    assert replay.stats["fallbacks"] == {}
    assert replay.launches == KERNELS


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match="capture"):
        replayed(mode="always")


def test_a_hidden_synchronisation_spoils_one_recording() -> None:
    replay, driver = replayed(builds=False)

    def wait() -> None:
        if 1000 in driver._recording:
            del driver.hooks["launch"]
            driver.synchronise(1000)

    driver.hooks["launch"] = wait
    check(replay, some())
    assert list(replay.stats["fallbacks"]) == ["a stream that records cannot be waited for"]
    check(replay, some(1))
    assert replay.stats["captures"] == 1


def test_nothing_is_collected_while_recording() -> None:
    replay, driver = replayed(builds=False)
    seen: list[bool] = []
    driver.hooks["launch"] = lambda: seen.append(gc.isenabled())
    check(replay, some())
    assert seen == [False] * KERNELS
    assert gc.isenabled()


def test_other_threads_work_while_one_records() -> None:
    replay, driver = replayed()
    other, _ = replayed()
    found: list[Any] = []

    def elsewhere() -> None:
        del driver.hooks["launch"]
        thread = threading.Thread(target=lambda: found.append(check(other, some(7))))
        thread.start()
        thread.join()

    driver.hooks["launch"] = elsewhere
    check(replay, some())
    assert len(found) == 1
    assert replay.stats["captures"] == other.stats["captures"] == 1


def test_two_threads_make_the_first_run() -> None:
    replay, driver = replayed()
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            barrier.wait()
            for turn in range(50):
                check(replay, some(100 * seed + turn))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert replay.stats["captures"] == 1
    assert driver.calls["launch"] == KERNELS
    assert replay.stats["replays"] == 200


def test_what_no_graph_can_hold_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the run that finds it out, and by none of those after it."""
    replay, driver = replayed()
    driver.fail("instantiate", error=UncapturableError("it cannot be held"))
    with caplog.at_level(logging.WARNING, "monograph"):
        for seed in range(4):
            check(replay, some(seed))
    assert sum("it cannot be held" in r.message for r in caplog.records) == 1
    assert replay.stats["fallbacks"] == {"it cannot be held": 4}


def test_misaligned_and_strided_inputs_are_staged() -> None:
    replay, _ = replayed()
    block = torch.randn(SIZE + 1)
    check(replay, block[1:])
    check(replay, torch.randn(SIZE, 2)[:, 0])
    assert replay.stats["staged_copies"] == {"x: it is misaligned": 1, "x: it is strided": 1}
    check(replay, some())
    assert replay.stats["captures"] == 1


def test_outputs_that_are_copied_back_are_staged() -> None:
    """To where kernels cannot write by themselves: beside tensors, the host's memory is such."""
    replay, _ = replayed()
    x, block, array = some(), torch.empty(SIZE + 1), np.empty(SIZE, np.float32)
    right = expected(x)
    found = replay.run({"x": x}, {"y": block[1:], "z": array})
    np.testing.assert_array_equal(block[1:].numpy(), right[0])
    np.testing.assert_array_equal(array, right[1])
    assert found[1] is array
    staged = {"y: it is misaligned": 1, "z: it is on the host": 1}
    assert replay.stats["staged_copies"] == staged
    replay.run({"x": x}, {"y": torch.empty(SIZE)})
    replay.run({"x": x.numpy()}, {"y": array})  # as pinned memory does it: nothing beside that
    assert replay.stats["staged_copies"] == staged


def test_outputs_that_overlap_are_staged() -> None:
    replay, _ = replayed()
    block = torch.randn(2 * SIZE)
    x, y = block[:SIZE], block[4 : 4 + SIZE]
    right = expected(x.clone())
    found = replay.run({"x": x}, {"y": y})
    assert found[0] is y
    np.testing.assert_array_equal(y.numpy(), right[0])
    np.testing.assert_array_equal(found[1].numpy(), right[1])
    assert replay.stats["staged_copies"] == {"y: it overlaps another": 1}


def test_feeds_that_do_not_fit_are_refused() -> None:
    replay, _ = replayed()
    with pytest.raises(FeedError, match="input x"):
        replay.run({"x": some().double()})
    with pytest.raises(FeedError, match="input x"):
        replay.run({"x": np.zeros(SIZE + 1, np.float32)})


def test_tensors_of_others_come_by_dlpack() -> None:
    replay, _ = replayed()

    class Foreign:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    x = some()
    found = replay.run({"x": Foreign(x)})
    np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])
    capsule = torch.utils.dlpack.to_dlpack(x)
    found = replay.run({"x": capsule})
    np.testing.assert_array_equal(found[0].numpy(), expected(x)[0])
    assert replay.stats["staged_copies"] == {}


def test_state_advances_once_a_call_the_first_included() -> None:
    replay, driver = replayed(counter)
    state, x = torch.zeros(SIZE), torch.ones(SIZE)
    for turn in range(1, 6):
        found = replay.run({"x": x, "past": state}, {"present": state})
        assert found[0] is state
        assert state.tolist() == [turn] * SIZE
        assert found[1].tolist() == [10 * turn] * SIZE
    assert driver.ran == ["total"] * 5
    assert replay.executable.copies == 0
    assert replay.stats["captures"] == 1


def test_a_failed_recording_advances_state_once() -> None:
    replay, driver = replayed(counter)
    driver.fail("instantiate")
    state = torch.zeros(SIZE)
    replay.run({"x": torch.ones(SIZE), "past": state}, {"present": state})
    assert state.tolist() == [1] * SIZE


def test_state_that_is_not_given_back_is_left_alone() -> None:
    replay, _ = replayed(counter)
    state = torch.zeros(SIZE)
    present, _ = replay.run({"x": torch.ones(SIZE), "past": state})
    assert state.tolist() == [0] * SIZE
    assert present.tolist() == [1] * SIZE


def test_state_that_is_also_an_input() -> None:
    replay, _ = replayed(counter)
    state = torch.full((SIZE,), 3.0)
    replay.run({"x": state, "past": state}, {"present": state})
    assert state.tolist() == [6] * SIZE
    replay.run({"x": state, "past": state}, {"present": state})
    assert state.tolist() == [12] * SIZE


def test_one_thread_of_the_host_launches_a_program() -> None:
    """As executables of the CPU tell it: `threads` are those that compute or launch."""
    replay, _ = replayed()
    assert replay.executable.threads == 1
