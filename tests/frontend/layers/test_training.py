"""Losses and optimiser steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

DOMAIN = "ai.onnx.preview.training"
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(4, 5, 3)).astype(np.float32)
LABELS = RANDOM.integers(0, 5, (4, 3))
WEIGHTS = RANDOM.uniform(0.5, 2, 5).astype(np.float32)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_losses_agree_with_onnx_runtime(op: str, reduction: str, weights: Any) -> None:
    inputs = (X, LABELS) if weights is None else (X, LABELS, weights)
    options = {"opset": 13, "reduction": reduction, "ignore_index": 2}
    close(run_node(op, *inputs, **options), runtime_node(op, *inputs, **options), 1e-5)


def step(op: str, *states: list[float], turn: int = 0, **attributes: Any) -> list[list[float]]:
    inputs = [np.float32(0.1), np.int64(turn), *(np.float32(s) for s in states)]
    results = run_node(
        op, *map(np.asarray, inputs), opset=1, domain=DOMAIN, outputs=len(states) - 1, **attributes
    )
    return [r.tolist() for r in results]


def test_momentum() -> None:
    standard: dict[str, Any] = {"alpha": 0.5, "beta": 0.25, "norm_coefficient": 0.0}
    x, v = step("Momentum", [1.0], [2.0], [4.0], mode="standard", **standard)
    assert (v, x) == ([4.0], pytest.approx([0.6]))
    x, v = step("Momentum", [1.0], [2.0], [4.0], mode="standard", turn=1, **standard)
    assert (v, x) == ([2.5], pytest.approx([0.75]))
    x, v = step("Momentum", [1.0], [2.0], [4.0], mode="nesterov", turn=1, **standard)
    assert (v, x) == ([2.5], pytest.approx([0.675]))
    with pytest.raises(ModelError, match="unknown mode"):
        step("Momentum", [1.0], [2.0], [4.0], mode="none", **standard)


def test_adagrad_slows_down() -> None:
    # g = 0.5 * 2 + 2 = 3, h = 7 + 9 = 16, r = 0.1 / (1 + 3 * 1), x = 2 - 0.025 * 3 / 4.
    x, h = step(
        "Adagrad", [2.0], [2.0], [7.0], turn=3, norm_coefficient=0.5, decay_factor=1.0, epsilon=0.0
    )
    assert h == [16.0]
    assert x == pytest.approx([2 - 0.025 * 3 / 4])


def test_adam_corrects_its_bias() -> None:
    # v = 0.5 * 1 + 0.5 * 3 = 2, h = 0.75 * 0 + 0.25 * 9 = 2.25.
    options: dict[str, Any] = {"alpha": 0.5, "beta": 0.75, "epsilon": 0.0}
    x, v, h = step("Adam", [1.0], [3.0], [1.0], [0.0], **options)
    assert (v, h) == ([2.0], [2.25])
    assert x == pytest.approx([1 - 0.1 * 2 / 1.5])
    x, _, _ = step("Adam", [1.0], [3.0], [1.0], [0.0], turn=2, **options)
    rate = 0.1 * np.sqrt(1 - 0.75**2) / (1 - 0.25)
    assert x == pytest.approx([1 - rate * 2 / 1.5])


def test_states_come_in_groups() -> None:
    with pytest.raises(ModelError, match="equal groups"):
        step("Adagrad", [1.0], [2.0])


def model_of(
    nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[str]
) -> onnx.ModelProto:
    kind = onnx.TensorProto.DOUBLE
    inputs = [helper.make_tensor_value_info(k, kind, v.shape) for k, v in feeds.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def differentiated(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The gradients of `y` by every feed."""
    xs = [*feeds]
    outputs = [f"d{x}" for x in xs]
    node = helper.make_node("Gradient", xs, outputs, domain=DOMAIN, xs=xs, y="y")
    return monograph.load(model_of([*nodes, node], feeds, outputs)).run(feeds)


@pytest.mark.parametrize(
    "text",
    [
        "y = MatMul(a, b)", "y = Tanh(c)\nc = MatMul(a, b)", "y = ReduceSum(c)\nc = Exp(a)",
        "y = Softmax(c)\nc = MatMul(a, b)", "y = Mul(c, c)\nc = Add(a, d)\nd = Transpose(b)",
        "y = Div(c, d)\nc = Sigmoid(a)\nd = Exp(e)\ne = Transpose(b)",
        "y = Max(a, c)\nc = Transpose(b)",
        "y = Sqrt(c)\nc = Mul(a, a)", "y = Relu(a)", "y = LeakyRelu(a)", "y = Log(c)\nc = Abs(a)",
        "y = Sin(c)\nc = Cos(a)", "y = Pow(c, c)\nc = Exp(a)", "y = Flatten(a)", "y = Neg(a)",
        "y = Sub(a, c)\nc = ReduceMean(a)", "y = ReduceMax(a)", "y = Mul(a, c)\nc = ReduceMin(a)",
    ],
)  # fmt: skip
def test_gradients_are_those_of_small_differences(text: str) -> None:
    nodes = []
    for line in reversed(text.splitlines()):
        output, call = line.split(" = ")
        op, arguments = call.rstrip(")").split("(")
        nodes.append(helper.make_node(op, arguments.split(", "), [output]))
    feeds = {"a": RANDOM.normal(size=(2, 3)), "b": RANDOM.normal(size=(3, 2))}
    results = differentiated(nodes, feeds)
    session = monograph.load(model_of(nodes, feeds, ["y"]))
    for name, result in zip(feeds, results, strict=True):
        for index in np.ndindex(feeds[name].shape):
            ends = []
            for h in (1e-5, -1e-5):
                moved = {k: v.copy() for k, v in feeds.items()}
                moved[name][index] += h
                ends.append(session.run(moved)[0].sum())
            assert result[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_an_op_without_a_gradient_is_named() -> None:
    with pytest.raises(ModelError, match="gradient of floor is not known"):
        differentiated([helper.make_node("Floor", ["a"], ["y"])], {"a": np.ones(2)})
