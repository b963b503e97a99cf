"""Reductions, arguments and running totals on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Op
from monograph.ops.elementwise import Abs, Add, Mul, Sqrt
from monograph.ops.reduce import (
    ArgMax,
    ArgMin,
    CumProd,
    CumSum,
    ReduceMax,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, check
from tests.rules.checks import graph_of, value

SHAPES = [
    ("f32[37]", (0,)),
    ("f32[3, 1000]", (1,)),
    ("f32[300, 3]", (1,)),
    ("f32[33, 70]", (0,)),
    ("f32[5, 7, 9]", (0, 2)),
    ("f32[5, 7, 40]", (1,)),
    ("f32[2, 3, 4, 5]", (1, 3)),
    ("f32[2, 3, 4, 5]", ()),
    ("f32[2, 0, 5]", (1,)),
    ("f32[1]", (0,)),
]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_sums_and_extremes(shape: str, axes: tuple[int, ...]) -> None:
    x = value(shape)
    check(graph_of(ReduceSum(axes)(x), ReduceMax(axes, keep=True)(x), ReduceMin(axes)(x)))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u8", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize(
    "op", [ReduceSum((1,)), ReduceMax((1,)), ReduceMin((0,)), ReduceProd((0,))]
)
def test_element_types(dtype: str, op: Op) -> None:
    graph = graph_of(op(value(f"{dtype}[6, 37]")))
    feeds = feeds_for(graph)
    if not dtype.startswith(("f", "b")):
        # Large ones too: sums and products wrap, and the top bit of an unsigned one is no sign.
        ends = np.iinfo(feeds["x"].dtype)
        drawn = np.random.default_rng(3).integers(ends.min, ends.max, (6, 20), ends.dtype)
        feeds["x"][:, :20] = drawn
    check(graph, feeds)


@pytest.mark.parametrize("dtype", ["i4", "u4", "u2", "i16", "f8e4m3fn"])
def test_narrow_element_types(dtype: str) -> None:
    x = value(f"{dtype}[6, 37]")
    check(graph_of(ReduceSum((1,))(x), ReduceMin((0,))(x), CumSum(1)(x), ArgMax(1)(x)))


def test_bools() -> None:
    x = value("bool[5, 33]")
    check(graph_of(ReduceMax((1,))(x), ReduceMin((0,))(x)))


@pytest.mark.parametrize("shape", ["f32[4, 70]", "f16[2, 1500]"])
def test_nan_comes_through(shape: str) -> None:
    x = value(shape)
    graph = graph_of(ReduceMax((1,))(x), ReduceMin((1,))(x), ReduceMax((0,))(x), ReduceSum((1,))(x))
    feeds = feeds_for(graph)
    feeds["x"][1, 3] = np.nan
    feeds["x"][0, 60] = -np.inf
    check(graph, feeds)


def test_a_few_long_rows_are_cut() -> None:
    graph = graph_of(Sqrt()(ReduceSum((1,))(value("f16[2, 5000]"))))
    (names,) = candidate_names(graph)
    assert any("split" in n for n in names)
    assert any("split" not in n for n in names)
    feeds = feeds_for(graph)
    feeds["x"] = np.abs(feeds["x"])
    check(graph, feeds, steps=1)


def test_long_columns_are_cut() -> None:
    x = value("f16[3000, 20]")
    assert any("split" in n for n in candidate_names(graph_of(ReduceSum((0,))(x)))[0])
    check(graph_of(ReduceSum((0,))(x), ArgMax(0)(x)))


def test_expressions_and_views_are_read_on_the_way() -> None:
    x, y = value("f32[6, 5, 40]"), value("f32[6, 5, 40]", "y")
    turned = Reshape((40, 30))(Transpose((2, 0, 1))(Mul()(x, y)))
    check(graph_of(ReduceSum((1,))(turned)), steps=1)
    check(graph_of(ReduceMax((0,))(Slice((1, 0, 0), (6, 5, 40), (2, 1, 3))(x))), steps=1)
    check(graph_of(ReduceMax((0, 3))(Transpose((0, 3, 1, 2))(value("f32[3, 4, 10, 9]")))), steps=1)
    check(graph_of(ReduceSum((0, 1))(Broadcast((9, 6, 33))(value("f32[6, 1]")))), steps=1)


def test_what_follows_is_computed_in_place() -> None:
    x, y = value("f32[9, 300]"), value("f32[9]", "y")
    check(graph_of(Add()(Sqrt()(Abs()(ReduceSum((1,))(Mul()(x, x)))), y)), steps=1)


def test_parts_of_a_join_are_written_in_place() -> None:
    x, y = value("f32[6, 40]"), value("f32[6, 40]", "y")
    check(graph_of(Concat(0)(ReduceSum((1,))(x), ReduceMax((1,))(y))), steps=2)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [("f32[4, 30]", 1), ("i8[5, 1200]", 1), ("u32[70, 40]", 0), ("f16[3, 5, 7]", 1), ("i64[9]", 0)],
)
def test_arguments(shape: str, axis: int, last: bool) -> None:
    x = value(shape)
    check(graph_of(ArgMax(axis, last=last)(x), ArgMin(axis, keep=True, last=last)(x)))


@pytest.mark.parametrize("last", [False, True])
def test_arguments_of_equals_and_extremes(last: bool) -> None:
    x = value("f16[5, 2100]")
    graph = graph_of(ArgMax(1, last=last)(x), ArgMin(1, last=last)(x))
    assert any("split" in n for n in candidate_names(graph)[0])
    feeds = feeds_for(graph)
    feeds["x"][0] = 1
    feeds["x"][1] = -np.inf
    feeds["x"][2] = np.inf
    feeds["x"][3, [5, 700, 2000]] = np.nan
    check(graph, feeds)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [("f32[3, 33]", 1), ("i32[40, 70]", 0), ("f32[2, 1]", 1), ("f16[2, 600]", 1), ("u8[1]", 0)],
)
def test_running_totals(shape: str, axis: int, exclusive: bool, reverse: bool) -> None:
    x = value(shape)
    check(graph_of(CumSum(axis, exclusive, reverse)(x)))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "i8", "u8", "i64", "f64"])
def test_running_products(dtype: str, exclusive: bool) -> None:
    graph = graph_of(CumProd(1, exclusive, True)(value(f"{dtype}[2, 40]")))
    feeds = feeds_for(graph)
    feeds["x"][feeds["x"] == 0] = 1
    check(graph, feeds)


@pytest.mark.parametrize("exclusive", [False, True])
def test_long_running_totals_are_cut(exclusive: bool) -> None:
    x, y = value("f32[2, 2500]"), value("f32[2, 2500]", "y")
    graph = graph_of(Mul()(CumSum(1, exclusive)(Add()(x, y)), y))
    (names,) = candidate_names(graph)
    assert any("split" in n for n in names)
    check(graph, steps=1)


def test_short_columns() -> None:
    """One element in each of many columns leaves nothing to cut, and still has a kernel."""
    check(graph_of(ReduceSum((1, 2), True)(value("f32[1, 1, 1, 160]"))))
