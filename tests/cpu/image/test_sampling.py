"""Ops that read images at places that are data, on the CPU target, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.errors import ExecutionError
from monograph.ir import Op, constant
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


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32"])
@pytest.mark.parametrize("channels", [1, 3, 37])
def test_grid_of_many_channels(channels: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    grid = rng.uniform(-1.2, 1.2, (2, 9, 4, 2)).astype(np.float32)
    y = GridSample()(value(f"{dtype}[2, {channels}, 6, 5]"), value("f32[2, 9, 4, 2]", "y"))
    x = (rng.normal(size=(2, channels, 6, 5)) * 5).astype(y.dtype.numpy)
    check(graph_of(Abs()(y)), {"x": x, "y": grid})


def test_a_read_of_weight_zero_is_dropped() -> None:
    x = np.full((1, 20, 3, 3), np.inf, np.float32)
    x[:, :, 1, 1] = 2.0
    centre = np.zeros((1, 1, 1, 2), np.float32)
    graph = graph_of(GridSample()(value("f32[1, 20, 3, 3]"), value("f32[1, 1, 1, 2]", "y")))
    check(graph, {"x": x, "y": centre})
    (found,) = compile_graph(graph, host_features(), 1).run({"x": x, "y": centre})
    assert (np.asarray(found) == 2.0).all()


@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 1), (1, 4), (4, 2)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("masked", [False, True])
def test_deformable_groups(groups: int, offset_groups: int, dtype: str, masked: bool) -> None:
    window = {"strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 2), "dilations": (1, 2)}
    op = DeformConv(**window, groups=groups, offset_groups=offset_groups)
    places = offset_groups * 6
    operands = [
        value(f"{dtype}[2, 20, 8, 7]"),
        value(f"{dtype}[8, {20 // groups}, 3, 2]", "w"),
        value(f"{dtype}[2, {places * 2}, 4, 7]", "o"),
    ]
    if masked:
        operands.append(value(f"{dtype}[2, {places}, 4, 7]", "m"))
    check(graph_of(Abs()(op(*operands))))


def test_deformable_with_constant_weights_is_a_read_and_a_product() -> None:
    window = {"strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1)}
    weights = np.random.default_rng(2).normal(size=(24, 16, 3, 3)).astype(np.float32)
    y = DeformConv(**window)(
        value("f32[1, 16, 9, 9]"), constant(weights), value("f32[1, 18, 9, 9]", "o")
    )
    program = compile_graph(graph_of(y), host_features(), 1).program
    kinds = [step.region.kind for step in program.steps]
    assert kinds.count("read_between") == 1
    assert kinds.count("dot") == 1


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
