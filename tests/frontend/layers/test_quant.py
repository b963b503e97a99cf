"""Quantisation ops of the default domain, with ONNX Runtime as a second opinion."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import MonographError
from tests.frontend.nodes import close, node_model, run_node, runtime_node


def data(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    generator = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max + 1, shape).astype(dtype)


def scalar(number: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(number, dtype)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantize_linear_of_every_opset(opset: int, dtype: Any) -> None:
    inputs = (data(4, 6) * 5, scalar(0.03), scalar(7, dtype))
    (y,) = run_node("QuantizeLinear", *inputs, opset=opset)
    assert y.dtype == dtype
    limits = np.iinfo(dtype)
    steps = np.rint(inputs[0] / np.float32(0.03)) + 7
    assert np.array_equal(y, np.clip(steps, limits.min, limits.max))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("symbolic", [False, True])
def test_quantize_by_axis(axis: int, symbolic: bool) -> None:
    count = (3, 4)[axis]
    inputs = (data(3, 4) * 5, np.abs(data(count)) + 0.1, data(count, dtype=np.int8))
    close(
        run_node("QuantizeLinear", *inputs, axis=axis, symbolic=symbolic),
        runtime_node("QuantizeLinear", *inputs, axis=axis),
        0,
    )
    codes = data(3, 4, dtype=np.int8)
    close(
        run_node("DequantizeLinear", codes, *inputs[1:], axis=axis, symbolic=symbolic),
        runtime_node("DequantizeLinear", codes, *inputs[1:], axis=axis),
        1e-6,
    )


def test_quantize_in_blocks_and_to_a_named_type() -> None:
    x, scale = data(2, 6) * 5, np.abs(data(2, 3)) + 0.1
    (y,) = run_node(
        "QuantizeLinear", x, scale, axis=1, block_size=2, output_dtype=TensorProto.INT4, opset=23
    )
    expected = np.clip(np.rint(x / scale.repeat(2, 1)), -8, 7)
    assert y.dtype == ml_dtypes.int4
    assert np.array_equal(y.astype(int), expected)
    (back,) = run_node("DequantizeLinear", y, scale, axis=1, block_size=2, opset=23)
    np.testing.assert_allclose(back, expected * scale.repeat(2, 1), rtol=1e-6)


def test_dequantize_of_i32_and_to_another_type() -> None:
    x = data(5, dtype=np.int32)
    inputs = (x, scalar(1e-3))
    close(run_node("DequantizeLinear", *inputs), runtime_node("DequantizeLinear", *inputs), 1e-6)
    (half,) = run_node(
        "DequantizeLinear", np.arange(5, dtype=np.int8), scalar(0.1), opset=23,
        output_dtype=TensorProto.FLOAT16,
    )  # fmt: skip
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, np.arange(5) * 0.1, rtol=1e-3)


def test_parameters_of_one_element_stand_for_all() -> None:
    x, scale, zero = data(2, 3, 4), np.array([0.1], np.float32), np.array([3], np.uint8)
    (y,) = run_node("QuantizeLinear", x, scale, zero, axis=0)
    (expected,) = run_node("QuantizeLinear", x, scale[0], zero[0])
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("x", [
    data(3, 4), np.zeros((2, 2), np.float32), np.abs(data(6)) + 1, -np.abs(data(6)) - 1,
], ids=["mixed", "zero", "positive", "negative"])  # fmt: skip
def test_dynamic_quantize(x: np.ndarray) -> None:
    ours = run_node("DynamicQuantizeLinear", x, outputs=3, opset=11)
    close(ours, runtime_node("DynamicQuantizeLinear", x, outputs=3, opset=11), 0)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("a_zero", "b_zero"), [
    (None, None), (scalar(0, np.uint8), scalar(0, np.int8)), (scalar(9, np.uint8), None),
    (scalar(200, np.uint8), data(5, dtype=np.int8)),
])  # fmt: skip
def test_matmul_integer(a_zero: Any, b_zero: Any, symbolic: bool) -> None:
    inputs = (data(2, 3, 4, dtype=np.uint8), data(4, 5, dtype=np.int8), a_zero, b_zero)
    a, b = (x.astype(int) for x in inputs[:2])
    expected = (a - (0 if a_zero is None else a_zero.astype(int))) @ (
        b - (0 if b_zero is None else b_zero.astype(int))
    )
    (y,) = run_node("MatMulInteger", *inputs, symbolic=symbolic)
    assert y.dtype == np.int32
    assert np.array_equal(y, expected)


def test_matmul_integer_with_a_zero_point_for_each_row() -> None:
    a, b = data(3, 4, dtype=np.uint8), data(4, 5, dtype=np.uint8)
    zero = np.array([1, 100, 255], np.uint8)
    (y,) = run_node("MatMulInteger", a, b, zero)
    assert np.array_equal(y, (a.astype(int) - zero[:, None].astype(int)) @ b.astype(int))


def test_matmul_integer_without_zero_points_multiplies_the_small_integers() -> None:
    """The form that kernels for 8-bit integers are found by."""
    inputs = (data(3, 4, dtype=np.uint8), data(4, 5, dtype=np.int8), None, scalar(0, np.int8))
    graph = monograph.load(node_model("MatMulInteger", inputs, constant=(3,))).graph
    (_, y), *_ = graph.outputs
    assert y.op.name == "dot"
    assert [str(v.type) for v in y.inputs] == ["u8[3, 4]", "i8[4, 5]"]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_matmul(dtype: Any, columns: bool) -> None:
    """Within a step: where a value lies between two, either may be taken."""
    scale = np.abs(data(5)) * 0.02 + 0.01 if columns else scalar(0.02)
    zero = data(5, dtype=np.int8) if columns else scalar(-3, np.int8)
    inputs = (
        data(2, 3, 8, dtype=dtype), scalar(0.05), scalar(7, dtype),
        data(8, 5, dtype=np.int8), scale, zero, scalar(1.7), scalar(11, dtype),
    )  # fmt: skip
    options = {"constant": range(3, 8)}
    (ours,) = run_node("QLinearMatMul", *inputs, **options)
    (theirs,) = runtime_node("QLinearMatMul", *inputs, **options)
    assert ours.dtype == theirs.dtype
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def test_qlinear_matmul_saturates() -> None:
    """As the op's text says; four of ONNX's own cases wrap around instead."""
    small = (scalar(1), scalar(0, np.int8))
    a, b = np.full((1, 4), 100, np.int8), np.full((4, 1), -100, np.int8)
    (y,) = run_node("QLinearMatMul", a, *small, b, *small, *small)
    assert y.tolist() == [[-128]]


def test_qlinear_matmul_by_row() -> None:
    a, b = data(3, 4, dtype=np.int8), data(4, 5, dtype=np.int8)
    rows, zero = np.array([0.01, 0.02, 0.03], np.float32), scalar(0, np.int8)
    y_scale, y_zero = np.array([5, 6, 7], np.float32), np.array([1, 2, 3], np.int8)
    (y,) = run_node("QLinearMatMul", a, rows, zero, b, scalar(0.5), zero, y_scale, y_zero)
    product = (a.astype(int) @ b.astype(int)) * rows[:, None].astype(float) * 0.5
    expected = np.clip(np.rint(product / y_scale[:, None]) + y_zero[:, None], -128, 127)
    assert np.array_equal(y, expected)


def test_qlinear_matmul_of_8_bit_floats() -> None:
    kind = ml_dtypes.float8_e4m3fn
    a, b = data(3, 4).astype(kind), data(4, 5).astype(kind)
    zero = scalar(0, kind)
    inputs = (a, scalar(0.5), zero, b, scalar(2), zero, scalar(0.25), zero)
    (y,) = run_node("QLinearMatMul", *inputs)
    expected = (a.astype(float) @ b.astype(float) / 0.25).astype(kind)
    assert y.dtype == kind
    assert np.array_equal(y.astype(float), expected.astype(float))


def test_a_quantised_layer_keeps_its_form() -> None:
    """QuantizeLinear, DequantizeLinear and the product stay apart, for rules to join."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    values = {
        "s": scalar(0.1), "z": scalar(3, np.uint8), "w": data(300, 300, dtype=np.int8),
        "ws": np.abs(data(300)) + 0.1,
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 300])],
        [onnx.numpy_helper.from_array(v, k) for k, v in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    names = [v.op.name for v in monograph.load(model).graph.values]
    assert names.count("quantize") == 1
    assert names.count("dequantize") == 2
    assert names.count("dot") == 1


@pytest.mark.parametrize(("op", "inputs", "options", "words"), [
    ("QuantizeLinear", (data(3), data(3, 3)), {}, "scalar or a vector"),
    ("QuantizeLinear", (data(3), scalar(1)), {"block_size": -2}, "block size must be positive"),
    ("QuantizeLinear", (data(3), scalar(1), scalar(0, np.int8)),
     {"output_dtype": TensorProto.UINT8}, "differs"),
    ("DequantizeLinear", (data(3, 4, dtype=np.int8), data(4)), {"axis": 0}, "wrong shape"),
])  # fmt: skip
def test_wrong_parameters_are_refused(op: str, inputs: Any, options: Any, words: str) -> None:
    with pytest.raises(MonographError, match=words):
        run_node(op, *inputs, **options)
