"""Reductions: values by hand, shapes with symbols, axes known late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, Op, TensorType, Value, dtype, evaluate, from_numpy, tensor
from monograph.ops.deferred import Deferred, deferred
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

F32, I64 = dtype("f32"), dtype("i64")


def apply(op: Op, data: Any) -> np.ndarray:
    x = np.asarray(data)
    value = Input("x", TensorType(from_numpy(x.dtype), x.shape))()
    (result,) = evaluate(Graph((value,), (("y", op(value)),)), {"x": x})
    return np.asarray(result)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ReduceSum((1,)), [6, 15]),
        (ReduceSum((0, 1)), 21),
        (ReduceSum((0,), keep=True), [[5, 7, 9]]),
        (ReduceSum(()), [[1, 2, 3], [4, 5, 6]]),
        (ReduceProd((-1,)), [6, 120]),
        (ReduceMax((0,)), [4, 5, 6]),
        (ReduceMin((1,), keep=True), [[1], [4]]),
        (ArgMax(1), [2, 2]),
        (ArgMin(0, keep=True), [[0, 0, 0]]),
        (CumSum(1), [[1, 3, 6], [4, 9, 15]]),
        (CumSum(1, exclusive=True), [[0, 1, 3], [0, 4, 9]]),
        (CumSum(1, reverse=True), [[6, 5, 3], [15, 11, 6]]),
        (CumSum(0, exclusive=True, reverse=True), [[4, 5, 6], [0, 0, 0]]),
        (CumProd(1), [[1, 2, 6], [4, 20, 120]]),
        (CumProd(1, exclusive=True, reverse=True), [[6, 3, 1], [30, 6, 1]]),
    ],
    ids=str,
)
def test_values(op: Op, expected: Any) -> None:
    result = apply(op, np.array([[1, 2, 3], [4, 5, 6]], np.int32))
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == (np.int64 if isinstance(op, (ArgMax, ArgMin)) else np.int32)


@pytest.mark.parametrize(
    ("op", "data", "expected"),
    [
        (ReduceSum((1,)), np.zeros((2, 0), np.float32), [0, 0]),
        (ReduceProd((1,)), np.zeros((2, 0), np.float32), [1, 1]),
        (ReduceMax((1,)), np.zeros((1, 0), np.float32), [-np.inf]),
        (ReduceMin((1,)), np.zeros((1, 0), np.float32), [np.inf]),
        (ReduceMax((0,)), np.zeros(0, np.int8), -128),
        (ReduceMin((0,)), np.zeros(0, np.uint8), 255),
        (ReduceMax((0,)), np.zeros(0, np.bool_), False),
        (ReduceMin((0,)), np.zeros(0, np.bool_), True),
        (ReduceMax((0,)), np.zeros((0, 0), np.float32), np.zeros(0)),
    ],
)
def test_of_nothing_it_is_the_neutral_element(op: Op, data: np.ndarray, expected: Any) -> None:
    result = apply(op, data)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == data.dtype


def test_half_precision_is_summed_wide_and_rounded_once() -> None:
    # In f16 steps the sum stalls at 2048: 2048 + 1 rounds back to 2048.
    assert apply(ReduceSum((0,)), np.ones(4096, np.float16)) == 4096


def test_integers_wrap() -> None:
    assert apply(ReduceSum((0,)), np.array([127, 1], np.int8)) == -128
    assert apply(CumSum(0), np.array([200, 100], np.uint8)).tolist() == [200, 44]


def test_nan_wins() -> None:
    data = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    np.testing.assert_array_equal(apply(ReduceMax((1,)), data), [np.nan, 3.0])
    np.testing.assert_array_equal(apply(ReduceMin((1,)), data), [np.nan, 2.0])


def test_the_last_of_equals_on_request() -> None:
    data = np.array([[2, 2, 1], [1, 3, 3]])
    assert apply(ArgMax(1), data).tolist() == [0, 1]
    assert apply(ArgMax(1, last=True), data).tolist() == [1, 2]
    assert apply(ArgMin(1, last=True), -data).tolist() == [1, 2]


def test_shapes_with_symbols() -> None:
    x = Input("x", tensor(F32, "N", 3, "T"))()
    assert ReduceSum((1, -1))(x).type == tensor(F32, "N")
    assert ReduceMax((-1,), keep=True)(x).type == tensor(F32, "N", 3, 1)
    assert ArgMax(-1)(x).type == tensor(I64, "N", 3)
    assert CumSum(0)(x).type == x.type
    assert ReduceSum((-1,))(x) is ReduceSum((2,))(x)


@pytest.mark.parametrize(
    ("op", "shape", "message"),
    [
        (ReduceSum((2,)), (2, 3), "axis out of range"),
        (ReduceSum((0, -2)), (2, 3), "named twice"),
        (ArgMax(0), (0, 3), "no elements"),
        (ArgMax(0), (), "no axis"),
        (CumSum(0), (), "no axis"),
    ],
)
def test_axes_that_do_not_fit_are_refused(op: Op, shape: Any, message: str) -> None:
    with pytest.raises(InferError, match=message):
        op(Input("x", tensor(F32, *shape))())


def test_bools_have_no_sum() -> None:
    with pytest.raises(InferError, match="element type not accepted"):
        ReduceSum((0,))(Input("x", tensor(dtype("bool"), 2))())


def late(op: type[Op], shape: Any, axes: Any, **static: Any) -> tuple[Value, Value, Value]:
    x = Input("x", tensor(F32, *shape))()
    a = Input("a", tensor(I64, *axes))()
    name = "axis" if op in (CumSum, CumProd) else "axes"
    return x, a, deferred(op, (x,), {name: a}, **static)


def test_axes_known_at_run_time() -> None:
    x, a, y = late(ReduceSum, (2, 3, 4), (1,))
    assert isinstance(y.op, Deferred)
    assert len(y.tensor.dims) == 2
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    feeds = {"x": data, "a": np.array([1])}
    (result,) = evaluate(Graph((x, a), (("y", y),)), feeds)
    np.testing.assert_array_equal(result, data.sum(1))


def test_ranks_of_late_reductions() -> None:
    assert late(ReduceSum, (2, 3), ("K",))[2].tensor.shape is None
    assert len(late(ReduceSum, (2, 3), ("K",), keep=True)[2].tensor.dims) == 2
    assert late(CumSum, (2, 3), ())[2].type == tensor(F32, 2, 3)
    with pytest.raises(InferError, match="more axes than dimensions"):
        late(ReduceSum, (2,), (3,))


def test_late_axes_are_checked_when_known() -> None:
    x, a, y = late(CumSum, (2, 3), ())
    with pytest.raises((InferError, ExecutionError), match="axis out of range"):
        evaluate(Graph((x, a), (("y", y),)), {"x": np.ones((2, 3), np.float32), "a": np.array(5)})
