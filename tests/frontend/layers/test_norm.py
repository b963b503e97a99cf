"""Normalisations: against numpy in f64 and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

RANDOM = np.random.default_rng(11)


def f(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(kind)


X = f(2, 4, 3, 5)
SCALE, BIAS, MEAN = f(4), f(4), f(4)
VARIANCE = RANDOM.uniform(0.5, 2, 4).astype(np.float32)


def standardised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def channels(v: np.ndarray) -> np.ndarray:
    return v.reshape(-1, 1, 1)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
@pytest.mark.parametrize("x", [X, X[:, :, 0, 0], X[:, :, 0]], ids=["4d", "2d", "3d"])
def test_batch_normalization(x: np.ndarray, opset: int) -> None:
    inputs = (x, SCALE, BIAS, MEAN, VARIANCE)
    theirs = runtime_node("BatchNormalization", *inputs, opset=opset, epsilon=1e-3)
    ours = run_node("BatchNormalization", *inputs, opset=opset, epsilon=1e-3, symbolic=True)
    close(ours, theirs, 1e-5)


def test_batch_normalization_of_mixed_types() -> None:
    x = f(2, 4, 3, kind=np.float16)
    (y,) = run_node("BatchNormalization", x, SCALE, BIAS, MEAN, VARIANCE, opset=15)
    assert y.dtype == np.float16
    expected = (x.astype(float) - MEAN[:, None]) / np.sqrt(VARIANCE[:, None] + 1e-5)
    np.testing.assert_allclose(y, expected * SCALE[:, None] + BIAS[:, None], rtol=2e-3, atol=2e-3)


def test_every_element_has_statistics_where_not_spatial() -> None:
    x, scale, bias, mean = f(2, 2, 3), f(2, 3), f(2, 3), f(2, 3)
    variance = RANDOM.uniform(0.5, 2, (2, 3)).astype(np.float32)
    (y,) = run_node("BatchNormalization", x, scale, bias, mean, variance, opset=7, spatial=0)
    np.testing.assert_allclose(
        y, (x - mean) / np.sqrt(variance + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("symbolic", [False, True])
def test_batch_normalization_in_training(symbolic: bool) -> None:
    inputs = (X, SCALE, BIAS, MEAN, VARIANCE)
    y, mean, variance = run_node(
        "BatchNormalization", *inputs, opset=15, outputs=3, training_mode=1, momentum=0.75,
        symbolic=symbolic,
    )  # fmt: skip
    axes = (0, 2, 3)
    expected = standardised(X, axes) * channels(SCALE) + channels(BIAS)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, MEAN * 0.75 + X.mean(axes) * 0.25, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, VARIANCE * 0.75 + X.var(axes) * 0.25, rtol=1e-5)


def test_training_is_told_by_the_outputs_before_opset_14() -> None:
    inputs = (X, SCALE, BIAS, MEAN, VARIANCE)
    results = run_node("BatchNormalization", *inputs, opset=9, outputs=5)
    axes = (0, 2, 3)
    expected = standardised(X, axes) * channels(SCALE) + channels(BIAS)
    np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[3], X.mean(axes), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[4], X.var(axes), rtol=1e-5)


def test_instance_normalization() -> None:
    theirs = runtime_node("InstanceNormalization", X, SCALE, BIAS, epsilon=1e-2)
    ours = run_node("InstanceNormalization", X, SCALE, BIAS, epsilon=1e-2, symbolic=True)
    close(ours, theirs, 1e-5)


@pytest.mark.parametrize("axis", [-1, 2, 1])
@pytest.mark.parametrize("symbolic", [False, True])
def test_layer_normalization(axis: int, symbolic: bool) -> None:
    shape = X.shape[axis:]
    scale, bias = f(*shape), f(*shape)
    options = {"axis": axis, "epsilon": 1e-2, "opset": 17, "outputs": 3}
    theirs = runtime_node("LayerNormalization", X, scale, bias, **options)
    close(
        run_node("LayerNormalization", X, scale, bias, symbolic=symbolic, **options), theirs, 1e-5
    )


def test_layer_normalization_without_bias_and_in_half_precision() -> None:
    # The squares overflow f16: only statistics in f32 give the right answer.
    x = f(4, 64, kind=np.float16) * np.float16(1000)
    scale = np.ones(64, np.float16)
    y, mean, inverse = run_node("LayerNormalization", x, scale, opset=17, outputs=3)
    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
    np.testing.assert_allclose(y, standardised(x, (1,)), rtol=1e-3, atol=1e-3)
    _, mean, _ = run_node("LayerNormalization", x, scale, opset=17, outputs=3, stash_type=16)
    assert mean.dtype == ml_dtypes.bfloat16
    with pytest.raises(ModelError, match="stash_type must be a float"):
        run_node("LayerNormalization", x, scale, opset=17, stash_type=onnx.TensorProto.INT32)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int) -> None:
    scale = f(*X.shape[axis:])
    (y,) = run_node("RMSNormalization", X, scale, opset=23, axis=axis, symbolic=True)
    wide = X.astype(np.float64)
    axes = tuple(range(axis % 4, 4))
    expected = wide / np.sqrt((wide * wide).mean(axes, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_rms_normalization_has_the_type_of_its_scale() -> None:
    (y,) = run_node("RMSNormalization", f(2, 8, kind=np.float16), f(8), opset=23)
    assert y.dtype == np.float32


@pytest.mark.parametrize("symbolic", [False, True])
def test_group_normalization(symbolic: bool) -> None:
    grouped = standardised(X.reshape(2, 2, -1), (2,))
    (y,) = run_node("GroupNormalization", X, SCALE, BIAS, opset=21, num_groups=2, symbolic=symbolic)
    expected = grouped.reshape(X.shape) * channels(SCALE) + channels(BIAS)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    scale, bias = SCALE[:2], BIAS[:2]
    (y,) = run_node("GroupNormalization", X, scale, bias, opset=18, num_groups=2, symbolic=symbolic)
    expected = (grouped * scale[:, None] + bias[:, None]).reshape(X.shape)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_groups_must_divide_the_channels() -> None:
    for groups in (0, 3):
        with pytest.raises(ModelError, match="must be a multiple of the groups"):
            run_node("GroupNormalization", X, SCALE, BIAS, opset=21, num_groups=groups)


@pytest.mark.parametrize("order", [1, 2])
def test_lp_normalization(order: int) -> None:
    x = X.copy()
    x[0, 0, 0] = 0
    (y,) = run_node("LpNormalization", x, axis=-1, p=order, opset=22, symbolic=True)
    norm = np.linalg.norm(x, order, -1, keepdims=True)
    np.testing.assert_allclose(y, x / np.where(norm == 0, 1, norm), rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match="1 or 2"):
        run_node("LpNormalization", x, p=3)


def test_mean_variance_normalization() -> None:
    (y,) = run_node("MeanVarianceNormalization", X, opset=13)
    np.testing.assert_allclose(y, standardised(X, (0, 2, 3), 0), rtol=1e-4, atol=1e-5)
    (y,) = run_node("MeanVarianceNormalization", X, opset=13, axes=[-1], symbolic=True)
    np.testing.assert_allclose(y, standardised(X, (3,), 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_local_response_normalization(size: int) -> None:
    options = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    before, after = (size - 1) // 2, size // 2
    square = np.stack([(X[:, max(0, c - before) : c + after + 1] ** 2).sum(1) for c in range(4)], 1)
    expected = X / (1.5 + 0.5 / size * square) ** 0.6
    for symbolic in (False, True):
        (y,) = run_node("LRN", X, symbolic=symbolic, **options)
        np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_a_window_wider_than_the_channels_costs_nothing() -> None:
    square = (X**2).sum(1, keepdims=True)
    for symbolic in (False, True):
        options = {"size": 1 << 40, "alpha": float(1 << 40), "beta": 1.0}
        (y,) = run_node("LRN", X, symbolic=symbolic, **options)
        np.testing.assert_allclose(y, X / (1 + square), rtol=1e-5)


def test_a_size_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ModelError, match="a positive size"):
        run_node("LRN", X, size=0)


def test_a_default_is_the_f32_that_it_would_be_in_a_file() -> None:
    """1e-5 is no f32: left out, given and in ONNX Runtime it is the same number, f64 or not."""
    one, none = np.ones(1), np.zeros(1)
    operands = [np.zeros((1, 1, 1)), one, none, one, none]
    (left_out,) = run_node("BatchNormalization", *operands, opset=15)
    (given,) = run_node("BatchNormalization", *operands, opset=15, epsilon=1e-5)
    assert left_out.item() == given.item() == pytest.approx(-1 / np.sqrt(float(np.float32(1e-5))))
    close([left_out], runtime_node("BatchNormalization", *operands, opset=15), 1e-12)
