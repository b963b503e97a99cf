"""Casts that change nothing go; the others stay, with the reason."""

from __future__ import annotations

import pytest

from monograph.ir import dtype
from monograph.ir.dtype import ALL
from monograph.ops.cast import BitCast, Cast
from monograph.rules import casts as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value


def test_a_cast_to_the_same_type_goes() -> None:
    x = value()
    check_rewrite(graph_of(Cast(x.dtype)(x)), [rules.drop_cast], graph_of(x))
    check_declines(graph_of(Cast(dtype("f16"))(x)), [rules.drop_cast], "type changes")
    check_rewrite(graph_of(BitCast(x.dtype)(x)), [rules.drop_bit_cast], graph_of(x))
    check_declines(graph_of(BitCast(dtype("i32"))(x)), [rules.drop_bit_cast], "type changes")


@pytest.mark.parametrize(
    ("first", "between", "last"),
    [
        ("f16", "f32", "f64"),
        ("bf16", "f32", "f16"),
        ("f32", "f64", "i32"),
        ("i8", "i32", "u8"),
        ("u8", "f16", "f32"),
        ("i8", "f32", "i16"),
        ("bool", "i64", "f32"),
        ("f16", "f32", "bool"),
        ("f8e4m3fn", "f16", "f32"),
        ("f32", "c64", "c128"),
    ],
)
def test_a_wider_type_between_goes(first: str, between: str, last: str) -> None:
    x = value(f"{first}[4, 9]")
    before = graph_of(Cast(dtype(last))(Cast(dtype(between))(x)))
    check_rewrite(before, [rules.merge_casts], graph_of(Cast(dtype(last))(x)))


def test_there_and_back_is_nothing() -> None:
    x = value("f16[4, 9]")
    before = graph_of(Cast(dtype("f16"))(Cast(dtype("f32"))(x)))
    check_rewrite(before, [rules.merge_casts, rules.drop_cast], graph_of(x))


@pytest.mark.parametrize(
    ("first", "between", "last", "reason"),
    [
        ("f32", "f16", "f32", "does not hold every value (expected f32, given f16)"),
        ("f16", "bf16", "f32", "does not hold"),
        ("i32", "f32", "f64", "does not hold"),
        ("i64", "f64", "f32", "does not hold"),
        ("i8", "u8", "i32", "does not hold"),
        ("u16", "f16", "f32", "does not hold"),
        ("f32", "i32", "f32", "does not hold"),
        ("f8e4m3fn", "f8e5m2", "f32", "does not hold"),
        ("i32", "bool", "f32", "does not hold"),
        ("i16", "f32", "i8", "not specified"),
        ("i8", "i32", "str", "text forms"),
    ],
)
def test_a_type_between_that_loses_something_stays(
    first: str, between: str, last: str, reason: str
) -> None:
    x = value(f"{first}[4, 9]")
    before = graph_of(Cast(dtype(last))(Cast(dtype(between))(x)))
    check_declines(before, [rules.merge_casts], reason)


def test_holding_is_transitive() -> None:
    """A table that is right for each pair is right for chains."""
    held = {(a, b) for a in ALL for b in ALL if rules.holds(a, b)}
    assert {(dtype("f32"), dtype("i8")), (dtype("f64"), dtype("f16"))} <= held
    wrong = {(a, b, c) for a, b in held for d, c in held if b == d and (a, c) not in held}
    assert not wrong
