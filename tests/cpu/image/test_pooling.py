"""Pools of every form on the CPU target, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import dtype
from monograph.ops.elementwise import Abs
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, Pool
from tests.cpu.against import check
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

POOLS = (MaxPool, AveragePool, LpPool, ArgMaxPool)
LAST = "channels_last"


@pytest.mark.parametrize("op", POOLS, ids=lambda op: op.name)
def test_samples(op: type[Pool]) -> None:
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds)


@pytest.mark.parametrize("op", POOLS, ids=lambda op: op.name)
@pytest.mark.parametrize("channels", [3, 16, 41, 128])
def test_channels(op: type[Pool], channels: int) -> None:
    """Blocks of vectors, and what is left over."""
    pool = op((5, 3), (1, 2), (2, 1), (2, 0), (1, 2), layout=LAST)
    check(graph_of(Abs()(pool(value(f"f32[2, 7, 9, {channels}]")))))


@pytest.mark.parametrize("include_pad", [False, True])
def test_average_beyond_the_padding(include_pad: bool) -> None:
    window = {"pads_begin": (1, 0), "pads_end": (0, 1), "dilations": (2, 1), "ceil": True}
    pool = AveragePool((2, 3), (2, 2), include_pad=include_pad, layout=LAST, **window)
    check(graph_of(pool(value("f32[1, 8, 8, 20]"))))


def test_three_spatial_axes() -> None:
    for layout in ("channels_first", LAST):
        pool = MaxPool((2, 2, 2), (2, 1, 2), (0, 1, 0), (0, 1, 1), (1, 1, 1), layout=layout)
        check(graph_of(pool(value("f64[2, 4, 5, 6, 7]"))))


@pytest.mark.parametrize("op", [MaxPool, ArgMaxPool], ids=lambda op: op.name)
def test_nan_and_the_lowest_win_over_padding(op: type[Pool]) -> None:
    x = np.full((1, 4, 4, 17), -np.inf, np.float32)
    x[0, 1, 2, 3] = np.nan
    x[0, 3, 3, :] = 1.0
    pool = op((2, 2), (1, 1), (1, 1), (0, 0), (1, 1), layout=LAST)
    check(graph_of(pool(value("f32[1, 4, 4, 17]"))), {"x": x})


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_windows_that_read_only_padding(layout: str) -> None:
    shape = "2, 3, 4, 1" if layout == "channels_first" else "2, 4, 1, 3"
    window = ((2, 2), (1, 1), (1, 1), (0, 1), (1, 2))
    x = value(f"f32[{shape}]")
    check(graph_of(ArgMaxPool(*window, layout=layout)(x), MaxPool(*window, layout=layout)(x)))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "u8", "i32"])
@pytest.mark.parametrize("layout", ["channels_first", LAST])
def test_wide_windows(dtype: str, layout: str) -> None:
    """A pool over each axis is less work; averages are not rounded to narrow floats between."""
    kinds = (MaxPool, AveragePool) if dtype[0] in "fb" else (MaxPool,)
    for kind in kinds:
        split = None
        if layout == LAST:
            split = 2 if kind is MaxPool or dtype in ("f32", "f64") else 1
        for window in (
            ((13, 13), (1, 1), (6, 6), (6, 6), (1, 1)),
            ((7, 5), (2, 1), (3, 0), (1, 4), (1, 2)),
        ):
            x = value(f"{dtype}[2, 17, 14, 15]")
            check(graph_of(kind(*window, layout=layout)(x)), steps=split)


@pytest.mark.parametrize("include_pad", [False, True])
def test_wide_averages_beyond_the_padding(include_pad: bool) -> None:
    window = ((7, 7), (3, 3), (3, 2), (3, 3), (1, 1))
    pool = AveragePool(*window, ceil=True, include_pad=include_pad, layout=LAST)
    check(graph_of(pool(value("f32[1, 12, 13, 5]"))), steps=2)


def test_windows_that_do_not_overlap_stay_one_step() -> None:
    pool = MaxPool((7, 7), (7, 7), (0, 0), (0, 0), (1, 1), layout=LAST)
    check(graph_of(pool(value("f32[1, 14, 14, 20]"))), steps=1)


def test_nan_and_infinities_in_wide_windows() -> None:
    x = np.full((1, 9, 9, 3), -np.inf, np.float32)
    x[0, 4, 4, 0], x[0, 1, 2, 1], x[0, 7, 7, 1], x[0, 8, 0, 2] = np.nan, np.inf, -np.inf, -0.0
    for kind in (MaxPool, AveragePool):
        pool = kind((5, 5), (1, 1), (2, 2), (2, 2), (1, 1), layout=LAST)
        check(graph_of(pool(value("f32[1, 9, 9, 3]"))), {"x": x}, steps=2)


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("kind", ["f32", "i8", "f64"])
def test_places_of_the_largest_in_vectors_along_a_row(kind: str, column_major: bool) -> None:
    """More windows in a row than lanes, none beyond the data; equal elements and NaN among them."""
    x = np.random.default_rng(0).integers(-2, 3, (2, 3, 7, 75)).astype(dtype(kind).numpy)
    if kind == "f32":
        x[:, 1, 2:5, ::9] = np.nan
    given = value(f"{kind}[2, 3, 7, 75]")
    op = ArgMaxPool((3, 2), (2, 2), (0, 0), (0, 0), (1, 1), column_major=column_major)
    check(graph_of(op(given)), {"x": x})
