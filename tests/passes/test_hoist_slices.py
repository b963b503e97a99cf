"""Elementwise work moves above slices that tile exactly, and only those."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, verify
from monograph.ops.elementwise import Add, Exp, Mul, Neg, Sigmoid
from monograph.ops.shape import Concat, Slice, Unsqueeze
from monograph.passes.base import Environment, run_pass
from monograph.passes.horizontal.hoist_slices import HoistSlices
from tests.rules.checks import check_numbers, graph_of, value


def cut(x: Value, axis: int, start: int, stop: int) -> Value:
    sizes = x.tensor.static
    starts = tuple(start if i == axis else 0 for i in range(len(sizes)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(sizes))
    return Slice(starts, stops, (1,) * len(sizes))(x)


def silu(x: Value) -> Value:
    return Mul()(x, Sigmoid()(x))


def hoist(before: Graph, exact: bool = True) -> tuple[Graph, list[str]]:
    environment = Environment()
    after = verify(run_pass(HoistSlices(), before, environment))
    check_numbers(before, after, exact=exact)
    again = run_pass(HoistSlices(), after, Environment())
    assert again == after, "the pass does not settle"
    return after, [m.reason for m in environment.trace.nearest("hoist_slices")]


def count(graph: Graph, name: str) -> int:
    return Counter(v.op.name for v in graph.values)[name]


x = value("f32[2, 12]")


def test_before_and_after() -> None:
    before = graph_of(Exp()(cut(x, 1, 0, 5)), Exp()(cut(x, 1, 5, 12)))
    whole = Exp()(x)
    assert hoist(before)[0] == graph_of(cut(whole, 1, 0, 5), cut(whole, 1, 5, 12))


def test_diamonds_and_chains() -> None:
    before = graph_of(*(Neg()(silu(cut(x, 1, a, b))) for a, b in ((0, 3), (3, 4), (4, 12))))
    after, _ = hoist(before)
    assert [count(after, n) for n in ("sigmoid", "mul", "neg", "slice")] == [1, 1, 1, 3]


def test_a_part_of_the_value_may_be_tiled() -> None:
    before = graph_of(Exp()(cut(x, 1, 2, 5)), Exp()(cut(x, 1, 5, 9)))
    after, _ = hoist(before)
    assert count(after, "exp") == 1
    (made,) = [v for v in after.values if v.op.name == "exp"]
    assert made.tensor.shape == (2, 7)


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (((0, 5), (6, 12)), "leave a gap (expected a start at 5, given 6)"),
        (((0, 6), (5, 12)), "overlap (expected a start at 6, given 5)"),
        # The widths add up to 12, with an overlap and a gap of one each.
        (((0, 5), (4, 8), (9, 12)), "overlap (expected a start at 5, given 4)"),
        (((0, 4), (5, 9), (8, 12)), "leave a gap (expected a start at 4, given 5)"),
    ],
)
def test_slices_that_do_not_tile_are_left_alone(ranges, reason: str) -> None:
    before = graph_of(*(Exp()(cut(x, 1, a, b)) for a, b in ranges))
    after, reasons = hoist(before)
    assert after == before
    assert any(reason in r for r in reasons)


def test_a_slice_without_a_user_does_not_count() -> None:
    dead = cut(x, 1, 4, 6)
    before = graph_of(Exp()(cut(x, 1, 0, 6)), Exp()(cut(x, 1, 6, 12)))
    assert dead not in before.values
    assert count(hoist(before)[0], "exp") == 1


def test_slices_along_several_axes_are_tiled_apart() -> None:
    rows = [Exp()(cut(x, 0, i, i + 1)) for i in range(2)]
    columns = [Neg()(cut(x, 1, a, b)) for a, b in ((0, 6), (6, 12))]
    corner = Exp()(cut(cut(x, 0, 0, 1), 1, 0, 3))
    after, _ = hoist(graph_of(*rows, *columns, corner))
    assert count(after, "neg") == 1
    assert count(after, "exp") == 2


def test_constants_of_each_slice_are_joined() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for a, b in ((0, 5), (5, 12)):
        bias = constant(rng.normal(size=b - a).astype(np.float32))
        scale = constant(rng.normal(size=(2, 1)).astype(np.float32))
        parts.append(Mul()(Add()(cut(x, 1, a, b), bias), scale))
    after, _ = hoist(graph_of(*parts))
    assert count(after, "add") == count(after, "mul") == 1


def test_another_value_cut_alike_comes_along() -> None:
    y = value("f32[2, 12]", "y")
    parts = [Mul()(cut(x, 1, a, b), cut(y, 1, a, b)) for a, b in ((0, 5), (5, 12))]
    after, _ = hoist(graph_of(*parts))
    assert count(after, "mul") == 1


def test_a_shared_operand_must_not_span_the_axis() -> None:
    y = value("f32[2, 6]", "y")
    before = graph_of(*(Mul()(cut(x, 1, a, a + 6), y) for a in (0, 6)))
    after, reasons = hoist(before)
    assert after == before
    assert any("spans the axis" in r for r in reasons)
    row = value("f32[2, 1]", "row")
    after, _ = hoist(graph_of(*(Mul()(cut(x, 1, a, a + 6), row) for a in (0, 6))))
    assert count(after, "mul") == 1


def test_one_constant_that_spans_every_slice_is_repeated() -> None:
    bias = constant(np.arange(6, dtype=np.float32))
    after, _ = hoist(graph_of(*(Add()(cut(x, 1, a, a + 6), bias) for a in (0, 6))))
    assert count(after, "add") == 1


def test_different_chains_hoist_what_they_share() -> None:
    before = graph_of(Exp()(cut(x, 1, 0, 4)), Exp()(cut(x, 1, 4, 8)), Neg()(cut(x, 1, 8, 12)))
    after, _ = hoist(before)
    assert count(after, "exp") == 1
    assert count(after, "neg") == 1


def test_hoisted_results_can_be_unsqueezed_and_joined() -> None:
    parts = [Unsqueeze((0,))(silu(cut(x, 1, 4 * i, 4 * i + 4))) for i in range(3)]
    after, _ = hoist(graph_of(Concat(0)(*parts)))
    assert count(after, "sigmoid") == 1


def test_symbolic_shapes_are_left_alone() -> None:
    y = value("f32[N, 12]", "y")
    parts = [Exp()(Slice((0, a), (2**40, b), (1, 1))(y)) for a, b in ((0, 5), (5, 12))]
    before = graph_of(*parts)
    assert run_pass(HoistSlices(), before, Environment()) == before
