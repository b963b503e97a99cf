"""Resizing: values by hand for every way to find places, symbols, sizes known late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, TensorType, evaluate
from monograph.ir.dtype import f32, i64
from monograph.ops.deferred import Deferred, deferred
from monograph.ops.resize import CUBIC, LINEAR, NOT_LARGER, NOT_SMALLER, Resize
from tests.ops.windows import apply, typed

RAMP = np.array([0, 10, 20, 30], np.float32)


@pytest.mark.parametrize(
    ("coordinates", "expected"),
    [
        ("half_pixel", [1.6666667, 15, 28.333333]),
        ("pytorch_half_pixel", [1.6666667, 15, 28.333333]),
        ("half_pixel_symmetric", [1.6666667, 15, 28.333333]),
        ("align_corners", [0, 15, 30]),
        ("asymmetric", [0, 13.333333, 26.666667]),
    ],
)
def test_where_the_results_lie(coordinates: str, expected: list[float]) -> None:
    op = Resize((0,), sizes=(3,), mode=LINEAR, coordinates=coordinates)
    np.testing.assert_allclose(apply(op, RAMP), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("coordinates", "expected"),
    [("half_pixel", 15), ("pytorch_half_pixel", 0), ("align_corners", 0), ("asymmetric", 0)],
)
def test_a_single_result(coordinates: str, expected: float) -> None:
    op = Resize((0,), sizes=(1,), mode=LINEAR, coordinates=coordinates)
    assert apply(op, RAMP).tolist() == [expected]


def test_symmetric_keeps_the_centre_where_a_size_is_rounded() -> None:
    op = Resize((0,), scales=(0.6,), mode=LINEAR, coordinates="half_pixel_symmetric")
    # 2.4 becomes 2: the places 0.333 and 2 move by 0.333 to be symmetric about 1.5.
    np.testing.assert_allclose(apply(op, RAMP), [20 / 3, 70 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("round_prefer_floor", [0, 0, 10, 10, 20, 20, 30, 30]),
        ("round_prefer_ceil", [0, 10, 10, 20, 20, 30, 30, 30]),
        ("floor", [0, 0, 10, 10, 20, 20, 30, 30]),
        ("ceil", [0, 10, 10, 20, 20, 30, 30, 30]),
        ("simple", [0, 0, 10, 10, 20, 20, 30, 30]),
    ],
)
def test_the_nearest_element(rounding: str, expected: list[float]) -> None:
    op = Resize((0,), scales=(2.0,), coordinates="asymmetric", rounding=rounding)
    assert apply(op, RAMP).tolist() == expected


def test_a_third_divides_evenly_though_an_f32_does_not() -> None:
    op = Resize(
        (0,), scales=(float(np.float32(1 / 3)),), coordinates="asymmetric", rounding="floor"
    )
    assert apply(op, np.arange(10.0)).tolist() == [0, 3, 6]


def test_cubic_reproduces_a_line_inside_and_repeats_the_edge() -> None:
    line = apply(Resize((0,), scales=(2.0,), mode=CUBIC, cubic_a=-0.5), np.arange(8.0))
    np.testing.assert_allclose(line[4:-4], np.arange(4, 12) / 2 - 0.25, rtol=1e-6)
    result = apply(Resize((0,), scales=(2.0,), mode=CUBIC), np.arange(8.0))
    # Weights at a distance of 1/4 with a = -0.75; both places before the edge read element 0.
    w = [-0.03515625, 0.26171875, 0.87890625, -0.10546875]
    np.testing.assert_allclose(result[0], w[3] * 1, rtol=1e-5)
    excluded = apply(Resize((0,), scales=(2.0,), mode=CUBIC, exclude_outside=True), np.arange(8.0))
    np.testing.assert_allclose(excluded[0], w[3] / (w[2] + w[3]), rtol=1e-5)


def test_antialias_widens_the_kernel() -> None:
    op = Resize((0,), scales=(0.5,), mode=LINEAR, antialias=True)
    # Places 0.5 and 2.5; weights 1/8 3/8 3/8 1/8, what lies beyond repeats the edge.
    assert apply(op, [0.0, 8, 16, 24]).tolist() == [5, 19]
    grown = Resize((0,), scales=(2.0,), mode=LINEAR, antialias=True)
    plain = Resize((0,), scales=(2.0,), mode=LINEAR)
    np.testing.assert_array_equal(apply(grown, RAMP), apply(plain, RAMP))


def test_crop_reads_a_region_and_extrapolates() -> None:
    crop = {"mode": LINEAR, "coordinates": "tf_crop_and_resize", "extrapolation": -1.0}
    op = Resize((0,), sizes=(3,), roi=(0.5, 1.5), **crop)
    assert apply(op, RAMP).tolist() == [15, 30, -1]
    one = Resize((0,), sizes=(1,), roi=(0.0, 1.0), **crop)
    assert apply(one, RAMP).tolist() == [15]


def test_policies_keep_the_aspect_ratio() -> None:
    for policy, shape in ((NOT_LARGER, (4, 2)), (NOT_SMALLER, (6, 3))):
        op = Resize((0, 1), sizes=(4, 3), policy=policy)
        assert typed(op, "f32 2 1").tensor.shape == shape
        assert apply(op, np.zeros((2, 1))).shape == shape


def test_integers_are_cut_off_within_their_range() -> None:
    x = np.array([0, 255, 255, 0], np.uint8)
    result = apply(Resize((0,), scales=(2.0,), mode=CUBIC), x)
    assert result.dtype == np.uint8
    assert result[3:5].tolist() == [255, 255]
    assert result[0] == 0


def test_one_form_for_equal_resizes() -> None:
    by_scale = typed(Resize((0, 1, 2, 3), scales=(1.0, 1.0, 2.0, 2.0)), "f32 N 3 4 5")
    by_size = typed(Resize((-1, -2), sizes=(10, 8), cubic_a=0.5, extrapolation=2.0), "f32 N 3 4 5")
    assert by_scale.op == by_size.op == Resize((2, 3), sizes=(8, 10))
    assert by_scale.tensor.shape == ("N", 3, 8, 10)
    assert typed(Resize((0,), sizes=(4,)), "f32 4").op == Resize((), sizes=())


def test_symbols_wait_for_the_data() -> None:
    value = typed(Resize((0, 1), scales=(1.0, 2.0)), "f32 N L")
    assert value.tensor.dims[0] == "N"
    assert isinstance(value.tensor.dims[1], str)
    (y,) = evaluate(Graph(value.inputs, (("y", value),)), [np.array([[1, 2]], np.float32)])
    assert y.tolist() == [[1, 1, 2, 2]]


def test_sizes_known_late() -> None:
    x, sizes = Input("x", TensorType(f32, (2, "L")))(), Input("sizes", TensorType(i64, (1,)))()
    value = deferred(Resize, (x,), {"sizes": sizes}, axes=(-1,), mode=LINEAR)
    assert isinstance(value.op, Deferred)
    assert value.tensor.dims[0] == 2
    graph = Graph((x, sizes), (("y", value),))
    (y,) = evaluate(graph, [np.array([[0, 4], [4, 0]], np.float32), np.array([4])])
    assert y.tolist() == [[0, 1, 3, 4], [4, 3, 1, 0]]
    with pytest.raises(InferError, match="a size is negative"):
        evaluate(graph, [np.zeros((2, 2), np.float32), np.array([-1])])
    wrong = Input("sizes", TensorType(i64, (2,)))()
    with pytest.raises(InferError, match="sizes do not fit the axes"):
        deferred(Resize, (x,), {"sizes": wrong}, axes=(1,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sizes": (3, 3)}, "sizes do not fit the axes"),
        ({"scales": (0.0,)}, "a scale is not positive"),
        ({"scales": (float("nan"),)}, "a scale is not positive"),
        ({}, "sizes or scales are needed"),
        ({"sizes": (3,), "mode": "area"}, "unknown mode"),
        ({"sizes": (3,), "coordinates": "corners"}, "unknown coordinates"),
        ({"sizes": (3,), "rounding": "up"}, "unknown rounding"),
        ({"sizes": (3,), "policy": "crop"}, "unknown policy"),
        ({"scales": (3.0,), "policy": NOT_LARGER}, "a policy needs sizes"),
        ({"sizes": (3,), "coordinates": "tf_crop_and_resize"}, "a crop needs a region"),
    ],
)
def test_resize_refuses(fields: Any, message: str) -> None:
    with pytest.raises(InferError, match=message):
        typed(Resize((0,), **fields), "f32 4")
    with pytest.raises(InferError, match="an axis is named twice"):
        typed(Resize((0, -1), sizes=(3, 3)), "f32 4")


def test_nothing_cannot_be_resized_to_something() -> None:
    assert apply(Resize((0,), scales=(2.0,)), np.zeros((0,))).shape == (0,)
    with pytest.raises(ExecutionError, match="nothing to interpolate between"):
        apply(Resize((0,), sizes=(2,)), np.zeros((0,)))
