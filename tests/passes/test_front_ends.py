"""Front ends stay in f32: squares of signals of unknown scale, and what logarithms and angles read.

Each graph that stays has a twin that converts: a norm, an activation or a proved bound between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monograph.frontend.onnx import import_model, read_model
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype, evaluate
from monograph.ops import composite
from monograph.ops import elementwise as ew
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.passes.base import Environment
from monograph.passes.precision import convert_precision
from monograph.passes.precision.front_ends import SQUARED, find_degrees
from monograph.passes.precision.precision_plan import UNPROVED, Magnitudes, converts, plan_precision
from monograph.pipeline import PassOptions, optimise
from monograph.rewrite import GPU_COST
from tests.passes.test_convert_precision import convert, data, number
from tests.rules.checks import graph_of, value

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
HALF = dtype("f16")
SIZE, FRAME, BINS = 512, 64, 33
x = value("f32[4, 16]")

Make = Callable[[], Value]


def spectrum(signal: Value) -> Value:
    """The Fourier transform of frames as a convolution: sines beside cosines."""
    angle = 2 * np.pi * np.outer(np.arange(BINS), np.arange(FRAME)) / FRAME
    waves = np.concatenate([np.cos(angle), np.sin(angle)])[:, None, :].astype(np.float32)
    return Conv((16,), (0,), (0,), (1,))(Reshape((1, 1, SIZE))(signal), constant(waves))


def power(signal: Value) -> Value:
    waves = spectrum(signal)
    count = waves.tensor.static[-1]
    squares = Reshape((2, BINS, count))(ew.Mul()(waves, waves))
    return Transpose((1, 0))(ReduceSum((0,))(squares))


def mel(signal: Value) -> Value:
    """Return what log-mel features are before the logarithm."""
    weights = np.abs(np.random.default_rng(0).normal(size=(BINS, 8))).astype(np.float32) / BINS
    return Dot()(power(signal), constant(weights))


def log_mel() -> Value:
    return ew.Log()(ew.Clip(1e-10)(mel(value(f"f32[{SIZE}]", "signal"))))


def magnitudes() -> Value:
    """A front end without a logarithm, and the layer behind it."""
    root = ew.Sqrt()(power(value(f"f32[{SIZE}]", "signal")))
    return Dot()(root, data(BINS, 4))


def kept(made: Value, to: str = "f16") -> dict[str, str]:
    """The reasons for what stays in f32, by op."""
    graph = graph_of(made)
    kind = dtype(to)
    reasons = plan_precision(graph, kind, sizes=Magnitudes(graph, kind).of(graph))
    return {v.op.name: r for v, r in reasons.items()}


def narrow(made: Value, to: str = "f16") -> set[str]:
    graph = graph_of(made)
    kind = dtype(to)
    reasons = plan_precision(graph, kind, sizes=Magnitudes(graph, kind).of(graph))
    return {v.op.name for v in graph.values if converts(v) and v not in reasons}


@pytest.mark.parametrize("to", ["f16", "bf16"])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 32768.0])
@pytest.mark.parametrize("kind", ["noise", "sine"])
def test_log_mel_features_are_those_of_f32(to: str, scale: float, kind: str) -> None:
    before = graph_of(log_mel())
    after, _ = convert(before, to)
    noise = np.random.default_rng(1).normal(size=SIZE)
    signal = noise if kind == "noise" else np.sin(np.arange(SIZE) * 0.3)
    feeds = {"signal": (scale * signal).astype(np.float32)}
    (expected,), (given,) = evaluate(before, feeds), evaluate(after, feeds)
    np.testing.assert_allclose(given, expected, atol=1e-4)


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_what_a_logarithm_reads_stays(to: str) -> None:
    assert narrow(log_mel(), to) == set()


def test_the_transform_that_is_squared_stays_without_a_logarithm() -> None:
    assert narrow(magnitudes()) == {"dot"}
    feeds = {"signal": (20000 * np.sin(np.arange(SIZE) * 0.1)).astype(np.float32)}
    after, _ = convert(graph_of(magnitudes()), "f16")
    largest: list[float] = []
    evaluate(after, feeds, lambda v, a: largest.append(float(np.abs(a).max())))
    assert max(largest) > 65504, "f16 would overflow"
    wide = [v for v in after.values if isinstance(v.op, Conv)]
    assert {str(v.dtype) for v in wide} == {"f32"}


def layer(v: Value, width: int = 16) -> Value:
    return Dot()(v, data(v.tensor.static[-1], width, scale=0.25))


def squared(v: Value) -> Value:
    return layer(ew.Mul()(v, v))


def gated(v: Value) -> Value:
    return layer(ew.Mul()(ew.Mul()(layer(v), ew.Sigmoid()(layer(v))), layer(v)))


def position(kind: str) -> Value:
    ids = Input("ids", TensorType(dtype(kind), (4, 1)))()
    return Dot()(Cast(dtype("f32"))(ids), data(1, 16))


STAY: dict[str, Make] = {
    "square of an input": lambda: squared(x),
    "square of a layer": lambda: squared(layer(x)),
    "square of an activation": lambda: squared(ew.Clip(0.0)(layer(x))),
    "power": lambda: layer(ew.Pow()(layer(x), number(2.0))),
    "cube": lambda: layer(ew.Mul()(ew.Mul()(layer(x), layer(x)), layer(x))),
    "product of two layers": lambda: layer(ew.Mul()(layer(x), layer(x, 16))),
    "gram matrix": lambda: Dot()(layer(x), Transpose((1, 0))(layer(x))),
    "inverse square": lambda: layer(ew.Div()(number(1.0), ew.Mul()(x, x))),
    "integers of any size": lambda: position("i64"),
    "square below a ceiling that f16 lacks": lambda: layer(ew.Clip(0.0, 1e9)(ew.Mul()(x, x))),
    "exponential": lambda: layer(ew.Exp()(x)),
}
CONVERT: dict[str, Make] = {
    "square of a norm": lambda: squared(layer(composite.RmsNorm((1,))(x))),
    "gate of a norm": lambda: gated(composite.RmsNorm((1,))(x)),
    "square of a bounded value": lambda: squared(ew.Tanh()(layer(x))),
    "square of a clipped value": lambda: squared(ew.Clip(0.0, 6.0)(layer(x))),
    "swish": lambda: layer(ew.Mul()(layer(x), ew.Sigmoid()(layer(x)))),
    "hard swish": lambda: layer(ew.Mul()(layer(x), ew.Clip(0.0, 6.0)(layer(x)))),
    "root of a square": lambda: layer(ew.Sqrt()(ew.Mul()(x, x))),
    "ratio": lambda: layer(ew.Div()(layer(x), ew.Add()(ew.Abs()(layer(x)), number(1.0)))),
    "weights that are fed": lambda: Dot()(layer(x), value("f32[16, 4]", "w")),
    "bytes": lambda: position("u8"),
    "scores": lambda: layer(
        Dot()(composite.Softmax(1)(Dot()(layer(x), Transpose((1, 0))(layer(x)))), layer(x))
    ),
}


@pytest.mark.parametrize("make", STAY.values(), ids=STAY)
def test_what_grows_faster_than_the_inputs_stays(make: Make) -> None:
    made = make()
    assert kept(made)["dot"] == UNPROVED
    assert "dot" in narrow(made, "bf16"), "bf16 has the range of f32"


@pytest.mark.parametrize("make", CONVERT.values(), ids=CONVERT)
def test_what_does_not_grow_so_converts(make: Make) -> None:
    assert "dot" not in kept(make())


LOGS: dict[str, tuple[Make, bool]] = {
    "layer": (lambda: ew.Log()(ew.Abs()(layer(x))), True),
    "small floor": (lambda: ew.Log()(ew.Add()(ew.Abs()(layer(x)), number(1e-6))), True),
    "cut at a floor": (lambda: ew.Log()(ew.Clip(1e-9, 1e9)(layer(x))), True),
    "log1p": (lambda: ew.Log()(ew.Add()(ew.Abs()(layer(x)), number(1.0))), False),
    "activation": (lambda: ew.Log()(ew.Add()(ew.Clip(0.0)(layer(x)), number(1e-6))), False),
    "sigmoid": (lambda: ew.Log()(ew.Sigmoid()(layer(x))), False),
    "softmax": (lambda: ew.Log()(composite.Softmax(1)(layer(x))), False),
    "softplus": (lambda: ew.Log()(ew.Add()(ew.Exp()(layer(x)), number(1.0))), False),
}


@pytest.mark.parametrize("to", ["f16", "bf16"])
@pytest.mark.parametrize(("make", "stays"), LOGS.values(), ids=LOGS)
def test_logarithms_keep_linear_work_only(make: Make, stays: bool, to: str) -> None:
    assert ("dot" not in narrow(make(), to)) == stays


def test_an_angle_keeps_its_arithmetic() -> None:
    angle = ew.Mul()(layer(x), number(30.0))
    wave = ew.Div()(ew.Sin()(angle), angle)
    assert narrow(wave) == {"dot"}


def test_moves_between_f32_and_f32_are_not_narrowed() -> None:
    inner = Slice((0, 0), (4, 8), (1, 1))(x)
    assert narrow(ReduceSum((1,))(inner)) == set()
    assert narrow(layer(inner)) == {"slice", "dot"}
    assert narrow(inner) == set(), "an output that is an input's part"


def test_degrees() -> None:
    root = ew.Sqrt()(ReduceSum((1,), keep=True)(ew.Mul()(x, x)))
    cases = [(x, 1), (ew.Mul()(x, x), 2), (root, 1), (ew.Div()(x, root), 0), (ew.Exp()(x), 0)]
    cases += [(ew.Div()(number(1.0), x), -1), (ew.Pow()(x, number(3.0)), 3), (layer(x), 1)]
    for made, degree in cases:
        graph = graph_of(made)
        assert find_degrees(graph, lambda v: False)[made] == degree
    assert find_degrees(graph_of(squared(x)), lambda v: True)[x] == 1


def test_explain_says_why() -> None:
    environment = Environment(GPU_COST)
    options = PassOptions({"convert_precision": {"to": "f16"}}, until="convert_precision")
    optimise(graph_of(magnitudes()), environment=environment, options=options)
    said = {m.reason for m in environment.trace.nearest("convert_precision")}
    assert f"conv: {SQUARED}" in said
    assert f"mul: {UNPROVED}" in said


NARROW = {
    "face_rfb320": 165, "genai_llama_fp32": 75, "genai_llama_int4": 107, "hf_bert_sdpa": 81,
    "khmercut_int8": 12, "magika_v3_3": 29, "ppocrv6_det_tiny": 257, "ppocrv6_rec_tiny": 137,
    "tv_mobilenet_v3_small": 42, "ul_yolov10n_e2e": 375,
}  # fmt: skip
"""Values that f16 computes in each network: rules for front ends must not reach into them."""


@pytest.mark.parametrize("name", NARROW)
def test_networks_keep_what_they_convert(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SHARED / name
    if not folder.exists():
        pytest.skip(f"{folder} is not on this machine")
    counted: list[int] = []

    def plan(graph: Graph, *given: object) -> dict[Value, str]:
        reasons = plan_precision(graph, *given)  # type: ignore[arg-type]
        counted.append(sum(converts(v) and v not in reasons for v in graph.values))
        return reasons

    monkeypatch.setattr(convert_precision, "plan_precision", plan)
    recorded = np.load(folder / "io.npz")
    shapes = {k[3:]: recorded[k].shape for k in recorded.files if k.startswith("in:")}
    graph = import_model(read_model(str(folder / "model.onnx")), shapes=shapes)
    options = PassOptions({"convert_precision": {"to": "f16"}}, until="convert_precision")
    optimise(graph, environment=Environment(GPU_COST), options=options)
    assert sum(counted) == NARROW[name]
