"""Concats of what was cut give it back whole; others become fewer."""

from __future__ import annotations

import pytest

from monograph.ops.elementwise import Neg
from monograph.ops.shape import Broadcast, Concat, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import apply_rules, rules_in
from monograph.rules import concat as rules
from monograph.rules import slices, views
from tests.rules.checks import check_declines, check_rewrite, graph_of, value
from tests.rules.test_slices import cut

x, y, z = (value("f32[6, 4]", name) for name in "xyz")
empty = value("f32[0, 4]", "e")
symbolic = value("f32[N, 4]", "s")
ALL = (*rules_in(views), *rules_in(slices), *rules_in(rules))


def test_one_piece_and_empty_pieces() -> None:
    check_rewrite(graph_of(Concat(0)(x)), [rules.drop_concat], graph_of(x))
    before = graph_of(Concat(0)(x, empty, y), Neg()(empty))
    check_rewrite(before, [rules.drop_concat], graph_of(Concat(0)(x, y), Neg()(empty)))
    nothing = graph_of(Concat(0)(empty, empty))
    check_rewrite(nothing, [rules.drop_concat], graph_of(empty))
    check_declines(graph_of(Concat(0)(x, y)), [rules.drop_concat], "several pieces")
    check_declines(graph_of(Concat(0)(symbolic, empty)), [rules.drop_concat], "not known")


def test_concats_along_one_axis_merge() -> None:
    before = graph_of(Concat(0)(Concat(0)(x, y), z))
    check_rewrite(before, [rules.merge_concats], graph_of(Concat(0)(x, y, z)))
    across = Concat(0)(Concat(1)(x, y), Concat(1)(z, z))
    check_declines(graph_of(across), [rules.merge_concats], "no piece is a concat")
    inner = Concat(0)(x, y)
    shared = graph_of(Concat(0)(inner, z), Neg()(inner))
    check_declines(shared, [rules.merge_concats], "others read the inner concat")


def test_a_row_repeated_is_a_broadcast() -> None:
    row = value("f32[1, 4]")
    before = graph_of(Concat(0)(row, row, row))
    check_rewrite(before, [rules.repeat_as_broadcast], graph_of(Broadcast((3, 4))(row)))
    check_declines(graph_of(Concat(0)(x, x)), [rules.repeat_as_broadcast], "several elements")
    check_declines(graph_of(Concat(0)(x, y)), [rules.repeat_as_broadcast], "the pieces differ")


@pytest.mark.parametrize(
    ("pieces", "after"),
    [
        ([cut(x, 0, 2), cut(x, 2, 3), cut(x, 3, 6)], x),
        ([cut(x, 1, 2), cut(x, 2, 5)], cut(x, 1, 5)),
        ([cut(x, 0, 4, 2), cut(x, 4, 6, 2)], cut(x, 0, 5, 2)),
        ([cut(x, 5, 2, -1), cut(x, 2, -7, -1)], cut(x, 5, -7, -1)),
    ],
)
def test_slices_that_adjoin_are_one(pieces, after) -> None:
    check_rewrite(graph_of(Concat(0)(*pieces)), [rules.join_slices], graph_of(after))


def test_neighbours_join_among_other_pieces() -> None:
    before = graph_of(Concat(0)(y, cut(x, 0, 2), cut(x, 2, 6), y))
    check_rewrite(before, [rules.join_slices], graph_of(Concat(0)(y, x, y)))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Concat(0)(cut(x, 0, 2), cut(x, 3, 6)), "do not adjoin (expected a start at 2, given 3)"),
        (Concat(0)(cut(x, 0, 3), cut(x, 2, 6)), "do not adjoin (expected a start at 3, given 2)"),
        (Concat(0)(cut(x, 3, 6), cut(x, 0, 3)), "do not adjoin"),
        (Concat(0)(cut(x, 0, 3), cut(y, 3, 6)), "no neighbours"),
        (Concat(1)(cut(x, 0, 3), cut(x, 3, 6)), "another axis"),
        (Concat(0)(cut(x, 0, 2), cut(x, 2, 6, 2)), "different steps"),
        (Concat(0)(cut(x, 0, 2), symbolic), "not known"),
    ],
)
def test_slices_that_do_not_adjoin_stay(before, reason: str) -> None:
    check_declines(graph_of(before), [rules.join_slices], reason)


def unstacked(v, axis: int):
    """The slices of width 1 along an axis, without it."""
    return [Squeeze((axis,))(cut(v, i, i + 1, axis=axis)) for i in range(v.tensor.static[axis])]


STACK = value("f32[3, 2, 4]")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Stacked again where they were: nothing; side by side: a reshape, or with a transpose.
        (Concat(0)(*(Unsqueeze((0,))(v) for v in unstacked(STACK, 0))), STACK),
        (Concat(0)(*unstacked(STACK, 0)), Reshape((6, 4))(STACK)),
        (Concat(1)(*unstacked(STACK, 0)), Reshape((2, 12))(Transpose((1, 0, 2))(STACK))),
        (
            Concat(1)(*(Unsqueeze((1,))(v) for v in unstacked(STACK, 0))),
            Transpose((1, 0, 2))(STACK),
        ),
        (
            Concat(2)(*(Unsqueeze((2,))(v) for v in unstacked(STACK, 0))),
            Transpose((1, 2, 0))(STACK),
        ),
        # A transpose of each piece is a transpose of all.
        (
            Concat(0)(*(Unsqueeze((0,))(Transpose((1, 0))(v)) for v in unstacked(STACK, 0))),
            Transpose((0, 2, 1))(STACK),
        ),
        # Wider slices, unsqueezed: split heads.
        (
            Concat(0)(*(Unsqueeze((0,))(cut(STACK, i, i + 2, axis=2)) for i in (0, 2))),
            Transpose((2, 0, 1, 3))(Reshape((3, 2, 2, 2))(STACK)),
        ),
        # A part of the value.
        (Concat(0)(*unstacked(STACK, 0)[1:]), Reshape((4, 4))(cut(STACK, 1, 3))),
    ],
)
def test_slices_under_one_view_are_one_rearrangement(before, after) -> None:
    check_rewrite(graph_of(before), ALL, graph_of(after))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Concat(1)(*(unstacked(STACK, 0)[i] for i in (0, 2, 1))), "do not adjoin"),
        (Concat(1)(*(unstacked(STACK, 0)[i] for i in (0, 2))), "do not adjoin"),
        (Concat(1)(*unstacked(STACK, 0)[:2], cut(x, 0, 2)), "slices of one value"),
        (
            Concat(1)(Reshape((4, 3))(cut(x, 0, 3)), Transpose((1, 0))(cut(x, 3, 6))),
            "under the same views",
        ),
        (
            Concat(1)(*(Transpose((1, 0))(v) for v in (cut(x, 0, 2), cut(x, 2, 6)))),
            "of one width",
        ),
        (
            Concat(0)(cut(cut(x, 0, 3), 0, 2, axis=1), cut(cut(x, 3, 6), 2, 4, axis=1)),
            "follow one axis",
        ),
        (Concat(0)(symbolic, symbolic), "not known"),
    ],
)
def test_slices_that_are_not_alike_stay(before, reason: str) -> None:
    settled = (*rules_in(views), slices.merge_slices)
    check_declines(apply_rules(graph_of(before), settled), [rules.concat_of_slices], reason)


def test_reshapes_move_behind_a_concat() -> None:
    before = graph_of(Concat(0)(*(Reshape((1, 6, 4))(v) for v in (x, y, z))))
    after = graph_of(Reshape((3, 6, 4))(Concat(0)(x, y, z)))
    check_rewrite(before, [rules.concat_of_reshapes], after)
    wide = graph_of(Concat(2)(*(Reshape((1, 6, 4))(v) for v in (x, y))))
    check_rewrite(wide, [rules.concat_of_reshapes], graph_of(Reshape((1, 6, 8))(Concat(1)(x, y))))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Concat(0)(Reshape((4, 6))(x), value("f32[1, 6]", "w")), "not every piece"),
        (Concat(1)(Reshape((2, 12))(x), Reshape((2, 12))(y)), "no axis before"),
        (
            Concat(1)(
                Reshape((6, 4))(value("f32[24]", "w")), Reshape((6, 4))(value("f32[24]", "v"))
            ),
            "no axis",
        ),
        (
            Concat(1)(Reshape((6, 2, 2))(x), Reshape((6, 2, 2))(value("f32[12, 2]", "w"))),
            "no axis before",
        ),
        (Concat(0)(Reshape((4, 0))(empty), Reshape((4, 0))(empty)), "zero"),
    ],
)
def test_reshapes_that_cannot_move_stay(before, reason: str) -> None:
    check_declines(graph_of(before), [rules.concat_of_reshapes], reason)


def test_pieces_that_carry_work_are_left_to_hoisting() -> None:
    before = Concat(0)(*(Neg()(v) for v in unstacked(STACK, 0)))
    check_declines(graph_of(before), [rules.concat_of_slices], "slices of one value")
