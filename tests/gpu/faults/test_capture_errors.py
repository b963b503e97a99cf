"""Something fails while a graph is made: the run is eager then, and the next one is captured."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from monograph.errors import ExecutionError
from monograph.runtime.gpu.driver.graphs import GraphError
from tests.gpu.faults.misbehaving import hook, kernels_of
from tests.gpu.faults.rig import KINDS, ON_DEVICE, Case, Rig, equal, fault

Check = Callable[..., list[torch.Tensor]]
FED = pytest.mark.parametrize("check", [Case.check, Case.check_arrays], ids=["tensors", "arrays"])


def recovers(case: Case, reason: str, check: Check = Case.check) -> None:
    """A run that cannot be captured gives the right answer, and the next one is captured."""
    check(case)
    assert case.stats["fallbacks"] == {reason: 1}
    assert case.stats["captures"] == case.stats["replays"] == 0
    check(case, 1)
    assert case.stats["captures"] == case.stats["replays"] == 1
    check(case, 2)
    assert case.stats["captures"] == 1
    assert case.replay.executable.runs == 3


@FED
@pytest.mark.parametrize("kind", KINDS)
@fault
def test_a_raise_at_each_kernel(rig: Rig, kind: str, check: Check) -> None:
    """Those inside branches and loops too, whether tensors or arrays are fed."""

    def fail() -> None:
        raise RuntimeError("a kernel raises")

    for number in range(len(kernels_of(rig.running(kind)))):
        case = rig.case(kind)
        hook(case.replay, number, fail)
        recovers(case, "a kernel raises", check)
        rig.graphs.well()


@pytest.mark.parametrize("done", [False, True], ids=["refused", "carried out"])
@pytest.mark.parametrize("call", ["prepare", "streams", "begin", "end", "create", "add_kernel"])
@fault
def test_the_end_of_a_capture_and_what_is_before_it(rig: Rig, call: str, done: bool) -> None:
    case = rig.case()
    rig.graphs.fail(call, done=done)
    if call in ("create", "add_kernel") if not rig.builds else call in ("streams", "begin", "end"):
        case.check()  # such graphs are made without it
        assert rig.graphs.waiting
        rig.graphs.well()
        return
    recovers(case, f"{call} fails on purpose")


@FED
@pytest.mark.parametrize("done", [False, True], ids=["refused", "carried out"])
@pytest.mark.parametrize("kind", KINDS)
@fault
def test_instantiate_fails(rig: Rig, kind: str, done: bool, check: Check) -> None:
    case = rig.case(kind)
    rig.graphs.fail("instantiate", done=done)
    recovers(case, "instantiate fails on purpose", check)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["model", "library"])
@fault
def test_out_of_memory(rig: Rig, kind: str, number: int) -> None:
    case = rig.case(kind)
    launches = case.replay.executable.launches

    def fail() -> None:
        raise torch.OutOfMemoryError("no memory")

    hook(case.replay, number % launches, fail)
    recovers(case, "no memory")


@fault
def test_out_of_memory_for_a_pool(rig: Rig) -> None:
    case = rig.case("library")
    rig.graphs.fail("pool", error=torch.OutOfMemoryError("no memory"))
    recovers(case, "no memory")


@fault
def test_out_of_memory_for_a_staging_buffer(rig: Rig) -> None:
    """Pinned memory is no part of a capture: the run fails, clearly, and nothing is launched."""
    case = rig.case()
    arrays = {n: t.cpu().numpy() for n, t in case.feeds().items()}
    rig.graphs.fail("pinned", error=torch.OutOfMemoryError("no memory"))
    with pytest.raises((ExecutionError, torch.OutOfMemoryError), match="memory"):
        case.replay.run(arrays)
    assert case.replay.executable.runs == 0
    found = case.replay.run(arrays)
    equal([torch.from_numpy(x) for x in found], [t.cpu() for t in case.right(case.feeds())])


@pytest.mark.parametrize("call", ["end", "instantiate", "begin", "create"])
@fault
def test_require_raises_and_launches_nothing(rig: Rig, call: str) -> None:
    if (call in ("end", "begin")) == rig.builds and call != "instantiate":
        call = "instantiate"
    case = rig.case(mode="require")
    rig.graphs.fail(call)
    with pytest.raises(GraphError, match=f"{call} fails on purpose"):
        case.replay.run(case.feeds())
    assert case.replay.executable.runs == 0
    case.check()


@fault
def test_an_interrupt_ends_the_capture_and_is_not_swallowed(rig: Rig) -> None:
    case = rig.case()

    def interrupt() -> None:
        raise KeyboardInterrupt

    hook(case.replay, 1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        case.replay.run(case.feeds())
    assert gc.isenabled()
    assert case.replay.executable.runs == 0
    case.check()


@fault
def test_what_went_wrong_first_is_what_is_told(rig: Rig, monkeypatch: Any) -> None:
    """Even where the driver then refuses to end the capture."""
    case = rig.case("library")
    plain = rig.graphs.inner.abort
    ended: list[int] = []

    def abort(stream: int) -> None:
        plain(stream)
        ended.append(stream)
        raise GraphError("nor can it be ended")

    monkeypatch.setattr(rig.graphs.inner, "abort", abort)
    rig.graphs.fail("end")
    recovers(case, "end fails on purpose")
    assert len(ended) == 1
    monkeypatch.undo()


@fault
def test_a_hidden_synchronisation(rig: Rig) -> None:
    """A library that waits for the stream that records it: one run is eager, with a reason."""
    case = rig.case("library")
    record: Any = case.replay.executable.records[0]
    plain, turns = record.launch, []

    def waits(stream: int) -> None:
        plain(stream)
        turns.append(1)
        if len(turns) == 2:  # the first is on scratch memory
            if ON_DEVICE:
                torch.cuda.current_stream().synchronize()
            else:
                rig.driver.synchronise(stream)

    record.launch = waits
    case.check()
    assert sum(case.stats["fallbacks"].values()) == 1
    case.check(1)
    assert case.stats["captures"] == 1


@fault
def test_a_failing_launch_is_an_error_and_no_second_run(rig: Rig) -> None:
    case = rig.case("state")
    feeds = case.feeds()
    state = feeds["past"]
    right = (state + feeds["x"]).clone()
    case.replay.run(feeds, {"present": state})
    assert torch.equal(state, right)
    rig.graphs.fail("launch", error=ExecutionError("the device failed"))
    with pytest.raises(ExecutionError, match="the device failed"):
        case.replay.run(feeds, {"present": state})
    assert torch.equal(state, right)
    case.replay.run(feeds, {"present": state})
    assert torch.equal(state, right + feeds["x"])


@fault
def test_a_failing_write_leaves_no_graph_with_unknown_addresses(rig: Rig) -> None:
    case = rig.case()
    held = case.check()
    rig.graphs.fail("write", 1)
    with pytest.raises(GraphError):
        case.replay.run(case.feeds(1))
    held += case.check(2)
    assert case.stats["captures"] == 2
