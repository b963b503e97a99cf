"""Reductions, running totals and softmax, in every form that ONNX has had."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

RANDOM = np.random.default_rng(9)
X = RANDOM.uniform(0.1, 3, (2, 3, 4)).astype(np.float32)
MEANING: dict[str, Any] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("op", MEANING)
def test_axes_as_attribute_constant_input_and_run_time_input(op: str, keep: int) -> None:
    axes = np.array([0, -1])
    expected = MEANING[op](X.astype(float), axis=(0, 2), keepdims=bool(keep))
    forms = [
        run_node(op, X, opset=11, axes=[0, -1], keepdims=keep),
        run_node(op, X, opset=11, axes=[0, -1], keepdims=keep, symbolic=True),
        run_node(op, X, axes, constant=(1,), keepdims=keep),
        run_node(op, X, axes, constant=(1,), keepdims=keep, symbolic=True),
        run_node(op, X, axes, keepdims=keep),
        run_node(op, X, axes, keepdims=keep, symbolic=True),
    ]
    for (result,) in forms:
        assert result.dtype == np.float32
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("op", MEANING)
def test_no_axes_are_all_axes_unless_that_is_a_no_op(op: str) -> None:
    everything = MEANING[op](X.astype(float))
    nothing = MEANING[op](X.astype(float), axis=())
    none = np.zeros(0, np.int64)
    for options in ({"constant": (1,)}, {}, {"symbolic": True}):
        (result,) = run_node(op, X, none, keepdims=0, **options)
        assert result.shape == ()
        np.testing.assert_allclose(result, everything, rtol=1e-6)
        (result,) = run_node(op, X, none, keepdims=0, noop_with_empty_axes=1, **options)
        np.testing.assert_allclose(result, nothing, rtol=1e-6)
    (result,) = run_node(op, X)
    assert result.shape == (1, 1, 1)


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"])
def test_integers(op: str) -> None:
    x = np.array([[3, 4], [5, 12]], np.int32)
    (result,) = run_node(op, x, opset=13, axes=[1], keepdims=0)
    assert result.dtype == np.int32
    expected = MEANING[op](x.astype(float), axis=1)
    np.testing.assert_array_equal(result, expected.astype(np.int32))


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"])
def test_half_precision_is_computed_in_single(op: str) -> None:
    x = np.full(4096, 16, np.float16)
    (result,) = run_node(op, x, opset=13, axes=[0], keepdims=0)
    assert result.dtype == np.float16
    with np.errstate(over="ignore"):
        expected = MEANING[op](x.astype(np.float64)).astype(np.float16)
    assert result == expected


def test_log_sum_exp_survives_extremes() -> None:
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    (result,) = run_node("ReduceLogSumExp", x, opset=13, axes=[1], keepdims=0)
    np.testing.assert_allclose(result, [1000 + np.log(2), -np.inf, np.inf], rtol=1e-6)


def test_bools_have_extremes() -> None:
    x = np.array([[True, False], [False, False]])
    axes = np.array([1])
    assert run_node("ReduceMax", x, axes, keepdims=0)[0].tolist() == [True, False]
    assert run_node("ReduceMin", x, axes, keepdims=0)[0].tolist() == [False, False]


def test_axes_must_be_a_vector_in_range() -> None:
    with pytest.raises(ModelError, match="axes must be a vector"):
        run_node("ReduceSum", X, np.zeros((1, 1), np.int64))
    with pytest.raises(ModelError, match="axis out of range"):
        run_node("ReduceSum", X, np.array([3]), constant=(1,))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_extremes(op: str, last: int) -> None:
    x = RANDOM.integers(0, 3, (4, 5)).astype(np.float32)
    options = {"axis": -1, "keepdims": 0, "select_last_index": last}
    close(run_node(op, x, symbolic=True, **options), runtime_node(op, x, **options), 0)
    assert run_node(op, x)[0].shape == (1, 5)


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(constant: Any, exclusive: int, reverse: int) -> None:
    options = {"exclusive": exclusive, "reverse": reverse}
    (expected,) = runtime_node("CumSum", X, np.array(1), opset=14, **options)
    for axis in (np.array(1), np.array([-2], np.int32)):
        (result,) = run_node("CumSum", X, axis, opset=14, constant=constant, **options)
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_running_products() -> None:
    (result,) = run_node("CumProd", X, np.array(2), opset=26, symbolic=True)
    np.testing.assert_allclose(result, np.cumprod(X, 2), rtol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("opset", "axis"), [(11, 1), (11, 0), (11, -1), (13, 1), (13, -1), (13, 0)]
)
def test_softmax_and_kin(op: str, opset: int, axis: int) -> None:
    theirs = runtime_node(op, X, opset=opset, axis=axis)
    for symbolic in (False, True):
        ours = run_node(op, X, opset=opset, axis=axis, symbolic=symbolic)
        close(ours, theirs, 1e-6)


def test_the_default_axis_changed_in_opset_13() -> None:
    for opset in (11, 13):
        close(run_node("Softmax", X, opset=opset), runtime_node("Softmax", X, opset=opset), 1e-6)


def test_the_first_of_equals_is_hard() -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    assert run_node("Hardmax", x)[0].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1e4, 1e4 - 1]], np.float32)
    expected = np.array([[1, np.exp(-1)]]) / (1 + np.exp(-1))
    np.testing.assert_allclose(run_node("Softmax", x)[0], expected, rtol=1e-6)
    np.testing.assert_allclose(run_node("LogSoftmax", x)[0], np.log(expected), rtol=1e-6)


def test_symbols_survive_a_reduction() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3])
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert str(monograph.load(model).outputs[0].type) == "f32[N]"


def test_softmax_has_one_form() -> None:
    graph = monograph.load(node_model("Softmax", (X,))).graph
    names = [v.op.name for v in graph.values if v.inputs]
    assert names == ["reduce_max", "sub", "exp", "reduce_sum", "div"]
