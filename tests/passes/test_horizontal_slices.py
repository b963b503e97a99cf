"""Reductions of slices, lookups, and weights of all members: joined where they fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monograph.ir import Graph
from monograph.ops.composite import Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Exp, Neg
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.passes.base import Environment, run_pass
from monograph.passes.horizontal.fuse_shared_input import FuseEmbeddings
from monograph.passes.horizontal.hoist_slices import HoistRows
from monograph.pipeline import optimise
from monograph.rewrite import CPU_COST, GPU_COST
from tests.cpu.against import check as check_cpu
from tests.passes.towers import (
    count,
    cut,
    fuse,
    kernels,
    layer,
    norm,
    siamese,
    silu,
    weight,
)
from tests.rules.checks import graph_of, value

# Reductions over slices


REDUCTIONS = [
    ReduceSum((-1,)),
    ReduceSum((-1,), True),
    ReduceMax((-1,)),
    ReduceSum((0,)),
    Softmax(-1),
]


@pytest.mark.parametrize("op", REDUCTIONS, ids=str)
@pytest.mark.parametrize("parts", [2, 3, 12])
def test_reductions_of_slices_become_one(op, parts: int) -> None:
    x = value("f32[2, 12]")
    width = 12 // parts
    before = graph_of(*(Exp()(op(Neg()(cut(x, i, i + width)))) for i in range(0, 12, width)))
    after, _ = fuse(before, HoistRows())
    assert count(after, op.name, "neg", "exp") == [1, 1, 1]
    assert run_pass(HoistRows(), after, Environment()) == after
    assert kernels(before) < 2 * parts + 1
    check_cpu(optimise(before))


def test_norms_of_slices_take_their_own_scales() -> None:
    x = value("f32[2, 12]")
    after, _ = fuse(graph_of(*(norm(cut(x, i, i + 4)) for i in (0, 4, 8))), HoistRows())
    assert count(after, "layer_norm") == [1]


def test_a_reduction_along_another_axis_takes_slices_of_any_width() -> None:
    x = value("f32[2, 12]")
    ranges = ((0, 5), (5, 6), (6, 12))
    after, _ = fuse(graph_of(*(ReduceSum((0,))(cut(x, a, b)) for a, b in ranges)), HoistRows())
    assert count(after, "reduce_sum") == [1]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (((0, 5), (5, 12)), "slices of different widths"),
        (((0, 4), (5, 9)), "leave a gap (expected a start at 4, given 5)"),
        (((0, 4), (3, 7)), "overlap (expected a start at 4, given 3)"),
    ],
)
def test_reductions_that_do_not_tile_stay(ranges, reason: str) -> None:
    x = value("f32[2, 12]")
    before = graph_of(*(ReduceSum((1,))(cut(x, a, b)) for a, b in ranges))
    after, reasons = fuse(before, HoistRows())
    assert after == before
    assert any(reason in r for r in reasons)


# Gathers


@pytest.mark.parametrize(
    "shapes", [("3", "5", "1", "4"), ("2, 3", "5", "2, 3", "1, 1"), ("", "3", "2")]
)
@pytest.mark.parametrize("kind", ["i64", "i32"])
def test_lookups_of_different_lengths_become_one(shapes: Sequence[str], kind: str) -> None:
    tables = [weight(5 + i, 4) for i in range(len(shapes))]
    indices = [value(f"{kind}[{s}] ", f"i{i}") for i, s in enumerate(shapes)]
    pairs = zip(tables, indices, strict=True)
    before = graph_of(*(Gather(0)(t, i) for t, i in pairs))
    after, _ = fuse(before, FuseEmbeddings(), cost=GPU_COST, exact=True)
    assert count(after, "gather") == [1]


def test_lookups_too_long_to_offset_stay() -> None:
    indices = [value(f"i64[{n}]", f"i{n}") for n in (200_000, 300_000, 100_000)]
    before = graph_of(*(Gather(0)(weight(5, 4), i) for i in indices))
    environment = Environment(CPU_COST)
    assert run_pass(FuseEmbeddings(), before, environment) == before
    assert "costs as much" in environment.trace.nearest("fuse_embeddings")[0].reason


# One weight for all members


def weight_bytes(graph: Graph) -> int:
    return sum(v.tensor.nbytes for v in graph.values if v.op.name == "constant")


@pytest.mark.parametrize("members", [2, 8])
def test_a_weight_of_all_members_is_stored_once(members: int) -> None:
    widths = [32, 16, 8]
    weights = [weight(a, b) for a, b in zip([64, *widths], widths, strict=False)]
    ends = []
    for i in range(members):
        v = value("f32[2, 64]", f"x{i}")
        for w in weights:
            v = silu(Dot()(v, w))
        ends.append(v)
    before = graph_of(*ends)
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "dot") == [3]
    assert weight_bytes(after) <= weight_bytes(before)
    # One kernel per layer, and copies of the inputs and for each output.
    assert kernels(before, GPU_COST) == 3 + 2 * members
    check_cpu(optimise(before, environment=Environment(GPU_COST)))


@pytest.mark.parametrize("images", [1, 2])
def test_siamese_convolutions_are_one_of_more_images(images: int) -> None:
    weights = [weight(8, 3, 3, 3), weight(8, 8, 3, 3)]
    top = weight(8, 4)
    xs = [value(f"f32[{images}, 3, 5, 5]", f"x{i}") for i in range(4)]
    before = graph_of(*(siamese(x, weights, top) for x in xs))
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "conv", "dot", "concat") == [2, 1, 1]
    assert weight_bytes(after) <= weight_bytes(before)
    assert {v.op.groups for v in after.values if isinstance(v.op, Conv)} == {1}
    check_cpu(optimise(before, environment=Environment(GPU_COST)))


def test_weights_of_some_members_only_are_stacked() -> None:
    shared = weight(16, 8)
    xs = [value("f32[2, 16]", f"x{i}") for i in range(3)]
    weights = [shared, shared, weight(16, 8)]
    ends = [layer(silu(Dot()(x, w)), 4) for x, w in zip(xs, weights, strict=True)]
    after, _ = fuse(graph_of(*ends), cost=GPU_COST)
    assert count(after, "dot") == [2]
