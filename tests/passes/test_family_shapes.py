"""Families keep the shapes of what they replace, whatever their operands broadcast to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monograph.errors import ExecutionError, VerifyError
from monograph.ir import Graph, Value, constant, evaluate
from monograph.ir.dtype import f32
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip, Exp, Mul, Neg, Sigmoid
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.scatter import ScatterElements
from monograph.ops.shape import Concat, Slice
from monograph.passes.base import Environment, run_pass, substitute
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.passes.horizontal.fuse_shared_input import FuseEmbeddings
from monograph.passes.horizontal.hoist_slices import HoistSlices
from monograph.passes.horizontal.layers import Towers
from monograph.pipeline import optimise
from monograph.rewrite import GPU_COST, Trace, apply_rules
from monograph.rules import arithmetic, concat, convolution, scales
from tests.rules.checks import check_declines, check_numbers, graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def cut(x: Value, *ranges: tuple[int, int]) -> Value:
    starts, stops = zip(*ranges, strict=True)
    return Slice(starts, stops, (1,) * len(ranges))(x)


def count(graph: Graph, name: str) -> int:
    return Counter(v.op.name for v in graph.values)[name]


def hoist(before: Graph) -> tuple[Graph, list[str]]:
    environment = Environment()
    after = run_pass(HoistSlices(), before, environment)
    check_numbers(before, after, exact=True)
    assert after.output_types == before.output_types
    return after, [m.reason for m in environment.trace.nearest("hoist_slices")]


x, y = value("f32[2, 4]"), value("f32[2, 4]", "y")


def test_slices_cut_differently_are_not_paired() -> None:
    left = [cut(x, (0, 2), r) for r in ((0, 1), (1, 4))]
    right = [cut(y, (0, 2), r) for r in ((0, 3), (3, 4))]
    before = graph_of(*(Add()(a, b) for a, b in zip(left, right, strict=True)))
    after, reasons = hoist(before)
    assert after == before
    assert any("sliced differently" in r for r in reasons)


def test_a_narrow_slice_that_broadcasts_is_left_alone() -> None:
    anchors = value("f32[8, 2]", "a")
    before = graph_of(*(Mul()(cut(anchors, (0, 8), (i, i + 1)), weight(3)) for i in range(2)))
    after, reasons = hoist(before)
    assert after == before
    assert any("wider than its slice (expected 1, given 3)" in r for r in reasons)


def test_slices_that_cross_are_left_alone() -> None:
    wide = value("f32[2, 7]", "w")
    a, b, c = (cut(wide, (0, 2), r) for r in ((0, 1), (1, 4), (4, 7)))
    before = graph_of(Add()(a, b), Add()(b, c))
    assert hoist(before)[0] == before


def test_convolutions_of_one_channel_under_a_wider_constant() -> None:
    image = value("f32[1, 3, 4, 4]", "i")
    op = Conv((1, 1), (0, 0), (0, 0), (1, 1))
    towers = [Mul()(op(image, weight(1, 3, 1, 1)), weight(6, 1, 1)) for _ in range(3)]
    before = graph_of(*(op(t, weight(2, 6, 1, 1)) for t in towers))
    after = run_pass(BatchTowers(), before, Environment())
    check_numbers(before, after, exact=False)
    whole = optimise(before)
    check_numbers(before, whole, exact=False)
    widened = graph_of(Mul()(op(image, weight(1, 3, 1, 1)), weight(6, 1, 1)))
    check_declines(widened, [scales.scale_into_conv], "not one per channel")
    biased = Add()(op(image, weight(1, 3, 1, 1)), weight(6, 1, 1))
    composed = graph_of(op(biased, weight(5, 6, 1, 1)))
    check_declines(composed, [convolution.compose_pointwise], "no bias per channel")


def test_slices_along_two_axes_tile_too() -> None:
    big = value("f32[4, 8]", "b")
    before = graph_of(*(Exp()(cut(big, (0, 2), r)) for r in ((0, 4), (4, 8))))
    after, _ = hoist(before)
    assert count(after, "exp") == 1


def test_an_unrelated_slice_does_not_block_a_tiling() -> None:
    long = value("f32[12]", "l")
    before = graph_of(Exp()(cut(long, (0, 3))), Exp()(cut(long, (3, 6))), Neg()(cut(long, (1, 4))))
    assert count(hoist(before)[0], "exp") == 1
    ranges = ((0, 2), (2, 4), (6, 8), (8, 12))
    after, reasons = hoist(graph_of(*(Exp()(cut(long, r)) for r in ranges)))
    assert count(after, "exp") == 2
    assert any("leave a gap (expected a start at 4, given 6)" in r for r in reasons)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([Exp()(Slice((a,), (12,), (2,))(value("f32[12]"))) for a in (0, 1)], "leaves elements"),
        ([Exp()(Slice((0, a), (99, a + 2), (1, 1))(value("f32[N, 4]"))) for a in (0, 2)], "sizes"),
    ],
    ids=["strided", "symbolic"],
)
def test_slices_that_cannot_tile_say_why(before: list[Value], reason: str) -> None:
    environment = Environment()
    graph = graph_of(*before)
    assert run_pass(HoistSlices(), graph, environment) == graph
    assert any(reason in m.reason for m in environment.trace.nearest("hoist_slices"))


def test_layers_that_are_none_say_why() -> None:
    environment = Environment()
    dynamic = Dot()(x, value("f32[4, 4]", "w"))
    run_pass(BatchTowers(), graph_of(dynamic), environment)
    assert environment.trace.nearest("batch_towers")[0].reason == "dynamic weights"
    codes = constant(np.zeros((3, 4, 1, 1), np.int8))
    decoded = Dequantize(f32, 0, 0)(codes, constant(np.ones(3, np.float32)))
    layer = Conv((1, 1), (0, 0), (0, 0), (1, 1))(value("f32[1, 4, 8, 8]"), decoded)
    environment = Environment()
    run_pass(BatchTowers(), graph_of(layer), environment)
    (miss,) = environment.trace.nearest("batch_towers")
    start = "every run decodes the weights from constants"
    assert miss.reason == f"{start} (expected one constant, given dequantize)"
    scattered = ScatterElements(0)(
        constant(np.zeros((4, 4), np.float32)),
        constant(np.zeros((1, 1), np.int64)),
        constant(np.ones((1, 1), np.float32)),
    )
    environment = Environment()
    run_pass(BatchTowers(), graph_of(Dot()(x, scattered)), environment)
    assert environment.trace.nearest("batch_towers")[0].reason == (
        "every run computes the weights from constants (expected one constant, "
        "given scatter_elements)"
    )


def test_residual_towers_over_inputs_of_their_own_stay_stacked() -> None:
    ends = []
    for i in range(4):
        v = value("f32[3, 8]", f"x{i}")
        for _ in range(3):
            v = Add()(v, Sigmoid()(Dot()(v, weight(8, 8))))
        ends.append(v)
    before = graph_of(*ends)
    after = run_pass(BatchTowers(), before, Environment(cost=GPU_COST))
    check_numbers(before, after, exact=False)
    assert [count(after, n) for n in ("dot", "add", "sigmoid", "concat")] == [3, 3, 3, 1]


def test_origins_follow_their_own_layer() -> None:
    layers = [[Dot()(x, weight(4, 4)) for _ in range(2)]]
    layers.append([Dot()(Exp()(v), weight(4, 4)) for v in layers[0]])
    names = {v: f"layer{d}_{i}" for d, row in enumerate(layers) for i, v in enumerate(row)}
    graph = graph_of(*layers[1], origins=names)
    after = run_pass(BatchTowers(), graph, Environment())
    dots = [after.origin(v) for v in after.values if v.op.name == "dot"]
    assert dots == ["layer0_0 + layer0_1", "layer1_0 + layer1_1"]


def test_a_residual_stream_is_walked_once() -> None:
    """Each layer looks as far as the next: no walk down the whole stream."""
    sizes = []
    for blocks in (20, 40):
        v = value("f32[2, 4]")
        for _ in range(blocks):
            v = Add()(v, Sigmoid()(Dot()(v, weight(4, 4))))
        towers = Towers(graph_of(v))
        walked = sum(len(chain[0].between) for chain in towers.chains.values())
        sizes.append(walked)
    assert sizes[1] == 2 * sizes[0]


def test_nested_concats_are_flattened_once() -> None:
    v = value("f32[1, 4]")
    for _ in range(50):
        v = Concat(0)(v, Neg()(value("f32[1, 4]", "n")))
    trace = Trace()
    after = apply_rules(graph_of(v), [concat.merge_concats], trace=trace)
    assert len(trace.fired) == 1
    (_, made) = after.outputs[0]
    assert len(made.inputs) == 51


def test_clips_at_zeros_of_different_sign_stay() -> None:
    before = graph_of(Clip(-0.0, 5.0)(Clip(0.0, 5.0)(x)))
    check_declines(before, [arithmetic.merge_clips], "zeros of different sign")


def lookups(tables: list[Value]) -> Graph:
    return graph_of(*(Gather(0)(t, value("i64[2]", f"i{k}")) for k, t in enumerate(tables)))


def fused(before: Graph) -> tuple[Graph, list[str]]:
    environment = Environment(cost=GPU_COST)
    after = run_pass(FuseEmbeddings(), before, environment)
    return after, [m.reason for m in environment.trace.nearest("fuse_embeddings")]


def test_an_index_out_of_range_of_its_table_still_fails() -> None:
    before = lookups([weight(5, 3), weight(4, 3), weight(6, 3)])
    after, _ = fused(before)
    assert count(after, "gather") == 1
    for wrong in (5, -6):
        feeds = {"i0": np.array([0, wrong]), "i1": np.zeros(2, int), "i2": np.zeros(2, int)}
        for graph in (before, after):
            with pytest.raises(ExecutionError, match=r"index|out of range"):
                evaluate(graph, feeds)


def test_one_table_is_joined_once_and_not_where_others_read_it() -> None:
    table = weight(5, 3)
    after, _ = fused(lookups([table, table, table, table]))
    (joined,) = [v for v in after.values if v.op.name == "constant" and v.dtype.is_float]
    assert joined.tensor.static == (5, 3)
    shared = graph_of(*(v for _, v in lookups([table, weight(4, 3), weight(4, 3)]).outputs), table)
    after, reasons = fused(shared)
    assert after == shared
    assert any("another reader" in r for r in reasons)


def test_substitution_refuses_another_type() -> None:
    graph = graph_of(Exp()(x))
    with pytest.raises(VerifyError, match="of the same type"):
        substitute(graph, {graph.outputs[0][1]: Exp()(value("f32[2, 5]", "z"))})
