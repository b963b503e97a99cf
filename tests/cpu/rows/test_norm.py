"""Softmax and normalisations on the CPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.ir import constant
from monograph.ops.composite import Gelu, LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.elementwise import Add, Mul
from monograph.ops.shape import Transpose
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import check, feeds_for
from tests.rules.checks import graph_of, value

SHAPES = [
    ("f32[5, 16]", 1),
    ("f32[3, 37]", 1),
    ("f32[2, 197]", 1),
    ("f32[2, 1111]", 1),
    ("f32[3, 9, 40]", 1),
    ("f32[90, 33]", 0),
    ("f32[2, 5, 3, 2]", 2),
    ("f32[1]", 0),
    ("f16[4, 70]", 1),
    ("bf16[4, 70]", 1),
    ("f64[4, 21]", 1),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax(shape: str, axis: int) -> None:
    x = value(shape)
    check(graph_of(Softmax(axis)(x), LogSoftmax(axis)(x)))


@pytest.mark.parametrize("size", [30, 300])
def test_softmax_of_extremes(size: int) -> None:
    x = value(f"f32[6, {size}]")
    graph = graph_of(Softmax(1)(x))
    feeds = feeds_for(graph, scale=1e4)
    feeds["x"][0, 3] = np.nan
    feeds["x"][1, :] = -np.inf
    feeds["x"][2, :9] = -np.inf
    feeds["x"][3, 5] = np.inf
    check(graph, feeds)


@pytest.mark.parametrize(
    "shape", ["f32[7, 16]", "f32[7, 45]", "f32[3, 768]", "f16[3, 70]", "f64[3, 5]"]
)
def test_norms_of_the_last_axis(shape: str) -> None:
    x = value(shape)
    size = shape.split(", ")[1]
    scale, bias = value(f"{shape[:3]}[{size}", "scale"), value(f"{shape[:3]}[{size}", "bias")
    check(graph_of(LayerNorm((1,))(x, scale, bias), LayerNorm((1,))(x), RmsNorm((1,))(x, scale)))


@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 2), (0, 1, 2)])
def test_norms_of_any_axes(axes: tuple[int, ...]) -> None:
    x, scale = value("f32[3, 12, 35]"), value("f32[12, 1]", "scale")
    check(graph_of(LayerNorm(axes)(x, scale), RmsNorm(axes)(x, scale)))


def test_a_large_mean_does_not_cancel() -> None:
    graph = graph_of(LayerNorm((1,))(value("f32[4, 300]")))
    feeds = feeds_for(graph)
    feeds["x"] += 1000
    check(graph, feeds)


def test_what_is_before_and_after_is_fused() -> None:
    x, y = value("f32[9, 100]"), value("f32[9, 100]", "y")
    scale = constant(np.linspace(1, 2, 100, dtype=np.float32))
    check(graph_of(Gelu()(LayerNorm((1,))(Add()(x, y), scale))), steps=1)
    check(graph_of(Mul()(Softmax(1)(Mul()(x, y)), y)), steps=1)
    check(graph_of(Softmax(0)(Transpose((1, 0))(x))), steps=1)


@pytest.mark.parametrize("size", [5, 40, 1000])
def test_a_softmax_of_huge_equal_numbers_is_even(size: int) -> None:
    """The difference from the largest is taken before anything is scaled: it is exactly 0."""
    x = value(f"f32[2, {size}]")
    executable = compile_graph(graph_of(Softmax(1)(x)), host_features(), 1)
    (result,) = executable.run({"x": np.full((2, size), 4.1e12, np.float32)})
    np.testing.assert_allclose(result, 1 / size, rtol=1e-6)
