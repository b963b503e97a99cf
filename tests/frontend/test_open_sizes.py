"""Nodes that need a size which only the shapes of the feeds tell: they are converted then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from tests.frontend.nodes import Given, close, node_model, runtime_node

GENERATOR = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return GENERATOR.normal(size=shape).astype(np.float32)


QUERIES = [floats(1, 3, 8), floats(1, 4, 8), floats(1, 4, 8), floats(24)]
CASES: dict[str, tuple[str, list[Given], dict[str, Any]]] = {
    "AffineGrid": ("AffineGrid", [floats(2, 2, 3), np.array([2, 1, 3, 4])], {"opset": 20}),
    "MultiHeadAttention": (
        "MultiHeadAttention",
        QUERIES,
        {"domain": "com.microsoft", "num_heads": 2, "opset": 1},
    ),
    "Attention": (
        "Attention",
        [floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4)],
        {"opset": 23, "outputs": 4, "qk_matmul_output_mode": 0},
    ),
    "LSTM": ("LSTM", [floats(3, 2, 4), floats(1, 20, 4), floats(1, 20, 5)], {"hidden_size": 5}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_size_that_the_feeds_tell(name: str) -> None:
    op, inputs, options = CASES[name]
    model = node_model(op, inputs, symbolic=True, **options)
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    given = monograph.load(model, "reference").run(feeds)
    close(given, runtime_node(op, *inputs, **options), 1e-5)
    for a, b in zip(monograph.load(model, "cpu", cache_dir="").run(feeds), given, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


def test_a_wrong_theta_is_refused_when_its_shape_is_known() -> None:
    inputs: list[Given] = [floats(2, 4, 3), np.array([2, 1, 3, 4])]
    model = node_model("AffineGrid", inputs, symbolic=True, opset=20)
    session = monograph.load(model, "reference")
    with pytest.raises(monograph.errors.MonographError, match="theta must be"):
        session.run({"x0": inputs[0], "x1": inputs[1]})
