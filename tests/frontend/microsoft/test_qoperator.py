"""Ops of models in QOperator form, on the reference and the CPU, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from tests.frontend.microsoft.nodes import F32, data
from tests.frontend.nodes import Given, close, node_model

U8, I8 = np.uint8, np.int8
ZERO = {U8: np.array(120, U8), I8: np.array(-3, I8)}
TYPES = pytest.mark.parametrize("dtype", [U8, I8])


def step(size: float) -> np.ndarray:
    return np.array(size, np.float32)


def answers(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[list[np.ndarray]]:
    """The outputs on the reference, on the CPU, and on ONNX Runtime."""
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), quiet, providers=["CPUExecutionProvider"]
    ).run(None, inputs)
    targets = ("reference", "cpu")
    return [*(monograph.load(model, target=t).run(inputs) for t in targets), theirs]


def node(
    op: str, *inputs: Given, more: dict[str, Any] | None = None, **options: Any
) -> list[list[np.ndarray]]:
    """Answers of one node. more: attributes whose names are options of `node_model`."""
    model = node_model(op, inputs, domain="com.microsoft", opset=1, **options)
    attributes = [helper.make_attribute(k, v) for k, v in (more or {}).items()]
    model.graph.node[0].attribute.extend(attributes)
    fed = {i.name for i in model.graph.input}
    return answers(model, {f"x{i}": x for i, x in enumerate(inputs) if f"x{i}" in fed})


def check_steps(found: list[list[np.ndarray]]) -> None:
    """Quantised results: where a value lies between two steps either may be taken."""
    *ours, theirs = (f[0] for f in found)
    for y in ours:
        assert y.dtype == theirs.dtype
        assert y.shape == theirs.shape
        difference = np.abs(y.astype(int) - theirs.astype(int))
        assert difference.max() <= 1
        assert (difference > 0).sum() <= max(1, 0.02 * difference.size)


def check_floats(found: list[list[np.ndarray]], tolerance: float = F32) -> None:
    *ours, theirs = found
    for y in ours:
        close(y, theirs, tolerance)


@TYPES
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2), (13, None)])
def test_softmax(dtype: Any, opset: int, axis: int | None) -> None:
    low = np.array(np.iinfo(dtype).min, dtype)
    inputs = [data(2, 3, 5, dtype=dtype), step(0.04), ZERO[dtype], step(1 / 256), low]
    attributes = {} if axis is None else {"axis": axis}
    check_steps(
        node("QLinearSoftmax", *inputs, constant=(1, 2, 3, 4), more={"opset": opset}, **attributes)
    )


@TYPES
def test_where(dtype: Any) -> None:
    condition = data(2, 1, dtype=U8) > 127
    x, y = data(2, 3, dtype=dtype), data(1, 3, seed=1, dtype=dtype)
    zero = ZERO[dtype]
    inputs = [condition, x, step(0.03), zero, y, step(0.05), zero, step(0.06), zero]
    check_steps(node("QLinearWhere", *inputs, constant=(2, 3, 5, 6, 7, 8)))


@TYPES
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 1)])
def test_gemm(dtype: Any, columns: bool, trans_a: int, trans_b: int) -> None:
    a, b = data(3, 4, dtype=dtype), data(4, 5, seed=1, dtype=dtype)
    scale = np.linspace(0.01, 0.03, 5, dtype=np.float32) if columns else step(0.02)
    zero = np.arange(5).astype(dtype) if columns else ZERO[dtype]
    c = data(5, seed=2, dtype=np.int16).astype(np.int32) // 64
    inputs = [a.T if trans_a else a, step(0.03), ZERO[dtype], b.T if trans_b else b, scale, zero, c]
    options = {"transA": trans_a, "transB": trans_b, "alpha": 0.5}
    # Four products of 8 bits and a bias: sums below 2^18 are exact in f32.
    check_floats(node("QGemm", *inputs, constant=(1, 2, 3, 4, 5), **options), 1e-5)
    quantised = [*inputs, step(0.3), ZERO[dtype]]
    check_steps(node("QGemm", *quantised, constant=(1, 2, 3, 4, 5, 7, 8), **options))


def test_gemm_without_a_bias() -> None:
    inputs = [
        data(3, 4, dtype=U8),
        step(0.03),
        ZERO[U8],
        data(4, 5, dtype=I8),
        step(0.02),
        ZERO[I8],
    ]
    check_floats(node("QGemm", *inputs, constant=(1, 2, 3, 4, 5)), 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(masked: bool, causal: int) -> None:
    x, w = data(2, 4, 8, dtype=U8), data(8, 24, dtype=I8)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32) if masked else None
    inputs = [x, w, data(24), step(0.01), step(0.01), mask, ZERO[U8], ZERO[I8]]
    options = {"num_heads": 2, "unidirectional": causal}
    check_floats(node("QAttention", *inputs, constant=(1, 2, 3, 4, 6, 7), **options))


def test_attention_with_scales_of_columns() -> None:
    scale = np.linspace(0.005, 0.02, 24, dtype=np.float32)
    inputs = [data(2, 4, 8, dtype=U8), data(8, 24, dtype=I8), data(24), step(0.01), scale]
    inputs += [None, ZERO[U8], np.zeros(24, I8)]
    check_floats(node("QAttention", *inputs, constant=(1, 2, 3, 4, 6, 7), num_heads=2))


def test_attention_with_a_past() -> None:
    x, w, past = data(1, 2, 8, dtype=U8), data(8, 24, dtype=I8), data(2, 1, 2, 3, 4)
    inputs = [x, w, data(24), step(0.01), step(0.01), None, ZERO[U8], ZERO[I8], past]
    options = {"num_heads": 2, "unidirectional": 1, "outputs": 2}
    check_floats(node("QAttention", *inputs, constant=(1, 2, 3, 4, 6, 7), **options))


def test_embedding() -> None:
    ids = np.array([[1, 0, 2], [3, 3, 1]], np.int32)
    segments = np.array([[0, 0, 1], [1, 0, 1]], np.int32)
    tables = [data(5, 8, dtype=U8), data(4, 8, seed=1, dtype=U8), data(2, 8, seed=2, dtype=U8)]
    norm = [data(8, seed=3, dtype=U8), data(8, seed=4, dtype=U8)]
    scales, zeros = [step(0.01 * i) for i in range(1, 6)], [np.array(100 + i, U8) for i in range(5)]
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    inputs = [ids, segments, *tables, *norm, mask, *scales, *zeros]
    check_floats(
        node(
            "QEmbedLayerNormalization", *inputs, constant=(*range(2, 7), *range(8, 18)), outputs=2
        ),
        1e-4,
    )


@TYPES
@pytest.mark.parametrize("group", [1, 2])
def test_conv_with_channels_last(dtype: Any, group: int) -> None:
    x, w = data(1, 6, 5, 4, dtype=dtype), data(8, 4 // group, 3, 3, seed=1, dtype=I8)
    scale = np.linspace(0.01, 0.02, 8, dtype=np.float32)
    bias = data(8, seed=2, dtype=np.int16).astype(np.int32)
    inputs = [x, step(0.02), ZERO[dtype], w, scale, np.zeros(8, I8), step(0.1), ZERO[dtype], bias]
    options = {"channels_last": 1, "group": group, "pads": [1, 1, 1, 1], "strides": [2, 1]}
    check_steps(node("QLinearConv", *inputs, constant=range(1, 9), **options))


def test_max_pool_with_channels_last() -> None:
    options = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]}
    for y in (found := node("NhwcMaxPool", data(1, 6, 5, 4, dtype=U8), **options))[:2]:
        np.testing.assert_array_equal(y[0], found[2][0])


# ONNX Runtime has schemas for these and no kernels: they are compared with arithmetic.


def alone(op: str, *inputs: Given, **options: Any) -> list[np.ndarray]:
    model = node_model(op, inputs, domain="com.microsoft", opset=1, **options)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    return [monograph.load(model, target=t).run(feeds)[0] for t in ("reference", "cpu")]


@TYPES
def test_reduce_mean(dtype: Any) -> None:
    x = data(2, 3, 4, dtype=dtype)
    given = alone("QLinearReduceMean", x, step(0.03), ZERO[dtype], step(0.02), ZERO[dtype],
                  axes=[1], keepdims=1)  # fmt: skip
    real = (x.astype(float) - int(ZERO[dtype])) * 0.03
    limits = np.iinfo(dtype)
    expected = real.mean(1, keepdims=True) / 0.02 + int(ZERO[dtype])
    for y in given:
        assert y.dtype == dtype
        assert np.abs(y - expected.clip(limits.min, limits.max)).max() < 0.51


def test_integers() -> None:
    a, b = data(2, 3, dtype=U8), data(2, 3, seed=1, dtype=U8)
    for y in alone("MulInteger", a, ZERO[U8], b, np.array(7, U8)):
        np.testing.assert_array_equal(y, (a.astype("i4") - 120) * (b.astype("i4") - 7))
    for y in alone("ReduceSumInteger", a, axes=[1], keepdims=0):
        np.testing.assert_array_equal(y, a.astype("i4").sum(1, dtype=np.int32))
    c, d = data(2, 3, dtype=np.int16), data(3, 4, dtype=np.int16)
    for y in alone("MatMulInteger16", c, d):
        np.testing.assert_array_equal(y, c.astype("i4") @ d.astype("i4"))


# A whole model, as ONNX Runtime's quantiser writes it


class _Reader:
    """Two batches to calibrate with."""

    def __init__(self) -> None:
        self.left = [{"x": data(1, 3, 8, 8, seed=i)} for i in range(2)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def small_network() -> onnx.ModelProto:
    """A convolution, a residual sum, activations, a pool, a product and a softmax."""
    weights = [
        numpy_helper.from_array(data(4, 3, 3, 3) * 0.3, "w"),
        numpy_helper.from_array(data(4, 4, 1, 1, seed=1) * 0.3, "v"),
        numpy_helper.from_array(data(8, 5, seed=2), "m"),
        numpy_helper.from_array(data(5, seed=3), "b"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c"], ["l"]),
        helper.make_node("Conv", ["l", "v"], ["d"]),
        helper.make_node("Add", ["l", "d"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Mul", ["s", "g"], ["u"]),
        helper.make_node("Concat", ["u", "l"], ["j"], axis=1),
        helper.make_node("GlobalAveragePool", ["j"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "b"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantised_network(folder: Path) -> onnx.ModelProto:
    """The network as ONNX Runtime's quantiser writes it."""
    from onnxruntime import quantization as q

    onnx.save(small_network(), folder / "in.onnx")
    q.quantize_static(folder / "in.onnx", folder / "out.onnx", _Reader(), q.QuantFormat.QOperator)
    return onnx.load(folder / "out.onnx")


def test_a_model_of_the_quantiser(tmp_path: Path) -> None:
    model = quantised_network(tmp_path)
    made = {n.op_type for n in model.graph.node if n.domain == "com.microsoft"}
    assert {"QLinearAdd", "QLinearSoftmax", "QGemm", "QLinearConcat"} <= made
    *ours, (theirs,) = answers(model, {"x": data(1, 3, 8, 8, seed=9)})
    for (y,) in ours:
        # The last quantiser has 256 steps of 1/256; an edge between two may lie before it.
        assert np.abs(y - theirs).max() <= 2 / 256
