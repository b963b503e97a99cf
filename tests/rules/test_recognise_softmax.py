"""Softmax and its logarithm, in the spellings of exporters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ir.dtype import f16, f32
from monograph.ops.cast import Cast
from monograph.ops.composite import LogSoftmax, Softmax
from monograph.ops.elementwise import Div, Exp, Log, Max, Mul, Sub
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.shape import Broadcast, Reshape, Unsqueeze
from monograph.rewrite import rules_in
from monograph.rules import recognise_softmax as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 5, 3]")
RULES = rules_in(rules)
ONE = constant(np.float32(1))


def shifted(v: Value, *axes: int) -> Value:
    return Sub()(v, ReduceMax(axes, keep=True)(v))


def softmax(v: Value, *axes: int) -> Value:
    e = Exp()(shifted(v, *axes))
    return Div()(e, ReduceSum(axes, keep=True)(e))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(axis: int) -> None:
    check_rewrite(graph_of(softmax(x, axis)), RULES, graph_of(Softmax(axis)(x)))


def test_by_the_reciprocal() -> None:
    e = Exp()(shifted(x, 2))
    before = Mul()(e, Div()(ONE, ReduceSum((2,), keep=True)(e)))
    check_rewrite(graph_of(before), RULES, graph_of(Softmax(2)(x)))


def test_axes_that_are_put_back_by_views() -> None:
    largest = Max()(constant(np.float32(-math.inf)), ReduceMax((1,))(x))
    back = Broadcast((2, 1, 3))(Reshape((2, 1, 3))(largest))
    e = Exp()(Sub()(x, Broadcast((2, 5, 3))(back)))
    before = Div()(e, Unsqueeze((1,))(ReduceSum((1,))(e)))
    check_rewrite(graph_of(before), RULES, graph_of(Softmax(1)(x)))


def test_axes_of_size_one_do_not_count() -> None:
    v = value("f32[2, 5, 1, 1]")
    check_rewrite(graph_of(softmax(v, 1, 2, 3)), RULES, graph_of(Softmax(1)(v)))


def test_half_floats_computed_in_wide_ones() -> None:
    h = value("f16[2, 5, 3]")
    before = Cast(f16)(softmax(Cast(f32)(h), 2))
    check_rewrite(graph_of(before), RULES, graph_of(Softmax(2)(h)))


def test_a_cast_of_something_wide_stays() -> None:
    before = graph_of(Cast(f16)(Softmax(2)(x)))
    check_declines(before, [rules.narrow_softmax], "not of the type of the result")


def test_a_wide_result_that_is_used_stays() -> None:
    wide = Softmax(2)(Cast(f32)(value("f16[2, 5, 3]")))
    before = graph_of(Cast(f16)(wide), wide)
    check_declines(before, [rules.narrow_softmax], "softmax has another user")


def test_log_softmax() -> None:
    below = shifted(x, 1)
    before = Sub()(below, Log()(ReduceSum((1,), keep=True)(Exp()(below))))
    check_rewrite(graph_of(before), RULES, graph_of(LogSoftmax(1)(x)))


def test_log_softmax_of_another_axis_stays() -> None:
    below = shifted(x, 1)
    before = graph_of(Sub()(below, Log()(ReduceSum((2,), keep=True)(Exp()(below)))))
    check_declines(before, [rules.recognise_log_softmax], "different axes")


def over_sum(e: Value, axis: int = 2) -> Value:
    return Div()(e, ReduceSum((axis,), keep=True)(e))


SQUARE = value("f32[3, 3, 3]")
UNLIKE = Exp()(shifted(SQUARE, 2))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (over_sum(Exp()(x)), "no maximum is subtracted"),
        (over_sum(Exp()(shifted(x, 2)), 1), "different axes (expected (2,), given (1,))"),
        (over_sum(Exp()(Sub()(x, ReduceSum((2,), keep=True)(x)))), "not the maximum"),
        (softmax(x, 1, 2), "several axes"),
        (Div()(UNLIKE, ReduceSum((2,))(UNLIKE)), "not put back in place"),
    ],
)
def test_what_is_not_softmax_stays(before: Value, reason: str) -> None:
    check_declines(graph_of(before), [rules.recognise_softmax], reason)


def test_an_exponential_with_another_user_stays() -> None:
    before = softmax(x, 2)
    both = graph_of(before, before.inputs[0])
    check_declines(both, [rules.recognise_softmax], "exp has another user (expected 2, given 3)")
