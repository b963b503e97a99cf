"""Layers over one input become one; embeddings become one lookup."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, dtype, evaluate, verify
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul, Sigmoid
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Concat, Transpose
from monograph.passes.base import Environment, Pass, run_pass
from monograph.passes.horizontal.fuse_shared_input import FuseEmbeddings, FuseSharedInput
from monograph.passes.horizontal.hoist_slices import HoistSlices
from monograph.rewrite import GPU_COST
from tests.rules.checks import check_numbers, graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def fuse(before: Graph, *passes: Pass) -> tuple[Graph, Environment]:
    environment = Environment(cost=GPU_COST)
    after = before
    for step in passes or (FuseSharedInput(),):
        after = verify(run_pass(step, after, environment))
    return after, environment


def count(graph: Graph, name: str) -> int:
    return Counter(v.op.name for v in graph.values)[name]


def test_dots_of_different_widths() -> None:
    x = value("f32[2, 5, 8]")
    before = graph_of(*(Dot()(x, weight(8, n)) for n in (8, 2, 2)))
    after, _ = fuse(before)
    check_numbers(before, after, exact=False)
    assert count(after, "dot") == 1
    assert count(after, "slice") == 3


def test_layers_of_one_input_say_why_they_differ() -> None:
    image = value("f32[1, 4, 8, 8]")
    kernels = (
        Conv((1, 1), (p, p), (p, p), (1, 1))(image, weight(3, 4, n, n)) for n, p in ((1, 0), (3, 1))
    )
    before = graph_of(*kernels)
    after, environment = fuse(before)
    assert after == before
    (miss,) = environment.trace.nearest("fuse_shared_input")
    assert miss.reason.startswith("the layers differ in more than their width (expected ")
    assert "f32[3, 4, 1, 1], given " in miss.reason


def coded(n: int, codes: str, by_column: bool, zeros: bool = True) -> Value:
    """Weights [16, n] of few bits, in groups of 8 along the sums."""
    shape = (n, 16) if by_column else (16, n)
    groups = (n, 2) if by_column else (2, n)
    given = [rng.integers(0, 8, shape), rng.random(groups), rng.integers(0, 8, groups)]
    kinds = (dtype(codes), dtype("f32"), dtype(codes))
    data = [constant(g.astype(k.numpy)) for g, k in zip(given, kinds, strict=True)]
    op = Dequantize(dtype("f32"), 1 if by_column else 0, 8)
    decoded = op(*data[: 3 if zeros else 2])
    return Transpose((1, 0))(decoded) if by_column else decoded


@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
def test_codes_are_joined_as_they_are(by_column: bool, zeros: bool) -> None:
    x = value("f32[1, 16]")
    before = graph_of(*(Dot()(x, coded(n, "u4", by_column, zeros)) for n in (8, 4, 6)))
    after, environment = fuse(before)
    check_numbers(before, after, exact=False)
    assert [count(after, n) for n in ("dot", "dequantize", "slice")] == [1, 1, 3]
    assert [f.rule for f in environment.trace.fired] == ["fuse_shared_input"]


def test_a_scale_for_each_column_is_joined_too() -> None:
    x = value("f32[1, 16]")

    def layer(n: int) -> Value:
        data = constant(rng.integers(-9, 9, (16, n)).astype(np.int8))
        scales = constant(rng.random(n).astype(np.float32))
        return Dot()(x, Dequantize(dtype("f32"), 1)(data, scales))

    before = graph_of(layer(8), layer(4))
    after, _ = fuse(before)
    check_numbers(before, after, exact=False)
    assert count(after, "dot") == 1


def test_codes_of_other_kinds_stay_apart() -> None:
    x = value("f32[1, 16]")
    layers = [coded(8, "u4", True), coded(8, "u4", False), coded(8, "u8", True)]
    layers += [coded(8, "u4", True, zeros=False)]
    whole = Dequantize(dtype("f32"))(constant(np.ones((16, 4), np.int8)), weight())
    before = graph_of(*(Dot()(x, w) for w in (*layers, whole, whole)))
    after, environment = fuse(before)
    assert after == before
    assert not environment.trace.fired


def test_bias_and_activation_follow_by_hoisting() -> None:
    x = value("f32[5, 8]")
    layers = [Add()(Dot()(x, weight(8, n)), weight(n)) for n in (4, 6)]
    before = graph_of(*(Mul()(v, Sigmoid()(v)) for v in layers))
    after, _ = fuse(before, FuseSharedInput(), HoistSlices())
    check_numbers(before, after, exact=False)
    assert [count(after, n) for n in ("dot", "add", "sigmoid", "mul")] == [1, 1, 1, 1]


def conv(x: Value, out: int, kernel: int, groups: int = 1) -> Value:
    pad = kernel // 2
    op = Conv((1, 1), (pad, pad), (pad, pad), (1, 1), groups)
    return op(x, weight(out, x.tensor.static[1] // groups, kernel, kernel))


def test_convolutions_of_one_kernel_join_and_others_do_not() -> None:
    x = value("f32[1, 4, 5, 5]")
    before = graph_of(conv(x, 3, 3), conv(x, 5, 3), conv(x, 3, 1))
    after, _ = fuse(before)
    check_numbers(before, after, exact=False)
    assert count(after, "conv") == 2


def test_grouped_convolutions_say_why_not() -> None:
    x = value("f32[1, 4, 5, 5]")
    before = graph_of(conv(x, 4, 3, 2), conv(x, 6, 3, 2))
    after, environment = fuse(before)
    assert after == before
    assert "groups" in environment.trace.nearest("fuse_shared_input")[0].reason


def test_layers_over_different_inputs_or_with_dynamic_weights_stay() -> None:
    x, y, w = value("f32[2, 8]"), value("f32[2, 8]", "y"), value("f32[8, 3]", "w")
    before = graph_of(Dot()(x, weight(8, 3)), Dot()(y, weight(8, 3)), Dot()(x, w))
    assert fuse(before)[0] == before


def lookups(count: int, rows: list[int]) -> Graph:
    indices = [value("i64[2, 3]", f"i{k}") for k in range(count)]
    return graph_of(*(Gather(0)(weight(r, 4), i) for r, i in zip(rows, indices, strict=True)))


def test_embeddings_become_one_lookup_with_offsets() -> None:
    rows = [5, 3, 9, 2]
    before = lookups(4, rows)
    after, _ = fuse(before, FuseEmbeddings())
    assert count(after, "gather") == 1
    for seed in range(3):
        feeds = {
            f"i{k}": np.random.default_rng(seed + k).integers(-r, r, (2, 3))
            for k, r in enumerate(rows)
        }
        for a, b in zip(evaluate(before, feeds), evaluate(after, feeds), strict=True):
            np.testing.assert_array_equal(a, b)


def test_two_embeddings_are_not_worth_the_offsets() -> None:
    before = lookups(2, [5, 3])
    after, environment = fuse(before, FuseEmbeddings())
    assert after == before
    assert "costs as much" in environment.trace.nearest("fuse_embeddings")[0].reason


@pytest.mark.parametrize("width", [4, 5])
def test_only_rows_of_one_width_join(width: int) -> None:
    before = lookups(3, [5, 3, 9])
    index = value("i64[2, 3]", "i9")
    other = Gather(0)(weight(7, width), index)
    outputs = [v for _, v in before.outputs]
    after, _ = fuse(graph_of(Concat(2)(*outputs, other)), FuseEmbeddings())
    assert count(after, "gather") == (1 if width == 4 else 2)


def test_a_lookup_that_needs_another_is_not_joined_with_it() -> None:
    table = constant(rng.integers(0, 5, (5, 3)))
    i = value("i64[3]", "i")
    first = Gather(0)(table, i)
    before = graph_of(Gather(0)(constant(rng.integers(0, 5, (5, 3))), first))
    assert fuse(before, FuseEmbeddings())[0] == before


@pytest.mark.parametrize("widths", [(2, 5), (3, 3), (1, 2)])
def test_heads_of_layers_of_one_input_may_differ_in_width(widths: tuple[int, int]) -> None:
    """Weights of unequal shapes do not stack."""
    x = value("f32[1, 4]")
    draw = np.random.default_rng(0)

    def weight(*shape: int) -> Value:
        return constant(draw.normal(size=shape).astype(np.float32))

    hidden = [Add()(Dot()(x, weight(4, 3)), weight(3)) for _ in widths]
    heads = [Dot()(h, weight(3, n)) for h, n in zip(hidden, widths, strict=True)]
    before = graph_of(*heads)
    after = verify(run_pass(FuseSharedInput(), before, Environment()))
    check_numbers(before, after, exact=False)
