"""Unit and zero laws."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.elementwise import Abs, Add, Clip, Div, Mul, Neg, Not, Sub
from monograph.ops.shape import Broadcast
from monograph.rules import arithmetic as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value()


def filled(number: float, *shape: int):
    return constant(np.full(shape, number, np.float32))


@pytest.mark.parametrize(
    ("rule", "before"),
    [
        (rules.add_negative_zero, Add()(x, filled(-0.0))),
        (rules.add_zero, Add()(filled(0.0, 9), x)),
        (rules.subtract_zero, Sub()(x, filled(0.0, 4, 1))),
        (rules.multiply_by_one, Mul()(filled(1.0, 1, 1), x)),
        (rules.divide_by_one, Div()(x, filled(1.0))),
        (rules.cancel_negations, Neg()(Neg()(x))),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_what_changes_nothing_goes(rule, before) -> None:
    check_rewrite(graph_of(before), [rule], graph_of(x))


@pytest.mark.parametrize(
    ("rule", "before"),
    [
        (rules.add_zero, Add()(x, filled(-0.0))),
        (rules.add_negative_zero, Add()(x, filled(0.0))),
        (rules.subtract_zero, Sub()(x, filled(-0.0))),
        (rules.subtract_zero, Sub()(filled(0.0), x)),
        (rules.multiply_by_one, Mul()(filled(2.0), x)),
        (rules.divide_by_one, Div()(filled(1.0), x)),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_what_changes_something_stays(rule, before) -> None:
    check_declines(graph_of(before), [rule], "constant")


def test_a_unit_that_enlarges_becomes_a_broadcast() -> None:
    row = value("f32[9]")
    before = graph_of(Mul()(row, filled(1.0, 4, 1)))
    check_rewrite(before, [rules.multiply_by_one], graph_of(Broadcast((4, 9))(row)))


def test_a_unit_that_may_enlarge_a_symbolic_shape_stays() -> None:
    row = value("f32[N]")
    before = graph_of(Mul()(row, filled(1.0, 4, 1)))
    check_declines(before, [rules.multiply_by_one], "may be larger")


def test_double_negation_and_absolute_values() -> None:
    flags = value("bool[3]")
    check_rewrite(graph_of(Not()(Not()(flags))), [rules.cancel_nots], graph_of(flags))
    check_rewrite(graph_of(Abs()(Abs()(x))), [rules.merge_abs], graph_of(Abs()(x)))


def test_clips_merge() -> None:
    before = graph_of(Clip(1.0, 5.0)(Clip(0.0, 3.0)(x)))
    check_rewrite(before, [rules.merge_clips], graph_of(Clip(1.0, 3.0)(x)))


def test_disjoint_clips_stay() -> None:
    before = graph_of(Clip(4.0, 5.0)(Clip(0.0, 3.0)(x)))
    check_declines(before, [rules.merge_clips], "disjoint (expected [0.0, 3.0], given [4.0, 5.0])")


def test_division_by_a_constant_becomes_multiplication() -> None:
    before = graph_of(Div()(x, filled(3.0)))
    expected = graph_of(Mul()(x, constant(np.float32(1 / 3))))
    check_rewrite(before, [rules.divide_by_constant], expected)
    check_declines(graph_of(Div()(x, filled(0.0))), [rules.divide_by_constant], "has a zero")
    whole = value("i32[3]")
    divided = graph_of(Div()(whole, constant(np.int32(2))))
    check_declines(divided, [rules.divide_by_constant], "not of floats")


def test_an_inverse_out_of_range_is_not_multiplied_by() -> None:
    """In f16, 1 / 1e-5 is infinite and 1 / 30000 has lost bits."""
    half = value("f16[3]")
    for number, reason in ((1e-5, "overflows"), (3e4, "loses bits")):
        before = graph_of(Div()(half, constant(np.float16(number))))
        check_declines(before, [rules.divide_by_constant], reason)
