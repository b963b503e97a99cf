"""Every element is held to what its own roundings explain, whatever is beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.ir import Graph, Op, Value, constant, evaluate
from monograph.ir.dtype import dtype, f16, f32, i8, i32, i64, u8
from monograph.ops.cast import Cast
from monograph.ops.composite import Gelu
from monograph.ops.conv import Conv
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Div, Max, Mul, Neg, Sub
from monograph.ops.functions import Cos, Erf, Exp, Floor, Sigmoid, Sqrt, Tanh
from monograph.ops.linear import Dot
from monograph.ops.logic import Less
from monograph.ops.pool import LpPool
from monograph.ops.quant import Quantize
from monograph.ops.random import RandomNormal
from monograph.ops.reduce import ArgMax, CumSum, ReduceSum
from monograph.ops.scatter import ScatterElements, ScatterNd
from monograph.ops.shape import Concat, Reshape, Unsqueeze
from monograph.runtime.numerics.compare import Difference, OutputPath, compare_outputs
from monograph.runtime.numerics.spread import tolerances
from monograph.runtime.numerics.tolerance import RUNS, Tolerance
from tests.rules.checks import graph_of, value

EPS = 2.0**-23
rng = np.random.default_rng(0)


def held(graph: Graph, feeds: dict[str, Any], given: Any, **options: Any) -> Difference:
    expected = dict(zip(graph.output_names, evaluate(graph, feeds), strict=True))
    (found,) = compare_outputs({"y0": given}, expected, tolerances(graph, feeds, **options))
    return found


def reach(graph: Graph, feeds: dict[str, Any], **options: Any) -> list[np.ndarray]:
    spread = tolerances(graph, feeds, **options)["y0"].spread
    assert spread is not None
    return [*spread.reach(OutputPath("y0"))]


def test_a_large_element_does_not_excuse_a_small_one() -> None:
    """A row of tiny numbers beside one of huge numbers: each is held to its own sum."""
    a = rng.normal(size=(2, 50)) * [[1e-6], [1e6]]
    feeds = {"x": a.astype(np.float32)}
    graph = graph_of(Dot()(value("f32[2, 50]"), constant(rng.normal(size=(50, 3)).astype("f4"))))
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right).ok
    for row, off in ((0, 1e-8), (1, 1e4)):
        wrong = right.copy()
        wrong[row, 1] += np.float32(off)
        found = held(graph, feeds, wrong)
        assert found.worst == (row, 1)
        assert found.problem == "1 of 6 beyond the tolerance"


def test_a_sum_that_cancels_is_off_at_the_scale_of_its_terms() -> None:
    a = np.float32([[1e6, 1, -1e6], [1, 1e-6, -1]])
    graph = graph_of(Dot()(value("f32[2, 3]"), constant(np.ones((3, 1), np.float32))))
    right = evaluate(graph, {"x": a})[0]
    assert held(graph, {"x": a}, right + np.float32([[0.125], [1e-7]])).ok
    assert held(graph, {"x": a}, right + np.float32([[0.125], [1e-5]])).worst == (1, 0)
    assert not held(graph, {"x": a}, right + np.float32([[10], [0]])).ok


def test_an_element_that_shows_movements_of_one_sign_is_seen_to_move() -> None:
    a = np.tile(np.float32([1e6, -1e6]), (512, 32))
    total = ReduceSum((1,), keep=False)(value("f32[512, 64]"))
    graph = graph_of(Max()(total, constant(np.float32(0))))
    assert (reach(graph, {"x": a})[-1] > 0.01).all()


def test_errors_are_followed_through_the_ops_behind() -> None:
    """e^(x + 1e5 - 1e5): the sum has lost bits, and the exponential shows that."""
    big = constant(np.float32(1e5))
    graph = graph_of(Exp()(Sub()(Add()(value("f32[4]"), big), big)))
    feeds = {"x": np.float32([0.1, 1.3, -2.7, 4.2])}
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right * np.float32(1 + 2**-7)).ok
    assert not held(graph, feeds, right * np.float32(1.5)).ok
    plain = graph_of(Exp()(value("f32[4]")))
    right = evaluate(plain, feeds)[0]
    assert not held(plain, feeds, right * np.float32(1 + 2**-15)).ok


def test_whole_numbers_stay_what_they_are() -> None:
    """Sizes computed in floats: 13 * 2 is 26 under every rounding."""
    graph = graph_of(Cast(i64)(Floor()(Mul()(value("f32[1]"), constant(np.float32([2]))))))
    feeds = {"x": np.float32([13])}
    (first, *_) = reach(graph, feeds, ties=True)
    assert first.tolist() == [0]


@pytest.mark.parametrize(("kind", "near"), [("f16", 0.0188), ("bf16", 0.05), ("f32", 1e-4)])
def test_numbers_that_are_whole_by_rounding_alone_may_be_others(kind: str, near: float) -> None:
    """The cosine of a small angle is rounded to 1, of which a kernel knows that it is less."""
    graph = graph_of(Floor()(Reshape((3,))(Unsqueeze((0,))(Cos()(value(f"{kind}[3]"))))))
    feeds = {"x": np.array([near, 0, 1], dtype(kind).numpy)}
    right = evaluate(graph, feeds)[0]
    assert right.tolist() == [1, 1, 0]
    assert held(graph, feeds, right * np.array([0, 1, 1], right.dtype)).ok
    assert held(graph, feeds, right * np.array([0, 0, 1], right.dtype)).worst == (1,)
    assert held(graph, feeds, right + np.array([0, 0, 1], right.dtype)).worst == (2,)


def test_steps_alone_doubt_what_is_whole_by_rounding() -> None:
    """e^x - 1 of a half next to 0 is 0: it keeps its scale."""
    graph = graph_of(Sub()(Exp()(value("f16[2]")), constant(np.float16(1))))
    feeds = {"x": np.float16([-1.3e-5, 0.5])}
    assert evaluate(graph, feeds)[0][0] == 0
    assert reach(graph, feeds)[-1][0] < 1e-6
    less = graph_of(Less()(Exp()(value("f16[2]")), constant(np.float16(1))))
    assert held(less, feeds, np.array([True, False]), ties=True).ok
    assert held(less, feeds, np.array([True, True]), ties=True).worst == (1,)


def test_sums_that_are_whole_by_rounding_to_a_narrow_type_may_be_others() -> None:
    graph = graph_of(Floor()(Add()(value("f16[2]"), value("f16[2]", "y"))))
    feeds = {"x": np.float16([1 - 2**-11, 0.5]), "y": np.float16([0.75 * 2**-11, 0.5])}
    right = evaluate(graph, feeds)[0]
    assert right.tolist() == [1, 1]
    assert held(graph, feeds, np.float16([0, 1])).ok
    assert held(graph, feeds, np.float16([1, 0])).worst == (1,)


class LastRuns:
    """Rounding changes the first element, as the last disturbed runs show, and no others."""

    def __init__(self, size: int) -> None:
        self.size = size

    def reach(
        self, place: Any, any_row: bool = False, runs: Sequence[int] = RUNS
    ) -> Iterator[np.ndarray]:
        for count in runs:
            yield np.where((np.arange(self.size) == 0) & (count > RUNS[-1]), np.inf, 0.0)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.bool_])
def test_few_integers_that_differ_are_measured_by_more_runs(kind: type) -> None:
    """A step that one run in four takes is missed by 16 of them in one model of a hundred."""

    def found(wrong: list[int], size: int) -> Difference:
        expected = np.zeros(size, kind)
        given = expected.copy()
        given[wrong] = 1
        tolerance = {"y": Tolerance(0.0, 0.0, LastRuns(size))}
        (difference,) = compare_outputs({"y": given}, {"y": expected}, tolerance)
        return difference

    assert found([0], 1).ok
    assert found([0], 200).ok
    assert not found([1], 200).ok
    assert found([0, 1], 200).worst == (1,)
    assert not found([0, 1, 2], 200).ok


def test_integers_that_rounding_decides_are_excused_only_where_asked_for() -> None:
    third = constant(np.float32(1 / 3))
    graph = graph_of(ArgMax(0, False)(Mul()(value("f32[3]"), third)))
    feeds = {"x": np.float32([1, 1 + EPS, 0])}
    expected = evaluate(graph, feeds)[0]
    other = np.asarray(1 - expected)
    assert held(graph, feeds, other, ties=True).ok
    assert not held(graph, feeds, other).ok
    apart = {"x": np.float32([1, 2, 0])}
    assert not held(graph, apart, np.asarray(np.int64(0)), ties=True).ok


def test_a_quantiser_may_be_off_by_a_step_at_an_edge() -> None:
    """An element at an edge between two steps may take either; others may not."""
    third = Mul()(value("f32[4]"), constant(np.float32(1 / 3)))
    codes = Quantize(u8)(third, constant(np.float32(0.1)), constant(np.uint8(3)))
    graph = graph_of(Mul()(Cast(f32)(codes), constant(np.float32(1e-3))))
    feeds = {"x": np.float32([0.75, 1.2, 1.35, 0.7501])}
    right = evaluate(graph, feeds)[0]
    for at, step in ((0, 1), (2, 1)):
        either = [right.copy(), right.copy()]
        either[0][at] += np.float32(1e-3)
        either[1][at] -= np.float32(1e-3)
        assert [held(graph, feeds, y).ok for y in either].count(True) >= step
    for at in (1, 3):
        for off in (1e-3, -1e-3):
            wrong = right.copy()
            wrong[at] += np.float32(off)
            assert held(graph, feeds, wrong).worst == (at,)
            assert not held(graph, feeds, wrong).ok
    wrong = right.copy()
    wrong[0] += np.float32(0.02)
    assert not held(graph, feeds, wrong).ok


def test_a_step_at_an_edge_reaches_the_sums_behind_it() -> None:
    """Rows of integers are summed: the row with an element at an edge may move, by one step."""
    scaled = Mul()(value("f32[3, 4]"), constant(np.float32(1 / 3)))
    codes = Quantize(i8)(scaled, constant(np.float32(0.1)))
    weights = constant(np.int8([[7], [-3], [5], [2]]))
    product = Dot(i32)(codes, weights)
    graph = graph_of(Mul()(Cast(f32)(product), constant(np.float32(0.1))))
    x = np.float32([[0.3, 0.6, 0.9, 1.2], [0.75, 0.6, 0.9, 1.2], [0.3, 0.6, 0.9, 1.2]])
    moved = reach(graph, {"x": x})[-1][:, 0]
    assert max(moved[0], moved[2]) < 1e-5
    assert 0.7 <= moved[1] <= 4 * 0.7 + 1e-5


def convolved(size: int) -> Value:
    weights = constant(rng.normal(size=(1, 1, size, size)).astype("f4"))
    return Conv((1, 1), (0, 0), (0, 0), (1, 1))(value("f32[1, 1, 20, 20]"), weights)


@pytest.mark.parametrize(("size", "farthest"), [(3, 5 + 2), (2, 1)])
def test_a_tile_is_the_scale_of_a_convolution_by_winograd(size: int, farthest: int) -> None:
    """A large pixel counts for the tiles that it may be in; otherwise for its windows."""
    x = np.full((1, 1, 20, 20), 1e-6, np.float32)
    x[0, 0, 10, 10] = 1e6
    moved = reach(graph_of(convolved(size)), {"x": x})[-1][0, 0]
    near = np.argwhere(moved > 1e-9)
    assert near.min() >= 10 - farthest
    assert near.max() <= 10 + farthest
    assert moved[0, 0] < 1e-10


def test_gelu_is_off_at_the_scale_of_its_operand() -> None:
    graph = graph_of(Gelu()(value("f32[3]")))
    feeds = {"x": np.float32([-4, -1e-3, 3])}
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right + np.float32([2e-7, 0, 0])).ok
    assert held(graph, feeds, right + np.float32([0, 2e-7, 0])).worst == (1,)


def test_denormals_may_be_zeros() -> None:
    graph = graph_of(Mul()(value("f32[2]"), constant(np.float32(1e-20))))
    feeds = {"x": np.float32([1e-20, 1e-10])}
    assert held(graph, feeds, np.float32([0, 1e-30])).ok
    assert not held(graph, feeds, np.float32([0, 0])).ok


@pytest.mark.parametrize(("p", "dtype", "small", "kept"), [
    (1, "f32", 1e-35, 1e-35), (2, "f32", 1e-30, 1.2e-19), (3, "f32", 1e-20, 3e-13),
    (2, "bf16", 1e-30, 1.2e-19), (2, "f64", 1e-160, 2e-154),
])  # fmt: skip
def test_elements_whose_powers_underflow_may_be_zeros(
    p: int, dtype: str, small: float, kept: float
) -> None:
    """A norm sums powers: those below the smallest normal number of the accumulator are lost."""
    pool = LpPool((2,), (2,), (0,), (0,), (1,), p=p)
    graph = graph_of(pool(value(f"{dtype}[1, 1, 6]")))
    x = np.array([[[small, small, kept, 0, 1, kept]]])
    feeds = {"x": x.astype(graph.inputs[0].dtype.numpy)}
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right).ok
    lost = right.copy()
    lost[..., 0] = 0
    assert held(graph, feeds, lost).ok == (p > 1)
    for at, wrong in ((0, 100 * small), (1, 0.0), (2, 0.9)):
        off = right.copy()
        off[..., at] = wrong
        assert held(graph, feeds, off).worst == (0, 0, at)
        assert not held(graph, feeds, off).ok


def test_a_norm_of_several_ops_may_lose_its_squares() -> None:
    """ReduceL2 and LpNormalization square, sum and take the root: the squares may be zeros."""
    x = value("f32[2, 3]")
    graph = graph_of(Sqrt()(ReduceSum((1,), keep=False)(Mul()(x, x))))
    feeds = {"x": np.float32([[1e-20, 2e-20, 0], [1e-18, 2e-18, 0]])}
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right * np.float32([0, 1])).ok
    found = held(graph, feeds, right * np.float32([1, 0]))
    assert found.worst == (1,)
    assert not found.ok


def test_numbers_that_f16_loses_may_be_kept() -> None:
    graph = graph_of(Cast(f32)(Cast(f16)(value("f32[3]"))))
    feeds = {"x": np.float32([1e-8, 0, np.inf])}
    assert held(graph, feeds, np.float32([1e-8, 0, np.inf])).ok
    assert held(graph, feeds, np.float32([1e-6, 0, np.inf])).worst == (0,)
    assert held(graph, feeds, np.float32([1e-8, 1e-8, np.inf])).worst == (1,)


def test_a_sigmoid_that_f16_loses_may_be_kept() -> None:
    graph = graph_of(Cast(f32)(Sigmoid()(Cast(f16)(value("f32[4]")))))
    feeds = {"x": np.float32([-17.35, -18, -40, -8])}
    exact = Sigmoid().reference(np.float16(feeds["x"]).astype(np.float32))
    assert evaluate(graph, feeds)[0][1] == 0
    assert held(graph, feeds, exact).ok
    for at in range(4):
        wrong = exact.copy()
        wrong[at] += np.float32(1e-6 if at < 3 else 3e-5)
        assert held(graph, feeds, wrong).worst == (at,)
        assert not held(graph, feeds, wrong).ok


def test_a_number_that_overflows_in_f16_may_be_kept_up_to_an_output() -> None:
    x = value("f16[2]")
    square = Mul()(x, x)
    feeds = {"x": np.float16([1000, 2])}
    inverse = graph_of(Div()(constant(np.float16(1)), square))
    assert held(inverse, feeds, np.float16([1e-6, 0.25])).ok
    assert held(inverse, feeds, np.float16([1e-6, 0.3])).worst == (1,)
    assert held(graph_of(square), feeds, np.float16([60000, 4])).worst == (0,)
    by_zero = graph_of(Neg()(Div()(x, constant(np.float16(0)))))
    assert held(by_zero, feeds, np.float16([-np.inf, -60000])).worst == (1,)


def test_constants_that_the_import_has_folded_are_rounded() -> None:
    """A LayerNorm of initialisers is a constant for the compiler; ONNX Runtime computes it."""
    data = {
        "a": np.float32([[1e3, 1e3 + 1, 1e3 - 0.5, 1e3 + 0.3]]),
        "one": np.ones(4, np.float32),
        "half": np.float32([0.5]),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["a", "one"], ["n"]),
        helper.make_node("Mul", ["n", "half"], ["m"]),
        helper.make_node("Add", ["m", "x"], ["y0"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "y0")]
    given = [numpy_helper.from_array(v, n) for n, v in data.items()]
    made = helper.make_graph(nodes, "folded", ports[:1], ports[1:], given)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(made, opset_imports=opset, ir_version=8)
    session = monograph.load(model.SerializeToString(), "reference")
    feeds = {"x": np.zeros((1, 4), np.float32)}
    graph = session.bound_graph(feeds)
    assert {v.op.name for v in graph.values} == {"constant", "input", "add"}
    assert evaluate(graph.unfolded, feeds)[0].tolist() == evaluate(graph, feeds)[0].tolist()
    right = evaluate(graph, feeds)[0]
    # The mean of a row of 1,000 is off by an eps of that.
    assert held(graph, feeds, right + np.float32([[0, 1e-4, 0, 0]])).ok
    assert held(graph, feeds, right + np.float32([[0, 1e-2, 0, 0]])).worst == (0, 1)
    assert not held(graph, feeds, right + np.float32([[0, 1e-2, 0, 0]])).ok
    assert graph.unfolded.unfolded is graph.unfolded


def test_a_folded_constant_may_equal_an_operand_of_its_own_expression() -> None:
    one, two = constant(np.float32([1.5])), constant(np.float32([2.5]))
    up, down = Add()(one, constant(np.float32([1]))), Sub()(two, constant(np.float32([1])))
    total = Add()(value("f32[1]"), two)
    graph = replace(graph_of(Mul()(total, one)), folded={two: up, one: down})
    feeds = {"x": np.float32([1])}
    assert evaluate(graph.unfolded, feeds) == evaluate(graph, feeds)
    assert {v.op.name for v in graph.unfolded.values} >= {"add", "sub"}


def test_rounded_constants_count_in_a_narrowed_graph() -> None:
    weights = Cast(f32)(constant(rng.normal(size=(64, 4)).astype(np.float16)))
    graph = graph_of(Dot()(value("f32[3, 64]"), weights))
    feeds = {"x": rng.normal(size=(3, 64)).astype(np.float32)}
    plain, narrowed = (np.median(reach(graph, feeds, narrowed=n)[-1]) for n in (False, True))
    assert narrowed > 100 * plain


def test_what_is_drawn_at_random_has_no_reach() -> None:
    graph = graph_of(Concat(0)(RandomNormal((2,), f32)(), value("f32[2]")))
    assert reach(graph, {"x": np.float32([1, 2])}) == []


@pytest.mark.parametrize("op", [Erf(), Tanh(), Sigmoid()], ids=lambda op: op.name)
def test_a_function_at_its_limit_is_rounded_too(op: Any) -> None:
    """1 + erf(-5) is 0 in f32: what an exact function leaves there is no fault."""
    x = np.float32([-20, 20])
    limit = op.reference(x)[1]
    graph = graph_of(Sub()(op(value("f32[2]")), constant(np.float32(limit))))
    right = evaluate(graph, {"x": x})[0]
    assert right[1] == 0
    assert held(graph, {"x": x}, right - np.float32([0, EPS / 2])).ok
    assert not held(graph, {"x": x}, right - np.float32([0, 64 * EPS])).ok


def test_a_sum_whose_axis_is_data_counts_its_terms() -> None:
    x = np.float32([[1, -0.7, 1.3, -0.6, -1, 0.0001]])
    sums = Deferred(CumSum.name, ("axis",), (("exclusive", False), ("reverse", False)))
    feeds = {"x": x, "axis": np.array(1)}
    graph = graph_of(sums(value("f32[1, 6]"), value("i64[]", "axis")))
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right + np.float32(2 * EPS)).ok
    assert not held(graph, feeds, right + np.float32(100 * EPS)).ok


@pytest.mark.parametrize("op", [ScatterElements(0, "add"), ScatterNd("add")])
def test_updates_that_cancel_are_off_by_what_was_added(op: Op) -> None:
    """Nine numbers meet at place 1; nothing is added to place 0."""
    terms = np.float32([1.7768936, -5.888246, -1.001517, 6.201674, 0.20268548, -1, 3, -3])
    indices = np.ones((8,) if op.name == "scatter_elements" else (8, 1), np.int64)
    graph = graph_of(op(value("f32[2]"), constant(indices), value("f32[8]", "u")))
    feeds = {"x": np.float32([0.5, -0.05]), "u": terms}
    right = evaluate(graph, feeds)[0]
    assert held(graph, feeds, right + np.float32([0, 5e-7])).ok
    for off in ([5e-6, 0], [0, 2e-5]):
        assert not held(graph, feeds, right + np.float32(off)).ok
