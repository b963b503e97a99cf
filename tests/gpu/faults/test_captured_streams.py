"""A stream that had a run of ours, and that its owner captures now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from monograph.errors import ExecutionError
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault


@contextmanager
def on(rig: Rig, stream: Any) -> Iterator[None]:
    with torch.cuda.stream(stream) if ON_DEVICE else rig.driver.using(stream):
        yield


@contextmanager
def captured(rig: Rig, stream: Any) -> Iterator[None]:
    """A caller's capture; at its end it must be as good as ever."""
    if ON_DEVICE:
        graph, made = torch.cuda.CUDAGraph(), torch.zeros(4, device=PLACE)
        with torch.cuda.graph(graph, stream=stream):
            made.add_(1)
            yield
            made.add_(1)
        graph.replay()
        rig.synchronise()
        assert made.tolist() == [2] * 4
        return
    graphs = rig.graphs.inner
    graphs.begin(stream)
    yield
    recorded = graphs.end(stream)
    assert graphs.nodes(recorded) == []  # nothing of ours was drawn into it


@pytest.mark.parametrize("hosted", [False, True], ids=["tensors", "arrays"])
@fault
def test_it_cannot_be_waited_for(rig: Rig, hosted: bool) -> None:
    """To wait for it would draw our stream into their capture, and nothing would run."""
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    given = {n: t.cpu().numpy() for n, t in feeds.items()} if hosted else feeds
    rig.synchronise()
    first, second = (torch.cuda.Stream(), torch.cuda.Stream()) if ON_DEVICE else (41, 42)
    with on(rig, first):
        case.replay.run(given)
        case.replay.run(given)
    with captured(rig, first), on(rig, second):
        for _ in range(2):
            with pytest.raises(ExecutionError, match="is being captured"):
                case.replay.run(given)
    with on(rig, second):
        found = case.replay.run(given)
    rig.synchronise()
    equal([torch.as_tensor(t) for t in found], [t.cpu() for t in right] if hosted else right)
    assert case.stats["captures"] == 1
