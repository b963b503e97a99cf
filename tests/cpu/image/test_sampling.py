"""Ops that read images at places that are data, on the CPU target, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.errors import ExecutionError
from monograph.ir import Op
from monograph.ops.conv import DeformConv
from monograph.ops.elementwise import Abs
from monograph.ops.image import GridSample
from monograph.ops.pool import MaxUnpool
from monograph.ops.roi import MaxRoiPool, RoiAlign
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import check
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

OPS = (DeformConv, GridSample, MaxRoiPool, MaxUnpool, RoiAlign)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples(op: type[Op]) -> None:
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflect"])
def test_grid(mode: str, outside: str) -> None:
    rng = np.random.default_rng(0)
    grid = rng.uniform(-4, 4, (2, 5, 7, 2)).astype(np.float32)
    grid[0, 0, 0] = np.nan
    grid[0, 1, 1] = np.inf
    x = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    for align_corners in (False, True):
        op = GridSample(mode, outside, align_corners)
        y = op(value("f32[2, 3, 6, 5]"), value("f32[2, 5, 7, 2]", "y"))
        check(graph_of(Abs()(y)), {"x": x, "y": grid})


def test_a_region_of_no_image_is_an_error() -> None:
    op = RoiAlign((2, 2))
    x, rois, batch = value("f32[1, 2, 4, 4]"), value("f32[1, 4]", "y"), value("i64[1]", "z")
    executable = compile_graph(graph_of(op(x, rois, batch)), host_features(), 1)
    feeds = {
        "x": np.zeros((1, 2, 4, 4), np.float32),
        "y": np.ones((1, 4), np.float32),
        "z": np.array([3]),
    }
    with pytest.raises(ExecutionError, match="a region of no image"):
        executable.run(feeds)


def test_of_several_elements_for_one_place_the_last_stays() -> None:
    op = MaxUnpool((2,), (2,), (0,), (0,))
    y = op(value("f32[1, 1, 4]"), value("i64[1, 1, 4]", "y"))
    feeds = {
        "x": np.array([[[1, 2, 3, 4]]], np.float32),
        "y": np.array([[[5, 0, 5, 7]]]),
    }
    check(graph_of(y), feeds)
