"""Resizing on the CPU target, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ops.elementwise import Abs
from monograph.ops.resize import CUBIC, LINEAR, NEAREST, Resize
from tests.cpu.against import check
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph


def test_samples() -> None:
    for sample in Resize.samples:
        graph, feeds = sample_graph(Resize, sample)
        check(graph, feeds)


@pytest.mark.parametrize("mode", [NEAREST, LINEAR, CUBIC])
@pytest.mark.parametrize("channels", [3, 16, 41, 96])
def test_channels_last(mode: str, channels: int) -> None:
    for sizes in ((8, 10), (7, 3)):
        op = Resize((1, 2), sizes, mode=mode)
        check(graph_of(Abs()(op(value(f"f32[2, 4, 5, {channels}]")))))


@pytest.mark.parametrize("coordinates", ["align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", [NEAREST, LINEAR, CUBIC])
def test_channels_first(mode: str, coordinates: str) -> None:
    op = Resize((2, 3), (9, 4), mode=mode, coordinates=coordinates)
    check(graph_of(op(value("f16[2, 3, 4, 5]"))))


def test_integers_are_cut_off() -> None:
    for kind in ("i8", "u8", "i32"):
        check(graph_of(Resize((0, 1), (7, 9), mode=CUBIC)(value(f"{kind}[5, 4]"))))


@pytest.mark.parametrize("mode", [LINEAR, CUBIC])
def test_pixels_that_weigh_nothing_are_not_read(mode: str) -> None:
    op = Resize((0, 1), (4, 14), mode=mode, coordinates="asymmetric")
    x = np.arange(8 * 7, dtype=np.float32).reshape(8, 7)
    # Results lie on every second row. The rows between them count on no target.
    x[1::2] = np.nan
    x[3, 2] = np.inf
    graph = graph_of(op(value("f32[8, 7]")))
    (name,) = graph.input_names
    check(graph, {name: x})
    assert np.isfinite(op.reference(x)).all()


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "u8", "i32"])
@pytest.mark.parametrize("mode", [LINEAR, CUBIC])
def test_antialiased(dtype: str, mode: str) -> None:
    """Wide floats go along one axis after the other; others are not rounded between."""
    op = Resize((1, 2), (5, 9), mode=mode, antialias=True)
    split = 2 if dtype in ("f32", "f64") else 1
    check(graph_of(op(value(f"{dtype}[2, 17, 31, 3]"))), steps=split)
    check(
        graph_of(Resize((2, 3), (9, 5), mode=mode, antialias=True)(value(f"{dtype}[1, 3, 31, 17]")))
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "u8", "i64", "bool"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_every_nth_element_is_a_view(dtype: str, rounding: str) -> None:
    for coordinates in ("half_pixel", "asymmetric", "align_corners"):
        op = Resize((2, 3), (6, 3), coordinates=coordinates, rounding=rounding)
        check(graph_of(op(value(f"{dtype}[1, 3, 12, 9]"))))
    check(graph_of(Resize((0,), (1,))(value(f"{dtype}[7, 3]"))), steps=1)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "u8", "i32"])
@pytest.mark.parametrize("mode", [NEAREST, LINEAR, CUBIC])
def test_the_last_axis(dtype: str, mode: str) -> None:
    """Rows of few and of many channels, of vectors and of single elements."""
    for shape, axes, sizes in (
        ("1, 3, 9, 20", (2, 3), (5, 37)),
        ("2, 9, 6, 7", (2, 3), (11, 5)),
        ("2, 19", (1,), (50,)),
        ("3, 5, 1", (1, 2), (2, 17)),
    ):
        check(graph_of(Resize(axes, sizes, mode=mode)(value(f"{dtype}[{shape}]"))))
