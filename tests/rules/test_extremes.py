"""Extremes of all elements, whatever their arrangement."""

from __future__ import annotations

import pytest

from monograph.ops.reduce import ReduceMax, ReduceMin
from monograph.ops.shape import Reshape, Transpose
from monograph.rules import arithmetic as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 3, 5]")
turned = Transpose((0, 2, 1))(x)


@pytest.mark.parametrize(
    ("op", "rule"),
    [(ReduceMax, rules.max_of_rearranged), (ReduceMin, rules.min_of_rearranged)],
    ids=["max", "min"],
)
def test_transposes_before_an_extreme_disappear(op: type, rule: object) -> None:
    expected = graph_of(op((0, 1, 2))(x))
    check_rewrite(graph_of(op((0, 1, 2))(turned)), [rule], expected)  # type: ignore[list-item]
    flat = Reshape((-1,))(turned)
    check_rewrite(graph_of(op((0,))(flat)), [rule], expected)  # type: ignore[list-item]
    kept = graph_of(op((0, 1, 2), keep=True)(turned))
    after = graph_of(Reshape((1, 1, 1))(op((0, 1, 2))(x)))
    check_rewrite(kept, [rule], after)  # type: ignore[list-item]


def test_extremes_of_some_elements_stay() -> None:
    check_declines(graph_of(ReduceMax((1,))(turned)), [rules.max_of_rearranged], "not all")
    flat = graph_of(ReduceMax((0,))(Reshape((-1,))(x)))
    check_declines(flat, [rules.max_of_rearranged], "not rearranged")
