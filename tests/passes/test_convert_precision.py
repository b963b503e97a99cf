"""Models of f32 become f16 or bf16, and what needs f32 keeps it, with a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph.errors import ConfigError
from monograph.frontend.onnx import import_model, read_model
from monograph.ir import (
    Graph,
    Input,
    Op,
    Sample,
    TensorType,
    Value,
    constant,
    dtype,
    evaluate,
    known,
    parse_type,
    unpack,
    verify,
)
from monograph.ir.dtype import boolean, f32, f64, i8, i32, i64
from monograph.ir.types import accepts
from monograph.ops import OPS
from monograph.ops import elementwise as ew
from monograph.ops.attention import Attention, CacheUpdate
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.recurrent import Rnn
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.shape import Concat, Reshape, Transpose
from monograph.passes.base import Environment, run_pass
from monograph.passes.precision.convert_precision import ConvertPrecision
from monograph.passes.precision.precision_rules import constant_reason
from monograph.pipeline import PassOptions, optimise
from monograph.runtime.numerics.bisect import run
from monograph.runtime.numerics.compare import compare_outputs
from monograph.runtime.numerics.spread import tolerances
from monograph.runtime.numerics.tolerance import derive
from tests.rules.checks import graph_of, random_feeds, value
from tests.samples import sample_graph

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
RNG = np.random.default_rng(0)
UNKNOWN = "the range of its numbers is not known"
"""Begins notes on values that may well be converted."""
NARROW = ("f16", "bf16")
x = value("f32[4, 16]")


def data(*shape: int, scale: float = 1.0) -> Value:
    return constant((scale * RNG.normal(size=shape)).astype(np.float32))


def number(given: float) -> Value:
    return constant(given, f32)


def convert(before: Graph, to: str = "f16", edges: str = "keep") -> tuple[Graph, dict[str, str]]:
    """The graph after the pass, and why ops stayed, by the op's name."""
    environment = Environment()
    after = verify(run_pass(ConvertPrecision(to, edges), before, environment))
    assert run_pass(ConvertPrecision(to, edges), before, Environment()) == after
    casts = [v for v in after.values if isinstance(v.op, Cast)]
    for v in casts:
        assert not isinstance(v.inputs[0].op, Cast) or v.dtype.is_string
    kept = (m.reason.partition(": ") for m in environment.trace.nearest("convert_precision"))
    return after, {op: reason for op, _, reason in kept if UNKNOWN not in reason}


def check(before: Graph, to: str = "f16", feeds: dict[str, Any] | None = None) -> Graph:
    """Converts, and compares within what the roundings of the converted graph explain."""
    after, _ = convert(before, to)
    assert after.output_types == before.output_types
    feeds = feeds or random_feeds(before)
    compare(before, after, feeds)
    return after


def compare(before: Graph, after: Graph, feeds: dict[str, Any]) -> None:
    expected, given = (run(graph, feeds) for graph in (before, after))
    found = compare_outputs(given, expected, tolerances(after, feeds, narrowed=True))
    assert not [d for d in found if not d.ok]


def computed_in(graph: Graph, op: type[Op]) -> set[str]:
    return {str(v.dtype) for v in graph.values if isinstance(v.op, op)}


def count(graph: Graph, name: str = "cast") -> int:
    return Counter(v.op.name for v in graph.values)[name]


def layer_norm(v: Value, epsilon: float = 1e-5) -> Value:
    size = number(float(v.tensor.static[-1]))
    mean = ew.Div()(ReduceSum((-1,), keep=True)(v), size)
    centred = ew.Sub()(v, mean)
    variance = ew.Div()(ReduceSum((-1,), keep=True)(ew.Mul()(centred, centred)), size)
    normal = ew.Div()(centred, ew.Sqrt()(ew.Add()(variance, number(epsilon))))
    width = v.tensor.static[-1]
    return ew.Add()(ew.Mul()(normal, data(width)), data(width))


def softmax(v: Value) -> Value:
    shifted = ew.Exp()(ew.Sub()(v, ReduceMax((-1,), keep=True)(v)))
    return ew.Div()(shifted, ReduceSum((-1,), keep=True)(shifted))


def test_it_is_left_alone_unless_asked_for() -> None:
    before = graph_of(Dot()(x, data(16, 3)))
    assert run_pass(ConvertPrecision(), before, Environment()) == before
    for options in ({"to": "f8"}, {"to": "f16", "inputs_outputs": "some"}):
        with pytest.raises(ConfigError, match="no such conversion"):
            run_pass(ConvertPrecision(**options), before, Environment())


@pytest.mark.parametrize("to", NARROW)
def test_before_and_after(to: str) -> None:
    w, b = data(16, 3), data(3)
    before = graph_of(ew.Max()(ew.Add()(Dot()(x, w), b), number(0.0)))
    after = check(before, to)
    narrow = dtype(to)

    def low(v: Value) -> Value:
        return constant(v.op.reference().astype(narrow.numpy))

    y = ew.Add()(Dot()(Cast(narrow)(x), low(w)), low(b))
    y = ew.Max()(y, low(number(0.0)))
    assert after == graph_of(Cast(f32)(y))
    given = Input("x", TensorType(narrow, (4, 16)))()
    after, _ = convert(before, to, "convert")
    y = ew.Max()(ew.Add()(Dot()(given, low(w)), low(b)), low(number(0.0)))
    assert after == graph_of(y)


@pytest.mark.parametrize("to", NARROW)
def test_a_deep_network(to: str) -> None:
    y = x
    for _ in range(8):
        y = ew.Add()(y, ew.Tanh()(Dot()(layer_norm(y), data(16, 16, scale=0.25))))
    after = check(graph_of(softmax(Dot()(y, data(16, 5)))), to)
    assert computed_in(after, Dot) == {to}
    assert computed_in(after, ReduceSum) == computed_in(after, ew.Exp) == {"f32"}


def all_in_f16(graph: Graph) -> Graph:
    """The graph with every float in f16, as a plain conversion would have it."""

    def narrow(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Input):
            return Cast(dtype("f16"))(old)
        data = known(old)
        return old.op(*inputs) if data is None else constant(data, dtype("f16"))

    return replace(graph.rebuild(narrow), inputs=graph.inputs)


def test_a_norm_of_large_values_does_not_overflow() -> None:
    before = graph_of(Dot()(layer_norm(Dot()(x, data(16, 16))), data(16, 4)))
    feeds = {"x": (1000 * RNG.normal(size=(4, 16))).astype(np.float32)}
    overflown: list[bool] = []
    evaluate(all_in_f16(before), feeds, lambda _, a: overflown.append(bool(np.isinf(a).any())))
    assert any(overflown)
    after = check(before, "f16", feeds)
    for op in (ReduceSum, ew.Sub, ew.Mul, ew.Div, ew.Sqrt):
        assert computed_in(after, op) == {"f32"}
    assert computed_in(after, Dot) == {"f16"}


def test_a_norm_by_the_mean_square() -> None:
    y = Dot()(x, data(16, 16))
    square = ew.Mul()(ReduceSum((-1,), keep=True)(ew.Mul()(y, y)), number(1 / 16))
    scaled = ew.Mul()(y, ew.Div()(number(1.0), ew.Sqrt()(ew.Add()(square, number(1e-6)))))
    before = graph_of(Dot()(scaled, data(16, 4)))
    feeds = {"x": (1000 * RNG.normal(size=(4, 16))).astype(np.float32)}
    after = check(before, "f16", feeds)
    assert computed_in(after, ew.Mul) == {"f32"}


def test_the_whole_softmax_stays() -> None:
    before = graph_of(Dot()(softmax(Dot()(x, data(16, 8))), data(8, 2)))
    after, reasons = convert(before)
    for op in (ew.Exp, ew.Sub, ew.Div, ReduceSum):
        assert computed_in(after, op) == {"f32"}
    assert "steep" in reasons["exp"]
    assert "sums" in reasons["reduce_sum"]
    assert reasons["sub"] == "all that reads it stays in f32"
    check(before)


@pytest.mark.parametrize(
    ("given", "to", "reason"),
    [
        (1e6, "f16", "too large (expected at most 65504, given 1e+06)"),
        (1e6, "bf16", "has no such whole number"),
        (3e38, "bf16", None),
        (3.4e38, "bf16", "too large"),
        (1e-12, "f16", "loses its digits (expected at least 6.1e-05, given 1e-12)"),
        (1e-12, "bf16", None),
        (2049.0, "f16", "has no such whole number (given 2049)"),
        (2048.0, "f16", None),
        (0.1, "f16", None),
        (0.0, "f16", None),
        (-np.inf, "f16", None),
    ],
)
def test_constants(given: float, to: str, reason: str | None) -> None:
    before = graph_of(ew.Add()(Dot()(x, data(16, 3)), number(given)))
    after, reasons = convert(before, to)
    assert computed_in(after, ew.Add) == ({to} if reason is None else {"f32"})
    assert reason is None or reason in reasons["add"]
    assert computed_in(after, Dot) == {to}


def test_small_elements_matter_only_where_they_divide() -> None:
    mixed = np.array([1.0, 1e-9], np.float32)
    half = dtype("f16")
    assert constant_reason(mixed, half, "term") is None
    assert "loses its digits" in (constant_reason(mixed, half, "factor") or "")
    y = Dot()(x, data(16, 2))
    after, _ = convert(graph_of(ew.Div()(y, constant(mixed)), ew.Mul()(y, constant(mixed))))
    assert (computed_in(after, ew.Div), computed_in(after, ew.Mul)) == ({"f32"}, {"f16"})


def test_weights_that_do_not_fit_keep_their_layer() -> None:
    before = graph_of(Dot()(x, data(16, 3, scale=1e6)), Dot()(x, data(16, 3, scale=1e-6)))
    _, reasons = convert(before)
    assert "constant" in reasons["dot"]
    assert "f16" not in computed_in(convert(before)[0], Dot)


def test_masks_stay_finite() -> None:
    keep = value("bool[4, 8]", "keep")
    mask = ew.Where()(keep, number(0.0), number(-1e9))
    scores = Dot()(x, data(16, 8))
    check(graph_of(softmax(ew.Add()(scores, mask)), mask))
    q, k, v = (value(f"f32[1, 1, {n}, 16]", name) for name, n in (("q", 4), ("k", 8), ("v", 8)))
    attended = Attention(extra=("mask",))(q, k, v, mask)
    after, _ = convert(graph_of(attended))
    assert computed_in(after, Attention) == {"f16"}
    feeds = random_feeds(graph_of(attended)) | {"keep": np.zeros((4, 8), bool)}
    masks: list[Any] = []
    evaluate(after, feeds, lambda v, a: masks.append(a) if a.shape == (4, 8) else None)
    assert (masks[-1] == np.float16(-65504)).all()


def test_sums_of_integers_meet_their_scale_in_f32() -> None:
    a, b = value("i8[4, 512]", "a"), value("i8[512, 3]", "b")
    scale = ew.Sigmoid()(value("f32[1]", "s"))
    y = ew.Mul()(Cast(f32)(Dot(i32)(a, b)), ew.Mul()(scale, number(1e-3)))
    before = graph_of(Dot()(y, data(3, 2)))
    rng = np.random.default_rng(0)
    feeds = {n: np.full(s, 127, np.int8) for n, s in (("a", (4, 512)), ("b", (512, 3)))}
    after = check(before, "f16", {**feeds, "s": rng.normal(size=1).astype(np.float32)})
    assert computed_in(after, ew.Mul) == {"f32"}
    assert "f16" in computed_in(after, Dot)


def test_views_move_the_narrow_type() -> None:
    y = layer_norm(Dot()(x, data(16, 16)))
    moved = Transpose((1, 0))(Reshape((8, 8))(y))
    after, _ = convert(graph_of(Dot()(moved, data(8, 2))))
    assert computed_in(after, Transpose) == computed_in(after, Reshape) == {"f16"}
    joined, _ = convert(graph_of(Dot()(Concat(1)(y, Dot()(x, data(16, 16))), data(32, 2))))
    assert computed_in(joined, Concat) == {"f16"}


def test_casts_are_shared_and_those_of_the_model_vanish() -> None:
    y = layer_norm(x)
    before = graph_of(Dot()(y, data(16, 2)), Dot()(y, data(16, 3)), Dot()(y, data(16, 4)))
    assert count(convert(before)[0]) == 1 + 3
    half = value("f16[4, 16]", "half")
    inside = Cast(dtype("f16"))(Dot()(Cast(f32)(half), data(16, 2)))
    after, _ = convert(graph_of(inside))
    assert count(after) == 0


def test_counting_stays() -> None:
    places = Cast(f32)(value("i64[4]", "i"))
    angles = ew.Sin()(ew.Mul()(places, number(0.1)))
    rounded = Cast(i64)(ew.Floor()(ew.Mul()(x, number(3.7))))
    flags = Cast(f32)(value("bool[4, 16]", "flag"))
    bytes_ = Cast(f32)(value("i8[4, 16]", "byte"))
    after, reasons = convert(graph_of(angles, rounded, ew.Add()(ew.Mul()(flags, x), bytes_)))
    assert computed_in(after, ew.Sin) == computed_in(after, ew.Floor) == {"f32"}
    assert reasons["cast"] == "numbers of type i64 need not fit f16"
    assert "whole step" in reasons["floor"]
    assert computed_in(after, ew.Add) == {"f16"}
    assert convert(graph_of(rounded))[0] == graph_of(rounded)


def test_comparisons_take_the_type_of_what_they_compare() -> None:
    y = Dot()(x, data(16, 3))
    after, _ = convert(graph_of(ew.Less()(y, number(0.5)), ew.Less()(ew.Exp()(y), y)))
    read = {tuple(str(i.dtype) for i in v.inputs) for v in after.values if v.op.name == "less"}
    assert read == {("f16", "f16"), ("f32", "f32")}


def test_dequantised_weights_keep_f32_scales() -> None:
    packed = constant(RNG.integers(-8, 8, (16, 4)).astype(np.int8))
    # Scales that f16 would round by a percent.
    w = Dequantize(f32, 1)(packed, data(4, scale=1e-4))
    after = check(graph_of(Dot()(x, w)))
    (made,) = [v for v in after.values if isinstance(v.op, Dequantize)]
    assert (str(made.dtype), str(made.inputs[1].dtype)) == ("f16", "f32")
    sums = Dequantize(f32)(value("i32[4, 16]", "sums"), number(0.1))
    _, reasons = convert(graph_of(Dot()(sums, data(16, 2))))
    assert reasons["dequantize"] == "sums of i32 may exceed f16"
    assert packed.dtype == i8


def test_recurrent_state_stays() -> None:
    from tests.ops.test_samples import CASES

    (op, sample), *_ = [c.values for c in CASES if c.values[0] is Rnn]
    graph, feeds = sample_graph(op, sample)
    after, reasons = convert(graph)
    assert "state" in "".join(reasons.values()) or after == graph
    compare(graph, after, feeds)


def test_models_of_doubles_are_left_alone() -> None:
    environment = Environment()
    y = Cast(f64)(Dot()(x, data(16, 3)))
    before = graph_of(y, ew.Exp()(x))
    assert run_pass(ConvertPrecision("f16"), before, environment) == before
    (miss,) = environment.trace.nearest("convert_precision")
    assert "computes in f64" in miss.reason
    assert not environment.trace.fired


def test_branches_keep_the_types_they_share() -> None:
    def branch(scale: float) -> Graph:
        a = Input("a", parse_type("f32[4, 16]"))()
        return Graph((a,), (("y", Dot()(a, data(16, 3, scale=scale))),))

    flag = value("bool[]", "flag")
    (y,) = unpack(If(branch(1.0), branch(2.0))(flag, Dot()(x, data(16, 16)), x))
    before = graph_of(ew.Neg()(y))
    for edges in ("keep", "convert"):
        after, _ = convert(before, "f16", edges)
        (made,) = [v.op for v in after.values if isinstance(v.op, If)]
        assert computed_in(made.then, Dot) == {"f16"}
        assert [str(t) for t in made.then.output_types] == ["f32[4, 3]"]
    check(before)


def test_loops_carry_their_state_in_f32() -> None:
    i, go = Input("i", TensorType(i64, ()))(), Input("go", TensorType(boolean, ()))()
    s, w = Input("s", parse_type("f32[4, 4]"))(), Input("w", parse_type("f32[4, 4]"))()
    body = Graph((i, go, s, w), (("go", go), ("s", ew.Tanh()(Dot()(s, w)))))
    state, weights = value("f32[4, 4]", "state"), value("f32[4, 4]", "weights")
    loop = Loop(body, 1)(constant(np.int64(5)), constant(np.bool_(True)), state, weights)
    before = graph_of(*unpack(loop))
    after = check(before)
    (made,) = [v.op for v in after.values if isinstance(v.op, Loop)]
    assert computed_in(made.body, Dot) == {"f16"}
    assert made.body.input_types == body.input_types


def test_memory_that_is_written_in_place_keeps_its_type() -> None:
    past, step = value("f32[1, 8, 4]", "past"), value("f32[1, 1, 4]", "step")
    new = CacheUpdate(1)(past, ew.Neg()(step), value("i64[1]", "start"))
    before = replace(graph_of(new), donations=(("y0", "past"),))
    after, reasons = convert(before)
    assert computed_in(after, CacheUpdate) == {"f32"}
    assert "memory of an input" in reasons["cache_update"]
    after, _ = convert(before, "f16", "convert")
    assert computed_in(after, CacheUpdate) == {"f16"}


def test_the_trace_says_what_was_kept() -> None:
    total = ReduceSum((1,))(Dot()(x, data(16, 3)))
    before = graph_of(total, origins={total: "sum_7"})
    environment = Environment()
    run_pass(ConvertPrecision("f16"), before, environment)
    assert environment.trace.counts() == {"convert_precision": 1}
    (miss,) = environment.trace.nearest("convert_precision")
    assert miss.origin == "sum_7"
    assert miss.reason.startswith("reduce_sum: it sums or multiplies many elements")


def test_a_limit_leaves_the_rest_alone() -> None:
    before = graph_of(Dot()(Dot()(x, data(16, 16)), data(16, 3)))
    after = verify(run_pass(ConvertPrecision("f16"), before, Environment(limit=1)))
    assert [str(v.dtype) for v in after.values if isinstance(v.op, Dot)] == ["f16", "f32"]


SAMPLES = [
    pytest.param(op, s, id=f"{op.name}-{i}")
    for op in OPS.values()
    for i, s in enumerate(op.samples)
]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_converts_or_stays(op: type[Op], sample: Sample) -> None:
    graph, feeds = sample_graph(op, sample)
    for to in NARROW:
        after, _ = convert(graph, to)
        assert all(map(accepts, after.output_types, graph.output_types))
        changed, _ = convert(graph, to, "convert")
        verify(changed)
        floats = all(isinstance(t, TensorType) and t.dtype.is_float for t in graph.output_types)
        if floats and op.pure:
            compare(graph, after, feeds)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("hf_bert_sdpa", "f16"),
        ("hf_bert_sdpa", "bf16"),
        ("genai_llama_fp32", "f16"),
        ("genai_llama_int4", "f16"),
        ("magika_v3_3", "f16"),
        ("khmercut_int8", "f16"),
        ("ppocrv6_rec_tiny", "f16"),
        # A sum over an image exceeds what f16 holds.
        ("ppocrv6_det_tiny", "f16"),
        # Its activations fall to 1e-9, below what f16 holds.
        ("tv_mobilenet_v3_small", "f16"),
        ("tv_mobilenet_v3_small", "bf16"),
    ],
)
def test_real_models(name: str, to: str) -> None:
    folder = SHARED / name
    if not folder.exists():
        pytest.skip(f"{folder} is not on this machine")
    recorded = np.load(folder / "io.npz")
    feeds = {k[3:]: recorded[k] for k in recorded.files if k.startswith("in:")}
    model = read_model(str(folder / "model.onnx"))
    before = import_model(model, shapes={k: v.shape for k, v in feeds.items()})
    options = PassOptions(overrides={"convert_precision": {"to": to}})
    after = optimise(before, options=options)
    assert after.output_types == before.output_types
    assert to in computed_in(after, Dot) | computed_in(after, Conv) | {
        str(v.dtype) for v in after.values if isinstance(v.type, TensorType)
    }
    compare(before, after, feeds)
    # What is allowed is a small part of the largest element, not all of it.
    assert to == "bf16" or all(t.rtol < 0.1 for t in derive(after).values())
