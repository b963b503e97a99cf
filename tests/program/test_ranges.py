"""Ranges of integer values: what is claimed must hold."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, Item, Value, constant, evaluate, parse_type
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, Max, Min, Mod, Mul, Sub
from monograph.ops.index import GatherElements
from monograph.ops.reduce import ArgMax
from monograph.ops.shape import Concat, Reshape, Unsqueeze
from monograph.ops.sort import TopK
from monograph.program.fusion.index_bounds import is_within, range_of


def number(data: int, kind: str = "int64") -> Value:
    return constant(np.array(data, kind))


X = Input("x", parse_type("f32[4, 60]"))()
GIVEN = Input("i", parse_type("i64[4, 5]"))()
BEST = Item(1)(TopK(5, 1)(X))
"""Between 0 and 59."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (BEST, (0, 59)),
        (ArgMax(0, False, False)(X), (0, 3)),
        (Div()(BEST, number(10)), (0, 5)),
        (Mod()(BEST, number(7)), (0, 6)),
        (Mod()(BEST, number(100)), (0, 59)),
        (Add()(BEST, number(-3)), (-3, 56)),
        (Sub()(number(10), BEST), (-49, 10)),
        (Mul()(BEST, number(-2)), (-118, 0)),
        (Min()(BEST, number(7)), (0, 7)),
        (Max()(BEST, number(7)), (7, 59)),
        (Unsqueeze((1,))(Reshape((20,))(BEST)), (0, 59)),
        (Concat(0)(BEST, constant(np.array([[1, 2, 70, 4, 5]]))), (0, 70)),
        (GatherElements(1)(BEST, Div()(BEST, number(20))), (0, 59)),
        (Cast(parse_type("i32[]").dtype)(BEST), (0, 59)),
    ],
)
def test_ranges(value: Value, expected: tuple[int, int]) -> None:
    assert range_of(value) == expected
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((4, 60)).astype(np.float32)
        (found,) = evaluate(Graph((X,), (("y", value),)), {"x": x})
        assert expected[0] <= found.min()
        assert found.max() <= expected[1]


@pytest.mark.parametrize(
    "value",
    [
        GIVEN,
        Add()(BEST, GIVEN),
        Div()(BEST, GIVEN),
        Div()(Sub()(BEST, number(1)), number(2)),
        Mod()(GIVEN, number(5)),
        Cast(parse_type("i64[]").dtype)(X),
        Cast(parse_type("u8[]").dtype)(Sub()(BEST, number(1))),
        Mul()(Cast(parse_type("i8[]").dtype)(BEST), number(3, "int8")),
        TopK(5, 1)(X),
    ],
)
def test_nothing_is_claimed(value: Value) -> None:
    assert range_of(value) is None


def test_indices_count_from_the_back_too() -> None:
    assert is_within(BEST, 60)
    assert not is_within(BEST, 59)
    assert is_within(Sub()(BEST, number(60)), 60)
    assert not is_within(Sub()(BEST, number(61)), 60)


def test_common_operands_cost_nothing() -> None:
    value = BEST
    for turn in range(60):
        if turn == 30:
            assert range_of(value) == (0, 59)
        value = Min()(value, Max()(value, Add()(value, number(turn))))
    assert range_of(value) is None  # too far back
