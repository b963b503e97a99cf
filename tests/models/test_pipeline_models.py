"""Real models give the same answers after the whole pipeline, with either cost model.

Answers are compared with the reference on the recorded inputs, within the tolerance that
`runtime.numerics.bisect` derives from the graphs before and after. Small models are
checked behind every pass; `monograph verify --bisect` does that for any model.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import monograph
from monograph.ir import Graph
from monograph.passes.base import Environment
from monograph.pipeline import optimise
from monograph.program.fusion.op_classes import is_kernel
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.rewrite import CPU_COST, GPU_COST
from monograph.runtime.numerics.bisect import NumericCheck, first_difference, run
from tests.models.test_real_models import RECORDED, ROWS_IN_ANY_ORDER, SHARED

SMALL = (
    "genai_llama_fp32", "genai_llama_int4", "hf_bert_sdpa", "magika_v3_3", "ppocrv6_rec_tiny",
    "reachy_fk_int8", "silero_vad_v6", "tv_mobilenet_v3_small",
)  # fmt: skip


def bound(name: str) -> tuple[Graph, dict[str, Any]]:
    """A model's graph for the recorded inputs, and these."""
    path = SHARED / name
    if not path.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    session = monograph.load(path / "model.onnx", target="reference")
    feeds, _ = split_archive(read_archive(path / "io.npz"), session.inputs, session.outputs)
    return session.bound_graph(feeds), feeds


def kernels(graph: Graph) -> int:
    """Values that need a kernel of their own: zero points behind a layer, and views, do not."""
    return sum(map(is_kernel, graph.values))


@pytest.mark.parametrize("name", RECORDED)
def test_the_pipeline_keeps_the_answers(name: str) -> None:
    graph, feeds = bound(name)
    expected = run(graph, feeds)
    results = [optimise(graph, environment=Environment(cost)) for cost in (CPU_COST, GPU_COST)]
    for after in dict.fromkeys(results):
        assert kernels(after) <= kernels(graph)
        rows = ROWS_IN_ANY_ORDER.get(name, ())
        found = first_difference(
            graph, after, feeds, exact=False, expected=expected, any_order=rows
        )
        assert found is None, found


@pytest.mark.parametrize("name", SMALL)
def test_every_pass_keeps_the_answers(name: str) -> None:
    graph, feeds = bound(name)
    for cost in (CPU_COST, GPU_COST):
        optimise(graph, environment=Environment(cost), numbers=NumericCheck(graph, feeds))


def test_a_detector_loses_its_overhead() -> None:
    """Every x * sigmoid(x) is recognised, biases are constants, concats of splits are resolved."""
    graph, _ = bound("ul_yolov10n_e2e")
    after = optimise(graph)
    before_ops, after_ops = (Counter(v.op.name for v in g.values) for g in (graph, after))
    gates = [
        v
        for v in after.values
        if v.op.name == "mul" and any(i.op.name == "sigmoid" and i.inputs[0] in v.inputs
                                      for i in v.inputs)
    ]  # fmt: skip
    assert not gates
    assert after_ops["silu"] == 69
    # Two convolutions read an enlarged image beside another: each is done in two parts.
    assert after_ops["conv"] <= before_ops["conv"] + 2
    layers = ("conv", "dot")
    scaled = [
        v
        for v in after.values
        if v.op.name == "mul" and any(i.op.name in layers for i in v.inputs)
        and any(i.op.name == "constant" for i in v.inputs)
    ]  # fmt: skip
    assert not scaled
    for value in after.values:
        if value.op.name == "concat":
            sources = [v.inputs[0] if v.op.name == "slice" else v for v in value.inputs]
            neighbours = zip(value.inputs, value.inputs[1:], sources, sources[1:], strict=False)
            assert not any(
                a.op.name == b.op.name == "slice" and s is t for a, b, s, t in neighbours
            ), "neighbouring slices of one value are one slice"
