"""Composite ops against their formulas, edge values and types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monograph.errors import InferError
from monograph.ops.composite import Gelu, LayerNorm, LogSoftmax, RmsNorm, Silu, Softmax
from tests.rules.checks import value

RNG = np.random.default_rng(7)


def test_silu_is_the_product_with_the_sigmoid() -> None:
    x = RNG.normal(size=50).astype(np.float32)
    expected = x / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(Silu().reference(x), expected, rtol=1e-6)


def test_silu_at_the_edges() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -800.0], np.float32)
    with np.errstate(all="ignore"):
        y = Silu().reference(x)
    np.testing.assert_array_equal(y, np.array([0, 0, np.inf, np.nan, np.nan, 0], np.float32))
    assert np.signbit(y[1])


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate: bool) -> None:
    x = np.linspace(-4, 4, 33)
    if approximate:
        inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        inner = np.array([math.erf(v / math.sqrt(2)) for v in x])
    np.testing.assert_allclose(Gelu(approximate).reference(x), x * (1 + inner) / 2, atol=1e-15)


def test_the_two_forms_of_gelu_differ() -> None:
    x = np.array([1.5])
    assert Gelu().reference(x) != Gelu(approximate=True).reference(x)


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-1e30, 0.0]], np.float32)
    np.testing.assert_array_equal(Softmax(1).reference(x), [[0.5, 0.5], [0.0, 1.0]])


def test_log_softmax_does_not_underflow() -> None:
    y = LogSoftmax(0).reference(np.array([0.0, -1000.0], np.float32))
    np.testing.assert_array_equal(y, np.array([0.0, -1000.0], np.float32))


def test_layer_norm_with_scale_and_bias() -> None:
    x = RNG.normal(3.0, 2.0, (4, 6))
    scale, bias = RNG.normal(size=6), RNG.normal(size=6)
    y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNorm((1,)).reference(x, scale, bias), y * scale + bias)
    np.testing.assert_allclose(LayerNorm((1,)).reference(x), y)


def test_rms_norm_of_a_small_type_is_rounded_once() -> None:
    x = np.array([[300.0, -300.0, 200.0]], np.float16)  # the squares do not fit
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_array_equal(RmsNorm((1,)).reference(x), expected.astype(np.float16))


def test_axes_have_one_form() -> None:
    x = value("f32[2, 3, 4]")
    assert Softmax(-1)(x) is Softmax(2)(x)
    assert LayerNorm((-1, 1))(x) is LayerNorm((1, 2))(x)


@pytest.mark.parametrize(
    ("op", "types"),
    [
        (Silu(), ["i32[3]"]),
        (Softmax(0), ["f32[]"]),
        (Softmax(2), ["f32[2, 3]"]),
        (LayerNorm((1,)), ["f32[2, 3]", "f32[4, 2, 3]"]),
        (LayerNorm((1,)), ["f32[2, 3]", "f16[3]"]),
        (RmsNorm((1,)), ["f32[2, 3]", "f32[3]", "f32[3]"]),
    ],
)
def test_wrong_operands_are_refused(op, types: list[str]) -> None:
    with pytest.raises(InferError):
        op(*(value(t, f"x{i}") for i, t in enumerate(types)))
