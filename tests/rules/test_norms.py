"""Scales of normalisations that move into the weights of products of few rows."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, verify
from monograph.ops.composite import RmsNorm
from monograph.ops.elementwise import Add, Exp
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.rewrite import CPU_COST, GPU_COST, CostModel, Trace, apply_rules
from monograph.rewrite.cost import LinearCost
from monograph.rules import norms as rules
from tests.rules.checks import check_rewrite, graph_of, value

rng = np.random.default_rng(0)
NORM = RmsNorm((1,), 1e-4)
RULES = [rules.norm_scale_into_dot]


def weight(*shape: int, kind: str = "float32") -> Value:
    return constant(rng.normal(size=shape).astype(kind))


def declines(before: Graph, why: str, cost: CostModel = GPU_COST) -> None:
    trace = Trace()
    after = verify(apply_rules(before, RULES, cost=cost, trace=trace))
    assert after == before
    assert any(why in m.reason for m in trace.nearest("norm_scale_into_dot"))


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_the_scale_goes_into_the_weights(kind: str) -> None:
    x = value("f32[3, 8]" if kind == "float32" else "f16[3, 8]")
    g, w = (rng.normal(size=s).astype(kind) for s in ((8,), (8, 5)))
    scale, weights = constant(g), constant(w)
    wide = np.float64 if kind == "float32" else np.float32
    joined = (g.astype(wide)[:, None] * w.astype(wide)).astype(kind)
    before = graph_of(Dot()(NORM(x, scale), weights))
    expected = graph_of(Dot()(NORM(x), constant(joined)))
    check_rewrite(before, RULES, expected, cost=GPU_COST)


def test_every_product_of_a_norm_takes_the_scale() -> None:
    x = value("f32[1, 8]")
    normed = NORM(x, weight(8))
    before = graph_of(*(Dot()(normed, weight(8, n)) for n in (4, 5, 6)))
    after = check_rewrite(before, RULES, cost=GPU_COST)
    assert [len(v.inputs) for v in after.values if v.op.name == "rms_norm"] == [1]


def test_a_scale_of_ones_leaves_the_weights_alone() -> None:
    x, weights = value("f32[1, 8]"), weight(8, 4)
    before = graph_of(Dot()(NORM(x, constant(np.ones(8, np.float32))), weights))
    check_rewrite(before, RULES, graph_of(Dot()(NORM(x), weights)), cost=GPU_COST)


def test_rows_of_a_batch_count_together() -> None:
    norm = RmsNorm((2,))
    few, many = value("f32[2, 4, 8]"), value("f32[3, 3, 8]")
    scale, weights = weight(8), weight(8, 5)
    check_rewrite(graph_of(Dot()(norm(few, scale), weights)), RULES, cost=GPU_COST)
    declines(graph_of(Dot()(norm(many, scale), weights)), "normalises this many rows")


def test_where_products_do_not_normalise_the_scale_stays() -> None:
    before = graph_of(Dot()(NORM(value("f32[1, 8]"), weight(8)), weight(8, 4)))
    declines(before, "normalises this many rows (expected 0, given 1)", CPU_COST)


def test_other_users_of_the_weights_keep_the_scale_out() -> None:
    x, weights = value("f32[1, 8]"), weight(8, 4)
    y = Dot()(NORM(x, weight(8)), weights)
    declines(graph_of(y, Add()(weights, Exp()(weights))), "the weights have another user")


def test_weights_must_be_constant_and_plain() -> None:
    x, scale = value("f32[1, 8]"), weight(8)
    declines(graph_of(Dot()(NORM(x, scale), value("f32[8, 4]", "w"))), "not constant")
    codes = constant(np.ones((8, 4), np.int8))
    coded = Dequantize(constant(np.float32(0)).dtype)(codes, constant(np.float32(0.5)))
    declines(graph_of(Dot()(NORM(x, scale), coded)), "not constant")
    declines(graph_of(Dot()(NORM(x, value("f32[8]", "g")), weight(8, 4))), "not constant")


def test_a_scale_of_another_shape_stays() -> None:
    x = value("f32[2, 8]")
    declines(graph_of(Dot()(NORM(x, weight(1)), weight(8, 4))), "not one per row")
    declines(graph_of(Dot()(RmsNorm((0, 1))(x, weight(8)), weight(8, 4))), "other axes")


def test_what_overflows_or_vanishes_stays() -> None:
    x = value("f16[1, 8]")
    large = constant(np.full((8, 4), 300, np.float16))
    declines(graph_of(Dot()(NORM(x, constant(np.full(8, 300, np.float16))), large)), "overflows")
    small = constant(np.full((8, 4), 1e-4, np.float16))
    declines(graph_of(Dot()(NORM(x, constant(np.full(8, 1e-3, np.float16))), small)), "loses bits")


def test_a_product_that_is_busy_with_sums_does_not_take_more() -> None:
    slow = LinearCost(1e-9, 1e6, 1e12, rows_normalised=8)
    before = graph_of(Dot()(NORM(value("f32[8, 8]"), weight(8)), weight(8, 4)))
    declines(before, "costs more than a kernel", slow)
