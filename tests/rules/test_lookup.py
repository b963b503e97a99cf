"""Products with one-hot rows: every condition, with its twin."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Value, constant, evaluate
from monograph.ir.dtype import f32
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Equal
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape
from monograph.rewrite import apply_rules
from monograph.rules import lookup
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

RULES = [lookup.look_up_rows]
rng = np.random.default_rng(0)
table = constant(rng.normal(size=(7, 5)).astype(np.float32))


def hot(x: Value, rows: int = 7, start: int = 0) -> Value:
    counted = np.arange(start, start + rows, dtype=x.dtype.numpy)
    return Cast(f32)(Equal()(Reshape((*x.tensor.static, 1))(x), constant(counted)))


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "i8"])
def test_rows_are_looked_up(dtype: str) -> None:
    after = check_rewrite(graph_of(Dot()(hot(value(f"{dtype}[3, 4]")), table)), RULES)
    kinds = [type(v.op) for v in after.values]
    assert Gather in kinds
    assert Dot not in kinds


def test_rows_under_a_reshape() -> None:
    x = value("i32[3, 4]")
    after = check_rewrite(graph_of(Dot()(Reshape((12, 7))(hot(x)), table)), RULES)
    assert after.outputs[0][1].tensor.static == (12, 5)


def test_numbers_that_name_no_row_give_zeros() -> None:
    x = value("i64[6]")
    before = graph_of(Dot()(hot(x), table))
    feeds = {"x": np.array([0, 6, 7, -1, -7, 1 << 40])}
    a, b = (evaluate(g, feeds)[0] for g in (before, apply_rules(before, RULES)))
    np.testing.assert_array_equal(a, b)
    assert not a[2:].any()


def test_declines() -> None:
    x = value("i32[3, 4]")
    check_declines(graph_of(Dot()(hot(x, start=1), table)), RULES, "does not count from 0")
    check_declines(graph_of(Dot()(value("f32[3, 7]"), table)), RULES, "no comparison")
    check_declines(graph_of(Dot()(hot(x), value("f32[7, 5]", "w"))), RULES, "no constant matrix")
    endless = constant(np.full((7, 5), np.inf, np.float32))
    check_declines(graph_of(Dot()(hot(x), endless)), RULES, "not finite")
    wide = Cast(f32)(Equal()(value("i32[3, 7]"), constant(np.arange(7, dtype=np.int32))))
    check_declines(graph_of(Dot()(wide, table)), RULES, "not one for each row")
