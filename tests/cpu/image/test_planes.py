"""Windows along the rows of one channel: pools and depthwise convolutions, channels first."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from monograph.codegen.llvm.image import planes
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.config import make_config
from monograph.ir import Graph, Value, constant, dtype
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Sigmoid, Tanh
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.shape import Slice, Transpose
from monograph.program.lowering import lower
from monograph.targets import optimise_for
from tests.cpu.against import check
from tests.rules.checks import graph_of, value

Window = dict[str, Any]
rng = np.random.default_rng(0)


def window(
    kernel: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    begin: tuple[int, int] = (0, 0),
    end: tuple[int, int] = (0, 0),
    dilations: tuple[int, int] = (1, 1),
) -> Window:
    rest = {"strides": strides, "pads_begin": begin, "pads_end": end, "dilations": dilations}
    return {"kernel": kernel, **rest}


WINDOWS = {
    "3x3": window((3, 3), begin=(1, 1), end=(1, 1)),
    "stride 2": window((3, 3), (2, 2), (1, 1), (1, 1)),
    "5x5 stride 2, odd padding": window((5, 5), (2, 2), (2, 1), (1, 2)),
    "dilated": window((3, 2), (1, 2), (2, 3), (3, 0), (2, 3)),
    "one row": window((1, 7), (2, 1), (0, 3), (0, 3)),
    "one column": window((7, 1), (1, 2), (3, 0), (3, 0)),
    "1x1": window((1, 1), (2, 2)),
    "padding beyond the window": window((2, 2), (1, 1), (3, 4), (4, 3)),
}
# Rows of a few elements more or less than vectors of any width.
SHAPES = ["1, 3, 5, 26", "2, 2, 9, 33", "1, 1, 70, 40"]


def weight(channels: int, kernel: tuple[int, ...], kind: str = "f32") -> Value:
    return constant(rng.normal(size=(channels, 1, *kernel)).astype(dtype(kind).numpy))


def depthwise(x: Value, form: Window, weights: Value | None = None) -> Value:
    attributes = {name: form[name] for name in form if name != "kernel"}
    channels = x.tensor.static[1]
    weights = weights or weight(channels, form["kernel"], str(x.dtype))
    return Conv(**attributes, groups=channels)(x, weights)


def check_planes(*outputs: Value, feeds: dict[str, np.ndarray] | None = None) -> None:
    """Check that the kernel computes all anchors, and the numbers on every machine."""
    graph = graph_of(*outputs)
    anchors = [s.region.anchor for s in lower(graph, CpuTarget()).whole.steps]
    found = [a for a in anchors if isinstance(getattr(a, "op", None), (Conv, AveragePool, MaxPool))]
    assert found
    assert all(planes.serves(a) for a in found if a is not None)
    check(graph, feeds)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_every_form(name: str) -> None:
    form = WINDOWS[name]
    x = value(f"f32[{SHAPES[list(WINDOWS).index(name) % len(SHAPES)]}]")
    check_planes(MaxPool(**form)(x), AveragePool(**form)(x), depthwise(x, form))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_element_types(kind: str) -> None:
    form = WINDOWS["stride 2"]
    x = value(f"{kind}[1, 3, 9, 35]")
    check_planes(MaxPool(**form)(x), AveragePool(**form)(x), depthwise(x, form))


@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
def test_averages_beyond_the_padding(include_pad: bool, ceil: bool) -> None:
    form = window((3, 4), (2, 2), (1, 1), (0, 2), (2, 1))
    x = value("f32[2, 3, 8, 37]")
    check_planes(AveragePool(**form, ceil=ceil, include_pad=include_pad)(x))


def test_nan_and_the_lowest_win_over_padding() -> None:
    x = np.full((1, 4, 5, 29), -np.inf, np.float32)
    x[0, 1, 2, 3], x[0, 2, 0, 28] = np.nan, np.inf
    x[0, 3] = -0.0
    form = WINDOWS["3x3"]
    given = value("f32[1, 4, 5, 29]")
    pools = (MaxPool(**form)(given), AveragePool(**form)(given), depthwise(given, form))
    check_planes(*pools, feeds={"x": x})


def test_padding_is_multiplied_by_weights_that_are_not_finite() -> None:
    x = value("f32[1, 2, 4, 20]")
    weights = np.ones((2, 1, 3, 3), np.float32)
    weights[0, 0, 0, 0], weights[1, 0, 2, 2] = np.inf, np.nan
    check_planes(depthwise(x, WINDOWS["3x3"], constant(weights)))


def test_weights_that_a_run_computes() -> None:
    x, w = value("f32[1, 5, 9, 26]"), value("f32[1, 3, 3, 5]", "w")
    turned = Transpose((3, 0, 2, 1))(w)
    check_planes(depthwise(x, WINDOWS["stride 2"], turned))


def test_operands_are_read_through_views() -> None:
    form = WINDOWS["stride 2"]
    whole = value("f32[2, 7, 9, 60]")
    part = Slice((0, 2, 1, 3), (2, 6, 8, 59), (1, 1, 2, 1))(whole)
    turned = Transpose((0, 2, 1, 3))(value("f32[2, 9, 4, 33]", "y"))
    last = Transpose((0, 3, 1, 2))(value("f32[2, 9, 33, 4]", "z"))
    for x in (part, turned, last):
        check_planes(MaxPool(**form)(x), depthwise(x, form))


@pytest.mark.parametrize("long", [False, True])
def test_epilogues(long: bool) -> None:
    """A short one is written for each row of a tile; a long one is a loop over the rows."""
    form = WINDOWS["3x3"]
    x, other = value("f32[1, 4, 11, 27]"), value("f32[1, 4, 11, 27]", "y")
    bias = constant(rng.normal(size=(4, 1, 1)).astype(np.float32))

    def finished(v: Value) -> Value:
        v = Add()(Add()(v, bias), other)
        return Exp()(Tanh()(Sigmoid()(v))) if long else v

    check_planes(finished(depthwise(x, form)), finished(AveragePool(**form)(x)))


def test_strips_of_a_large_image() -> None:
    """Rows so long that a strip has the fewest rows, and images of several strips."""
    form = window((3, 3), (2, 2), (1, 1), (1, 1))
    for shape in ("1, 2, 90, 60", "1, 1, 9, 2500"):
        x = value(f"f32[{shape}]")
        check_planes(MaxPool(**form)(x), depthwise(x, form))


def layouts(graph: Graph) -> list[str]:
    """The layouts of windows behind the CPU's pipeline and its lowering."""
    after = optimise_for(make_config(target="cpu"), graph)
    steps = lower(after, CpuTarget()).whole.steps
    anchors = [s.region.anchor.op for s in steps if s.region.anchor is not None]
    return [a.layout for a in anchors if isinstance(a, (Conv, AveragePool, MaxPool))]


def test_a_lone_window_needs_no_transpose() -> None:
    x = value("f32[1, 64, 56, 56]")
    for made in (
        depthwise(x, WINDOWS["3x3"]),
        MaxPool(**WINDOWS["stride 2"])(x),
        AveragePool(**WINDOWS["3x3"])(x),
    ):
        assert layouts(graph_of(made)) == ["channels_first"]
        after = optimise_for(make_config(target="cpu"), graph_of(made))
        assert len(lower(after, CpuTarget()).whole.steps) == 1


def test_windows_between_convolutions_keep_channels_last() -> None:
    def dense(v: Value, size: int) -> Value:
        w = rng.normal(size=(64, v.tensor.static[1], size, size)).astype(np.float32)
        pad = (size // 2,) * 2
        return Conv((1, 1), pad, pad, (1, 1))(v, constant(w))

    for between in (
        lambda v: depthwise(v, WINDOWS["3x3"]),
        lambda v: MaxPool(**WINDOWS["stride 2"])(v),
    ):
        x = value("f32[1, 32, 56, 56]")
        made = dense(between(dense(x, 3)), 1)
        assert set(layouts(graph_of(made))) == {"channels_last"}


@pytest.mark.parametrize(
    "x",
    ["f32[1, 64, 56, 8]", "f64[1, 64, 56, 56]", "i8[1, 64, 56, 56]"],
    ids=["short rows", "f64", "integers"],
)
def test_other_windows_keep_channels_last(x: str) -> None:
    pool = MaxPool(**WINDOWS["stride 2"])(value(x))
    assert not planes.serves(pool)
    assert layouts(graph_of(pool)) == ["channels_last"]
    check(graph_of(pool))


def test_strips_hold_every_place_that_is_read() -> None:
    """With the smallest strips, every row of a strip is at an edge of it."""
    form = WINDOWS["5x5 stride 2, odd padding"]
    x = value("f32[1, 2, 40, 29]")
    with mock.patch.object(planes, "STRIP_BYTES", 0):
        check_planes(MaxPool(**form)(x), AveragePool(**form)(x), depthwise(x, form))
