"""Elementwise nodes: the forms of every opset, and ONNX Runtime as second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

RANDOM = np.random.default_rng(5)


def f(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        ("Abs", -3, 3), ("Acos", -1, 1), ("Acosh", 1, 9), ("Asin", -1, 1), ("Asinh", -3, 3),
        ("Atan", -3, 3), ("Atanh", -0.9, 0.9), ("Ceil", -3, 3), ("Cos", -3, 3), ("Cosh", -3, 3),
        ("Erf", -3, 3), ("Exp", -3, 3), ("Floor", -3, 3), ("Log", 0.1, 9), ("Neg", -3, 3),
        ("Reciprocal", 0.5, 3), ("Round", -3, 3), ("Sigmoid", -9, 9), ("Sign", -3, 3),
        ("Sin", -3, 3), ("Sinh", -3, 3), ("Sqrt", 0, 9), ("Tan", -1, 1), ("Tanh", -3, 3),
    ],
)  # fmt: skip
def test_functions_agree_with_onnx_runtime(op: str, low: float, high: float) -> None:
    x = RANDOM.uniform(low, high, (3, 4)).astype(np.float32)
    # ONNX Runtime's own functions are good to a few units in the last place.
    close(run_node(op, x, symbolic=True), runtime_node(op, x), 2e-6)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])
def test_arithmetic_broadcasts(op: str) -> None:
    x, y = f(2, 3, 1), f(3, 4)
    close(run_node(op, x, y), runtime_node(op, x, y), 1e-6)


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_comparisons(op: str) -> None:
    x, y = np.array([1, 2, 3], np.int32), np.array([2], np.int32)
    meaning = {
        "Greater": x > 2, "GreaterOrEqual": x >= 2, "Less": x < 2, "LessOrEqual": x <= 2,
        "Equal": x == 2,
    }  # fmt: skip
    (result,) = run_node(op, x, y)
    np.testing.assert_array_equal(result, meaning[op])


def test_one_operand_is_enough_for_variadic_ops() -> None:
    x = f(2, 2)
    for op in ("Sum", "Mean", "Max", "Min"):
        np.testing.assert_array_equal(run_node(op, x)[0], x)
    x, y, z = f(2), f(2), f(2)
    close(run_node("Mean", x, y, z), [(x + y + z) / np.float32(3)], 1e-6)


@pytest.mark.parametrize(
    ("shape", "axis", "aligned"),
    [((3,), 1, (3, 1)), ((2, 3), 0, (2, 3, 1)), ((4,), None, (4,)), ((3, 4), -2, (3, 4))],
)
def test_operands_are_aligned_at_an_axis_before_opset_7(
    shape: tuple[int, ...], axis: int | None, aligned: tuple[int, ...]
) -> None:
    x, y = f(2, 3, 4), f(*shape)
    attributes: dict[str, Any] = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    for op, expected in (("Add", x + y.reshape(aligned)), ("Sub", x - y.reshape(aligned))):
        (result,) = run_node(op, x, y, opset=6, **attributes)
        np.testing.assert_array_equal(result, expected)
    (result,) = run_node("Greater", x, y, opset=6, **attributes)
    np.testing.assert_array_equal(result, x > y.reshape(aligned))


def test_an_axis_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="does not fit at `axis`"):
        run_node("Add", f(2, 3), f(3), opset=6, broadcast=1, axis=2)


@pytest.mark.parametrize(
    ("kind_x", "kind_y"),
    [
        (np.float32, np.int64), (np.int32, np.float32), (np.int64, np.int32),
        (np.float32, np.float64), (np.float64, np.int32), (np.float16, np.float16),
    ],
)  # fmt: skip
def test_powers_of_mixed_types_have_the_type_of_the_base(kind_x: Any, kind_y: Any) -> None:
    x = np.array([1, 2, 3], kind_x)
    y = np.array([2, 3, 0], kind_y)
    (result,) = run_node("Pow", x, y)
    assert result.dtype == kind_x
    assert result.tolist() == [1, 8, 1]


def test_a_root_of_an_integer_is_truncated() -> None:
    (result,) = run_node("Pow", np.array([2, 9], np.int32), np.array([0.5], np.float32))
    assert result.tolist() == [1, 3]


def test_mod_follows_the_sign_that_it_is_asked_for() -> None:
    x, y = np.array([-4, 7, 5], np.int64), np.array([3, -3, 8], np.int64)
    assert run_node("Mod", x, y)[0].tolist() == [2, -2, 5]
    assert run_node("Mod", x, y, fmod=1)[0].tolist() == [-1, 1, 5]
    assert run_node("Mod", np.float32([-4.5]), np.float32([3]))[0].tolist() == [-1.5]


def test_bits_shift_in_a_direction() -> None:
    x, y = np.array([16, 4, 1], np.uint8), np.array([1, 2, 3], np.uint8)
    assert run_node("BitShift", x, y, direction="LEFT")[0].tolist() == [32, 16, 8]
    assert run_node("BitShift", x, y, direction="RIGHT")[0].tolist() == [8, 1, 0]
    with pytest.raises(ModelError, match="unknown direction"):
        run_node("BitShift", x, y, direction="UP")


def test_infinities_of_either_sign() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0], np.float32)
    assert run_node("IsInf", x)[0].tolist() == [True, True, False, False]
    assert run_node("IsInf", x, detect_negative=0)[0].tolist() == [True, False, False, False]
    assert run_node("IsInf", x, detect_positive=0)[0].tolist() == [False, True, False, False]


def test_where_takes_strings() -> None:
    words = np.array(["a", "b"], object)
    (result,) = run_node("Where", np.array([True, False]), words, np.array(["c"], object))
    assert result.tolist() == ["a", "c"]


def test_greater_is_less_turned_round() -> None:
    graph = monograph.load(node_model("Greater", (f(2), f(2)))).graph
    assert [v.op.name for v in graph.values if v.inputs] == ["less"]
