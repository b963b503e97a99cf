"""Every sample of every op that compiled code serves, through the GPU target's kernels."""

from __future__ import annotations

import pytest

from monograph.errors import ExecutionError
from monograph.ir import Op, Sample
from monograph.ops import OPS
from monograph.ops.index import Gather
from monograph.program.fusion.op_classes import is_native
from tests.gpu.against import check
from tests.samples import sample_graph

CASES = [
    pytest.param(op, sample, id=f"{op.name}{number}")
    for op in OPS.values()
    for number, sample in enumerate(op.samples)
    if all(map(is_native, sample_graph(op, sample)[0].values))
]


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_sample(op: type[Op], sample: Sample) -> None:
    graph, feeds = sample_graph(op, sample)
    check(graph, feeds, every=False)


def test_an_index_out_of_range_is_reported() -> None:
    graph, feeds = sample_graph(Gather, Gather.samples[0])
    feeds["x1"][0, 0] = 7
    with pytest.raises(ExecutionError, match="out of range"):
        check(graph, feeds, expected=[])
