"""Every sample of every op that compiled code serves, through the GPU target's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from monograph.errors import ExecutionError, MonographError, UnsupportedError
from monograph.ir import Graph, Op, Sample, TensorType, evaluate
from monograph.ops import OPS
from monograph.ops.index import Gather
from monograph.program.fusion.op_classes import is_native
from tests.cpu.any_shape_cases import with_inputs
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


def emptied(op: type[Op], sample: Sample) -> Iterator[tuple[Graph, dict[str, np.ndarray]]]:
    """Yield a sample with each of its sizes replaced by 0, wherever it occurs."""
    graph, feeds = sample_graph(op, sample)
    types = zip(graph.input_names, graph.input_types, strict=True)
    shapes = {n: t.static for n, t in types if isinstance(t, TensorType) and t.is_static}
    for size in dict.fromkeys(d for shape in shapes.values() for d in shape if d):

        def shape(name: str, type_: TensorType, size: int = size) -> tuple[int, ...]:
            return tuple(0 if d == size else d for d in type_.static)

        with suppress(MonographError):
            made = with_inputs(graph, shape)
            named = zip(made.input_names, made.inputs, strict=True)
            yield made, feeds | {n: np.resize(feeds[n], v.tensor.static) for n, v in named}


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_sample_without_elements(op: type[Op], sample: Sample) -> None:
    """It is right or refused; no kernel accesses what is not there."""
    for graph, feeds in emptied(op, sample):
        try:
            with np.errstate(all="ignore"):
                expected = evaluate(graph, feeds)
        except MonographError:
            continue
        with suppress(UnsupportedError):
            check(graph, feeds, every=False, expected=expected)


def test_an_index_out_of_range_is_reported() -> None:
    graph, feeds = sample_graph(Gather, Gather.samples[0])
    feeds["x1"][0, 0] = 7
    with pytest.raises(ExecutionError, match="out of range"):
        check(graph, feeds, expected=[])
