"""Callers who record a graph themselves: a run becomes part of it, or is refused.

Either way their recording goes on: what they enqueue before and after the run is in their graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from monograph.errors import ExecutionError
from tests.gpu.capture.replay_models import SIZE, double, plus_one
from tests.gpu.faults.rig import KINDS, ON_DEVICE, PLACE, Rig, equal, fault
from tests.gpu.faults.test_state import scaled
from tests.gpu.gpu_models import linear, lookup, sequences

STREAM = 5
"""Of the fake driver's, the one that callers record."""


class Theirs:
    """A graph of the caller's with work of their own, and with what is run while it is recorded."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._given = torch.zeros(SIZE, device=PLACE)
        self._made = [torch.zeros(SIZE, device=PLACE) for _ in range(2)]
        self._graph: Any = torch.cuda.CUDAGraph() if ON_DEVICE else None
        self.kept: list[torch.Tensor] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records what is done inside between two pieces of work; it must be possible to end it."""
        if ON_DEVICE:
            with torch.cuda.graph(self._graph):
                torch.mul(self._given, 2, out=self._made[0])
                yield
                torch.add(self._given, 1, out=self._made[1])
            return
        graphs = self.rig.graphs.inner
        graphs.begin(STREAM)
        try:
            with self.rig.driver.using(STREAM):
                self._launch(double, self._made[0])
                yield
                assert graphs.capturing_now(), "somebody has ended their recording"
                self._launch(plus_one, self._made[1])
            recorded = graphs.end(STREAM)
        except BaseException:
            graphs.abort(STREAM)
            raise
        self._graph = graphs.instantiate(recorded)

    def _launch(self, run: Callable[[list[int]], None], to: torch.Tensor) -> None:
        words = [t.data_ptr().to_bytes(8, "little") for t in (self._given, to)]
        self.rig.driver.launch(STREAM, "theirs", run, words)

    def replay(self, seed: int) -> None:
        """Launches their graph, and looks at what their own work has made."""
        self._given.copy_(torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)))
        if ON_DEVICE:
            self._graph.replay()
        else:
            self.rig.graphs.inner.launch(self._graph, STREAM)
        self.rig.synchronise()
        equal(self._made, [self._given * 2, self._given + 1])


def recorded(theirs: Theirs, run: Callable[[], list[Any]]) -> tuple[list[Any], str]:
    """Return what a run gives while they record; or what is said, where it is refused."""
    found: list[Any] = []
    told = ""
    with theirs.recording():
        try:
            found = run()
        except ExecutionError as e:
            told = str(e)
            assert "caller" in told
    # Whatever the run has left to nobody is somebody's now.
    theirs.kept += [torch.full((), np.nan, device=PLACE) for _ in range(64)]
    return found, told


@pytest.mark.parametrize("first", [True, False], ids=["first run", "later run"])
@pytest.mark.parametrize("kind", KINDS)
@fault
def test_a_model_of_every_kind(rig: Rig, kind: str, first: bool) -> None:
    """Their graph does what a run does whatever it is fed: which branch, how many turns."""
    case = rig.case(kind)
    if not first:
        case.check(8)
    feeds = case.feeds(1)
    before = {n: t.clone() for n, t in feeds.items()}
    out = {"present": feeds["past"]} if kind == "state" else {}
    right = [case.right(case.feeds(seed)) for seed in range(6)]
    rig.synchronise()
    theirs = Theirs(rig)
    found, told = recorded(theirs, lambda: case.replay.run(feeds, out))
    equal(list(feeds.values()), list(before.values()))  # it has been recorded, not run
    for seed in (2, 3, 1):
        for name, tensor in case.feeds(seed).items():
            feeds[name].copy_(tensor)
        theirs.replay(seed)
        if not told:
            equal(found, right[seed])
    assert kind not in ("model", "state") or not told
    assert case.stats["caller_captures"] == (not told)
    for seed in (4, 5):
        case.check(seed)
    assert case.stats["captures"] == 1
    assert case.stats["fallbacks"] == {}
    if not told and kind != "state":  # nor has their graph anything to do with ours
        theirs.replay(6)
        equal(found, right[1])


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 33, generator=torch.Generator().manual_seed(seed)).to(PLACE)


def _scalars(seed: int) -> dict[str, Any]:
    return {"x": rows(1, seed)[0, :6].contiguous(), "s": np.float32(2.5)}


RUNS: dict[str, tuple[Callable[[], Any], list[Mapping[str, Any]], Mapping[str, Any]]] = {
    "a known shape": (linear, [{"x": rows(5, 1)}], {"x": rows(5)}),
    "a new shape": (linear, [{"x": rows(2)}], {"x": rows(5)}),
    "no shape yet": (linear, [], {"x": rows(5)}),
    "a scalar of the host": (scaled, [_scalars(1)], _scalars(0)),
    "arrays": (linear, [{"x": rows(5).cpu().numpy()}], {"x": rows(5).cpu().numpy()}),
    "arrays, as tensors before": (linear, [{"x": rows(5)}], {"x": rows(5).cpu().numpy()}),
    "a check of data": (
        lookup,
        [{"at": torch.tensor([1, 2], device=PLACE)}],
        {"at": torch.tensor([0, 3], device=PLACE)},
    ),
    "steps of the host": (
        sequences,
        [{"x": rows(3, 1)[:, :4].contiguous()}],
        {"x": rows(3)[:, :4].contiguous()},
    ),
}
RECORDED = ("a known shape", "a check of data")
REFUSED = ("arrays", "arrays, as tensors before", "steps of the host")


@pytest.mark.parametrize("what", RUNS)
@fault
def test_a_session(rig: Rig, what: str) -> None:
    """A session refuses work for the host, or more than launches, before anything is done."""
    model, earlier, given = RUNS[what]
    device = rig.device()
    session = rig.load(model(), device)
    eager = rig.load(model(), device, capture="off")
    feeds = {n: x.clone() if isinstance(x, torch.Tensor) else x.copy() for n, x in given.items()}
    for fed in earlier:
        session.run(fed)
    right = eager.run(feeds)
    rig.synchronise()
    theirs = Theirs(rig)
    found, told = recorded(theirs, lambda: session.run(feeds))
    assert (what in RECORDED) <= (not told)
    assert (what in REFUSED) <= bool(told)
    theirs.replay(1)
    if not told:
        equal(found, right)
        for tensor in feeds.values():
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(tensor.flip(0))
        right = eager.run(feeds)
        theirs.replay(2)
        equal(found, right)
    for _ in range(2):
        equal([torch.as_tensor(y) for y in session.run(feeds)], [torch.as_tensor(y) for y in right])
    assert session.stats["captures"] >= 1


@pytest.mark.skipif(not ON_DEVICE, reason="without graphs nobody asks the fake driver who records")
@fault
def test_a_session_that_does_not_capture(rig: Rig) -> None:
    session = rig.load(linear(), capture="off")
    x = rows(5)
    right = [t.clone() for t in session.run({"x": x})]
    rig.synchronise()
    theirs = Theirs(rig)
    found, told = recorded(theirs, lambda: session.run({"x": x}))
    assert not told
    theirs.replay(1)
    equal(found, right)
    equal(session.run({"x": x}), right)
