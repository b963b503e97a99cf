"""Softmax and normalisations on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.composite import Gelu, LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.elementwise import Add, Mul
from monograph.ops.shape import Concat, Reshape, Transpose
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, check, device
from tests.rules.checks import graph_of, value

SHAPES = [
    ("f32[5, 16]", 1),
    ("f32[3, 37]", 1),
    ("f32[2, 1111]", 1),
    ("f32[3, 9, 40]", 1),
    ("f32[90, 33]", 0),
    ("f32[2, 5, 3, 2]", 2),
    ("f32[1]", 0),
    ("f32[6, 1]", 1),
    ("f16[4, 70]", 1),
    ("bf16[4, 70]", 1),
    ("f64[4, 21]", 1),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax(shape: str, axis: int) -> None:
    x = value(shape)
    check(graph_of(Softmax(axis)(x), LogSoftmax(axis)(x)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [30, 1500])
def test_softmax_of_extremes(size: int) -> None:
    """Rows of 1500 are held, gone through in blocks, and cut, by one candidate or another."""
    x = value(f"f32[6, {size}]")
    graph = graph_of(Softmax(1)(x))
    if size == 1500:
        names = candidate_names(graph)[0]
        assert any("split" in n for n in names)
        assert any("x2048" in n for n in names)
        assert any("x1024" in n and "split" not in n for n in names)
    feeds = feeds_for(graph, scale=1e4)
    feeds["x"][0, 3] = np.nan
    feeds["x"][1, :] = -np.inf
    feeds["x"][2, : size - 9] = -np.inf
    feeds["x"][3, 5] = np.inf
    feeds["x"][4, size // 2 :] = -np.inf
    check(graph, feeds)


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
def test_norms_of_the_last_axis(dtype: str) -> None:
    x = value(f"{dtype}[7, 45]")
    scale, bias = value(f"{dtype}[45]", "scale"), value(f"{dtype}[45]", "bias")
    check(graph_of(LayerNorm((1,))(x, scale, bias), LayerNorm((1,))(x), RmsNorm((1,))(x, scale)))


@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 2), (0, 1, 2)])
def test_norms_of_any_axes(axes: tuple[int, ...]) -> None:
    x, scale = value("f32[3, 12, 35]"), value("f32[12, 1]", "scale")
    check(graph_of(LayerNorm(axes)(x, scale), RmsNorm(axes)(x, scale)))


@pytest.mark.parametrize("shape", ["f32[4, 300]", "f32[2, 2700]"])
def test_a_large_mean_does_not_cancel(shape: str) -> None:
    graph = graph_of(LayerNorm((1,))(value(shape)))
    feeds = feeds_for(graph)
    feeds["x"] += 1000
    # A step along the row: parts of it have means far apart.
    feeds["x"][1, 100:] += 50
    check(graph, feeds)


def test_rows_of_equal_elements() -> None:
    """The rest of their mean, twice rounded, is multiplied by 1 / sqrt(epsilon) and no more."""
    count, x = 77, np.float32(1e3 / 3)
    graph = graph_of(LayerNorm((1,))(value(f"f32[3, {count}]")))
    rounding = count * float(np.finfo(np.float32).eps)
    for number in range(len(candidate_names(graph)[0])):
        module = compile_for_gpu(graph, device().arch, lambda _, found, n=number: found[n])
        (y,) = GpuExecutable(module, device()).run({"x": np.full((3, count), x)})
        assert np.abs(y).max() <= rounding**2 * x / np.sqrt(1e-5)


def test_a_few_long_rows_are_cut() -> None:
    x, scale = value("f16[2, 3001]"), value("f16[3001]", "scale")
    graph = graph_of(LayerNorm((1,))(x, scale), RmsNorm((1,))(x, scale))
    assert all(any("split" in n for n in names) for names in candidate_names(graph))
    check(graph)


def test_what_is_before_and_after_is_fused() -> None:
    x, y = value("f32[9, 100]"), value("f32[9, 100]", "y")
    scale = constant(np.linspace(1, 2, 100, dtype=np.float32))
    check(graph_of(Gelu()(LayerNorm((1,))(Add()(x, y), scale))), steps=1)
    check(graph_of(Mul()(Softmax(1)(Mul()(x, y)), y)), steps=1)
    check(graph_of(Softmax(0)(Transpose((1, 0))(x))), steps=1)


def test_rows_lie_in_memory_as_views_say() -> None:
    x, mask = value("f32[2, 24, 5, 6]"), value("f32[24]", "mask")
    last = Transpose((0, 2, 3, 1))(x)
    check(graph_of(Softmax(3)(Add()(last, mask))), steps=1)
    check(graph_of(LayerNorm((2,))(Reshape((2, 4, 180))(x))), steps=1)
    check(graph_of(RmsNorm((3,))(last, value("f32[24]", "scale"))), steps=1)


def test_parts_of_a_join_are_written_in_place() -> None:
    x, y = value("f32[6, 40]"), value("f32[6, 40]", "y")
    check(graph_of(Concat(1)(Softmax(1)(x), LayerNorm((1,))(y))), steps=2)
