"""Ops that are compiled as others, and determinants: transforms, mel weights, shapes."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.ir import constant, evaluate
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp
from monograph.ops.linear import Det
from monograph.ops.resize import Resize
from monograph.ops.shape import ShapeOf
from monograph.ops.signal import Dft, MelWeights
from monograph.program.legalise import expand
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.indexing.moving import FEATURES, THREADS, check, check_samples, host
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    for op in (Dft, MelWeights, ShapeOf, Det):
        check_samples(op, features, threads)


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        ("f32[3, 400, 1]", Dft(1, onesided=True)),
        ("f32[2, 50, 3, 2]", Dft(1, length=64)),
        ("f32[2, 50, 3, 2]", Dft(2, length=2, inverse=True)),
        ("f32[60, 4, 2]", Dft(0, length=33, inverse=True, onesided=True)),
        ("f16[5, 16, 1]", Dft(1)),
    ],
)
def test_transforms(shape: str, op: Dft) -> None:
    check(graph_of(op(value(shape))))


@pytest.mark.parametrize("shape", ["f32[1, 4096, 1]", "f32[2, 2560, 2]", "f64[1, 2063, 2]"])
def test_long_transforms(shape: str) -> None:
    """A product of lengths, and a prime."""
    check(graph_of(Dft(1)(value(shape))))


@pytest.mark.parametrize("length", [1, 2, 7, 129, 130, 131, 1021])
@pytest.mark.parametrize("size", [5, 300])
def test_transforms_by_shorter_ones(length: int, size: int) -> None:
    """Every kind of transform, with the limit of one product at nothing."""
    x, real = value(f"f64[2, {size}, 3, 2]"), value(f"f64[2, {size}, 3, 1]", "r")
    made = [
        Dft(1, length)(x),
        Dft(1, length, inverse=True)(x),
        Dft(1, length, inverse=True, onesided=True)(x),
        Dft(1, length)(real),
        Dft(1, length, onesided=True)(real),
    ]
    graph = graph_of(*made)
    with mock.patch.object(expand, "MAX_MATRIX", 0):
        executable = compile_graph(graph, host(), 2)
    assert not executable.host_steps
    feeds = {
        n: rng.normal(size=t.static) for n, t in zip("xr", (x.tensor, real.tensor), strict=True)
    }
    for a, b in zip(executable.run(feeds), evaluate(graph, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * np.abs(b).max())


@pytest.mark.parametrize("options", [{}, {"inverse": 1}, {"onesided": 1}], ids=str)
def test_transforms_of_an_open_axis(options: dict[str, int]) -> None:
    node = helper.make_node("DFT", ["x"], ["y"], **options)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "size", 1])
    graph = helper.make_graph([node], "g", [port], [onnx.ValueInfoProto(name="y")])
    raw = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    ).SerializeToString()
    session = monograph.load(raw, specialise="off", cache_dir="")
    reference = monograph.load(raw, "reference")
    for shape in ((1, 2, 1), (3, 7, 1), (2, 7, 1), (1, 1, 1), (2, 640, 1)):
        x = rng.normal(size=shape).astype(np.float32)
        (given,), (wanted,) = session.run({"x": x}), reference.run({"x": x})
        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_determinants() -> None:
    x = value("f32[3, 5, 7, 7]")
    check(graph_of(Exp()(Det()(x))), {"x": np.zeros((3, 5, 7, 7), np.float32)})
    check(graph_of(Det()(x)), threads=4)
    singular = np.ones((3, 5, 7, 7), np.float32)
    check(graph_of(Det()(x)), {"x": singular})


@pytest.mark.parametrize(
    ("op", "whole"),
    [
        (Resize((1, 2), sizes=(8, 15), coordinates="asymmetric", rounding="floor"), True),
        (Resize((1, 2), sizes=(8, 10)), True),
        (Resize((2,), sizes=(20,), coordinates="asymmetric", rounding="round_prefer_ceil"), False),
        (Resize((1, 2), sizes=(6, 10)), False),
        (Resize((1, 2), sizes=(8, 10), mode="linear"), False),
    ],
)
def test_repeated_pixels_are_read_in_place(op: Resize, whole: bool) -> None:
    """A convolution adds evenly repeated pixels without memory of their own."""
    x = value("f32[2, 4, 5, 18]")
    large = value(f"f32{[2, *op(x).tensor.static[1:-1], 6]}", "y")
    weights = constant(np.random.default_rng(0).normal(size=(18, 6, 1, 1)).astype(np.float32))
    pixels = Conv((1, 1), (0, 0), (0, 0), (1, 1), layout="channels_last")(large, weights)
    executable = check(graph_of(Add()(pixels, op(x))), threads=2)
    assert len(executable.program.steps) == (1 if whole else 2)
