"""The same from a user's side: what goes wrong below shows in `stats`, and in nothing else."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError, MonographError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault, side_by_side
from tests.gpu.gpu_models import linear


def rows(seed: int = 0, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 33, generator=generator).to(PLACE)


class Two:
    """A session that captures, and one that does not."""

    def __init__(self, rig: Rig, **options: Any) -> None:
        self.captured = rig.load(linear(), **options)
        self.eager = rig.load(linear(), capture="off")

    @property
    def stats(self) -> dict[str, Any]:
        return self.captured.stats

    def right(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [t.clone() for t in self.eager.run({"x": x})]

    def check(self, seed: int = 0) -> None:
        x = rows(seed)
        equal(self.captured.run({"x": x}), self.right(x))


CALLS = ("prepare", "instantiate", "read")


@pytest.mark.parametrize("call", CALLS)
@fault
def test_a_capture_fails(rig: Rig, call: str, caplog: pytest.LogCaptureFixture) -> None:
    """The run is right, the reason is counted and logged once, the next run is captured."""
    two = Two(rig)
    rig.graphs.fail(call)
    with caplog.at_level(logging.WARNING, "monograph"):
        two.check()
    reason = f"{call} fails on purpose"
    assert two.stats["fallbacks"] == {reason: 1}
    assert sum(reason in r.getMessage() for r in caplog.records) == 1
    two.check(1)
    two.check(2)
    assert two.stats["captures"] == 1
    assert two.stats["fallbacks"] == {reason: 1}
    assert two.stats["runs"] == 3


@pytest.mark.parametrize("call", CALLS)
@fault
def test_a_required_capture_fails(rig: Rig, call: str) -> None:
    two = Two(rig, capture="require")
    rig.graphs.fail(call)
    with pytest.raises(MonographError, match=f"{call} fails on purpose"):
        two.captured.run({"x": rows()})
    assert two.stats["replays"] == 0
    two.check()


@fault
def test_off_captures_nothing(rig: Rig) -> None:
    session = rig.load(linear(), capture="off")
    before = rig.graphs.calls.copy()
    session.run({"x": rows()})
    session.run({"x": rows().cpu().numpy()})
    assert rig.graphs.calls == before
    stats = session.stats
    assert stats["captures"] == stats["replays"] == 0
    assert stats["fallbacks"] == {}


@fault
def test_threads_share_a_session(rig: Rig) -> None:
    """From the first run on, with tensors and with arrays."""
    two = Two(rig)
    inputs = [rows(seed) for seed in range(6)]
    right = [two.right(x) for x in inputs]
    rig.synchronise()

    def work(part: int) -> None:
        for turn in range(12):
            number = (turn + part) % len(inputs)
            given: Any = inputs[number]
            if part % 2:
                given = given.cpu().numpy()
            (found,) = two.captured.run({"x": given})
            equal([torch.as_tensor(found).cpu()], [t.cpu() for t in right[number]])

    side_by_side(4, work)
    assert two.stats["captures"] == 2  # of tensors, and of arrays
    assert two.stats["runs"] == 48
    assert two.stats["fallbacks"] == {}


@fault
def test_the_input_is_overwritten_right_after_run_async(rig: Rig) -> None:
    two = Two(rig)
    x = rows()
    right = [t.cpu() for t in two.right(x)]
    two.check(1)
    array = x.cpu().numpy().copy()
    two.captured.run({"x": array})
    rig.synchronise()
    with rig.busy():
        pending = [two.captured.run_async({"x": array}) for _ in range(4)]
        array.fill(np.nan)
    for run in pending:
        equal([torch.as_tensor(t).cpu() for t in run.result()], right)


@fault
def test_the_output_is_consumed_on_another_stream(rig: Rig) -> None:
    two = Two(rig)
    x = rows()
    right = two.right(x)
    two.check(1)
    rig.synchronise()
    stream: Any = torch.cuda.Stream() if ON_DEVICE else 40
    with rig.busy(stream if ON_DEVICE else None):
        if ON_DEVICE:
            stream.wait_stream(torch.cuda.current_stream())
        pending = two.captured.run_async({"x": x}, stream=stream)
        found = pending.result()
        if ON_DEVICE:
            torch.cuda.current_stream().wait_stream(stream)
            copies = [t.clone() for t in found]
        rig.synchronise()
    equal(copies if ON_DEVICE else found, right)


@fault
def test_a_failing_launch_is_an_error(rig: Rig) -> None:
    two = Two(rig)
    two.check()
    rig.graphs.fail("launch", error=ExecutionError("the device failed"))
    with pytest.raises(ExecutionError, match="the device failed"):
        two.captured.run({"x": rows()})
    two.check(1)
    assert two.stats["captures"] == 1


@fault
def test_sessions_share_a_device(rig: Rig) -> None:
    """Several at once, each with graphs of its own."""
    sessions = [Two(rig) for _ in range(3)]

    def work(part: int) -> None:
        for seed in range(5):
            sessions[part].check(seed)

    side_by_side(3, work)
    assert [two.stats["captures"] for two in sessions] == [1, 1, 1]
