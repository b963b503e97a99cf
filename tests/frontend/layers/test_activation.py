"""Activations, Clip and Dropout: every opset's form, ONNX Runtime as second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

X = np.array([-30, -3, -1, -0.5, -0.0, 0, 0.4, 0.5, 1, 2, 6, 30], np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "attributes", "opset"),
    [
        ("Relu", {}, 21), ("LeakyRelu", {}, 16), ("LeakyRelu", {"alpha": 0.3}, 6),
        ("Elu", {}, 6), ("Elu", {"alpha": 2.0}, 21), ("Selu", {}, 6),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}, 21), ("Celu", {"alpha": 0.5}, 12),
        ("Gelu", {}, 20), ("Gelu", {"approximate": "tanh"}, 20), ("HardSigmoid", {}, 6),
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.1}, 21), ("HardSwish", {}, 14), ("Mish", {}, 18),
        ("Softplus", {}, 1), ("Softsign", {}, 1), ("Shrink", {"lambd": 1.5, "bias": 0.5}, 9),
        ("ThresholdedRelu", {}, 10), ("ThresholdedRelu", {"alpha": 0.4}, 21),
    ],
)  # fmt: skip
def test_activations_agree_with_onnx_runtime(op: str, attributes: Any, opset: int) -> None:
    theirs = runtime_node(op, X, opset=max(opset, 7), **attributes)
    close(run_node(op, X, opset=opset, symbolic=True, **attributes), theirs, 2e-6)


def test_swish_is_x_times_sigmoid() -> None:
    for alpha in (1.0, 1.702):
        (result,) = run_node("Swish", X, opset=24, alpha=alpha)
        np.testing.assert_allclose(result, X / (1 + np.exp(-alpha * X)), rtol=1e-6)
    graph = monograph.load(node_model("Swish", (X,), opset=24)).graph
    assert [v.op.name for v in graph.values if v.inputs] == ["sigmoid", "mul"]


@pytest.mark.parametrize("op", ["Softplus", "Mish", "Elu", "Celu", "Selu", "Gelu"])
def test_no_activation_overflows(op: str) -> None:
    x = np.array([-1e4, 1e4], np.float32)
    (result,) = run_node(op, x)
    assert np.isfinite(result).all()
    assert result[1] >= 1e4
    assert -2 < result[0] <= 0


def test_slopes_belong_to_channels_before_opset_7() -> None:
    x = -np.ones((1, 2, 2), np.float32)
    slope = np.array([0.5, 0.25], np.float32)
    assert run_node("PRelu", x, slope, opset=6)[0].tolist() == [[[-0.5, -0.5], [-0.25, -0.25]]]
    assert run_node("PRelu", x, slope, opset=16)[0].tolist() == [[[-0.5, -0.25], [-0.5, -0.25]]]


def test_shrink_takes_integers() -> None:
    (result,) = run_node("Shrink", np.arange(-2, 3, dtype=np.int8), lambd=1.5, bias=1.5)
    assert result.dtype == np.int8
    assert result.tolist() == [0, 0, 0, 0, 0]


def test_unknown_approximation_is_refused() -> None:
    with pytest.raises(ModelError, match="no such approximation"):
        run_node("Gelu", X, approximate="cubic")


LO, HI = np.float32(-1), np.float32(2)


@pytest.mark.parametrize("constant", [(1, 2), (1,), ()])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_clip_takes_bounds_as_constants_or_at_run_time(constant: Any, shape: Any) -> None:
    lo, hi = np.full(shape, LO), np.full(shape, HI)
    (result,) = run_node("Clip", X, lo, hi, constant=constant)
    np.testing.assert_array_equal(result, X.clip(-1, 2))


def test_clip_without_some_bounds() -> None:
    np.testing.assert_array_equal(run_node("Clip", X, None, HI)[0], X.clip(None, 2))
    np.testing.assert_array_equal(run_node("Clip", X, LO, constant=(1,))[0], X.clip(-1))
    np.testing.assert_array_equal(run_node("Clip", X)[0], X)


def test_clip_by_attributes() -> None:
    np.testing.assert_array_equal(run_node("Clip", X, opset=6, min=-1.0, max=2.0)[0], X.clip(-1, 2))
    infinite = np.array([np.inf, -np.inf], np.float32)
    assert np.isfinite(run_node("Clip", infinite, opset=6)[0]).all()


def test_clip_of_integers() -> None:
    x = np.array([-5, 2, 9], np.int8)
    (result,) = run_node("Clip", x, np.int8(-1), np.int8(3), constant=(1, 2))
    assert result.tolist() == [-1, 2, 3]
    # Bounds the wrong way round: the upper one wins.
    assert run_node("Clip", x, np.int8(5), np.int8(3))[0].tolist() == [3, 3, 3]


def test_constant_bounds_become_attributes() -> None:
    graph = monograph.load(node_model("Clip", (X, LO, HI), constant=(1, 2))).graph
    assert [v.op.name for v in graph.values if v.inputs] == ["clip"]


@pytest.mark.parametrize(("opset", "kind"), [(7, np.float32), (10, np.bool_), (13, np.bool_)])
def test_nothing_is_dropped_in_inference(opset: int, kind: Any) -> None:
    result, mask = run_node("Dropout", X, opset=opset, outputs=2, symbolic=True)
    np.testing.assert_array_equal(result, X)
    assert mask.dtype == kind
    assert mask.shape == X.shape
    assert mask.all()


RATIO, TRAIN = np.float32(0.25), np.array(True)


@pytest.mark.parametrize("constant", [(), (1, 2)])
def test_training_drops_and_scales(constant: Any) -> None:
    x = np.ones((100, 100), np.float32)
    result, mask = run_node(
        "Dropout", x, RATIO, TRAIN, outputs=2, constant=constant, seed=3, symbolic=True
    )
    np.testing.assert_allclose(result, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
    # Standard error: sqrt(0.25 * 0.75 / 10000) = 0.0043.
    assert abs(mask.mean() - 0.75) < 0.02
    again = run_node("Dropout", x, RATIO, TRAIN, outputs=2, seed=3)
    np.testing.assert_array_equal(again[1], mask)


def test_the_mode_may_be_known_at_run_time_only() -> None:
    result, mask = run_node("Dropout", X, RATIO, np.array(False), outputs=2)
    np.testing.assert_array_equal(result, X)
    assert mask.all()
