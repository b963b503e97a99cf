"""Reductions, arguments and running totals on the CPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Op, evaluate
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
from monograph.ops.shape import Reshape, Transpose
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import check, feeds_for
from tests.cpu.emit.scalar_kernels import instruction_sets
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(7)
SHAPES = [
    ("f32[37]", (0,)),
    ("f32[3, 1000]", (1,)),
    ("f32[1000, 3]", (1,)),
    ("f32[33, 70]", (0,)),
    ("f32[5, 7, 9]", (0, 2)),
    ("f32[5, 7, 40]", (1,)),
    ("f32[2, 3, 4, 5]", (1, 3)),
    ("f32[2, 3, 4, 5]", ()),
    ("f32[2, 0, 5]", (1,)),
]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_sums(shape: str, axes: tuple[int, ...]) -> None:
    check(graph_of(ReduceSum(axes)(value(shape)), ReduceSum(axes, keep=True)(value(shape))))


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_extremes(shape: str, axes: tuple[int, ...]) -> None:
    x = value(shape)
    check(graph_of(ReduceMax(axes)(x), ReduceMin(axes)(x)))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u8", "i32", "i64"])
@pytest.mark.parametrize(
    "op", [ReduceSum((1,)), ReduceMax((1,)), ReduceMin((0,)), ReduceProd((0,))]
)
def test_element_types(dtype: str, op: Op) -> None:
    check(graph_of(op(value(f"{dtype}[6, 37]"))))


def test_bools() -> None:
    x = value("bool[5, 33]")
    check(graph_of(ReduceMax((1,))(x), ReduceMin((0,))(x)))


def test_nan_is_the_largest_and_the_smallest() -> None:
    x = value("f32[4, 50]")
    graph = graph_of(ReduceMax((1,))(x), ReduceMin((1,))(x), ArgMax(1)(x), ArgMin(1, last=True)(x))
    feeds = feeds_for(graph)
    feeds["x"][0, 49] = feeds["x"][1, 3] = feeds["x"][1, 40] = np.nan
    feeds["x"][2] = np.inf
    feeds["x"][3] = -np.inf
    check(graph, feeds)


def test_operand_and_result_are_fused() -> None:
    x = value("f32[20, 70]")
    y = value("f32[20]", "y")
    check(graph_of(Add()(Sqrt()(ReduceSum((1,))(Mul()(x, x))), y)), steps=1)


@pytest.mark.parametrize(("shape", "axes"), SHAPES[:-2])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_reductions_of_the_same_rows_are_one_step(
    shape: str, axes: tuple[int, ...], dtype: str
) -> None:
    x = value(shape.replace("f32", dtype))
    check(graph_of(ReduceMax(axes)(x), ReduceSum(axes)(x), ReduceMin(axes)(x)), steps=1)
    squares = Mul()(x, x)
    most, least = ReduceMax(axes)(squares), ReduceMin(axes)(squares)
    y = value(f"{dtype}{list(most.tensor.static)}", "y")
    # A value with two readers is stored.
    check(graph_of(Add()(most, y), Abs()(least)), steps=2)


def test_reductions_that_wait_or_differ_are_steps_of_their_own() -> None:
    x, most = value("f32[6, 40]"), ReduceMax((1,))(value("f32[6, 40]"))
    check(graph_of(Add()(most, ReduceMin((1,))(x))), steps=2)
    # Something else between them needs one and is needed by the other.
    total = ReduceSum((0,), keep=True)(Abs()(most))
    check(graph_of(most, Mul()(ReduceMin((1,))(x), total)), steps=3)
    check(graph_of(most, ReduceMin((0,))(x)), steps=2)
    check(graph_of(most, ReduceMin((1,), keep=True)(x)), steps=2)
    check(graph_of(most, ReduceMin((1,))(Abs()(x))), steps=2)


def test_operand_is_read_through_views() -> None:
    x = value("f32[20, 6, 10]")
    turned = Transpose((2, 0, 1))(x)
    graph = graph_of(ReduceSum((0,))(turned), ReduceMax((1, 2))(Abs()(Reshape((10, 12, 10))(x))))
    check(graph, steps=2)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [("i8[7, 90]", 1), ("f32[65, 33]", 0), ("f32[5, 3]", 1)]
)
def test_arguments(shape: str, axis: int, last: bool) -> None:
    x = value(shape)
    check(graph_of(ArgMax(axis, last=last)(x), ArgMin(axis, keep=True, last=last)(x)))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [("f32[50]", 0), ("f32[9, 40]", 0), ("i32[3, 5, 7]", 1)]
)
def test_running_totals(shape: str, axis: int, exclusive: bool, reverse: bool) -> None:
    x = value(shape)
    check(graph_of(CumSum(axis, exclusive, reverse)(x), CumProd(axis, exclusive, reverse)(x)))


def test_threads_do_not_change_sums() -> None:
    graph = graph_of(
        ReduceSum((1,))(value("f32[13, 777]")), ReduceSum((0,))(value("f32[99, 130]", "y"))
    )
    feeds = feeds_for(graph)
    for features in instruction_sets():
        results = [compile_graph(graph, features, t).run(feeds) for t in (1, 2, 4)]
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


def test_long_sums_are_accurate() -> None:
    graph = graph_of(ReduceSum((0,))(value("f32[1000000]")))
    feeds = {"x": np.full(1000000, 0.1, np.float32)}
    (expected,) = evaluate(graph, feeds)
    (given,) = compile_graph(graph, instruction_sets()[0], 2).run(feeds)
    assert abs(float(given) / float(expected) - 1) < 1e-5


def test_long_sums_down_columns_are_accurate() -> None:
    """Equal numbers are rounded alike at each addition: one total of them all goes astray."""
    graph = graph_of(ReduceSum((1, 2), keep=True)(value("f32[1, 160, 256, 33]")))
    feeds = {"x": np.full((1, 160, 256, 33), 0.1, np.float32)}
    (expected,) = evaluate(graph, feeds)
    for features in instruction_sets():
        (given,) = compile_graph(graph, features, 2).run(feeds)
        np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_sums_down_columns_are_as_accurate_as_sums_along_rows() -> None:
    """Too short to be split among threads, and too long for one total after the other."""
    data = rng.normal(3.0, 1.0, (1, 960, 48)).astype(np.float32)
    graph = graph_of(ReduceSum((1,))(value("f32[1, 960, 48]")))
    (expected,) = evaluate(graph, {"x": data})
    for features in instruction_sets():
        (given,) = compile_graph(graph, features, 2).run({"x": data})
        np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_long_reductions_are_split() -> None:
    x, y = value("f32[2, 300, 200]"), value("f32[2]", "y")
    check(graph_of(Add()(ReduceSum((1, 2))(Mul()(x, x)), y)), steps=2)
    check(graph_of(ReduceMax((0, 1, 2), keep=True)(x)))
