"""Windows that reach beyond their input, dilated kernels, and integers between pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, Pool
from monograph.ops.resize import CUBIC, LINEAR, Resize
from monograph.ops.shape import Slice
from monograph.ops.window import CHANNELS_FIRST, CHANNELS_LAST
from tests.gpu.against import check
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)
LAYOUTS = [CHANNELS_FIRST, CHANNELS_LAST]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (MaxPool, {}),
        (ArgMaxPool, {}),
        (AveragePool, {}),
        (AveragePool, {"include_pad": True}),
        (LpPool, {"p": 3}),
    ],
    ids=str,
)
def test_a_window_larger_than_the_input(kind: type[Pool], more: Any, layout: str) -> None:
    shape = "2, 3, 2, 5" if layout == CHANNELS_FIRST else "2, 2, 5, 3"
    op = kind(
        kernel=(3, 3), strides=(2, 2), pads_begin=(0, 1), pads_end=(0, 0), dilations=(1, 2),
        ceil=True, layout=layout, **more,
    )  # fmt: skip
    check(graph_of(op(value(f"f32[{shape}]"))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dilations", [(2, 2), (1, 3)])
def test_a_dilated_kernel_as_wide_as_its_stride(dilations: tuple[int, int], layout: str) -> None:
    shape = "1, 2, 3, 2" if layout == CHANNELS_FIRST else "1, 3, 2, 2"
    weights = constant(rng.normal(size=(2, 3, 2, 2)).astype(np.float32))
    none = (0, 0)
    op = ConvTranspose((2, 2), none, none, dilations, none, layout=layout)
    check(graph_of(op(value(f"f32[{shape}]"), weights)))


@pytest.mark.parametrize("mode", [LINEAR, CUBIC])
@pytest.mark.parametrize("dtype", ["u8", "i8", "i32"])
def test_integers_between_pixels(dtype: str, mode: str) -> None:
    """The same whole numbers as on the reference, whatever the order of the sums."""
    x = value(f"{dtype}[10, 9]")
    low, high = (0, 255) if dtype == "u8" else (-128, 127)
    feeds = {"x": rng.integers(low, high, (10, 9), endpoint=True).astype(x.dtype.numpy)}
    plain = Resize((0, 1), sizes=(30, 27), mode=mode)
    smooth = Resize((0, 1), sizes=(7, 6), mode=mode, antialias=True)
    check(graph_of(plain(x), smooth(x)), feeds, every=False)


def test_a_slice_that_begins_before_the_first_element() -> None:
    check(graph_of(Slice((-9, -9), (-9, 2), (-1, 1))(value("f32[4, 3]"))))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_that_read_only_padding(layout: str) -> None:
    shape = "2, 3, 4, 1" if layout == CHANNELS_FIRST else "2, 4, 1, 3"
    op = ArgMaxPool((2, 2), (1, 1), (1, 1), (0, 1), (1, 2), layout=layout)
    check(graph_of(op(value(f"f32[{shape}]"))))
