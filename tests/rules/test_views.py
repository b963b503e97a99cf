"""Reshapes, transposes and broadcasts collapse to the shortest chain that does the same."""

from __future__ import annotations

import pytest

from monograph.ops.elementwise import Neg
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.shape import (
    COPY,
    INFER,
    Broadcast,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from monograph.rewrite import apply_rules, rules_in
from monograph.rules import views as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[2, 3, 4]")
symbolic = value("f32[N, 1, 4]")
ALL = rules_in(rules)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (rules.drop_reshape, Reshape((2, 3, 4))(x), x),
        (rules.merge_reshapes, Reshape((24,))(Reshape((6, 4))(x)), Reshape((24,))(x)),
        (rules.squeeze_as_reshape, Squeeze((1,))(value("f32[2, 1]")), None),
        (rules.unsqueeze_as_reshape, Unsqueeze((1,))(x), Reshape((2, 1, 3, 4))(x)),
        (rules.drop_transpose, Transpose((0, 1, 2))(x), x),
        (
            rules.merge_transposes,
            Transpose((2, 0, 1))(Transpose((0, 2, 1))(x)),
            Transpose((1, 0, 2))(x),
        ),
        (rules.drop_broadcast, Broadcast((2, 1, 1))(x), x),
        (rules.drop_broadcast, Broadcast((1, 2, 3, 4))(x), Reshape((1, 2, 3, 4))(x)),
        (
            rules.merge_broadcasts,
            Broadcast((5, 2, 3, 4))(Broadcast((2, 3, 4))(value("f32[3, 1]"))),
            Broadcast((5, 2, 3, 4))(value("f32[3, 1]")),
        ),
        (
            rules.broadcast_without_reshape,
            Broadcast((5, 3, 4))(Reshape((1, 3, 4))(value("f32[3, 4]"))),
            Broadcast((5, 3, 4))(value("f32[3, 4]")),
        ),
        (
            rules.tile_as_broadcast,
            Tile((5, 1))(value("f32[1, 4]")),
            Broadcast((5, 4))(value("f32[1, 4]")),
        ),
        (rules.tile_as_broadcast, Tile((1, 1, 1))(x), x),
        (rules.pad_as_slice, Pad((0, 0, 0), (0, 0, 0))(x), x),
        (
            rules.pad_as_slice,
            Pad((0, -1, 0), (0, 0, -2))(x),
            Slice((0, 1, 0), (2, 3, 2), (1, 1, 1))(x),
        ),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_views_become_shorter(rule, before, after) -> None:
    check_rewrite(graph_of(before), [rule], None if after is None else graph_of(after))


@pytest.mark.parametrize(
    ("rule", "before", "reason"),
    [
        (rules.drop_reshape, Reshape((4, 6))(x), "the shape changes"),
        (rules.merge_reshapes, Reshape((COPY, 4))(Reshape((INFER, 4))(symbolic)), "copied"),
        (rules.squeeze_as_reshape, Squeeze((1,))(symbolic), "not known"),
        (rules.unsqueeze_as_reshape, Unsqueeze((1,))(symbolic), "not known"),
        (rules.cancel_unsqueeze, Squeeze((2,))(Unsqueeze((0,))(symbolic)), "axes differ"),
        (rules.cancel_squeeze, Unsqueeze((0,))(Squeeze((1,))(symbolic)), "axes differ"),
        (rules.drop_transpose, Transpose((1, 0, 2))(x), "dimensions move"),
        (rules.collapse_transpose, Transpose((1, 0, 2))(symbolic), "not known"),
        (rules.collapse_transpose, Transpose((1, 0, 2))(x), "as short as can be"),
        (rules.drop_broadcast, Broadcast((5, 2, 3, 4))(x), "repeats elements"),
        (
            rules.merge_broadcasts,
            Broadcast((3, 1, 4))(Broadcast((1, 4))(value("f32[N, 1]"))),
            "not",
        ),
        (
            rules.broadcast_without_reshape,
            Broadcast((3, 5))(Reshape((3, 1))(value("f32[3]"))),
            "more than add leading ones",
        ),
        (
            rules.broadcast_without_reshape,
            Broadcast((2, 3))(Reshape((3,))(value("f32[1, 1, 3]"))),
            "fewer dimensions",
        ),
        (rules.tile_as_broadcast, Tile((2, 1, 1))(x), "several elements"),
        (rules.tile_as_broadcast, Tile((2, 1, 1))(symbolic), "not known"),
        (rules.pad_as_slice, Pad((0, 1, 0), (0, -1, 0))(x), "elements are added"),
        (rules.pad_as_slice, Pad((0, 0, 0), (0, 0, -1))(symbolic), "not known"),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_views_that_do_something_stay(rule, before, reason: str) -> None:
    check_declines(graph_of(before), [rule], reason)


def test_views_of_unknown_sizes_cancel_where_no_size_matters() -> None:
    before = Squeeze((1,))(Unsqueeze((1,))(symbolic))
    check_rewrite_symbolic(before, symbolic)
    check_rewrite_symbolic(Unsqueeze((1,))(Squeeze((1,))(symbolic)), symbolic)
    twice = Transpose((1, 0, 2))(Transpose((1, 0, 2))(symbolic))
    check_rewrite_symbolic(twice, symbolic)


def check_rewrite_symbolic(before, after) -> None:
    """The graphs agree; there are no numbers to check without sizes."""
    assert apply_rules(graph_of(before), ALL) == graph_of(after)


def test_a_transpose_that_moves_only_ones_is_a_reshape() -> None:
    a = value("f32[2, 1, 4]")
    check_rewrite(graph_of(Transpose((1, 0, 2))(a)), ALL, graph_of(Reshape((1, 2, 4))(a)))


def test_heads_split_and_joined_again_are_nothing() -> None:
    a = value("f32[2, 5, 12]")
    split = Transpose((0, 2, 1, 3))(Reshape((2, 5, 3, 4))(a))
    joined = Reshape((2, 5, 12))(Transpose((0, 2, 1, 3))(split))
    check_rewrite(graph_of(joined), ALL, graph_of(a))


def test_two_transposes_around_a_reshape_become_one() -> None:
    # NCHW to NHWC, flattened, and back to channels first.
    a = value("f32[2, 3, 4, 5]")
    rows = Reshape((2, 20, 3))(Transpose((0, 2, 3, 1))(a))
    back = graph_of(Transpose((0, 2, 1))(rows))
    check_rewrite(back, ALL, graph_of(Reshape((2, 3, 20))(a)))


def test_a_squeeze_around_a_transpose_leaves_the_transpose() -> None:
    a = value("f32[3, 4]")
    before = Squeeze((1,))(Transpose((2, 0, 1))(Unsqueeze((0,))(a)))
    check_rewrite(graph_of(before), ALL, graph_of(Transpose((1, 0))(a)))


def test_a_shuffle_of_channels_is_one_transpose_of_few_dimensions() -> None:
    a = value("f32[1, 6, 2, 2]")
    split = Reshape((1, 2, 3, 2, 2))(a)
    before = Reshape((1, 6, 2, 2))(Transpose((0, 2, 1, 3, 4))(split))
    after = Reshape((1, 6, 2, 2))(Transpose((1, 0, 2))(Reshape((2, 3, 4))(a)))
    check_rewrite(graph_of(before), ALL, graph_of(after))


def test_a_reshape_across_a_transpose_stays() -> None:
    a = value("f32[3, 4]")
    mixed = Transpose((1, 0))(Reshape((6, 2))(Transpose((1, 0))(a)))
    check_declines(graph_of(mixed), [rules.collapse_transpose], "as short as can be")


def test_a_transpose_that_others_read_is_not_made_twice() -> None:
    a = value("f32[1, 3, 4]")
    turned = Transpose((0, 2, 1))(a)
    check_declines(
        graph_of(Reshape((4, 3))(turned), Neg()(turned)),
        [rules.collapse_reshape],
        "others read the transposed value",
    )


def test_nothing_is_moved_where_there_is_nothing() -> None:
    a = value("f32[0, 3]")
    check_rewrite(graph_of(Transpose((1, 0))(a)), ALL, graph_of(Reshape((3, 0))(a)))
