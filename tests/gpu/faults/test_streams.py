"""Runs that are not waited for, other streams, other devices, callers who capture themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault, in_thread, recorded
from tests.gpu.gpu_models import linear


def new_stream(rig: Rig) -> Any:
    return torch.cuda.Stream() if ON_DEVICE else 40


@pytest.mark.parametrize("kind", ["model", "library"])
@fault
def test_the_input_is_overwritten_right_after_run_async(rig: Rig, kind: str) -> None:
    """On the host it has been read by then; on the device whatever writes it comes later."""
    case = rig.case(kind)
    feeds = case.feeds()
    right = case.right(feeds)
    case.check(1)
    arrays = {n: t.cpu().numpy().copy() for n, t in feeds.items()}
    case.replay.run(arrays)
    rig.synchronise()
    with rig.busy():
        pending = [case.replay.run_async(arrays) for _ in range(5)]
        for array in arrays.values():
            array.fill(np.nan)
    for run in pending:
        equal([torch.as_tensor(x) for x in run.result()], [t.cpu() for t in right])
    with rig.busy():
        pending = [case.replay.run_async(feeds)]
        if ON_DEVICE:  # on the same stream; the fake driver's queue has only its own work
            for tensor in feeds.values():
                tensor.fill_(float("nan"))
        rig.synchronise()
    equal(pending[0].result(), right)


@fault
def test_run_async_returns_at_once(rig: Rig) -> None:
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    case.check()
    rig.synchronise()
    with rig.busy():
        pending = case.replay.run_async(feeds)
        assert not pending.done()
        rig.synchronise()
    equal(pending.result(), right)
    assert pending.done()


@fault
def test_the_output_is_consumed_on_another_stream(rig: Rig) -> None:
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    case.check()
    rig.synchronise()
    other = new_stream(rig)
    with rig.busy():
        found = case.replay.run_async(feeds).result()
        if ON_DEVICE:
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                copies = [t.clone() for t in found]
                again = case.replay.run({"x": found[0]})
            other.synchronize()
        else:
            with rig.driver.using(other):
                again = case.replay.run({"x": found[0]})
            rig.synchronise()
            copies = [t.clone() for t in found]
    equal(copies, right)
    equal(again, case.right({"x": right[0]}))


@fault
def test_runs_on_streams_by_turns_wait_for_each_other(rig: Rig) -> None:
    """They share the arena: one that starts early would spoil the one before."""
    case = rig.case("library")
    inputs = [case.feeds(seed) for seed in range(12)]
    right = [case.right(feeds) for feeds in inputs]
    case.check()
    rig.synchronise()
    streams = [new_stream(rig) for _ in range(3)]
    with rig.busy(streams[0] if ON_DEVICE else None):
        runs = [
            case.replay.run_async(feeds, stream=streams[number % 3])
            for number, feeds in enumerate(inputs)
        ]
        rig.synchronise()
    for run, wanted in zip(runs, right, strict=True):
        equal(run.result(), wanted)
    assert case.stats["captures"] == 1


@fault
def test_the_caller_is_already_capturing(rig: Rig) -> None:
    """Our kernels become part of their graph; what would have to wait is an error."""
    case = rig.case()
    feeds = case.feeds()
    case.check()
    arrays = {"x": feeds["x"].cpu().numpy()}
    if ON_DEVICE:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = case.replay.run(feeds)
        feeds["x"].copy_(case.feeds(3)["x"])
        graph.replay()
    else:
        rig.graphs.begin(5)
        with rig.driver.using(5):
            found = case.replay.run(feeds)
        recorded = rig.graphs.end(5)
        feeds["x"].copy_(case.feeds(3)["x"])
        executable = rig.graphs.instantiate(recorded)
        rig.graphs.launch(executable, 5)
    rig.synchronise()
    equal(found, case.right(feeds))
    assert case.stats["caller_captures"] == 1
    case.check(4)
    if ON_DEVICE:
        other = torch.cuda.CUDAGraph()
        with pytest.raises(ExecutionError, match="caller's graph"), torch.cuda.graph(other):
            case.replay.run(arrays)
        del graph, other
    else:
        rig.graphs.begin(5)
        with rig.driver.using(5), pytest.raises(ExecutionError, match="caller's graph"):
            case.replay.run(arrays)
        rig.graphs.abort(5)
    case.check(5)
    assert case.stats["captures"] == 1


@fault
def test_the_caller_captures_before_the_first_run(rig: Rig) -> None:
    """Nothing of ours has been captured yet, nor is it then: the run after that is."""
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    rig.synchronise()
    if ON_DEVICE:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = case.replay.run(feeds)
        graph.replay()
        rig.synchronise()
        equal(found, right)
        del graph
    else:
        rig.graphs.begin(5)
        with rig.driver.using(5):
            found = case.replay.run(feeds)
        recorded = rig.graphs.end(5)
        executable = rig.graphs.instantiate(recorded)
        rig.graphs.launch(executable, 5)
        equal(found, right)
    assert case.stats["captures"] == 0
    case.check(1)
    assert case.stats["captures"] == 1


@fault
def test_the_caller_captures_at_a_new_shape(rig: Rig) -> None:
    """Nothing is allocated, filled or sent into their graph: they are told, and it goes on."""
    session = rig.load(linear())
    x, other = torch.ones(2, 33, device=PLACE), torch.ones(3, 33, device=PLACE)
    (right,) = (t.clone() for t in session.run({"x": x}))
    rig.synchronise()
    with recorded(rig) as run:
        with pytest.raises(ExecutionError, match="new shapes"):
            session.run({"x": other})
        (found,) = session.run({"x": x})
    run[0]()
    rig.synchronise()
    equal([found], [right])
    assert session.stats["compiled"] == 1
    session.run({"x": other})
    assert session.stats["compiled"] == 2


@fault
def test_the_caller_captures_with_arrays_beside_tensors(rig: Rig) -> None:
    """Arrays that would have to be brought to the device, or back, are refused before."""
    case, other = rig.case("state"), rig.case()
    feeds, x = case.feeds(), other.feeds()
    right = other.right(x)
    case.check()
    other.check()
    rig.synchronise()
    with recorded(rig) as run:
        with pytest.raises(ExecutionError, match="caller's graph"):
            case.replay.run(feeds | {"x": np.ones(feeds["x"].shape, np.float32)})
        with pytest.raises(ExecutionError, match="caller's graph"):
            case.replay.run(feeds, {"y": np.empty(feeds["x"].shape, np.float32)})
        found = other.replay.run(x)
    run[0]()
    rig.synchronise()
    equal(found, right)
    assert case.stats["caller_captures"] == 0
    case.check(1)


@pytest.mark.skipif(not ON_DEVICE, reason="another device is torch's to choose")
@fault
def test_a_thread_that_is_new_to_the_device(rig: Rig) -> None:
    """Its current device is none at all, which the session's is not."""
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    rig.synchronise()
    for _ in range(2):
        found: list[Any] = []
        assert in_thread(lambda f=found: f.extend(case.replay.run(feeds))) == []  # type: ignore[misc]
        rig.synchronise()
        equal(found, right)
    assert case.stats["captures"] == 1


@fault
def test_the_current_device_is_not_the_sessions(rig: Rig) -> None:
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    arrays = {n: t.cpu().numpy() for n, t in feeds.items()}
    if ON_DEVICE:
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two devices")
        other = torch.device("cuda", 1)
        with torch.cuda.device(other):
            found = [case.replay.run(feeds) for _ in range(2)]
            moved = case.replay.run({n: t.to(other) for n, t in feeds.items()})
            hosted = case.replay.run(arrays)
            assert torch.cuda.current_device() == 1
        assert all(t.device == PLACE for run in (*found, moved) for t in run)
    else:
        rig.graphs.inner.elsewhere = True
        found = [case.replay.run(feeds) for _ in range(2)]
        moved, hosted = case.replay.run(feeds), case.replay.run(arrays)
        assert rig.graphs.inner.guarded >= 4
        rig.graphs.inner.elsewhere = False
    for run in (*found, moved):
        equal(run, right)
    equal([torch.as_tensor(x) for x in hosted], [t.cpu() for t in right])
    assert case.stats["captures"] == 2  # of tensors, and of arrays
    case.check(1)
