"""Every sample of every op: the reference runs and gives what the op infers."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import (
    Op,
    Sample,
    TensorType,
    constants,
    evaluate,
    from_numpy,
    parse_graph,
    print_graph,
    verify,
)
from monograph.ir.types import accepts
from monograph.ops import OPS
from tests.samples import sample_graph

CASES = [
    pytest.param(op, s, id=f"{op.name}-{i}")
    for op in OPS.values()
    for i, s in enumerate(op.samples)
]
WITHOUT_SAMPLES = {"input", "item", "fail"}
"""Ops of the IR itself, which every other sample goes through, and one that only fails."""


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_reference_gives_the_inferred_type(op: type[Op], sample: Sample) -> None:
    graph, feeds = sample_graph(op, sample)
    for type_, result in zip(graph.output_types, evaluate(graph, feeds), strict=True):
        if not isinstance(type_, TensorType):
            continue
        assert isinstance(result, np.ndarray), f"{op.name} gave {type(result)}, not an array"
        given = TensorType(from_numpy(result.dtype), result.shape)
        assert accepts(type_, given), f"{op.name} inferred {type_} and gave {given}"


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_text_form_reads_back_to_the_same_graph(op: type[Op], sample: Sample) -> None:
    graph, _ = sample_graph(op, sample)
    verify(graph)
    again = parse_graph(print_graph(graph), constants(graph))
    assert again == graph
    assert all(a[1] is b[1] for a, b in zip(again.outputs, graph.outputs, strict=True))
    assert parse_graph(print_graph(graph, data=True)) == graph


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_every_op_is_documented_and_sampled(op: type[Op]) -> None:
    assert op.__doc__, f"{op.__name__} has no docstring"
    assert not op.__doc__.startswith(f"{op.__name__}("), (
        f"{op.__name__} has no docstring of its own"
    )
    assert op.samples or op.name in WITHOUT_SAMPLES, f"{op.__name__} has no samples"
