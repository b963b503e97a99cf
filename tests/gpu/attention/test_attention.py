"""Attention on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from monograph.ir import Graph, Input, Sample, TensorType, Value, dtype, evaluate
from monograph.ops.attention import LENGTHS, MASK, SINKS, Attention
from monograph.ops.composite import Silu
from monograph.ops.shape import Transpose
from tests.conformance import halves
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, check
from tests.gpu.sweep_worker import target
from tests.samples import sample_graph


def tensor(name: str, shape: tuple[int, ...], kind: str = "f32") -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


@pytest.mark.parametrize("sample", Attention.samples, ids=str)
def test_samples_by_every_candidate(sample: Sample) -> None:
    check(*sample_graph(Attention, sample))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("queries", [1, 37])
def test_heads_that_share_keys(kind: str, queries: int) -> None:
    q, k = tensor("q", (2, 6, queries, 24), kind), tensor("k", (2, 2, 70, 24), kind)
    v, n = tensor("v", (2, 2, 70, 20), kind), tensor("n", (2,), "i64")
    sinks = tensor("sinks", (6,), kind)
    op = Attention(causal=True, window=50, extra=(LENGTHS, SINKS))
    graph = Graph((q, k, v, n, sinks), (("y", op(q, k, v, n, sinks)),))
    feeds = feeds_for(graph)
    feeds["n"] = np.array([41, 70])
    check(graph, feeds, steps=1, every=kind == "f32")


def test_operands_are_read_through_views() -> None:
    given = [tensor(n, (1, 20, 3, 16)) for n in "qkv"]
    q, k, v = (Transpose((0, 2, 1, 3))(x) for x in given)
    y = Transpose((0, 2, 1, 3))(Attention(causal=True)(q, k, v))
    check(Graph(tuple(given), (("y", y),)), every=False)


def test_a_mask_is_broadcast_and_a_row_may_see_nothing() -> None:
    q, k, v = (tensor(n, (1, 2, 5, 16)) for n in "qkv")
    mask = tensor("mask", (2, 1, 5), "bool")
    graph = Graph((q, k, v, mask), (("y", Attention(extra=(MASK,))(q, k, v, mask)),))
    feeds = feeds_for(graph)
    feeds["mask"][0] = False
    check(graph, feeds, every=False)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("kind", ["bool", "f32"])
def test_a_fully_masked_row_is_zero_or_nan(kind: str, nan: bool) -> None:
    """By one pass over the keys, and by programs that share them."""
    q, k, v = tensor("q", (1, 2, 3, 16)), tensor("k", (1, 2, 70, 16)), tensor("v", (1, 2, 70, 16))
    mask = tensor("mask", (2, 3, 70), kind)
    op = Attention(extra=(MASK,), masked_nan=nan)
    graph = Graph((q, k, v, mask), (("y", op(q, k, v, mask)),))
    assert any(" split " in name for names in candidate_names(graph) for name in names)
    feeds = feeds_for(graph)
    feeds["mask"][0, 1] = False if kind == "bool" else -np.inf
    feeds["mask"][1, 2] = False if kind == "bool" else np.finfo(np.float32).min
    with np.errstate(all="ignore"):
        (expected,) = evaluate(graph, feeds)
    assert np.isnan(expected[0, 0, 1]).all() == nan
    check(graph, feeds)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("causal", "groups"), [(True, 2), (False, 2), (False, 1)])
def test_by_a_library(kind: str, causal: bool, groups: int) -> None:
    """The op behind it is a kernel of its own; operands and result may be views."""
    heads = (("q", 2), ("k", groups), ("v", groups))
    given = [tensor(n, (2, 12, h, 16), kind) for n, h in heads]
    q, k, v = (Transpose((0, 2, 1, 3))(x) for x in given)
    y = Attention(causal=causal, scale=0.3)(q, k, v)
    graph = Graph(tuple(given), (("y", Transpose((0, 2, 1, 3))(Silu()(y))),))
    assert any("library attention" in names for names in candidate_names(graph))
    check(graph, chosen=("library attention",))


@pytest.mark.parametrize("sample", Attention.samples, ids=str)
def test_a_library_does_not_see_what_it_cannot_do(sample: Sample) -> None:
    graph, _ = sample_graph(Attention, sample)
    assert "library attention" not in candidate_names(graph)[0]


@pytest.mark.parametrize("causal", [False, True])
def test_halves_are_nearer_to_the_exact_answer_than_the_data_of_onnx(causal: bool) -> None:
    """The reason why `tests/conformance/left_out.py` leaves cases out."""
    session = monograph.load(halves.model(causal), target=target(), cache_dir="", tune="off")
    for seed in halves.SEEDS:
        given = halves.inputs(seed)
        (y,) = session.run(halves.feeds(given))
        right = halves.exact(*given, causal)
        worse = halves.off(halves.stepwise(*given, causal), right)
        assert halves.off(y, right) < min(halves.BOUND, worse)
