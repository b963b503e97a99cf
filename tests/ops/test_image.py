"""Sampling on a grid, regions of interest, the choice among boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, parse_tensor_type
from monograph.ops.image import GridSample
from monograph.ops.roi import MAX, MaxRoiPool, NonMaxSuppression, RoiAlign
from tests.ops.windows import apply, typed

ROW = np.array([[[[10, 20, 30]]]], np.float32)


def along_row(op: GridSample, *places: float) -> list[float]:
    """The row read at horizontal places, at the middle of its height."""
    grid = np.array([[[(p, 0.0) for p in places]]], np.float32)
    result: list[float] = apply(op, ROW, grid).reshape(-1).tolist()
    return result


def test_grid_places() -> None:
    # Outer edges at -1 and 1: element centres at -2/3, 0, 2/3.
    assert along_row(GridSample(), -2 / 3, 0.0, 1 / 3) == pytest.approx([10, 20, 25])
    assert along_row(GridSample(align_corners=True), -1.0, -0.5, 1.0) == [10, 15, 30]
    assert along_row(GridSample(mode="nearest"), -0.6, 0.3, 0.4) == [10, 20, 30]


@pytest.mark.parametrize(
    ("outside", "align", "expected"),
    [
        ("zeros", False, [5, 0]),
        ("border", False, [10, 10]),
        ("reflect", False, [10, 30]),
        ("reflect", True, [10, 20]),
        ("zeros", True, [10, 0]),
    ],
)
def test_beyond_the_edges(outside: str, align: bool, expected: list[float]) -> None:
    op = GridSample(outside=outside, align_corners=align)
    # Without alignment the second place is element -3, which mirrors to 2; with it, -1 to 1.
    places = (-1.0, -2.0) if align else (-1.0, -1 - 5 / 3)
    assert along_row(op, *places) == pytest.approx(expected)


def test_grid_places_that_are_no_numbers_read_nothing_else() -> None:
    assert along_row(GridSample(), float("nan"), float("inf"), 1e30) == [0, 0, 0]
    assert along_row(GridSample(outside="border"), float("inf"), -1e30) == [30, 10]


def test_cubic_goes_through_the_elements() -> None:
    op = GridSample(mode="cubic", outside="border")
    assert along_row(op, -2 / 3, 0.0, 2 / 3) == pytest.approx([10, 20, 30], rel=1e-5)


def test_volumes_take_the_last_axis_first() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2)
    grid = np.array([1.0, -1, -1, -1, 1, -1, -1, -1, 1], np.float32).reshape(1, 3, 1, 1, 3)
    assert apply(GridSample(align_corners=True), x, grid).reshape(-1).tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("x", "grid", "message"),
    [
        ("f32 1 2 4 4", "f32 1 3 3 3", "one coordinate an axis"),
        ("f32 1 2 4 4", "f32 1 3 2", "a grid of the same rank"),
        ("f32 1 2 4 4", "f32 2 3 3 2", "dimensions differ"),
        ("f32 1 2 4 4", "i64 1 3 3 2", "element type not accepted"),
    ],
)
def test_grid_sample_refuses(x: str, grid: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(GridSample(), x, grid)


def test_grid_symbols() -> None:
    assert typed(GridSample(), "f32 N 2 H W", "f32 3 P Q 2").tensor.shape == (3, 2, "P", "Q")


IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def test_roi_align_by_hand() -> None:
    box, batch = [[0.0, 0.0, 4.0, 4.0]], np.array([0])
    # Samples at the centres of elements, four to a bin.
    whole = RoiAlign((2, 2), ratio=2)
    assert apply(whole, IMAGE, box, batch).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert apply(RoiAlign((2, 2)), IMAGE, box, batch).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    # Without the shift samples lie half an element further; beyond the last they repeat it.
    corner = RoiAlign((1, 1), ratio=1, half_pixel=False)
    assert apply(corner, IMAGE, [[1.0, 1.0, 2.0, 2.0]], batch).tolist() == [[[[7.5]]]]
    assert apply(corner, IMAGE, [[3.0, 3.0, 3.5, 3.5]], batch).tolist() == [[[[15]]]]
    assert apply(corner, IMAGE, [[9.0, 9.0, 10.0, 10.0]], batch).tolist() == [[[[0]]]]


def test_roi_align_max_is_over_weighted_neighbours() -> None:
    op = RoiAlign((1, 1), ratio=1, half_pixel=False, mode=MAX)
    assert apply(op, IMAGE, [[1.0, 1.0, 2.0, 2.0]], np.array([0])).tolist() == [[[[2.5]]]]
    empty = RoiAlign((1, 1), mode=MAX)
    assert apply(empty, IMAGE, [[2.0, 2.0, 2.0, 2.0]], np.array([0])).tolist() == [[[[0]]]]


def test_every_region_has_an_image() -> None:
    kinds = ["f32[1, 1, 4, 4]", "f32[2, 4]", "i64[3]"]
    with pytest.raises(InferError, match="dimensions differ"):
        RoiAlign((1, 1))(*[Input(k, parse_tensor_type(k))() for k in kinds])


def test_regions_that_cannot_be_meant() -> None:
    op, batch = RoiAlign((1, 1)), np.array([0])
    with pytest.raises(ExecutionError, match="a region is not of this image"):
        apply(op, IMAGE, [[0.0, 0.0, 1e30, 1.0]], batch)
    with pytest.raises(ExecutionError, match="a region is not of this image"):
        apply(op, IMAGE, [[0.0, 0.0, np.nan, 1.0]], batch)
    with pytest.raises(ExecutionError, match="a region of no image"):
        apply(op, IMAGE, [[0.0, 0.0, 1.0, 1.0]], np.array([1]))
    with pytest.raises(InferError, match="a region is 4 numbers"):
        typed(op, "f32 1 1 4 4", "f32 R 5", "i64 R")
    assert typed(op, "f32 N 3 4 4", "f32 R 4", "i64 R").tensor.shape == ("R", 3, 1, 1)


def test_max_roi_pool_by_hand() -> None:
    boxes = [[0.0, 0.0, 0.0, 3.0, 3.0], [0.0, 1.0, 1.0, 1.0, 1.0], [0.0, 6.0, 6.0, 7.0, 7.0]]
    result = apply(MaxRoiPool((2, 2)), IMAGE, boxes)
    assert result.tolist() == [[[[5, 7], [13, 15]]], [[[5, 5], [5, 5]]], [[[0, 0], [0, 0]]]]
    with pytest.raises(ExecutionError, match="a region of no image"):
        apply(MaxRoiPool((2, 2)), IMAGE, [[1.0, 0.0, 0.0, 3.0, 3.0]])


BOXES = [[[0.0, 0.0, 2.0, 2.0], [0.0, 1.0, 2.0, 3.0], [2.0, 2.0, 0.0, 0.0], [5.0, 5.0, 6.0, 6.0]]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # Boxes 0 and 1 share a third, and 2 is 0 with its corners the other way round.
        ({"limit": 9, "iou": 0.5}, [2, 1, 3]),
        ({"limit": 9, "iou": 0.3}, [2, 3]),
        ({"limit": 9, "iou": 0.3, "score": 0.25}, [2]),
        ({"limit": 2, "iou": 1.0}, [2, 0]),
        ({"limit": 0, "iou": 0.5}, []),
    ],
)
def test_suppression(fields: dict[str, Any], expected: list[int]) -> None:
    result = apply(NonMaxSuppression(**fields), BOXES, [[[0.8, 0.5, 0.9, 0.2]]])
    assert result.dtype == np.int64
    assert result.shape == (len(expected), 3)
    assert result[:, 2].tolist() == expected


def test_suppression_is_by_batch_and_class() -> None:
    op = NonMaxSuppression(limit=1, iou=0.5)
    scores = [[[0.8, 0.5, 0.9, 0.2], [0.1, 0.5, 0.1, 0.5]]]
    assert apply(op, BOXES, scores).tolist() == [[0, 0, 2], [0, 1, 1]]
    centred = NonMaxSuppression(limit=2, iou=0.5, centre=True)
    boxes = [[[1.0, 1.0, 2.0, 2.0], [1.0, 1.2, 2.0, 2.0], [9.0, 9.0, 2.0, 2.0]]]
    assert apply(centred, boxes, [[[0.1, 0.3, 0.2]]]).tolist() == [[0, 0, 1], [0, 0, 2]]


def test_suppression_refuses_scores_of_other_boxes() -> None:
    with pytest.raises(InferError, match="boxes and scores do not fit"):
        typed(NonMaxSuppression(), "f32 1 4 4", "f32 1 2 3")
