"""Scales, biases and padding move into the layer beside them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Div, Exp, Mul, Neg, Sqrt, Sub
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.passes.base import Environment, run_pass
from monograph.passes.fold_constants import FoldConstants
from monograph.passes.rule_passes import FoldScales, Simplify
from monograph.rules import scales as rules
from tests.rules.checks import check_declines, check_numbers, check_rewrite, graph_of, value

rng = np.random.default_rng(0)
PLAIN = Conv((1, 1), (0, 0), (0, 0), (1, 1))
PADDED = Conv((1, 1), (1, 1), (1, 1), (1, 1))


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


x = value("f32[2, 4, 6, 5]")
m = value("f32[3, 8]", "m")


def test_subtraction_becomes_addition() -> None:
    k = weight(8)
    negated = constant(-k.op.value.array)
    check_rewrite(graph_of(Sub()(m, k)), [rules.subtract_constant], graph_of(Add()(m, negated)))
    whole = value("u8[3]")
    before = graph_of(Sub()(whole, constant(np.uint8(3))))
    check_declines(before, [rules.subtract_constant], "must be a float")


def test_signs_go_into_scales() -> None:
    before = graph_of(Neg()(Mul()(m, weight(8))))
    check_rewrite(before, [rules.negate_scale])


def test_biases_and_scales_merge() -> None:
    check_rewrite(graph_of(Add()(Add()(m, weight(8)), weight(3, 1))), [rules.merge_biases])
    check_rewrite(graph_of(Mul()(Mul()(m, weight(8)), weight(1))), [rules.merge_scales])


def test_joint_constants_stay_in_range() -> None:
    half = value("f16[3, 8]", "h")

    def number(n: float) -> Value:
        return constant(np.float16(n))

    wide = Mul()(Mul()(half, number(1e3)), number(1e3))
    check_declines(graph_of(wide), [rules.merge_scales], "overflows")
    narrow = Mul()(Mul()(half, number(1e-3)), number(1e-3))
    check_declines(graph_of(narrow), [rules.merge_scales], "loses bits")
    far = Add()(Add()(half, number(6e4)), number(6e4))
    check_declines(graph_of(far), [rules.merge_biases], "overflows")
    small = constant(rng.uniform(1e-3, 2e-3, (8, 4)).astype(np.float16))
    scaled = Mul()(Dot()(half, small), number(1e-3))
    check_declines(graph_of(scaled), [rules.scale_into_dot], "loses bits")


def test_constants_that_enlarge_do_not_merge_wrongly() -> None:
    row = value("f32[1, 8]", "r")
    before = graph_of(Add()(Add()(row, weight(3, 1)), weight(5, 1, 1)))
    after = check_rewrite(before, [rules.merge_biases])
    assert after.output_types == before.output_types


@pytest.mark.parametrize("op", [PLAIN, PADDED], ids=["plain", "padded"])
def test_a_scale_per_channel_goes_into_the_weights(op: Conv) -> None:
    before = graph_of(Mul()(op(x, weight(6, 4, 3, 3)), weight(6, 1, 1)))
    after = check_rewrite(before, [rules.scale_into_conv])
    assert [v.op.name for v in after.values] == ["input", "constant", "conv"]


def test_a_scale_that_varies_over_the_image_stays() -> None:
    before = graph_of(Mul()(PADDED(x, weight(6, 4, 3, 3)), weight(6, 5)))
    check_declines(before, [rules.scale_into_conv], "not one per channel")


def test_a_layer_with_another_user_keeps_its_weights() -> None:
    conv = PADDED(x, weight(6, 4, 3, 3))
    before = graph_of(Mul()(conv, weight(6, 1, 1)), Exp()(conv))
    check_declines(before, [rules.scale_into_conv], "another user (expected 1, given 2)")


def test_dynamic_weights_stay() -> None:
    w = value("f32[6, 4, 3, 3]", "w")
    before = graph_of(Mul()(PADDED(x, w), weight(6, 1, 1)))
    check_declines(before, [rules.scale_into_conv], "not constant")


def test_scales_pass_a_bias_on_the_way() -> None:
    conv = PADDED(x, weight(6, 4, 3, 3))
    before = graph_of(Mul()(Add()(conv, weight(6, 1, 1)), weight(6, 1, 1)))
    check_rewrite(before, [rules.scale_through_bias, rules.scale_into_conv])
    plain = graph_of(Mul()(Add()(Exp()(m), weight(8)), weight(8)))
    check_declines(plain, [rules.scale_through_bias], "no layer with a bias")


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_scaled_input(groups: int) -> None:
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1), groups)
    before = graph_of(op(Mul()(x, weight(4, 1, 1)), weight(8, 4 // groups, 3, 3)))
    check_rewrite(before, [rules.conv_of_scaled])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_biased_input_needs_a_convolution_without_padding(groups: int) -> None:
    op = Conv((1, 1), (0, 0), (0, 0), (1, 1), groups)
    biased = Add()(x, weight(4, 1, 1))
    w = weight(8, 4 // groups, 3, 3)
    check_rewrite(graph_of(op(biased, w)), [rules.conv_of_biased])
    one = [tuple(int(i == k) for i in range(4)) for k in range(4)]
    for pads in ((1, 1, 1, 1), *one):  # at one end of one axis is enough
        padded = Conv((1, 1), pads[:2], pads[2:], (1, 1), groups)
        check_declines(graph_of(padded(biased, w)), [rules.conv_of_biased], "padding is zero")


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5)])
def test_a_scale_goes_into_a_dot(shape: tuple[int, ...]) -> None:
    before = graph_of(Mul()(Dot()(m, weight(8, 5)), weight(*shape)))
    after = check_rewrite(before, [rules.scale_into_dot])
    assert [v.op.name for v in after.values] == ["input", "constant", "dot"]


def test_a_scale_per_row_stays() -> None:
    before = graph_of(Mul()(Dot()(m, weight(8, 5)), weight(3, 1)))
    check_declines(before, [rules.scale_into_dot], "not one per column")


def test_padding_goes_into_the_convolution() -> None:
    pad = Pad((0, 0, 1, 0), (0, 0, 2, 1))
    w = weight(6, 4, 3, 3)
    expected = graph_of(Conv((1, 1), (2, 1), (3, 2), (1, 1))(x, w))
    check_rewrite(graph_of(PADDED(pad(x), w)), [rules.pad_into_conv], expected)
    zero = constant(np.float32(0))
    both = [rules.pad_into_conv, rules.pad_zero_into_conv]
    check_rewrite(graph_of(PADDED(pad(x, zero), w)), both, expected)


@pytest.mark.parametrize(
    ("pad", "reason"),
    [
        (Pad((0, 0, 1, 0), (0, 0, 0, 0), "edge"), "not of zeros"),
        (Pad((0, 0, -1, 0), (0, 0, 0, 0)), "removes"),
        (Pad((1, 0, 0, 0), (0, 0, 0, 0)), "batch or channels"),
    ],
)
def test_padding_that_stays(pad: Pad, reason: str) -> None:
    before = graph_of(PADDED(pad(x), weight(6, 4, 3, 3)))
    check_declines(before, [rules.pad_into_conv], reason)


def test_padding_with_another_number_stays() -> None:
    pad = Pad((0, 0, 1, 0), (0, 0, 2, 1))
    before = graph_of(PADDED(pad(x, constant(np.float32(1))), weight(6, 4, 3, 3)))
    check_declines(before, [rules.pad_zero_into_conv], "not of zeros (expected 0, given 1.0)")


def test_batch_norm_disappears() -> None:
    channels = (6, 1, 1)
    conv = PADDED(x, weight(6, 4, 3, 3))
    spread = Sqrt()(Add()(constant(np.full(channels, 2.0, np.float32)), constant(np.float32(1e-5))))
    normal = Div()(Sub()(conv, weight(*channels)), spread)
    before = graph_of(Add()(Mul()(normal, weight(*channels)), weight(*channels)))
    after = before
    for step in (FoldConstants(), Simplify(), FoldScales()):
        after = run_pass(step, after, Environment())
    check_numbers(before, after, exact=False)
    counts = Counter(v.op.name for v in after.values)
    assert counts == {"input": 1, "constant": 2, "conv": 1, "add": 1}


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_stay_outside_of_sums(number: float) -> None:
    """inf * (2 - 1) is inf, but inf * 2 - inf * 1 is NaN; and padding is 0, not 0 * inf."""
    k, w = np.ones((4, 1, 1), np.float32), weight(4, 4, 3, 3)
    k[1] = number
    odd = constant(k)
    made = {
        rules.scale_through_bias: Mul()(Add()(PADDED(x, w), weight(4, 1, 1)), odd),
        rules.scale_into_conv: Mul()(PADDED(x, w), odd),
        rules.conv_of_scaled: PADDED(Mul()(x, odd), w),
        rules.conv_of_biased: PLAIN(Add()(x, odd), w),
        rules.scale_into_dot: Mul()(Dot()(m, weight(8, 4)), constant(k.reshape(-1))),
    }
    for rule, value_ in made.items():
        check_declines(graph_of(value_), [rule], "the constant is not finite")
