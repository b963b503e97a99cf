"""Edge cases of arithmetic, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import InferError
from monograph.ir import Graph, Input, Op, constant, dtype, evaluate, parse_type, tensor
from monograph.ops import elementwise as ew

INF, NAN = np.inf, np.nan


def apply(op: Op, *data: Any) -> np.ndarray:
    value = op(*[constant(np.asarray(d)) for d in data])
    (result,) = evaluate(Graph((), (("y", value),)), {})
    assert result.dtype == value.dtype.numpy
    return np.asarray(result)


def f(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def i(*numbers: int, kind: Any = np.int32) -> np.ndarray:
    return np.array(numbers, kind)


@pytest.mark.parametrize(
    ("op", "data", "expected"),
    [
        (ew.Div(), (i(7, -7, 7, -7), i(2, 2, -2, -2)), [3, -3, -3, 3]),
        (ew.Div(), (i(-6, 5), i(3, -5)), [-2, -1]),
        (ew.Div(), (i(250, kind=np.uint8), i(100, kind=np.uint8)), [2]),
        (ew.Div(), (f(1, -1, 0), f(0, 0, 0)), [INF, -INF, NAN]),
        (ew.Mod(), (i(7, -7, 7, -7), i(3, 3, -3, -3)), [1, 2, -2, -1]),
        (ew.Mod(truncated=True), (i(7, -7, 7, -7), i(3, 3, -3, -3)), [1, -1, 1, -1]),
        (ew.Pow(), (i(2, -1, -1, 1, 3), i(-1, -3, -2, -9, 4)), [0, -1, 1, 1, 81]),
        (ew.Pow(), (np.array([2**40], np.uint64), np.array([1], np.uint64)), [2**40]),
        (ew.Pow(), (f(0, -8, 2), f(0, 1 / 3, -1)), [1, NAN, 0.5]),
        (ew.Round(), (f(0.5, 1.5, -0.5, 2.5),), [0, 2, -0.0, 2]),
        (ew.Sign(), (f(-2, 0, NAN, INF),), [-1, 0, NAN, 1]),
        (ew.Neg(), (i(-128, 5, kind=np.int8),), [-128, -5]),
        (ew.Add(), (i(127, kind=np.int8), i(1, kind=np.int8)), [-128]),
        (ew.Sub(), (i(0, kind=np.uint8), i(1, kind=np.uint8)), [255]),
        (ew.Sigmoid(), (f(0, -1000, 1000, NAN),), [0.5, 0, 1, NAN]),
        (ew.Clip(0.0, 6.0), (f(-1, 7, 3, NAN),), [0, 6, 3, NAN]),
        (ew.Clip(5.0, 1.0), (f(-1, 7),), [1, 1]),
        (ew.Max(), (f(NAN, 1), f(1, 2)), [NAN, 2]),
        (ew.Min(), (f(NAN, 1), f(1, 2)), [NAN, 1]),
        (ew.Not(), (i(0, 5, kind=np.uint8),), [255, 250]),
        (ew.Not(), (np.array([True, False]),), [False, True]),
        (ew.ShiftLeft(), (i(1, 255, kind=np.uint8), i(3, 4, kind=np.uint8)), [8, 240]),
        (ew.ShiftRight(), (i(16, 1, kind=np.uint8), i(2, 4, kind=np.uint8)), [4, 0]),
        (ew.IsInf(negative=False), (f(INF, -INF, NAN, 1),), [True, False, False, False]),
        (ew.IsNan(), (f(INF, NAN),), [False, True]),
        (ew.Equal(), (f(NAN, 0.0), f(NAN, -0.0)), [False, True]),
        (ew.Equal(), (np.array(["a", "b"], object), np.array(["a", "c"], object)), [True, False]),
        (ew.Erf(), (f(0, INF, -INF),), [0, 1, -1]),
    ],
)
def test_values(op: Op, data: tuple[np.ndarray, ...], expected: Any) -> None:
    np.testing.assert_array_equal(apply(op, *data), np.asarray(expected))


def test_four_bit_integers_wrap() -> None:
    seven = np.array([7], dtype("i4").numpy)
    assert apply(ew.Add(), seven, seven).astype(int).tolist() == [-2]


def test_broadcasting_with_symbols() -> None:
    x = Input("x", tensor(dtype("f32"), "N", 1))()
    y = Input("y", tensor(dtype("f32"), 1, 4))()
    assert ew.Add()(x, y).type == tensor(dtype("f32"), "N", 4)
    assert ew.Less()(x, y).type == tensor(dtype("bool"), "N", 4)


@pytest.mark.parametrize(
    ("op", "kinds", "message"),
    [
        (ew.Add(), ("f32[2]", "f64[2]"), "different element types"),
        (ew.Add(), ("f32[2]", "f32[3]"), "do not broadcast"),
        (ew.Add(), ("bool[2]", "bool[2]"), "element type not accepted"),
        (ew.Exp(), ("i32[2]",), "element type not accepted"),
        (ew.Where(), ("f32[2]", "f32[2]", "f32[2]"), "element type not accepted"),
        (ew.Add(), ("f32[2]",), "the number of inputs is wrong"),
    ],
)
def test_types_that_do_not_fit_are_refused(op: Op, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(InferError, match=message):
        op(*[Input(f"x{n}", parse_type(k))() for n, k in enumerate(kinds)])
