"""Views move behind work, where nobody else needs them before it."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.elementwise import Add, Exp, Mul, Neg, Sigmoid, Where
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Broadcast, Concat, Reshape, Transpose
from monograph.rewrite import Rule
from monograph.rules import commute as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x, y = value("f32[2, 3, 4]"), value("f32[2, 3, 4]", "y")
TURN = Transpose((2, 0, 1))
FLAT = Reshape((6, 4))


def named(name: str):
    """The rules of one name, for every op."""
    return [r for r in (*rules.SINKING, *rules.FLATTENING) if r.name == name]


def numbers(*shape: int):
    return constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def silu(v):
    return Mul()(v, Sigmoid()(v))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Neg()(TURN(x)), TURN(Neg()(x))),
        (Add()(TURN(x), TURN(y)), TURN(Add()(x, y))),
        (silu(TURN(x)), TURN(silu(x))),
        (Mul()(TURN(x), constant(np.float32(2))), TURN(Mul()(x, constant(np.float32(2))))),
        (
            Mul()(TURN(x), numbers(3)),
            TURN(Mul()(x, constant(np.arange(3.0).reshape(1, 3, 1), x.dtype))),
        ),
        (
            Add()(TURN(x), value("f32[1, 1]", "s")),
            TURN(Add()(x, value("f32[1, 1]", "s"))),
        ),
    ],
)
def test_transposes_move_behind_elementwise_work(before, after) -> None:
    check_rewrite(graph_of(before), named("sink_transpose"), graph_of(after))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Add()(TURN(x), Transpose((2, 1, 0))(value("f32[3, 2, 4]", "z"))), "not permuted alike"),
        (Add()(TURN(x), value("f32[4, 2, 3]", "z")), "not a transpose"),
        (Add()(TURN(x), numbers(2, 1, 1, 1)), "more dimensions"),
        (Neg()(x), "not a transpose"),
    ],
)
def test_transposes_that_are_not_alike_stay(before, reason: str) -> None:
    check_declines(graph_of(before), named("sink_transpose"), reason)


def test_a_transpose_that_others_read_stays_before_the_work() -> None:
    turned = TURN(x)
    before = graph_of(Neg()(turned), ReduceSum((0,), True)(turned))
    check_declines(before, named("sink_transpose"), "others read an operand")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Neg()(FLAT(x)), FLAT(Neg()(x))),
        (silu(Add()(FLAT(x), FLAT(y))), FLAT(silu(Add()(x, y)))),
        (Mul()(FLAT(x), numbers(4)), FLAT(Mul()(x, numbers(1, 1, 4)))),
        (Mul()(FLAT(x), numbers(6, 1)), FLAT(Mul()(x, numbers(2, 3, 1)))),
        (Mul()(FLAT(x), numbers(1, 1)), FLAT(Mul()(x, numbers()))),
        (Where()(FLAT(value("bool[2, 3, 4]", "c")), FLAT(x), FLAT(y)), None),
    ],
)
def test_reshapes_move_behind_elementwise_work(before, after) -> None:
    expected = None if after is None else graph_of(after)
    check_rewrite(graph_of(before), named("sink_reshape"), expected)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Add()(FLAT(x), Reshape((6, 4))(value("f32[24]", "z"))), "not reshaped alike"),
        (Add()(Reshape((1, 24))(x), numbers(5, 1)), "not reshaped alike"),
        (Add()(Reshape((3, 8))(x), numbers(3, 1)), "does not fit"),
        (Add()(FLAT(x), value("f32[6, 4]", "z")), "not a reshape"),
        (Neg()(Reshape((0, 1))(value("f32[0]"))), "no elements"),
    ],
)
def test_reshapes_that_are_not_alike_stay(before, reason: str) -> None:
    check_declines(graph_of(before), named("sink_reshape"), reason)


def test_views_that_do_not_collapse_are_not_carried_along() -> None:
    v = value("f32[3, 4]")
    for _ in range(2):
        v = Transpose((1, 0))(Reshape((6, 2))(Transpose((1, 0))(v)))
        v = Reshape((3, 4))(v)
    check_declines(graph_of(Neg()(v)), named("sink_reshape"), "do not collapse")
    turned = Transpose((1, 0))(v)
    check_declines(graph_of(Neg()(turned)), named("sink_transpose"), "do not collapse")
    joined = graph_of(Concat(0)(turned, turned))
    check_declines(joined, [rules.sink_transpose_below_concat], "do not collapse")
    dot = graph_of(Dot()(Reshape((3, 4))(Reshape((1, 3, 4))(v)), numbers(4, 5)))
    check_declines(dot, [rules.sink_reshape_below_dot], "do not collapse")


def test_too_much_work_is_not_looked_through() -> None:
    flat = FLAT(x)
    v = flat
    for _ in range(rules.MAX_WORK + 1):
        v = Exp()(v)
    check_declines(graph_of(Add()(v, flat)), named("sink_reshape"), "too many ops")


def test_work_that_repeats_by_itself_needs_no_broadcast() -> None:
    row = value("f32[1, 4]", "r")
    rule = named("skip_broadcast")
    wide = Broadcast((2, 3, 4))(row)
    check_rewrite(graph_of(Add()(x, wide)), rule, graph_of(Add()(x, row)))
    lined = Reshape((1, 1, 4))(row)
    check_rewrite(graph_of(Add()(x, lined)), rule, graph_of(Add()(x, row)))
    column = Broadcast((2, 3, 4))(value("f32[3, 1]", "c"))
    one = graph_of(Add()(wide, column))
    check_rewrite(one, rule)
    check_declines(graph_of(Neg()(wide)), rule, "the result has another shape without (expected")
    # A reshape to more dimensions repeats nothing: no size is smaller.
    check_declines(graph_of(Neg()(lined)), rule, "without (expected f32[1, 1, 4], given f32[1, 4])")
    check_declines(graph_of(Neg()(row)), rule, "no operand is a broadcast")


def test_a_broadcast_moves_behind_work_on_it_alone() -> None:
    row = value("f32[1, 4]", "r")
    wide = Broadcast((3, 4))(row)
    rule = named("sink_broadcast")
    check_rewrite(graph_of(Neg()(wide)), rule, graph_of(Broadcast((3, 4))(Neg()(row))))
    two = constant(np.float32(2))
    after = graph_of(Broadcast((3, 4))(Mul()(two, row)))
    check_rewrite(graph_of(Mul()(two, wide)), rule, after)
    check_declines(graph_of(Neg()(wide), ReduceSum((0,), True)(wide)), rule, "others read")
    check_declines(graph_of(Mul()(wide, numbers(3, 1))), rule, "(expected 1, given f32[3, 1])")
    check_declines(graph_of(Neg()(row)), rule, "no single operand")


def test_reduced_dimensions_are_kept_under_a_reshape() -> None:
    rule = named("keep_reduced")
    after = graph_of(Reshape((2, 4))(ReduceSum((1,), True)(x)))
    check_rewrite(graph_of(ReduceSum((1,), False)(x)), rule, after)
    check_declines(graph_of(ReduceSum((1,), True)(x)), rule, "kept already")
    check_declines(graph_of(ReduceSum((0,), False)(value("f32[N, 3]"))), rule, "not known")
    check_declines(graph_of(ReduceSum((0, 1, 2), False)(x)), rule, "no dimension is left")


def test_transposes_move_behind_a_concat() -> None:
    rule = [rules.sink_transpose_below_concat]
    check_rewrite(graph_of(Concat(1)(TURN(x), TURN(y))), rule, graph_of(TURN(Concat(0)(x, y))))
    other = Transpose((2, 1, 0))(value("f32[2, 2, 4]", "z"))
    check_declines(graph_of(Concat(2)(TURN(x), other)), rule, "not transposes alike")
    one = graph_of(Concat(0)(TURN(x), Neg()(value("f32[1, 2, 3]", "z"))))
    check_declines(one, rule, "given [(2, 0, 1), 'neg']")
    turned = TURN(x)
    shared = graph_of(Concat(0)(turned, TURN(y)), Neg()(turned))
    check_declines(shared, rule, "others read a transpose")


def test_reshapes_of_rows_move_behind_a_dot() -> None:
    rule = [rules.sink_reshape_below_dot]
    w = numbers(4, 5)
    check_rewrite(graph_of(Dot()(FLAT(x), w)), rule, graph_of(Reshape((6, 5))(Dot()(x, w))))
    cut_rows = graph_of(Dot()(Reshape((12, 2))(x), numbers(2, 5)))
    check_declines(cut_rows, rule, "the rows before the reshape have another length")
    batch = graph_of(Dot()(Reshape((2, 3, 4))(value("f32[6, 4]")), numbers(2, 4, 5)))
    check_declines(batch, rule, "not one matrix")
    unknown = graph_of(Dot()(Reshape((-1, 4))(value("f32[N, 3, 4]")), w))
    check_declines(unknown, rule, "not known")
    empty = graph_of(Dot()(Reshape((1, 0))(value("f32[0, 0]")), numbers(0, 5)))
    check_declines(empty, rule, "number of empty rows")


def test_a_matrix_shared_by_a_batch_is_not_copied() -> None:
    a, w = value("f32[3, 4]", "a"), numbers(6, 4, 5)
    left = graph_of(Dot()(Broadcast((6, 3, 4))(a), w))
    check_rewrite(left, [rules.share_left_of_dot], graph_of(Dot()(a, w)))
    b = value("f32[4, 5]", "b")
    right = graph_of(Dot()(value("f32[6, 3, 4]"), Broadcast((6, 4, 5))(b)))
    after = graph_of(Dot()(value("f32[6, 3, 4]"), b))
    check_rewrite(right, [rules.share_right_of_dot], after)
    fewer = graph_of(Dot()(Broadcast((6, 3, 4))(a), numbers(4, 5)))
    check_declines(fewer, [rules.share_left_of_dot], "fewer matrices")
    inside = graph_of(Dot()(Broadcast((6, 3, 4))(value("f32[1, 4]", "r")), w))
    check_declines(inside, [rules.share_left_of_dot], "inside the matrices")


@pytest.mark.parametrize("rule", [rules.share_left_of_dot, rules.share_right_of_dot])
def test_a_matrix_that_is_both_operands_is_shared_on_one_side(rule: Rule) -> None:
    """The other side keeps its copies: without them there would be fewer matrices."""
    both = Broadcast((6, 4, 4))(value("f32[4, 4]", "a"))
    after = graph_of(Dot()(value("f32[4, 4]", "a"), both))
    if rule is rules.share_right_of_dot:
        after = graph_of(Dot()(both, value("f32[4, 4]", "a")))
    check_rewrite(graph_of(Dot()(both, both)), [rule], after)


def test_rows_of_many_matrices_become_those_of_one() -> None:
    w = numbers(4, 5)
    before = graph_of(Dot()(x, w))
    after = graph_of(Reshape((2, 3, 5))(Dot()(FLAT(x), w)))
    check_rewrite(before, [rules.flatten_dot], after)
    check_declines(graph_of(Dot()(value("f32[1, 3, 4]"), w)), [rules.flatten_dot], "one matrix")
    check_declines(graph_of(Dot()(x, numbers(2, 4, 5))), [rules.flatten_dot], "second operand")
    check_declines(graph_of(Dot()(value("f32[N, 3, 4]"), w)), [rules.flatten_dot], "not known")
