"""Towers: 24 dots become 4, and the sets that must not be batched are not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, verify
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip, Div, Erf, Mul, Sigmoid, Sqrt, Sub
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Slice
from monograph.passes.base import Environment, run_pass
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.rewrite import GPU_COST
from tests.rules.checks import check_numbers, graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def silu(x: Value) -> Value:
    return Mul()(x, Sigmoid()(x))


def gelu(x: Value) -> Value:
    half = constant(np.float32(0.5))
    one, root = constant(np.float32(1)), constant(np.float32(2**0.5))
    return Mul()(Mul()(x, half), Add()(Erf()(Div()(x, root)), one))


def layer_norm(x: Value) -> Value:
    n = constant(np.float32(x.tensor.static[-1]))
    centred = Sub()(x, Div()(ReduceSum((1,), True)(x), n))
    variance = Div()(ReduceSum((1,), True)(Mul()(centred, centred)), n)
    scaled = Div()(centred, Sqrt()(Add()(variance, constant(np.float32(1e-5)))))
    return Add()(Mul()(scaled, weight(x.tensor.static[-1])), weight(x.tensor.static[-1]))


def tower(x: Value, widths: list[int], activation=silu, last=None) -> Value:
    """Layers of these widths with a bias each, and an activation behind all but the last."""
    for i, width in enumerate(widths):
        x = Add()(Dot()(x, weight(x.tensor.static[-1], width)), weight(width))
        if i < len(widths) - 1:
            x = activation(x)
        elif last is not None:
            x = last(x)
    return x


def batch(before: Graph, **options) -> tuple[Graph, Environment]:
    environment = Environment(**options)
    after = verify(run_pass(BatchTowers(), before, environment))
    check_numbers(before, after, exact=False)
    return after, environment


def count(graph: Graph, name: str) -> int:
    return Counter(v.op.name for v in graph.values)[name]


@pytest.mark.parametrize("towers", [2, 6, 16])
def test_towers_of_four_layers_become_four_batched_dots(towers: int) -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(tower(x, [8, 8, 4, 1], last=Sigmoid()) for _ in range(towers)))
    assert count(before, "dot") == 4 * towers
    after, environment = batch(before)
    assert count(after, "dot") == 4
    # Bias and activation came along: one of each per layer, not one per tower.
    assert count(after, "add") == 4
    assert count(after, "sigmoid") == 4
    assert count(after, "mul") == 3
    # No copies between the layers: the batch stays stacked, and the shared input is broadcast.
    assert count(after, "concat") == 0
    assert count(after, "unsqueeze") == 0
    assert [f.rule for f in environment.trace.fired] == ["batch_towers"]
    assert after.outputs[0][1].tensor.shape == (3, 1)


@pytest.mark.parametrize(("rows", "dots"), [(3, 2), (4096, 4)])
def test_a_mixed_set_becomes_one_batch_for_each_kind_or_for_all(rows: int, dots: int) -> None:
    """All towers compute the SiLU, and some discard it, where that is faster than a launch."""
    x = value(f"f32[{rows}, 16]")
    with_silu = [tower(x, [8, 4]) for _ in range(3)]
    without = [tower(x, [8, 4], activation=lambda v: v) for _ in range(2)]
    after, _ = batch(graph_of(*with_silu, *without))
    assert count(after, "dot") == dots
    assert count(after, "sigmoid") == 1


def test_towers_of_unequal_depth_share_their_prefix() -> None:
    x = value("f32[3, 8]")
    depths = [4, 2, 3, 4, 2, 3]
    before = graph_of(*(tower(x, [8] * d) for d in depths))
    after, _ = batch(before)
    # Layers 1 and 2 serve all six, layer 3 serves four, layer 4 two. What follows a tower's
    # last layer differs from what follows a middle one, so those are batches of their own.
    assert count(after, "dot") < count(before, "dot") / 2
    assert count(after, "dot") <= 6


def test_towers_that_differ_in_their_last_width() -> None:
    x = value("f32[3, 8]")
    before = graph_of(*(tower(x, [8, 8, width]) for width in (1, 1, 4, 4, 4)))
    after, _ = batch(before)
    # Two common layers, then one batch for each width.
    assert count(after, "dot") == 4


def test_a_lone_last_width_keeps_its_own_dot() -> None:
    x = value("f32[3, 8]")
    after, _ = batch(graph_of(*(tower(x, [8, 8, width]) for width in (1, 1, 1, 7))))
    assert count(after, "dot") == 4


def test_towers_fed_by_different_inputs() -> None:
    xs = [value("f32[3, 16]", f"x{i}") for i in range(4)]
    after, _ = batch(graph_of(*(tower(x, [8, 4, 1]) for x in xs)), cost=GPU_COST)
    assert count(after, "dot") == 3
    assert count(after, "concat") == 1


def test_inputs_too_large_to_bring_together_are_left_alone() -> None:
    xs = [value("f32[4096, 256]", f"x{i}") for i in range(2)]
    before = graph_of(*(Dot()(x, weight(256, 1)) for x in xs))
    environment = Environment()
    after = run_pass(BatchTowers(), before, environment)
    assert after == before
    reasons = [m.reason for m in environment.trace.nearest("batch_towers")]
    assert any("costs more than the launches saved" in r for r in reasons)


def test_a_tower_that_feeds_another_is_not_batched_with_it() -> None:
    x = value("f32[3, 8]")
    first = tower(x, [8, 8])
    second = tower(silu(first), [8, 8])
    before = graph_of(second)
    after, environment = batch(before)
    assert after == before
    reasons = [m.reason for m in environment.trace.nearest("batch_towers")]
    assert any("different depths" in r for r in reasons)


def test_towers_whose_outputs_feed_each_other_make_no_cycle() -> None:
    x = value("f32[3, 8]")
    a = tower(x, [8, 8])
    b = tower(x, [8, 8])
    # c needs a, and d needs b and c: only a and b are free of each other.
    c = tower(silu(a), [8, 8])
    d = tower(Add()(silu(b), c), [8, 8])
    after, _ = batch(graph_of(c, d))
    assert count(after, "dot") < 8


@pytest.mark.parametrize("between", [gelu, layer_norm, Clip(lo=0.0)], ids=["gelu", "norm", "relu"])
def test_what_stands_between_the_layers_comes_along(between) -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(tower(x, [8, 8, 2], activation=between) for _ in range(4)))
    after, _ = batch(before)
    assert count(after, "dot") == 3
    assert count(after, "concat") == 0
    single = Counter(v.op.name for v in graph_of(tower(x, [8, 8, 2], activation=between)).values)
    for name in ("erf", "reduce_sum", "sqrt", "clip"):
        assert count(after, name) == single[name]


def test_a_middle_that_is_also_an_output() -> None:
    x = value("f32[3, 16]")
    middle = silu(Dot()(x, weight(16, 8)))
    ends = [Dot()(middle, weight(8, 2))]
    for _ in range(3):
        ends.append(Dot()(silu(Dot()(x, weight(16, 8))), weight(8, 2)))
    after, _ = batch(graph_of(middle, *ends))
    assert count(after, "dot") == 2


def test_expert_heads_gated_and_summed() -> None:
    x, gate = value("f32[3, 16]"), value("f32[3, 4]", "gate")
    total = None
    for i in range(4):
        expert = tower(x, [8, 16])
        share = Slice((0, i), (3, i + 1), (1, 1))(gate)
        part = Mul()(expert, share)
        total = part if total is None else Add()(total, part)
    after, _ = batch(graph_of(total))
    assert count(after, "dot") == 2


def conv(x: Value, out: int, kernel: int = 3, groups: int = 1) -> Value:
    pad = kernel // 2
    op = Conv((1, 1), (pad, pad), (pad, pad), (1, 1), groups)
    made = op(x, weight(out, x.tensor.static[1] // groups, kernel, kernel))
    return Add()(made, weight(out, 1, 1))


def test_conv_towers_of_detection_heads() -> None:
    x = value("f32[1, 4, 6, 6]")
    before = graph_of(*(conv(silu(conv(silu(conv(x, 8)), 8)), 3, 1) for _ in range(3)))
    after, _ = batch(before)
    assert count(before, "conv") == 9
    assert count(after, "conv") == 3
    assert count(after, "concat") == 0
    groups = sorted(v.op.groups for v in after.values if isinstance(v.op, Conv))
    assert groups == [1, 3, 3]


def test_conv_towers_over_inputs_of_their_own() -> None:
    xs = [value("f32[1, 4, 6, 6]", f"x{i}") for i in range(2)]
    before = graph_of(*(conv(silu(conv(x, 8, groups=2)), 3, 1) for x in xs))
    after, _ = batch(before, cost=GPU_COST)
    assert count(after, "conv") == 2


def test_projections_of_one_input_are_left_to_shared_input_fusion() -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(Dot()(x, weight(16, 8)) for _ in range(3)))
    after, environment = batch(before)
    assert after == before
    (miss, *_) = environment.trace.nearest("batch_towers")
    assert "shared-input fusion" in miss.reason


def test_symbolic_shapes_and_dynamic_weights_are_left_alone() -> None:
    x, w = value("f32[N, 16]"), value("f32[16, 16]", "w")
    before = graph_of(*(Dot()(silu(Dot()(x, weight(16, 8))), weight(8, 8)) for _ in range(2)))
    assert run_pass(BatchTowers(), before, Environment()) == before
    y = value("f32[3, 16]")
    dynamic = graph_of(Dot()(Dot()(y, w), w), Dot()(Dot()(y, w), weight(16, 16)))
    assert run_pass(BatchTowers(), dynamic, Environment()) == dynamic


def test_outputs_that_are_joined_again() -> None:
    x = value("f32[3, 16]")
    before = graph_of(Concat(1)(*(tower(x, [8, 4]) for _ in range(3))))
    after, _ = batch(before)
    assert count(after, "dot") == 2
