"""LayerNorm and RMSNorm, in the spellings of exporters."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ir.dtype import f16, f32
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, RmsNorm
from monograph.ops.elementwise import Add, Clip, Div, Max, Mul, Pow, Sqrt, Sub
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Broadcast, Reshape, Unsqueeze
from monograph.rewrite import rules_in
from monograph.rules import norms as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 4, 6]")
SCALE = constant(np.linspace(0.5, 2, 6, dtype=np.float32))
BIAS = constant(np.linspace(-1, 1, 6, dtype=np.float32))
RULES = rules_in(rules)


def k(number: float) -> Value:
    return constant(np.float32(number))


def mean(v: Value, *axes: int) -> Value:
    count = int(np.prod([v.tensor.static[a] for a in axes]))
    return Div()(ReduceSum(axes, keep=True)(v), k(count))


def centred(v: Value, *axes: int) -> Value:
    return Sub()(v, mean(v, *axes))


def deviation(square: Value, *axes: int, epsilon: float = 1e-5) -> Value:
    return Sqrt()(Add()(mean(square, *axes), k(epsilon)))


def layer_norm(v: Value, *axes: int) -> Value:
    d = centred(v, *axes)
    return Div()(d, deviation(Mul()(d, d), *axes))


def rms_norm(v: Value, *axes: int) -> Value:
    return Div()(v, deviation(Mul()(v, v), *axes))


EPSILON = float(np.float32(1e-5))
LAYER = LayerNorm((2,), EPSILON)
RMS = RmsNorm((2,), EPSILON)


@pytest.mark.parametrize("axes", [(2,), (1, 2), (1,)])
def test_layer_norm_along_axes(axes: tuple[int, ...]) -> None:
    after = graph_of(LayerNorm(axes, EPSILON)(x))
    check_rewrite(graph_of(layer_norm(x, *axes)), RULES, after)


def test_with_scale_and_bias() -> None:
    before = Add()(Mul()(layer_norm(x, 2), SCALE), BIAS)
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(x, SCALE, BIAS)))


def test_with_a_scale_only() -> None:
    before = Mul()(SCALE, layer_norm(x, 2))
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(x, SCALE)))


def test_with_parameters_that_are_inputs() -> None:
    scale, bias = value("f32[6]", "scale"), value("f32[6]", "bias")
    before = Add()(Mul()(layer_norm(x, 2), scale), bias)
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(x, scale, bias)))


def test_square_as_a_power_and_product_with_the_reciprocal() -> None:
    d = centred(x, 2)
    spread = deviation(Pow()(d, k(2)), 2)
    before = Mul()(d, Div()(k(1), spread))
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(x)))


def test_the_root_as_a_power() -> None:
    d = centred(x, 2)
    variance = Add()(mean(Mul()(d, d), 2), k(1e-5))
    for before in (Mul()(d, Pow()(variance, k(-0.5))), Div()(d, Pow()(variance, k(0.5)))):
        check_rewrite(graph_of(before), RULES, graph_of(LAYER(x)))


def test_mean_by_the_reciprocal() -> None:
    d = Sub()(x, Mul()(ReduceSum((2,), keep=True)(x), k(1 / 6)))
    square = Mul()(ReduceSum((2,), keep=True)(Mul()(d, d)), k(1 / 6))
    before = Div()(d, Sqrt()(Add()(square, k(1e-5))))
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(x)))


@pytest.mark.parametrize("bound", ["max", "clip", "none"])
def test_variance_as_a_difference_of_means(bound: str) -> None:
    """As flax writes it: E[x^2] - E[x]^2, sums without their axis, the scale in the factor."""
    average = Mul()(ReduceSum((1,))(x), k(1 / 4))
    square = Mul()(ReduceSum((1,))(Mul()(x, x)), k(1 / 4))
    variance = Sub()(square, Mul()(average, average))
    if bound != "none":
        variance = Max()(k(0), variance) if bound == "max" else Clip(lo=0.0)(variance)
    back = Broadcast((2, 1, 6))(Reshape((2, 1, 6))(variance))
    scale = constant(np.arange(4, dtype=np.float32).reshape(1, 4, 1))
    factor = Mul()(Div()(k(1), Sqrt()(Add()(back, k(1e-5)))), scale)
    before = Mul()(Sub()(x, Reshape((2, 1, 6))(average)), factor)
    after = graph_of(LayerNorm((1,), EPSILON)(x, scale))
    check_rewrite(graph_of(before), RULES, after)


def test_half_floats_computed_in_wide_ones() -> None:
    h = value("f16[2, 4, 6]")
    scale, bias = (constant(np.linspace(a, 1, 6, dtype=np.float16)) for a in (0.5, -1))
    for norm, op in ((layer_norm, LAYER), (rms_norm, RMS)):
        inner = Mul()(Cast(f16)(norm(Cast(f32)(h), 2)), scale)
        check_rewrite(graph_of(inner), RULES, graph_of(op(h, scale)))
    before = Add()(Mul()(Cast(f16)(layer_norm(Cast(f32)(h), 2)), scale), bias)
    check_rewrite(graph_of(before), RULES, graph_of(LAYER(h, scale, bias)))


def test_parameters_in_the_wide_type_keep_the_casts() -> None:
    wide = Cast(f32)(value("f16[2, 4, 6]"))
    before = Cast(f16)(Mul()(layer_norm(wide, 2), SCALE))
    check_rewrite(graph_of(before), RULES, graph_of(Cast(f16)(LAYER(wide, SCALE))))


def test_rms_norm() -> None:
    before = Mul()(rms_norm(x, 2), SCALE)
    check_rewrite(graph_of(before), RULES, graph_of(RMS(x, SCALE)))


def test_rms_norm_by_the_reciprocal_of_a_product() -> None:
    v = Mul()(x, value("f32[2, 4, 6]", "y"))
    before = Mul()(SCALE, Mul()(v, Div()(k(1), deviation(Pow()(v, k(2)), 2))))
    check_rewrite(graph_of(before), RULES, graph_of(RMS(v, SCALE)))


def test_no_epsilon() -> None:
    d = centred(x, 2)
    before = Div()(d, Sqrt()(mean(Mul()(d, d), 2)))
    check_rewrite(graph_of(before), RULES, graph_of(LayerNorm((2,), 0.0)(x)))


def declining() -> dict[str, tuple[Value, str]]:
    d, other = centred(x, 2), centred(x, 1)
    square = value("f32[6, 6, 6]")
    flat = Sub()(square, Div()(ReduceSum((2,))(square), k(6)))
    summed = Sqrt()(Add()(ReduceSum((2,), keep=True)(Mul()(x, x)), k(1e-5)))
    open_ = value('f32[2, "n"]')
    total = Mul()(ReduceSum((1,), keep=True)(Mul()(open_, open_)), k(0.25))
    return {
        "axes": (Div()(other, deviation(Mul()(other, other), 2)), "different axes"),
        "sum": (Div()(x, summed), "not divided by the number of its terms (expected 0.16"),
        "mean off": (Div()(flat, deviation(Mul()(flat, flat), 2)), "does not line up"),
        "number": (Div()(Mul()(d, k(2)), deviation(Mul()(d, d), 2)), "multiplied by a number"),
        "unknown": (Div()(open_, Sqrt()(total)), "number of terms is not known"),
    }


@pytest.mark.parametrize("case", ["axes", "sum", "mean off", "number", "unknown"])
def test_what_is_not_a_norm_stays(case: str) -> None:
    before, reason = declining()[case]
    check_declines(graph_of(before), [rules.recognise_norm], reason)


def test_a_deviation_that_stands_elsewhere_stays() -> None:
    v = value("f32[6, 6]")
    spread = Sqrt()(Add()(Div()(ReduceSum((1,))(Mul()(v, v)), k(6)), k(1e-5)))
    check_declines(graph_of(Div()(v, spread)), [rules.recognise_norm], "does not line up")


def test_the_square_of_a_norm_is_not_a_norm() -> None:
    spread = deviation(Mul()(x, x), 2)
    before = graph_of(Mul()(x, Div()(Div()(k(1), spread), spread)))
    check_declines(before, [rules.recognise_norm_by_product], "more than a scale")


@pytest.mark.parametrize("part", ["mean", "deviation"])
def test_statistics_with_another_user_stay(part: str) -> None:
    """As LayerNormalization gives them out: the op would compute them again."""
    before = layer_norm(x, 2)
    shared = before.inputs[0].inputs[1] if part == "mean" else before.inputs[1]
    check_declines(graph_of(before, shared), [rules.recognise_norm], "has another user")


def test_a_norm_that_two_layers_scale_stays_one() -> None:
    norm = LAYER(x)
    before = graph_of(Mul()(norm, SCALE), Mul()(norm, BIAS))
    check_declines(before, [rules.scale_norm], "layer_norm has another user (expected 1, given 2)")


def test_a_residual_is_not_a_bias() -> None:
    norm = LAYER(x, SCALE)
    before = graph_of(Add()(norm, value("f32[2, 4, 6]", "y")))
    check_declines(before, [rules.shift_norm], "varies along other axes")


def test_a_residual_of_one_row_is_not_a_bias() -> None:
    row = value("f32[1, 1, 6]")
    before = graph_of(Add()(LAYER(row, SCALE), Mul()(row, row)))
    check_declines(before, [rules.shift_norm], "computed at run time")


def test_a_scale_of_another_axis_stays() -> None:
    scale = Unsqueeze((1,))(value("f32[4]", "y"))
    check_declines(graph_of(Mul()(LAYER(x), scale)), [rules.scale_norm], "along other axes")
