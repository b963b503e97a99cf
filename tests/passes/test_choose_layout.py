"""Convolutions are kept channels-last, and transposes end at the edges."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.frontend.onnx import import_model, read_model
from monograph.ir import (
    Graph,
    Input,
    Op,
    Sample,
    Value,
    constant,
    evaluate,
    parse_type,
    unpack,
    verify,
)
from monograph.ir.evaluate import apply
from monograph.ir.layout import LayoutPlan
from monograph.ops import OPS
from monograph.ops.composite import LayerNorm, Silu, Softmax
from monograph.ops.control import If
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Add, Clip, Mul, Neg, Sigmoid, Where
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.pool import ArgMaxPool, AveragePool, MaxPool
from monograph.ops.reduce import ArgMax, ReduceMax, ReduceSum
from monograph.ops.resize import Resize
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.passes.base import Environment, run_pass
from monograph.passes.choose_layout import ChooseLayout, follow, has_order, reach
from monograph.pipeline import optimise
from monograph.rewrite import GPU_COST
from monograph.runtime.numerics.bisect import first_difference
from tests.fuzz.graphs import random_graph
from tests.rules.checks import check_numbers, graph_of, value
from tests.samples import sample_graph

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
RNG = np.random.default_rng(0)


def data(*shape: int) -> Value:
    return constant(RNG.normal(size=shape).astype(np.float32))


def attributes(kernel: int = 1, rank: int = 2, **given: Any) -> dict[str, Any]:
    pad = (kernel // 2,) * rank
    fields: dict[str, Any] = {
        "strides": (1,) * rank, "pads_begin": pad, "pads_end": pad, "dilations": (1,) * rank,
    }  # fmt: skip
    return {**fields, **given}


def conv(x: Value, out: int, kernel: int = 3, **given: Any) -> Value:
    """A convolution with constant weights, channels first."""
    rank = x.tensor.rank - 2
    groups = int(given.get("groups", 1))
    w = data(out, int(x.tensor.static[1]) // groups, *(kernel,) * rank)
    return Conv(**attributes(kernel, rank, **given))(x, w)


def last(x: Value, like: Value) -> Value:
    """The convolution `like`, on an x whose channels are last."""
    assert isinstance(like.op, Conv)
    return Conv(**{**like.op.attributes, "layout": "channels_last"})(x, like.inputs[1])


def channels_last(before: Graph, **options: Any) -> Graph:
    environment = Environment(**options)
    step = ChooseLayout("channels_last")
    after = verify(run_pass(step, before, environment))
    assert after.output_types == before.output_types
    assert after.input_types == before.input_types
    assert all(getattr(v.op, "layout", "") != "channels_first" for v in layers(after))
    assert run_pass(step, after, Environment()) == after, "the pass does not settle"
    check_numbers(before, after, exact=False)
    return after


def layers(graph: Graph) -> list[Value]:
    return [v for v in graph.values if isinstance(v.op, (Conv, ConvTranspose))]


def count(graph: Graph, name: str = "transpose") -> int:
    return Counter(v.op.name for v in graph.values)[name]


x = value("f32[2, 3, 6, 8]")


def test_it_is_left_alone_unless_asked_for() -> None:
    before = graph_of(conv(x, 4))
    assert run_pass(ChooseLayout(), before, Environment()) == before
    with pytest.raises(ConfigError, match="`layout` must be a known layout"):
        run_pass(ChooseLayout("nchw"), before, Environment())


def test_before_and_after() -> None:
    first = conv(x, 4)
    middle = Add()(first, data(4, 1, 1))
    second = conv(middle, 5)
    after = channels_last(graph_of(second))
    moved = last(Transpose(TO_LAST)(x), first)
    bias = constant(np.transpose(middle.inputs[1].op.reference(), (1, 2, 0)))
    whole = last(Add()(moved, bias), second)
    assert after == graph_of(Transpose(TO_FIRST)(whole))


def test_work_before_the_first_convolution_comes_along() -> None:
    normal = Mul()(Add()(x, data(3, 1, 1)), data(1))
    after = channels_last(graph_of(conv(normal, 4)))
    assert count(after) == 2
    (source,) = [v for v in after.values if isinstance(v.op, Transpose) and v.inputs[0] is x]
    assert source.tensor.shape == (2, 6, 8, 3)


def test_a_transpose_stands_where_the_value_is_smallest() -> None:
    grown = Resize((2, 3), sizes=(24, 32))(x)
    after = channels_last(graph_of(conv(grown, 4)))
    assert any(isinstance(v.op, Transpose) and v.inputs[0] is x for v in after.values)
    shrunk = MaxPool(**attributes(3, strides=(3, 3)), kernel=(3, 3))(conv(x, 4))
    after = channels_last(graph_of(shrunk))
    (end,) = [v for v in after.values if isinstance(v.op, Transpose) and v.inputs[0] is not x]
    assert isinstance(end.inputs[0].op, MaxPool)


def test_a_network_keeps_two_transposes() -> None:
    """Blocks of a mobile network and of a detector: every op between takes the layout."""
    y = Silu()(conv(x, 8))
    pooled = Mul()(ReduceSum((2, 3), keep=True)(y), constant(1 / 48, y.dtype))
    gate = Sigmoid()(conv(Clip(0.0, 6.0)(conv(pooled, 2, 1)), 8, 1))
    y = Mul()(y, gate)
    a = Slice((0, 0, 0, 0), (2, 4, 6, 8), (1, 1, 1, 1))(y)
    b = Slice((0, 4, 0, 0), (2, 8, 6, 8), (1, 1, 1, 1))(y)
    y = Concat(1)(a, conv(b, 4, groups=4), Neg()(a))
    y = Pad((0, 0, 1, 1), (0, 0, 1, 1))(y)
    y = MaxPool(**attributes(3, strides=(2, 2)), kernel=(3, 3))(y)
    y = Resize((2, 3), sizes=(12, 10), mode="linear")(y)
    y = AveragePool(**attributes(2, pads_begin=(0, 0), pads_end=(0, 0)), kernel=(2, 2))(y)
    y = Where()(value("bool[1]", "w"), y, Broadcast((2, 12, 11, 9))(data(12, 1, 1)))
    y = ConvTranspose(**attributes(3), output_padding=(0, 0))(y, data(12, 5, 3, 3))
    after = channels_last(graph_of(Softmax(1)(y)))
    assert count(after) == 2
    assert count(after, "reshape") == 0


def test_classifier_heads_need_no_transpose() -> None:
    y = conv(x, 4)
    pooled = ReduceMax((2, 3), keep=True)(y)
    flat = Reshape((2, 4))(pooled)
    after = channels_last(graph_of(Dot()(flat, data(4, 7)), Squeeze((2, 3))(pooled)))
    assert count(after) == 1


def test_channels_of_one_place_move_without_a_transpose() -> None:
    v = value("f32[2, 3]", "v")
    after = channels_last(graph_of(conv(Unsqueeze((2, 3))(v), 4, 1)))
    assert count(after) == 0


def test_transposes_of_the_model_cancel() -> None:
    picture = value("f32[2, 6, 8, 3]", "picture")
    y = conv(Transpose(TO_FIRST)(picture), 4)
    after = channels_last(graph_of(Neg()(Transpose(TO_LAST)(y))))
    assert count(after) == 0


def test_tokens_of_a_picture_need_no_transpose() -> None:
    tokens = value("f32[2, 48, 3]", "tokens")
    y = conv(Reshape((2, 3, 6, 8))(Transpose((0, 2, 1))(tokens)), 4)
    back = Transpose((0, 2, 1))(Reshape((2, 4, 48))(y))
    after = channels_last(graph_of(LayerNorm((2,))(back, data(4), data(4))))
    assert count(after) == 0


def test_channel_shuffle_costs_one_transpose() -> None:
    y = Reshape((2, 2, 4, 6, 8))(conv(x, 8))
    y = Reshape((2, 8, 6, 8))(Transpose((0, 2, 1, 3, 4))(y))
    after = channels_last(graph_of(conv(y, 3)))
    assert count(after) == 3
    shuffled = [v.tensor.shape for v in after.values if v.op.name == "transpose"]
    assert (2, 6, 8, 4, 2) in shuffled


def test_a_pointwise_convolution_takes_its_places_in_any_order() -> None:
    y = Reshape((2, 2, 4, 48))(conv(x, 8))
    y = conv(Transpose((0, 2, 3, 1))(y), 3, 1)
    after = channels_last(graph_of(Transpose((0, 2, 1, 3))(y)))
    kept = [v.inputs[0].tensor.shape for v in layers(after)]
    assert kept == [(2, 6, 8, 3), (2, 48, 2, 4)]


def test_ops_of_one_order_get_a_transpose_and_say_so() -> None:
    environment = Environment()
    y = conv(x, 8)
    before = graph_of(Dot()(y, data(8, 2)), conv(y, 2), origins={y: "node_7"})
    after = run_pass(ChooseLayout("channels_last"), before, environment)
    assert count(after) == 3
    (miss,) = [m for m in environment.trace.nearest("choose_layout") if "dot" in m.reason]
    assert miss.origin == "node_7"
    assert "expected [0, 1, 2, 3], given [0, 2, 3, 1]" in miss.reason
    assert environment.trace.counts() == {"choose_layout": 2}


def test_lines_and_volumes() -> None:
    line, volume = value("f32[2, 3, 9]", "line"), value("f32[1, 2, 4, 5, 3]", "volume")
    after = channels_last(graph_of(Neg()(conv(line, 4)), Neg()(conv(volume, 4))))
    assert sorted(v.inputs[0].tensor.static for v in layers(after)) == [
        (1, 4, 5, 3, 2),
        (2, 9, 3),
    ]


def test_places_of_the_largest_keep_their_numbers() -> None:
    y = conv(x, 4)
    window = attributes(3, strides=(2, 2))
    places = ArgMaxPool(**window, kernel=(3, 3))(y)
    after = channels_last(graph_of(places, ArgMax(1)(y)))
    assert count(after) == 2


def test_symbolic_sizes() -> None:
    x = value("f32[N, 3, H, W]", "x")
    y = Silu()(Conv(**attributes(3))(x, data(4, 3, 3, 3)))
    before = graph_of(Add()(y, Conv(**attributes(1))(y, data(4, 4, 1, 1))))
    after = verify(run_pass(ChooseLayout("channels_last"), before, Environment()))
    assert count(after) == 2
    assert after.output_types == before.output_types
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 3, 5, 6)).astype(np.float32)}
    np.testing.assert_allclose(evaluate(after, feeds)[0], evaluate(before, feeds)[0], atol=1e-5)


def test_sub_graphs_keep_their_types() -> None:
    branch = Graph((x,), (("y", Neg()(conv(x, 4))),))
    other = Graph((x,), (("y", conv(x, 4)),))
    flag = value("bool[]", "flag")
    before = graph_of(*unpack(If(branch, other)(flag, x, x)))
    after = channels_last(before)
    (made,) = [v.op for v in after.values if isinstance(v.op, If)]
    assert count(made.then) == count(made.orelse) == 2


def test_a_limit_leaves_the_other_convolutions_alone() -> None:
    before = graph_of(conv(conv(x, 4), 4))
    after = run_pass(ChooseLayout("channels_last"), before, Environment(limit=1))
    kept = [getattr(v.op, "layout", "") for v in layers(after)]
    assert kept == ["channels_last", "channels_first"]
    check_numbers(before, after, exact=False)


def test_deep_networks() -> None:
    y = x
    for _ in range(300):
        y = Add()(y, Silu()(conv(y, 3, 1)))
    before = graph_of(y)
    after = run_pass(ChooseLayout("channels_last"), before, Environment(GPU_COST))
    assert count(after) == 2


def test_a_transposed_constant_is_read_in_its_own_order() -> None:
    data = constant(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    weights = constant(np.ones((1, 2, 1), np.float32))
    layer = Conv((1,), (1,), (1,), (1,))(Transpose((2, 0, 1))(data), weights)
    graph = graph_of(Add()(layer, value("f32[1]")))
    after = verify(run_pass(ChooseLayout("channels_last"), graph, Environment()))
    assert first_difference(graph, after, {"x": np.float32([1])}, exact=False) is None


@pytest.mark.parametrize("seed", range(100))
def test_random_graphs(seed: int) -> None:
    graph, feeds = random_graph(seed)
    after = verify(run_pass(ChooseLayout("channels_last"), graph, Environment()))
    assert first_difference(graph, after, feeds, exact=False) is None


@pytest.mark.parametrize(
    ("name", "left"),
    # One is at the input. The detector's attention has four: of q, k, v and of its result.
    [("tv_mobilenet_v3_small", 1), ("face_rfb320", 0), ("ppocrv6_rec_tiny", 1),
     ("ul_yolov10n_e2e", 5)],
)  # fmt: skip
def test_real_models(name: str, left: int) -> None:
    folder = SHARED / name
    if not folder.exists():
        pytest.skip(f"{folder} is not on this machine")
    recorded = np.load(folder / "io.npz")
    feeds = {k[3:]: recorded[k] for k in recorded.files if k.startswith("in:")}
    model = read_model(str(folder / "model.onnx"))
    graph = optimise(import_model(model, shapes={k: v.shape for k, v in feeds.items()}))
    after = verify(run_pass(ChooseLayout("channels_last"), graph, Environment()))
    assert count(after) <= left
    assert after.output_types == graph.output_types
    if name != "ul_yolov10n_e2e":  # detections with nearly equal scores may change places
        assert first_difference(graph, after, feeds, exact=False) is None


def has_rule(op: type[Op], sample: Sample) -> bool:
    graph, _ = sample_graph(op, sample)
    result = graph.outputs[0][1]
    if not graph.inputs or not (has_order(graph.inputs[0]) and has_order(result)):
        return False
    orders = permutations(range(graph.inputs[0].tensor.rank))
    return any(follow(result, 0, order) is not None for order in orders)


RULED = [
    pytest.param(op, s, id=f"{op.name}-{i}")
    for op in OPS.values()
    for i, s in enumerate(op.samples)
    if has_rule(op, s)
]


@pytest.mark.parametrize(("op", "sample"), RULED)
def test_every_rule_gives_the_same_elements_in_its_order(op: type[Op], sample: Sample) -> None:
    graph, feeds = sample_graph(op, sample)
    (_, result), *_ = graph.outputs
    arrays = [feeds[name] for name in graph.input_names]
    expected = apply(result, arrays)
    tried = 0
    for index, operand in enumerate(graph.inputs):
        for order in permutations(range(operand.tensor.rank)):
            tried += _check_plan(result, arrays, expected, follow(result, index, order))
    for order in permutations(range(result.tensor.rank)):
        plan = reach(result, order)
        assert plan is None or plan.order == order
        _check_plan(result, arrays, expected, plan)
    assert tried


def _check_plan(result: Value, arrays: list[Any], expected: Any, plan: LayoutPlan | None) -> int:
    if plan is None:
        return 0
    kept = [
        np.expand_dims(np.transpose(a, need.order), need.new_axes)
        for a, need in zip(arrays, plan.needs, strict=True)
    ]
    if plan.op is None:
        given = kept[0]
    else:
        operands = [
            Input(f"x{i}", parse_type(f"{v.dtype}{list(k.shape)}"))()
            for i, (v, k) in enumerate(zip(result.inputs, kept, strict=True))
        ]
        made = plan.op(*operands)
        given = apply(made, kept)
        assert made.tensor.shape == given.shape
    # Sums may run in another order, in f64 and rounded once.
    wide = [np.asarray(a).astype(np.float64) if a.dtype.kind in "fV" else a for a in
            (given, np.transpose(expected, plan.order))]  # fmt: skip
    if given.dtype.kind in "fV":
        np.testing.assert_allclose(*wide, rtol=1e-3 if given.dtype != np.float32 else 1e-6)
    else:
        np.testing.assert_array_equal(*wide)
    return 1
