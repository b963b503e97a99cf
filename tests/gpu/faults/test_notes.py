"""Data that do not fit: each run tells of its own, whoever else runs, waits or records."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from monograph.errors import ExecutionError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, fault, side_by_side
from tests.gpu.gpu_models import FLOAT, model

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
GOOD, BAD = np.array([1, 2]), np.array([1, 77])


def lookup() -> Any:
    ints = onnx.TensorProto.INT64
    return model(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        {"x": (FLOAT, [4, 3]), "i": (ints, [2])},
        {"y": (FLOAT, [2, 3])},
    )


def feeds(indices: np.ndarray, tensors: bool) -> dict[str, Any]:
    given = {"x": TABLE, "i": indices}
    return (
        {n: torch.from_numpy(a).to(PLACE, copy=True) for n, a in given.items()}
        if tensors
        else given
    )


def check(session: Any, indices: np.ndarray, tensors: bool) -> None:
    """A run that gives the right numbers, or raises."""
    _check(lambda: session.run(feeds(indices, tensors)), indices)


def _check(run: Any, indices: np.ndarray) -> None:
    if indices is BAD:
        with pytest.raises(ExecutionError, match="index is out of range"):
            run()
        return
    (y,) = run()
    np.testing.assert_array_equal(torch.as_tensor(y).cpu(), TABLE[indices])


DATA = pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
CAPTURE = pytest.mark.parametrize("capture", ["auto", "off"])


@CAPTURE
@DATA
@fault
def test_pending_runs_raise_their_own_faults(rig: Rig, tensors: bool, capture: str) -> None:
    session = rig.load(lookup(), capture=capture)
    for _ in range(2):
        check(session, GOOD, tensors)
    # Without graphs arrays are copied to the device, and the fake one frees the copies too soon.
    busy = rig.busy if ON_DEVICE or capture == "auto" else nullcontext
    for order in ((GOOD, BAD), (BAD, GOOD), (BAD, GOOD, BAD)):
        for turn in (1, -1):  # whoever asks first
            given = [feeds(indices, tensors) for indices in order]
            with busy():
                runs = [session.run_async(x) for x in given]
                if tensors or capture == "auto":  # else each array is copied, and that waited for
                    assert not any(r.done() for r in runs) or busy is nullcontext
            for run, indices in [*zip(runs, order, strict=True)][::turn]:
                for _ in range(2):
                    _check(run.result, indices)
    check(session, GOOD, tensors)


@fault
def test_a_fault_that_nobody_asks_for_is_nobodys(rig: Rig) -> None:
    session = rig.load(lookup())
    check(session, GOOD, True)
    for _ in range(3):
        session.run_async(feeds(BAD, True))
        check(session, GOOD, True)
        check(session, BAD, True)
        check(session, GOOD, True)


@CAPTURE
@DATA
@fault
def test_threads_get_their_own_faults(rig: Rig, tensors: bool, capture: str) -> None:
    session = rig.load(lookup(), capture=capture)
    check(session, GOOD, tensors)

    def work(part: int) -> None:
        for _ in range(10):
            check(session, BAD if part % 2 else GOOD, tensors)

    side_by_side(4, work)


@fault
def test_faults_in_a_callers_graph_are_not_blamed_on_later_runs(rig: Rig) -> None:
    session = rig.load(lookup())
    check(session, GOOD, True)
    given = feeds(BAD, True)
    if ON_DEVICE:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = session.run(given)
        replay = graph.replay
    else:
        graphs = rig.graphs.inner
        graphs.begin(5)
        with rig.driver.using(5):
            kept = session.run(given)
        executable = graphs.instantiate(graphs.end(5))

        def replay() -> None:
            graphs.launch(executable, 5)

    for tensors in (True, False):
        for indices in (GOOD, BAD, GOOD):
            replay()
            rig.synchronise()
            check(session, indices, tensors)
    assert session.stats["caller_captures"] == 1
    given["i"].copy_(torch.from_numpy(GOOD))
    replay()
    rig.synchronise()
    np.testing.assert_array_equal(kept[0].cpu(), TABLE[GOOD])
