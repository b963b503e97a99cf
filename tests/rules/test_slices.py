"""Slices merge, and move up to what they can merge with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.elementwise import Neg
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Pad
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from monograph.rewrite import rules_in
from monograph.rules import slices as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

x = value("f32[6, 4]")
symbolic = value("f32[N, 4]")
ALL = rules_in(rules)
FAR = 2**31 - 1


def cut(v, start: int, stop: int, step: int = 1, axis: int = 0):
    """v[start:stop:step] along one axis."""
    sizes = v.tensor.static
    starts = tuple(start if i == axis else 0 for i in range(len(sizes)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(sizes))
    return Slice(starts, stops, tuple(step if i == axis else 1 for i in range(len(sizes))))(v)


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (rules.drop_slice, cut(x, 0, 6), x),
        (rules.drop_slice, cut(x, 0, 99), x),
        (rules.merge_slices, cut(cut(x, 1, 6), 1, 3), cut(x, 2, 4)),
        (rules.merge_slices, cut(cut(x, 0, 6, 2), 1, 3), cut(x, 2, 5, 2)),
        (rules.merge_slices, cut(cut(x, 5, -7, -1), 1, 3), cut(x, 4, 2, -1)),
        (rules.merge_slices, cut(cut(x, 5, -7, -1), 5, -7, -1), x),
        (rules.merge_slices, cut(cut(x, 1, 5), 0, 2, axis=1), Slice((1, 0), (5, 2), (1, 1))(x)),
        (
            rules.slice_of_transpose,
            cut(Transpose((1, 0))(x), 1, 3),
            Transpose((1, 0))(cut(x, 1, 3, axis=1)),
        ),
        (rules.slice_of_reshape, cut(Reshape((3, 8))(x), 1, 2), Reshape((1, 8))(cut(x, 2, 4))),
        (rules.slice_of_reshape, cut(Reshape((24,))(x), 4, 12), Reshape((8,))(cut(x, 1, 3))),
        (
            rules.slice_of_reshape,
            cut(Reshape((1, 6, 1, 4))(x), 3, -5, -1, axis=3),
            Reshape((1, 6, 1, 4))(cut(x, 3, -5, -1, axis=1)),
        ),
        (
            rules.slice_of_broadcast,
            Slice((1, 0, 0), (2, 1, 3), (1, 1, 1))(Broadcast((5, 2, 4))(value("f32[1, 4]"))),
            Broadcast((1, 1, 3))(cut(value("f32[1, 4]"), 0, 3, axis=1)),
        ),
        (rules.slice_of_pad, cut(Pad((1, 0), (2, 0))(x), 2, 5), cut(x, 1, 4)),
        (rules.slice_of_pad, cut(Pad((1, 0), (2, 0))(x), 1, 7), x),
        (rules.gather_as_slice, Gather(0)(x, constant(np.int64(-1))), None),
        (rules.gather_as_slice, Gather(1)(x, constant(np.array([3, 1]))), cut(x, 3, 0, -2, axis=1)),
        (rules.gather_as_slice, Gather(0)(x, constant(np.array([2, 3, 4]))), cut(x, 2, 5)),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_slices_become_fewer(rule, before, after) -> None:
    check_rewrite(graph_of(before), [rule], None if after is None else graph_of(after))


@pytest.mark.parametrize(
    ("rule", "before", "reason"),
    [
        (rules.drop_slice, cut(x, 1, 6), "drops or reverses"),
        (rules.drop_slice, cut(x, 5, -7, -1), "drops or reverses"),
        (rules.drop_slice, Slice((0, 0), (5, 4), (1, 1))(symbolic), "may drop"),
        (
            rules.merge_slices,
            Slice((1, 0), (FAR, 4), (1, 1))(Slice((1, 0), (FAR, 4), (1, 1))(symbolic)),
            "not known",
        ),
        (
            rules.slice_of_transpose,
            Slice((0, 0), (4, 1), (1, 1))(Transpose((1, 0))(symbolic)),
            "not known",
        ),
        (rules.slice_of_reshape, cut(Reshape((24,))(x), 3, 12), "not one of the value before"),
        (rules.slice_of_reshape, cut(Reshape((3, 8))(x), 0, 4, axis=1), "not one of the value"),
        (rules.slice_of_reshape, cut(Reshape((3, 8))(x), 1, 1), "zero"),
        (
            rules.slice_of_broadcast,
            Slice((0, 0), (1, 2), (1, 1))(Broadcast((1, 4))(symbolic)),
            "not known",
        ),
        (rules.slice_of_pad, cut(Pad((1, 0), (2, 0))(x), 0, 5), "takes padding"),
        (rules.slice_of_pad, cut(Pad((1, 0), (2, 0))(x), 5, 8), "takes padding"),
        (rules.gather_as_slice, Gather(0)(x, constant(np.array([0, 1, 3]))), "evenly spaced"),
        (rules.gather_as_slice, Gather(0)(x, constant(np.array([1, 1]))), "evenly spaced"),
        (rules.gather_as_slice, Gather(0)(x, constant(np.array([5, 6]))), "out of range"),
        (rules.gather_as_slice, Gather(0)(symbolic, constant(np.int64(0))), "static sizes"),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_slices_that_must_stay(rule, before, reason: str) -> None:
    check_declines(graph_of(before), [rule], reason)


a, b, c = value("f32[2, 4]", "a"), value("f32[3, 4]", "b"), value("f32[1, 4]", "c")
joined = Concat(0)(a, b, c)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (cut(joined, 2, 5), b),
        (cut(joined, 3, 5), cut(b, 1, 3)),
        (cut(joined, 4, 2, -1), cut(b, 2, 0, -1)),
        (cut(joined, 2, 6), Concat(0)(b, c)),
        (
            Slice((2, 0), (6, 2), (1, 1))(joined),
            Slice((0, 0), (4, 2), (1, 1))(Concat(0)(b, c)),
        ),
    ],
)
def test_a_slice_of_a_concat_reads_the_pieces_it_takes(before, after) -> None:
    given = graph_of(before)
    expected = replace(graph_of(after), inputs=given.inputs)
    check_rewrite(given, [rules.slice_of_concat], expected)


def test_a_slice_through_pieces_stays() -> None:
    check_declines(graph_of(cut(joined, 1, 5)), [rules.slice_of_concat], "cuts through pieces")
    check_declines(graph_of(cut(joined, 0, 6, 2)), [rules.slice_of_concat], "cuts through")
    check_declines(graph_of(cut(joined, 0, 0)), [rules.slice_of_concat], "empty")
    unknown = Slice((0, 0), (1, 4), (1, 1))(Concat(0)(a, symbolic))
    check_declines(graph_of(unknown), [rules.slice_of_concat], "not known")


def test_a_concat_that_others_read_is_not_joined_again_in_part() -> None:
    before = graph_of(cut(joined, 2, 6), Neg()(joined))
    check_declines(before, [rules.slice_of_concat], "others read the whole concat")


def test_slices_stay_behind_a_view_that_others_read() -> None:
    turned, flat = Transpose((1, 0))(x), Reshape((3, 8))(x)
    check_declines(
        graph_of(cut(turned, 0, 1), cut(turned, 1, 4)), [rules.slice_of_transpose], "others read"
    )
    check_declines(
        graph_of(cut(flat, 0, 1), cut(flat, 1, 3)), [rules.slice_of_reshape], "others read"
    )


def test_a_slice_moves_above_a_shared_view_to_meet_its_piece() -> None:
    turned = Transpose((1, 0))(joined)
    before = graph_of(cut(turned, 2, 5, axis=1), Neg()(turned))
    after = graph_of(Transpose((1, 0))(b), Neg()(turned))
    check_rewrite(before, ALL, after)
