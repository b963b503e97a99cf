"""Resizes of axes of open size: one compilation is right at all sizes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.ir import DType, Graph, Input, tensor
from monograph.ir.dtype import f16, f32, u8
from monograph.ops.resize import LINEAR, NEAREST, Resize
from tests.cpu.any_shape_cases import open_graph
from tests.samples import SEED
from tests.test_session import model_of

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
)
SHAPE = (2, 3, 10, 12)


def problems(dtype: DType, **how: Any) -> tuple[list[str], list[str]]:
    """Return what is wrong at several sizes with one compilation, and its guards."""
    x = Input("x", tensor(dtype, *SHAPE))()
    feeds = {"x": np.random.default_rng(SEED).uniform(0, 200, SHAPE).astype(dtype.numpy)}
    found = open_graph(Graph((x,), (("y", Resize((2, 3), **how)(x)),)))
    assert found is not None
    rng = random.Random(SEED)
    others = (found.other_feeds(feeds, rng) for _ in range(20))
    runs = [feeds, *[f for f in others if f is not None][:3]]
    assert len(runs) == 4
    return [p for f in runs if (p := found.problem(f))], found.code.guards


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(
    ("mode", "how"),
    [
        (NEAREST, {"sizes": (7, 20), "rounding": "floor"}),
        (NEAREST, {"scales": (1.5, 0.5), "rounding": "round_prefer_ceil"}),
        (LINEAR, {"sizes": (3, 25)}),
        (LINEAR, {"scales": (2.0, 0.75)}),
    ],
)
def test_one_compilation_serves_all_sizes(mode: str, how: dict[str, Any], coordinates: str) -> None:
    wrong, guards = problems(f32, mode=mode, coordinates=coordinates, **how)
    assert not wrong
    assert not [g for g in guards if "must be" in g and "must be at" not in g]


@pytest.mark.parametrize("dtype", [f16, u8])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "ceil", "simple"])
def test_types_and_roundings(dtype: DType, rounding: str) -> None:
    wrong, _ = problems(dtype, mode=NEAREST, sizes=(5, 31), rounding=rounding)
    assert not wrong


@pytest.mark.parametrize("how", [{"mode": "cubic"}, {"mode": LINEAR, "antialias": True}])
def test_others_are_right_for_the_sizes_of_their_guards(how: dict[str, Any]) -> None:
    x = Input("x", tensor(f32, *SHAPE))()
    feeds = {"x": np.random.default_rng(SEED).normal(size=SHAPE).astype(np.float32)}
    found = open_graph(Graph((x,), (("y", Resize((2, 3), sizes=(7, 20), **how)(x)),)))
    assert found is not None
    assert found.problem(feeds) is None
    assert any("must be 10" in g for g in found.code.guards)


def test_a_map_takes_the_size_of_another_map() -> None:
    """A pyramid of features at sizes that no power of two divides."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2],
                         ceil_mode=1),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Resize", ["a", "", "", "s"], ["b"], mode="nearest",
                         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("Resize", ["a", "", "", "s"], ["c"], mode="linear"),
        helper.make_node("Sum", ["x", "b", "c"], ["d"]),
        helper.make_node("Mul", ["d", "two"], ["y"]),
    ]  # fmt: skip
    model = model_of(
        nodes,
        [("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [("y", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [numpy_helper.from_array(np.array(2, np.float32), "two")],
    )
    session = monograph.load(model, specialise="off", threads=2, checked=True)
    reference = monograph.load(model, target="reference")
    for n, h, w in [(2, 13, 17), (3, 8, 9), (2, 40, 31), (4, 5, 16)]:
        x = np.random.default_rng(h).normal(size=(n, 3, h, w)).astype(np.float32)
        (given,), (expected,) = (s.run({"x": x}) for s in (session, reference))
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
    assert session.stats["variants"] == 1
