"""Values whose numbers do not fit f16 stay in f32, and nothing else does for its range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from monograph.ir import (
    Graph,
    Input,
    Op,
    Sample,
    Value,
    constant,
    dtype,
    evaluate,
    parse_type,
    unpack,
)
from monograph.ir.dtype import boolean, f32, i64
from monograph.ir.types import TensorType
from monograph.ops import OPS, composite
from monograph.ops import elementwise as ew
from monograph.ops.attention import Attention
from monograph.ops.control import If, Loop
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.random import RandomNormal
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape
from monograph.passes.base import Environment, run_pass
from monograph.passes.precision import precision_plan, range_probe
from monograph.passes.precision.convert_precision import ConvertPrecision
from monograph.passes.precision.precision_plan import MISFIT, find_bounds
from monograph.passes.precision.precision_rules import Magnitude, range_reason
from monograph.passes.precision.range_probe import TURNS, WORK, Rehearsal
from tests.passes.test_convert_precision import check, computed_in, convert, data, number
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

x = value("f32[4, 16]")
HALF = dtype("f16")


def layer(v: Value, outputs: int, scale: float = 1.0) -> Value:
    """A dense layer whose numbers are about `scale` times as large as what it reads."""
    inputs = v.tensor.static[-1]
    return Dot()(v, data(inputs, outputs, scale=scale / math.sqrt(inputs)))


def tall(v: Value) -> Value:
    """Numbers near a million, of weights and inputs that fit f16."""
    return layer(layer(v, 16, 300.0), 16, 3000.0)


def largest_in(graph: Graph, feeds: dict[str, Any]) -> float:
    found: list[float] = []
    evaluate(graph, feeds, lambda v, a: found.append(float(np.abs(a.astype(np.float64)).max())))
    return max(found)


def pooled(scale: float) -> Graph:
    """The mean of an image, its division moved into the weights that read the sum."""
    image = value("f32[1, 8, 48, 48]", "image")
    total = ReduceSum((2, 3), keep=True)(ew.Clip(0.0)(ew.Mul()(image, number(scale))))
    weights = data(4, 8, 1, 1, scale=1 / 480)
    return graph_of(Conv((1, 1), (0, 0), (0, 0), (1, 1))(total, weights))


def test_a_sum_that_exceeds_f16_is_read_in_f32() -> None:
    before = pooled(100.0)
    after, reasons = convert(before)
    assert computed_in(after, Conv) == {"f32"}
    assert reasons["conv"].startswith(f"{MISFIT} (expected at most 4094, about")
    feeds = {"image": np.ones((1, 8, 48, 48), np.float32)}
    assert largest_in(before, feeds) > 65504
    check(before, "f16", feeds)


def test_a_sum_that_fits_is_read_in_f16() -> None:
    after, reasons = convert(pooled(1.0))
    assert computed_in(after, Conv) == {"f16"}
    assert "conv" not in reasons
    after, _ = convert(pooled(100.0), "bf16")
    assert computed_in(after, Conv) == {"bf16"}


def narrowing(scale: float) -> Graph:
    """Three layers, each of which makes its numbers smaller by the same factor."""
    v = x
    for _ in range(3):
        v = ew.Tanh()(layer(v, 16, scale))
    return graph_of(v)


def test_numbers_that_vanish_stay_in_f32() -> None:
    before = narrowing(2e-3)
    after, reasons = convert(before)
    assert [str(v.dtype) for v in after.values if isinstance(v.op, Dot)] == ["f16", "f32", "f32"]
    assert "too small (expected at least 0.00024, about" in reasons["dot"]
    check(before)


def test_numbers_that_keep_their_size_convert() -> None:
    after, reasons = convert(narrowing(1.0))
    assert computed_in(after, Dot) == {"f16"}
    assert reasons == {}
    after, _ = convert(narrowing(2e-3), "bf16")
    assert computed_in(after, Dot) == {"bf16"}


def test_small_terms_do_not_keep_their_sum() -> None:
    small = ew.Tanh()(layer(x, 16, 1e-6))
    joined = graph_of(ew.Add()(layer(x, 16), small), Concat(1)(layer(x, 16), small))
    after, _ = convert(joined)
    assert computed_in(after, ew.Add) == computed_in(after, Concat) == {"f16"}
    check(joined)
    # A factor is another matter: all digits of the product are its own.
    product = graph_of(ew.Mul()(layer(x, 16, 1e3), small))
    after, _ = convert(product)
    assert computed_in(after, ew.Mul) == {"f32"}
    check(product)


Make = Callable[[Value], Value]


@pytest.mark.parametrize(
    ("make", "fits"),
    [
        (lambda v: ew.Sigmoid()(v), True),
        (lambda v: ew.Tanh()(ew.Add()(Reshape((64,))(v), data(64))), True),
        (lambda v: ew.Erf()(ew.Mul()(v, number(0.7))), True),
        # x sigmoid(x) of minus infinity is NaN.
        (lambda v: ew.Mul()(v, ew.Sigmoid()(v)), False),
        (lambda v: composite.Silu()(v), False),
        # Infinities that cancel are NaN, and so is zero times infinity.
        (lambda v: ew.Sigmoid()(ew.Sub()(v, tall(x))), False),
        (lambda v: ew.Sigmoid()(ew.Mul()(v, constant(np.eye(4, 16, dtype=np.float32)))), False),
        # Another reader sees the infinity.
        (lambda v: Concat(1)(ew.Sigmoid()(v), v), False),
    ],
)
def test_overflow_is_harmless_where_only_saturating_ops_see_it(make: Make, fits: bool) -> None:
    before = graph_of(make(tall(x)))
    after, reasons = convert(before)
    assert computed_in(after, Dot) == ({"f16"} if fits else {"f16", "f32"})
    assert fits or "too large (expected at most 4094, about" in reasons["dot"]
    check(before)


def test_a_proved_bound_needs_no_room() -> None:
    steep = ew.Mul()(ew.Sigmoid()(layer(x, 16)), number(20000.0))
    after, _ = convert(graph_of(layer(steep, 3, 0.1)))
    assert computed_in(after, Dot) == {"f16"}
    # The same numbers, but nothing says that they end there.
    open_ended = ew.Mul()(ew.Clip(0.0)(layer(x, 16)), number(20000.0))
    after, reasons = convert(graph_of(layer(open_ended, 3, 0.1)))
    assert "too large" in reasons["mul"]
    assert computed_in(after, Dot) == {"f16", "f32"}


def test_rules_on_magnitudes() -> None:
    assert range_reason(Magnitude(), HALF) is None
    assert range_reason(Magnitude(4000.0), HALF) is None
    assert "too large" in (range_reason(Magnitude(5000.0), HALF) or "")
    assert range_reason(Magnitude(5000.0, 65504.0), HALF) is None
    assert range_reason(Magnitude(0.0), HALF) is None
    assert range_reason(Magnitude(3e-4), HALF) is None
    assert "too small" in (range_reason(Magnitude(2e-4), HALF) or "")
    assert range_reason(Magnitude(1e30), dtype("bf16")) is None


def test_a_large_mask_does_not_keep_its_attention() -> None:
    q, k, v = (value(f"f32[1, 2, {n}, 8]", name) for name, n in (("q", 4), ("k", 8), ("v", 8)))
    hidden = ew.Sub()(
        number(1.0), ew.Where()(value("bool[4, 8]", "keep"), number(1.0), number(0.0))
    )
    mask = ew.Mul()(hidden, number(-10000.0))
    before = graph_of(Attention(extra=("mask",))(q, k, v, mask))
    after, _ = convert(before)
    assert computed_in(after, Attention) == {"f16"}
    check(before)
    # Its values are: a mean of large ones is large.
    before = graph_of(Attention()(q, k, ew.Mul()(v, number(1e5))))
    assert computed_in(convert(before)[0], Attention) == {"f32"}


def test_weights_that_are_decoded_to_too_small_numbers_stay() -> None:
    packed = constant(np.arange(-32, 32, dtype=np.int8).reshape(16, 4))
    for scale, kind in ((1e-6, "f32"), (1e-3, "f16")):
        w = Dequantize(f32)(packed, number(scale))
        after, _ = convert(graph_of(Dot()(x, w)))
        assert computed_in(after, Dequantize) == {kind}


def test_branches_and_bodies_are_rehearsed_with_what_they_are_given() -> None:
    def branch(scale: float) -> Graph:
        a = Input("a", parse_type("f32[4, 16]"))()
        return Graph((a,), (("y", layer(layer(a, 16), 3, scale)),))

    wide = layer(x, 16, 1e3)
    (y,) = unpack(If(branch(1.0), branch(100.0))(value("bool[]", "flag"), wide, wide))
    after, _ = convert(graph_of(y))
    (made,) = [v.op for v in after.values if isinstance(v.op, If)]
    assert computed_in(made.then, Dot) == {"f16"}
    assert computed_in(made.orelse, Dot) == {"f16", "f32"}


def growing(turns: int) -> tuple[Graph, Loop]:
    i, go = Input("i", TensorType(i64, ()))(), Input("go", TensorType(boolean, ()))()
    s = Input("s", parse_type("f32[4, 16]"))()
    body = Graph((i, go, s), (("go", go), ("s", layer(s, 16, 30.0))))
    loop = Loop(body, 1)(constant(np.int64(turns)), constant(np.bool_(True)), x)
    return graph_of(*unpack(loop)), loop.op  # type: ignore[return-value]


def test_the_turns_of_a_loop_count() -> None:
    for turns, kind in ((1, "f16"), (4, "f32")):
        after, _ = convert(growing(turns)[0])
        (made,) = [v.op for v in after.values if isinstance(v.op, Loop)]
        assert computed_in(made.body, Dot) == {kind}
    before, _ = growing(TURNS + 1)
    environment = Environment()
    run_pass(ConvertPrecision("f16"), before, environment)
    reasons = [m.reason for m in environment.trace.nearest("convert_precision")]
    assert any(f"not known (it turns more than {TURNS} times)" in r for r in reasons)


def test_the_trace_says_what_stays_and_why() -> None:
    top = tall(x)
    before = graph_of(ew.Neg()(top), origins={top: "top_3"})
    environment = Environment()
    run_pass(ConvertPrecision("f16"), before, environment)
    reasons = {m.origin: m.reason for m in environment.trace.nearest("convert_precision")}
    assert reasons["top_3"].startswith("dot: its numbers grow too large (expected at most 4094")


def test_the_trace_lists_all_that_stays() -> None:
    v, origins = layer(x, 16, 2e-5), {}
    for i in range(100):
        v = ew.Tanh()(layer(v, 16))
        origins[v] = f"tanh_{i}"
    environment = Environment()
    run_pass(ConvertPrecision("f16"), graph_of(v, origins=origins), environment)
    listed = {m.origin for m in environment.trace.nearest("convert_precision")}
    assert listed >= set(origins.values())


def test_the_estimate_is_the_same_each_time_and_near_a_whole_run() -> None:
    rows = 1 << 12
    a, image = value(f"f32[{rows}, 64]", "a"), value("f32[1, 16, 96, 96]", "image")
    dot = layer(a, 64)
    conv = Conv((2, 1), (1, 1), (1, 1), (1, 2))(image, data(16, 16, 3, 3, scale=1 / 12))
    graph = graph_of(dot, conv)
    assert rows * 64 * 64 > WORK
    assert WORK < 16 * 16 * 9 * 48 * 96
    first, second = Rehearsal(graph), Rehearsal(graph)
    assert first.largest == second.largest
    feeds = dict(zip(graph.input_names, first.drawn, strict=True))
    whole = [float(np.abs(y).max()) for y in evaluate(graph, feeds)]
    for v, expected in zip((dot, conv), whole, strict=True):
        assert 0.5 * expected <= first.largest[v] <= expected * 1.001


def test_nothing_is_run_where_nothing_would_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Graph] = []

    def rehearsed(graph: Graph) -> Rehearsal:
        ran.append(graph)
        return Rehearsal(graph)

    monkeypatch.setattr(precision_plan, "Rehearsal", rehearsed)
    half = value("f16[4, 16]", "half")
    weights = constant(np.ones((16, 3), np.float16))
    convert(graph_of(ew.Exp()(x), Dot()(half, weights)))
    convert(graph_of(layer(x, 3)), "bf16")
    assert ran == []
    run_pass(ConvertPrecision("f16"), graph_of(layer(x, 3)), Environment())
    assert len(ran) == 1


def test_what_is_random_is_not_estimated() -> None:
    drawn = RandomNormal((4, 16), f32)()
    graph = graph_of(layer(drawn, 3), layer(x, 3, 1e5))
    rehearsal = Rehearsal(graph)
    assert list(rehearsal.unknown) == [drawn]
    assert [v.op.name for v in rehearsal.largest] == ["input", "dot"]


SAMPLES = [
    pytest.param(op, s, id=f"{op.name}-{i}")
    for op in OPS.values()
    for i, s in enumerate(op.samples)
]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_bounds_hold_for_every_op(op: type[Op], sample: Sample) -> None:
    """Constants are bounded, so what is made of constants must keep its bound, where it has one."""
    graph, feeds = sample_graph(op, sample)
    given = {v: feeds[n] for n, v in zip(graph.input_names, graph.inputs, strict=True)}
    if not all(isinstance(t, TensorType) and not t.dtype.is_string for t in graph.input_types):
        pytest.skip("its operands are no numbers")
    made: dict[Value, Value] = {v: constant(a) for v, a in given.items()}
    for v in graph.values:
        if v not in made:
            made[v] = v.op(*(made[i] for i in v.inputs))
    fixed = Graph((), tuple((n, made[v]) for n, v in graph.outputs))
    bounds = find_bounds(fixed)

    def look(v: Value, a: Any) -> None:
        if v in bounds and isinstance(a, np.ndarray):
            sizes = np.abs(a.astype(np.float64))
            assert (sizes[np.isfinite(sizes)] <= bounds[v] * (1 + 1e-3)).all()

    evaluate(fixed, {}, look)


@pytest.mark.parametrize(
    ("made", "bound"),
    [
        (ew.Sigmoid()(x), 1.0),
        (ew.Clip(-2.0, 6.0)(x), 6.0),
        (ew.Clip(0.0)(ew.Tanh()(x)), 1.0),
        (ew.Clip(0.0)(x), math.inf),
        (ew.Add()(ew.Tanh()(x), number(-3.0)), 4.0),
        (ew.Mul()(ew.Tanh()(x), number(-3.0)), 3.0),
        (ew.Mul()(x, number(2.0)), math.inf),
        (ew.Div()(ew.Tanh()(x), number(0.1)), math.inf),
        (ReduceSum((1,))(ew.Tanh()(x)), 16.0),
        (Dot()(ew.Tanh()(x), constant(np.full((16, 2), -0.5, np.float32))), 8.0),
        (Dot()(x, constant(np.full((16, 2), -0.5, np.float32))), math.inf),
        (composite.Softmax(1)(x), 1.0),
        (composite.RmsNorm((1,))(x, constant(np.full(16, 2.0, np.float32))), 8.0),
        (Dequantize(f32)(value("u8[3]", "codes"), number(0.5)), 128.0),
    ],
)
def test_bounds(made: Value, bound: float) -> None:
    assert find_bounds(graph_of(made)).get(made, math.inf) == bound


@pytest.mark.parametrize(("work", "rows"), [(60, 6), (59, 5), (30, 3), (1, 1)])
def test_an_estimate_takes_as_many_rows_of_a_product_as_it_may(
    work: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of [6, 5] x [5, 2] takes 10 products; those that are left out are like the first."""
    monkeypatch.setattr(range_probe, "WORK", work)
    a, b = np.arange(30.0).reshape(6, 5), np.ones((5, 2))
    expected = np.matmul(a, b)[np.arange(6) % rows]
    np.testing.assert_array_equal(range_probe._product(a, b), expected)
