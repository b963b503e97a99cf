"""The largest elements in order, on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Item
from monograph.ops.elementwise import Neg
from monograph.ops.shape import Transpose
from monograph.ops.sort import TopK
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, check
from tests.rules.checks import graph_of, value

SOME = ("scan 256 16x256", "search 256 64x64")


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "k", "axis"),
    [("f32[1, 600]", 30, 1), ("f32[270, 2]", 270, 0), ("f32[3, 9]", 9, 1)],
)
def test_ranks(shape: str, k: int, axis: int, largest: bool) -> None:
    top = TopK(k, axis, largest)(value(shape))
    check(graph_of(Item(0)(top), Item(1)(top)), chosen=(*SOME, "count 16x256"))


@pytest.mark.parametrize("dtype", ["f16", "f64", "i8", "u8", "u32", "i64", "u64", "f8e4m3fn"])
def test_element_types_and_ties(dtype: str) -> None:
    x = value(f"{dtype}[1, 530]")
    top, low = TopK(40, 1)(x), TopK(40, 1, largest=False)(x)
    graph = graph_of(Item(0)(top), Item(1)(top), Item(0)(low), Item(1)(low))
    feeds = feeds_for(graph)
    if not dtype.startswith(("f", "b")):
        ends = np.iinfo(feeds["x"].dtype)
        feeds["x"][:, 3] = ends.max
        feeds["x"][:, 500:503] = ends.min
    check(graph, feeds, chosen=SOME)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_the_largest_and_zeros_are_equal(dtype: str, largest: bool) -> None:
    top = TopK(25, 0, largest)(value(f"{dtype}[520]"))
    graph = graph_of(Item(1)(top))
    feeds = feeds_for(graph)
    feeds["x"][::7] = np.nan
    feeds["x"][1::7] = -np.inf
    feeds["x"][2::7] = 0.0
    feeds["x"][3::7] = -0.0
    check(graph, feeds, chosen=SOME)


def test_equal_rows_come_in_order() -> None:
    """No chunk of equal elements can be left out."""
    top = TopK(300, 0)(value("f32[520]"))
    graph = graph_of(Item(1)(top))
    check(graph, {"x": np.ones(520, np.float32)}, chosen=SOME)


def test_a_single_result_and_views() -> None:
    x = value("f32[6, 40]")
    top = TopK(1, 1)(Transpose((1, 0))(x))
    check(graph_of(Neg()(Item(0)(top))))


def test_rows_are_dealt_out_when_they_are_long() -> None:
    names = candidate_names(graph_of(Item(0)(TopK(300, 1)(value("f32[1, 8400]")))))
    assert names[0]
    assert all(not n.startswith("count") for n in names[0])
