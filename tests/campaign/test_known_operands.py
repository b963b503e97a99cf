"""Rules of documented differences excuse the operands that they are about, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.campaign import known_operands as known
from tests.campaign.case import Case, finish, tensor
from tests.campaign.differences import Seen
from tests.campaign.judge import Problem
from tests.campaign.known import approximated, unrounded_halves

nan, inf = np.nan, np.inf


def seen(op: str, operands: list[Any], given: Any = 0.0, expected: Any = 0.0, **more: Any) -> Seen:
    """A difference of a single node, all of whose operands are fed."""
    arrays = {f"x{i}": np.asarray(x) for i, x in enumerate(operands) if x is not None}
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(operands)]
    node = helper.make_node(op, names, ["y"], **more)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for n, x in arrays.items()]  # fmt: skip
    model = finish([node], infos, ["y"], [tensor(np.float32(0), "unused")], 23)
    case = Case("single", 0, 0, model, (arrays,))
    problem = Problem("onnxruntime", "wrong", "", output="y")
    return Seen(case, problem, np.asarray(given), np.asarray(expected))


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


ROW, WITH_NAN = np.float32([1, 2, 3]), np.float32([1, nan, 3])
CACHED = [f32(1, 1, 2, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 4), None, f32(1, 1, 1, 4)]
SQUARE = [f32(1, 1, 3, 4), *CACHED[1:]]
SCORES = [np.float32([[[[inf]]]]), f32(1, 1, 1, 1), f32(1, 1, 1, 1)]
LARGE = np.array([[[1 << 28, 1]]], np.int32)

CASES = [
    (known.empty_sum, ("MatMul", [f32(2, 0), f32(0)], f32(2)), ("MatMul", [f32(2, 3), f32(3)])),
    (known.unique_nan, ("Unique", [WITH_NAN]), ("Unique", [ROW])),
    (
        known.reduced_nan,
        ("ReduceMax", [WITH_NAN], np.float32(3), np.float32(nan)),
        ("ReduceMax", [WITH_NAN], np.float32(nan), np.float32(3)),
    ),
    (known.hardmax_nan, ("Hardmax", [WITH_NAN]), ("Hardmax", [ROW])),
    (
        known.no_variance,
        ("MeanVarianceNormalization", [ROW], np.float32([nan]), np.float32([0])),
        ("MeanVarianceNormalization", [ROW], np.float32([nan]), np.float32([1])),
    ),
    (
        known.infinite_scores,
        ("Attention", SCORES, np.float32([nan]), np.float32([0])),
        ("Attention", SCORES, np.float32([nan]), np.float32([1])),
    ),
    (
        known.large_interpolated,
        ("Resize", [LARGE, None, f32(3)], np.int32(1 << 28), np.int32((1 << 28) + 3)),
        ("Resize", [LARGE, None, f32(3)], np.int32(1 << 28), np.int32(1 << 27)),
    ),
    (
        known.reduced_angle,
        ("Sin", [np.array([3.0])], np.array([0.14112000805986710]), np.array([0.1411200080598672])),
        ("Sin", [np.array([3.0])], np.array([0.14112000805886710]), np.array([0.1411200080598672])),
    ),
    (
        known.shrunk_in_floats,
        ("Shrink", [np.uint32([(1 << 31) + 7])], np.uint32([1 << 31]), np.uint32([(1 << 31) + 7])),
        ("Shrink", [np.uint32([700])], np.uint32([701]), np.uint32([700])),
    ),
    (known.crash_without_elements, ("TopK", [f32(0, 2), i64(1)]), ("TopK", [f32(1, 2), i64(1)])),
]


@pytest.mark.parametrize(("rule", "same", "other"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_a_rule_is_about_its_operands(rule: Any, same: Any, other: Any) -> None:
    assert rule(seen(*same))
    assert not rule(seen(*other))
    assert not rule(seen("Neg", [WITH_NAN], np.float32(3), np.float32(nan)))


def test_causal_attention_with_a_past_is_open_only_where_lengths_differ() -> None:
    assert known.causal_past(seen("Attention", CACHED, is_causal=1))
    assert not known.causal_past(seen("Attention", CACHED))
    assert not known.causal_past(seen("Attention", SQUARE, is_causal=1))
    assert not known.causal_past(seen("Attention", CACHED[:3], is_causal=1))


def test_a_split_may_leave_less_than_nothing() -> None:
    assert known.negative_part(seen("Split", [f32(1)], num_outputs=3))
    assert not known.negative_part(seen("Split", [f32(2)], num_outputs=3))
    assert not known.negative_part(seen("Split", [f32(5)], num_outputs=3))


def test_a_window_beyond_the_image_is_told_from_one_inside() -> None:
    shapes, window = (f32(1, 1, 1), f32(1, 1, 0)), {"kernel_shape": [2], "pads": [1, 0]}
    assert known.window_beyond(seen("MaxPool", [f32(1, 1, 0)], *shapes, **window))
    assert not known.window_beyond(seen("MaxPool", [f32(1, 1, 1)], *shapes, **window))
    assert not known.window_beyond(seen("MaxPool", [f32(1, 1, 0)], f32(1), f32(1), **window))


@pytest.mark.parametrize(
    ("dtype", "given", "excused"),
    [(np.float16, 0, True), (np.float16, 3, False), (np.float32, 0, False)],
)
def test_a_half_near_a_whole_number_may_be_cut_below_it(
    dtype: Any, given: int, excused: bool
) -> None:
    feeds = {"x": np.array([0.0], dtype)}
    nodes = [
        helper.make_node("Cos", ["x"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=onnx.TensorProto.INT32),
    ]
    info = helper.make_tensor_value_info(
        "x", helper.np_dtype_to_tensor_dtype(feeds["x"].dtype), [1]
    )
    case = Case("nnsmith", 0, 0, finish(nodes, [info], ["y"], [], 21), (feeds,))
    problem = Problem("onnxruntime", "wrong", "", output="y")
    given_, expected = np.int32([given]), np.int32([1])
    assert unrounded_halves(Seen(case, problem, given_, expected)) == excused


@pytest.mark.parametrize(
    ("zero", "given", "excused"), [(-0.0, inf, True), (0.0, inf, False), (-0.0, 3.0, False)]
)
def test_a_zero_loses_its_sign(zero: float, given: float, excused: bool) -> None:
    feeds = {"c": np.array([True]), "a": np.float32([zero]), "b": f32(1)}
    nodes = [
        helper.make_node("Where", ["c", "a", "b"], ["w"]),
        helper.make_node("Reciprocal", ["w"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    case = Case("nnsmith", 0, 0, finish(nodes, infos, ["y"], [], 21), (feeds,))
    problem = Problem("onnxruntime", "wrong", "", output="y")
    given_, expected = np.float32([given]), np.float32([-inf])
    assert known.unsigned_zero(Seen(case, problem, given_, expected)) == excused


def test_the_alpha_of_hard_swish_is_an_f32() -> None:
    exact = np.array([1 / 3])
    assert known.rounded_alpha(seen("HardSwish", [exact], exact * (1 + 3e-8), exact))
    assert not known.rounded_alpha(seen("HardSwish", [exact], exact * (1 + 3e-6), exact))


def test_a_crash_of_unique_needs_an_axis() -> None:
    assert known.crash_without_elements(seen("Unique", [f32(1, 0)], axis=0))
    assert not known.crash_without_elements(seen("Unique", [f32(1, 0)]))


def test_the_nodes_of_a_difference_are_those_behind_its_output() -> None:
    one = seen("Unique", [WITH_NAN])
    model = onnx.ModelProto()
    model.CopyFrom(one.case.model)
    model.graph.node.append(helper.make_node("Neg", ["x0"], ["z"]))
    other = Case("single", 0, 0, model, one.case.runs)
    problem = Problem("onnxruntime", "wrong", "", output="z")
    assert not known.unique_nan(Seen(other, problem, one.given, one.expected))


def test_places_of_a_resize_are_f32() -> None:
    x, right = np.float32([[[1, 2]]]), np.float32([[[1, -1e-3, 2]]])
    operands = [x, None, np.float32([1, 1, 1.5])]
    for off, mode, excused in (
        (1e-6, "linear", True),
        (1e-4, "linear", False),
        (1e-6, "nearest", False),
    ):
        given = right + np.float32([[[0, off, 0]]])
        assert known.rounded_places(seen("Resize", operands, given, right, mode=mode)) == excused


@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh", "Relu"])
def test_functions_inside_of_a_convolution_are_approximated(activation: str) -> None:
    operands = [f32(1, 1, 2, 2), f32(1, 1, 1, 1)]
    right = np.float32([1e-7])
    for off, rough in ((6e-8, True), (1e-5, False)):
        found = seen("FusedConv", operands, right + np.float32(off), right, activation=activation)
        assert known.rough_near_zero(found) == (rough and activation != "Relu")


@pytest.mark.parametrize(
    ("activations", "rough"),
    [({}, True), ({"activations": ["Tanh"]}, True), ({"activations": ["Relu"]}, False)],
)
def test_functions_inside_of_a_cell_are_approximated(
    activations: dict[str, Any], rough: bool
) -> None:
    operands = [f32(1, 1, 1), f32(1, 1, 1), f32(1, 1, 1)]
    right = np.full((1, 1, 1, 1), 0.0072, np.float32)
    for off, near in ((4e-8, True), (2e-7, False)):
        found = seen("RNN", operands, right + np.float32(off), right, hidden_size=1, **activations)
        assert approximated(found) == (rough and near)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("apart", [0, 1, 2])
def test_halves_that_are_compared_are_excused_next_to_each_other(kind: type, apart: int) -> None:
    """A computed operand may be a rounding above or below the other one, and no more."""
    x = np.array([0.75, 0.5, 0.25], kind)
    y = x.copy()
    y[1] += apart * np.float16(2**-11)  # units of the last place of 0.5
    nodes = [helper.make_node("Neg", ["x"], ["x0"]), helper.make_node("Less", ["x0", "y"], ["z"])]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(y.dtype), [3])
             for n in ("x", "y")]  # fmt: skip
    model = finish(nodes, infos, ["z"], [], 23)
    case = Case("nnsmith", 0, 0, model, ({"x": -x, "y": y},))
    right = x < y
    for at in (0, 1, 2):
        given = right.copy()
        given[at] = not given[at]
        found = Seen(case, Problem("onnxruntime", "wrong", "", output="z"), given, right)
        excused = kind is np.float16 and (at != 1 or apart < 2)
        assert known.compared_halves(found) == excused
