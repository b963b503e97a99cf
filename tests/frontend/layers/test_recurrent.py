"""RNN, GRU and LSTM nodes against ONNX Runtime, and what it does not cover by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

TIME, BATCH, FEATURES, HIDDEN = 4, 3, 2, 5
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
F32 = 1e-5
"""Sums of a few dozen products of numbers around 1, over four steps that keep errors."""


def operands(op: str, directions: int = 1, given: str = "blhcp", seed: int = 0) -> list[Any]:
    """The inputs of a node; `given` names the optional ones: bias, lengths, h, c, peepholes."""
    generator = np.random.default_rng(seed)

    def data(*shape: int) -> np.ndarray:
        return generator.uniform(-1, 1, shape).astype(np.float32)

    rows = GATES[op] * HIDDEN
    inputs: list[Any] = [data(TIME, BATCH, FEATURES)]
    inputs += [data(directions, rows, FEATURES), data(directions, rows, HIDDEN)]
    optional = {
        "b": data(directions, 2 * rows),
        "l": np.array([4, 1, 2], np.int32),
        "h": data(directions, BATCH, HIDDEN),
        "c": data(directions, BATCH, HIDDEN),
        "p": data(directions, 3 * HIDDEN),
    }
    names = "blhcp" if op == "LSTM" else "blh"
    return inputs + [optional[k] if k in given else None for k in names]


def outputs(op: str) -> int:
    return 3 if op == "LSTM" else 2


def agree(op: str, inputs: list[Any], opset: int = 14, **attributes: Any) -> None:
    options = {"opset": opset, "outputs": outputs(op), "hidden_size": HIDDEN, **attributes}
    close(run_node(op, *inputs, **options), runtime_node(op, *inputs, **options), F32)


@pytest.mark.parametrize("given", ["", "b", "l", "h", "blh", "blhcp", "cp"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_directions_and_optional_inputs(op: str, direction: str, given: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    agree(op, operands(op, directions, given), direction=direction)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_opsets(op: str, opset: int) -> None:
    agree(op, operands(op), opset=opset)


@pytest.mark.parametrize("op", GATES)
def test_clip(op: str) -> None:
    agree(op, operands(op), clip=0.3)


def test_reset_after_the_product() -> None:
    agree("GRU", operands("GRU"), linear_before_reset=1)


def test_coupled_gates() -> None:
    agree("LSTM", operands("LSTM"), input_forget=1)


@pytest.mark.parametrize("op", GATES)
def test_activations_consume_their_parameters_in_order(op: str) -> None:
    """Each alpha and beta goes to the next function that takes one, over both directions."""
    names = ["LeakyRelu", "Softsign", "ScaledTanh", "HardSigmoid", "Tanh", "Affine"]
    used = names[: 2 * FUNCTIONS[op]]
    takers = [n for n in used if n in ("LeakyRelu", "ScaledTanh", "HardSigmoid", "Affine")]
    alphas = [0.1 * (i + 1) for i in range(len(takers))]
    betas = [0.3 - 0.1 * i for i in range(len([n for n in takers if n != "LeakyRelu"]))]
    attributes: dict[str, Any] = {"activations": used, "activation_alpha": alphas}
    if betas:
        attributes["activation_beta"] = betas
    agree(op, operands(op, 2), direction="bidirectional", **attributes)


def test_defaults_of_parameters_are_those_of_the_operators() -> None:
    x = np.array([-2.0, 2.0], np.float32).reshape(1, 2, 1)
    one, zero = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    for name, expected in [("LeakyRelu", [-0.02, 2]), ("Elu", [np.expm1(-2), 2]),
                           ("HardSigmoid", [0.1, 0.9]), ("Affine", [-2, 2]),
                           ("ThresholdedRelu", [0, 2]), ("relu", [0, 2])]:  # fmt: skip
        _, last = run_node("RNN", x, one, zero, outputs=2, activations=[name])
        np.testing.assert_allclose(last.ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op: str) -> None:
    """The same numbers with time and batch exchanged; ONNX Runtime does not take this layout."""
    inputs = operands(op, 2)
    options: dict[str, Any] = {"outputs": outputs(op), "direction": "bidirectional"}
    steps, *last = run_node(op, *inputs, **options)
    turned = list(inputs)
    turned[0] = inputs[0].transpose(1, 0, 2)
    for i in (5, 6):
        if i < len(inputs):
            turned[i] = inputs[i].transpose(1, 0, 2)
    steps_b, *last_b = run_node(op, *turned, layout=1, **options)
    np.testing.assert_array_equal(steps_b, steps.transpose(2, 0, 1, 3))
    for a, b in zip(last_b, last, strict=True):
        np.testing.assert_array_equal(a, b.transpose(1, 0, 2))


@pytest.mark.parametrize("op", GATES)
def test_symbolic_sizes(op: str) -> None:
    """Time and batch are found at run time, with and without initial state."""
    for given in ("", "blhcp"):
        inputs = operands(op, given=given)
        options = {"outputs": outputs(op), "hidden_size": HIDDEN}
        expected = run_node(op, *inputs, **options)
        close(run_node(op, *inputs, symbolic=True, **options), expected, 0)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": "sideways"}, "unknown direction"),
        ({"activations": ["Tanh", "Tanh"]}, "wrong number of activations"),
        ({"activations": ["Swish"]}, "unknown activation"),
    ],
)
def test_attributes_are_checked(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_node("RNN", *operands("RNN"), outputs=2, **attributes)


def test_ranks_are_checked() -> None:
    x, *rest = operands("LSTM")
    with pytest.raises(ModelError, match="must have rank 3"):
        run_node("LSTM", x[0], *rest, outputs=3)


def test_one_cell_a_direction() -> None:
    model = node_model("LSTM", operands("LSTM", 2, given="b"), outputs=3, direction="bidirectional")
    names = [v.op.name for v in monograph.load(model).graph.values]
    assert names.count("lstm") == 2
