"""Scatters, resizes and other moves of elements on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module.select import family
from monograph.errors import ExecutionError
from monograph.ir import Item, Literal, constant
from monograph.ops.elementwise import Neg
from monograph.ops.index import Gather
from monograph.ops.linear import Det
from monograph.ops.ml import Lookup
from monograph.ops.pad_tile import PAD_MODES, Pad
from monograph.ops.resize import CUBIC, LINEAR, Resize
from monograph.ops.roi import NonMaxSuppression
from monograph.ops.scatter import Col2Im, ScatterElements, ScatterNd
from monograph.ops.shape import Reshape, Transpose
from monograph.ops.sort import NonZero, Unique
from monograph.program.dynamic.bounded import Counted
from tests.cpu.against import feeds_for
from tests.gpu.against import check
from tests.rules.checks import graph_of, value

REDUCTIONS = ("none", "add", "mul", "min", "max")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "u8", "bool"])
def test_scatters_with_places_that_come_twice(dtype: str, reduction: str) -> None:
    x, updates = value(f"{dtype}[3, 5, 4]"), value(f"{dtype}[3, 6, 2]", "u")
    indices = np.random.default_rng(1).integers(-5, 5, (3, 6, 2))
    y = ScatterElements(1, reduction)(x, constant(indices), updates)
    check(graph_of(y), chosen=("each 256 w4", "last"))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_of_slices(reduction: str) -> None:
    x, updates = value("f32[4, 3, 5]"), value("f32[2, 4, 5]", "u")
    indices = np.random.default_rng(1).integers(-3, 3, (2, 4, 2))
    y = ScatterNd(reduction)(Transpose((0, 1, 2))(x), constant(indices), updates)
    check(graph_of(Neg()(y)), chosen=("each 256 w4", "last"))


@pytest.mark.parametrize("way", ["each 256 w4", "last"])
def test_a_scatter_out_of_range_is_reported(way: str) -> None:
    y = ScatterElements(0)(value("f32[4]"), value("i64[2]", "i"), value("f32[2]", "u"))
    graph = graph_of(y)
    feeds = feeds_for(graph)
    feeds["i"] = np.array([1, 4])
    with pytest.raises(ExecutionError, match="out of range"):
        check(graph, feeds, expected=[], chosen=(way,))


@pytest.mark.parametrize("constant_index", [False, True])
def test_one_element_is_written_once(constant_index: bool) -> None:
    """A result without dimensions has one place for a whole block of elements."""
    number = constant(np.int64(-1)) if constant_index else value("i64[]", "i")
    graph = graph_of(Neg()(Gather(0)(value("f32[3]"), number)))
    feeds = {"x": np.array([1, 2, 3], np.float32)} | ({} if constant_index else {"i": np.array(2)})
    check(graph, feeds, steps=1)


def test_a_single_block_between_pixels() -> None:
    x = Reshape((1, 1, 1))(value("f32[1, 1, 1, 1]"))
    check(graph_of(Col2Im((3,), (1,), (3,), (1,), (0,), (0,))(x)), every=False)


@pytest.mark.parametrize("dtype", ["f16", "f64", "i8"])
def test_resizes_of_every_type(dtype: str) -> None:
    x = Transpose((1, 0, 2))(value(f"{dtype}[5, 2, 6]"))
    y = Resize((1, 2), sizes=(9, 4), mode=CUBIC)(x)
    z = Resize((1, 2), sizes=(2, 3), mode=LINEAR, antialias=True)(x)
    check(graph_of(y, z), every=False)


def test_resizes_of_nothing() -> None:
    check(graph_of(Resize((0, 1), sizes=(0, 9))(value("f32[0, 3]"))), steps=1)


@pytest.mark.parametrize("mode", PAD_MODES)
@pytest.mark.parametrize(
    ("before", "after"),
    [((0, 0), (0, 5)), ((1, 3), (2, 0)), ((2, 4), (1, -2)), ((0, -2), (3, 4)), ((0, 9), (0, 11))],
)
def test_padding(mode: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """At both ends, of one axis and two, with parts removed, and by more than there is."""
    y = Pad(before, after, mode)(value("f32[3, 5]"))
    check(graph_of(y), every=False)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_refuses_to_repeat_what_it_removed(mode: str) -> None:
    """No element is left: any that a kernel read would be beyond the end."""
    assert family(Pad((-1,), (2,), mode)(value("f32[1]"))) is None
    assert family(Pad((-1,), (2,), mode)(value("f32[2]"))) is not None
    check(graph_of(Pad((-1, 0), (2, 0), mode)(value("f32[1, 0]"))), steps=1)


def test_many_taps_are_a_loop() -> None:
    y = Resize((0, 1), sizes=(2, 2), mode=LINEAR, antialias=True)(value("f32[9, 10]"))
    check(graph_of(y), every=False)


def test_determinants_of_many_matrices() -> None:
    check(graph_of(Det()(value("f32[3, 5, 5]"))))


@pytest.mark.parametrize("shape", ["f32[7, 300]", "i64[5]", "bool[2, 3, 4]", "f32[0, 3]"])
def test_places_that_are_not_zero(shape: str) -> None:
    found = Counted(NonZero())(value(shape))
    graph = graph_of(Item(0)(found), Item(1)(found))
    feeds = feeds_for(graph)
    if shape.startswith("f32"):
        feeds["x"][feeds["x"] < 0.5] = 0
    check(graph, feeds)


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("score", [None, 0.3])
def test_boxes_that_do_not_overlap(centre: bool, score: float | None) -> None:
    op = NonMaxSuppression(limit=4, iou=0.2, score=score, centre=centre)
    found = Counted(op)(value("f32[2, 40, 4]", "b"), value("f32[2, 3, 40]", "s"))
    graph = graph_of(Item(0)(found), Item(1)(found))
    feeds = feeds_for(graph)
    feeds["b"] = np.abs(feeds["b"])
    feeds["s"][0, 1] = np.round(feeds["s"][0, 1])
    feeds["s"][1, 0, ::3] = np.nan
    check(graph, feeds, every=False)


@pytest.mark.parametrize(
    ("limit", "boxes", "scores"),
    [
        (0, "f32[1, 4, 4]", "f32[1, 1, 4]"),
        (3, "f32[2, 4, 4]", "f32[2, 0, 4]"),
        (3, "f32[0, 4, 4]", "f32[0, 2, 4]"),
        (3, "f32[2, 0, 4]", "f32[2, 2, 0]"),
    ],
)
def test_no_box_is_chosen(limit: int, boxes: str, scores: str) -> None:
    found = Counted(NonMaxSuppression(limit=limit))(value(boxes, "b"), value(scores))
    check(graph_of(Item(0)(found), Item(1)(found)))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ("i64[9, 11]", None),
        ("f32[70]", None),
        ("u8[30, 2]", 0),
        ("f32[2, 40, 1]", 1),
        ("i8[0]", None),
    ],
)
def test_distinct_items(shape: str, axis: int | None, in_order: bool) -> None:
    found = Counted(Unique(axis, in_order))(value(shape))
    graph = graph_of(*(Item(i)(found) for i in range(5)))
    feeds = feeds_for(graph)
    if shape.startswith("f32"):
        feeds["x"] = np.round(feeds["x"])
        feeds["x"].reshape(-1)[3:20:4] = np.nan
    check(graph, feeds)


def test_an_element_that_is_no_key_is_reported() -> None:
    op = Lookup(Literal(np.array([3, 1])), Literal(np.array([0.5, 2.5], np.float32)))
    graph = graph_of(op(value("i64[2, 2]")))
    check(graph, {"x": np.array([[1, 3], [3, 1]])})
    with pytest.raises(ExecutionError, match="not in the table"):
        check(graph, {"x": np.array([[1, 3], [2, 1]])}, expected=[], every=False)
