"""SiLU and GELU, in the spellings of exporters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monograph.ir import Value, constant, dtype
from monograph.ops.composite import Gelu, Silu
from monograph.ops.elementwise import Add, Div, Erf, Exp, Mul, Neg, Pow, Sigmoid, Sub, Tanh
from monograph.rewrite import rules_in
from monograph.rules import arithmetic
from monograph.rules import recognise_activation as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x, y = value(), value(name="y")
RULES = rules_in(rules)


def k(number: float, kind: str = "f32") -> Value:
    return constant(np.asarray(number), dtype(kind))


def times(a: Value, number: float) -> Value:
    return Mul()(a, k(number, str(a.dtype)))


def plus(a: Value, number: float) -> Value:
    return Add()(a, k(number, str(a.dtype)))


@pytest.mark.parametrize(
    "before",
    [
        Mul()(x, Sigmoid()(x)),
        Mul()(Sigmoid()(x), x),
        Div()(x, Add()(k(1.0), Exp()(Neg()(x)))),
    ],
)
def test_silu(before: Value) -> None:
    check_rewrite(graph_of(before), RULES, graph_of(Silu()(x)))


def test_quick_gelu_is_not_silu() -> None:
    before = graph_of(Mul()(x, Sigmoid()(times(x, 1.702))))
    check_declines(before, [rules.recognise_silu], "x is")


def test_a_gate_is_not_silu() -> None:
    check_declines(graph_of(Mul()(x, Sigmoid()(y))), [rules.recognise_silu], "x is")


def test_a_sigmoid_with_another_user_stays() -> None:
    gate = Sigmoid()(x)
    before = graph_of(Mul()(x, gate), gate)
    check_declines(before, [rules.recognise_silu], "sigmoid has another user (expected 1, given 2)")


def test_an_exponential_with_another_user_stays() -> None:
    e = Exp()(Neg()(x))
    before = graph_of(Div()(x, Add()(k(1.0), e)), e)
    check_declines(before, [rules.recognise_silu_by_exp], "exp has another user")


def test_a_large_one_stays() -> None:
    ones = constant(np.ones((2, 4, 9), np.float32))
    before = graph_of(Div()(x, Add()(ones, Exp()(Neg()(x)))))
    check_declines(before, [rules.recognise_silu_by_exp], "larger than the value")


def erf_of(v: Value) -> Value:
    return Erf()(times(v, math.sqrt(0.5)))


ERF_SPELLINGS = {
    "half of x first": Mul()(times(x, 0.5), plus(erf_of(x), 1.0)),
    "half last": times(Mul()(x, plus(erf_of(x), 1.0)), 0.5),
    "half in the middle": Mul()(x, times(plus(erf_of(x), 1.0), 0.5)),
    "half shared out": Mul()(x, plus(times(erf_of(x), 0.5), 0.5)),
    "divided by the root": Mul()(times(x, 0.5), plus(Erf()(Div()(x, k(math.sqrt(2)))), 1.0)),
    "one as a matrix": Mul()(times(x, 0.5), Add()(erf_of(x), constant(np.ones((1, 1), "f4")))),
    "one minus": Mul()(times(x, 0.5), Sub()(k(1.0), Neg()(erf_of(x)))),
}


@pytest.mark.parametrize("before", ERF_SPELLINGS.values(), ids=list(ERF_SPELLINGS))
def test_gelu(before: Value) -> None:
    check_rewrite(graph_of(before), RULES, graph_of(Gelu()(x)))


def test_gelu_that_is_divided_by_two() -> None:
    before = Div()(Mul()(plus(erf_of(x), 1.0), x), k(2.0))
    both = [arithmetic.divide_by_constant, *RULES]
    check_rewrite(graph_of(before), both, graph_of(Gelu()(x)))


def argument(v: Value, cube: Value) -> Value:
    return times(Add()(v, times(cube, 0.044715)), math.sqrt(2 / math.pi))


ROOT = math.sqrt(2 / math.pi)
TANH_ARGUMENTS = {
    "product": argument(x, Mul()(Mul()(x, x), x)),
    "power": argument(x, Pow()(x, k(3.0))),
    "factor inside": times(Add()(x, Mul()(x, Mul()(x, times(x, 0.044715)))), ROOT),
    "x taken out": Mul()(times(x, 0.7978845608), plus(times(Mul()(x, x), 0.044715), 1.0)),
    "expanded": Add()(times(x, ROOT), times(Mul()(x, Pow()(x, k(2.0))), 0.0356774081)),
}


@pytest.mark.parametrize("inner", TANH_ARGUMENTS.values(), ids=list(TANH_ARGUMENTS))
@pytest.mark.parametrize("half_first", [False, True])
def test_gelu_by_tanh(inner: Value, half_first: bool) -> None:
    both = plus(Tanh()(inner), 1.0)
    before = Mul()(times(x, 0.5), both) if half_first else Mul()(x, times(both, 0.5))
    check_rewrite(graph_of(before), RULES, graph_of(Gelu(approximate=True)(x)))


def test_gelu_of_half_floats_has_rounded_constants() -> None:
    h = value("f16[4, 9]")
    before = Mul()(times(h, 0.5), plus(Erf()(Div()(h, k(math.sqrt(2), "f16"))), 1.0))
    check_rewrite(graph_of(before), RULES, graph_of(Gelu()(h)))


def test_gelu_of_a_sum_and_of_a_product() -> None:
    for inner in (Add()(x, y), Mul()(x, y), times(y, 3.0)):
        before = Mul()(times(inner, 0.5), plus(erf_of(inner), 1.0))
        check_rewrite(graph_of(before), RULES, graph_of(Gelu()(inner)))


def test_a_factor_that_moved_elsewhere_is_made_up_for() -> None:
    before = Mul()(x, plus(erf_of(x), 1.0))
    check_rewrite(graph_of(before), RULES, graph_of(times(Gelu()(x), 2.0)))


def test_the_scales_of_a_product_with_a_vector_stay() -> None:
    vector = constant(np.arange(9, dtype=np.float32))
    before = graph_of(Mul()(times(Gelu()(x), 2.0), vector))
    check_declines(before, [rules.merge_gelu_scales], "not one number")


def test_scales_that_overflow_stay() -> None:
    before = graph_of(times(times(Gelu()(x), 3e38), math.inf))
    check_declines(before, [rules.merge_gelu_scales], "overflow")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Mul()(times(x, 0.5), plus(Erf()(times(x, 0.7)), 1.0)), "another factor of x^1"),
        (Mul()(times(x, 0.5), plus(Erf()(Div()(x, k(1.4142))), 1.0)), "expected 0.70710678"),
        (Mul()(times(x, 0.5), plus(times(erf_of(x), 0.9), 1.0)), "different weights"),
    ],
)
def test_wrong_constants_stay(before: Value, reason: str) -> None:
    check_declines(graph_of(before), [rules.recognise_gelu], reason)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (times(Add()(x, times(Pow()(x, k(3.0)), 0.0448)), ROOT), "another factor of x^3"),
        (times(Add()(x, times(Pow()(x, k(2.0)), 0.044715)), ROOT), "other powers"),
        (times(x, ROOT), "other powers"),
    ],
)
def test_another_tanh_stays(inner: Value, reason: str) -> None:
    before = Mul()(times(x, 0.5), plus(Tanh()(inner), 1.0))
    check_declines(graph_of(before), [rules.recognise_gelu_by_tanh], reason)


def test_an_erf_of_something_else_stays() -> None:
    before = graph_of(Mul()(times(x, 0.5), plus(erf_of(y), 1.0)))
    assert (
        rules.recognise_gelu.function(value=before.outputs[0][1], context=None)
        is (before.outputs[0][1])
    )


def test_an_erf_with_another_user_stays() -> None:
    inner = erf_of(x)
    before = graph_of(Mul()(times(x, 0.5), plus(inner, 1.0)), inner)
    check_declines(before, [rules.recognise_gelu], "erf has another user")


def test_a_constant_that_repeats_x_stays() -> None:
    ones = constant(np.ones((2, 4, 9), np.float32))
    before = graph_of(Mul()(times(x, 0.5), Add()(erf_of(x), ones)))
    check_declines(before, [rules.recognise_gelu], "larger than x")
