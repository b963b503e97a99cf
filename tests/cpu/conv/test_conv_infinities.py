"""Weights that are no numbers: each kernel of convolutions multiplies the zeros that the op has.

A convolution multiplies the zeros of its padding, so that an infinity makes a NaN of them. A
transposed one has no zeros: pixels that are not there give nothing to a result.
"""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant, evaluate
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Abs
from monograph.program.legalise.expand import expand
from tests.cpu.against import agree, check, feeds_for
from tests.rules.checks import graph_of, value

LAST, FIRST = "channels_last", "channels_first"


def odd_weights(shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> np.ndarray:
    """Normal numbers, few of them replaced by infinities, NaN and zeros."""
    generator = np.random.default_rng(sum(shape))
    w = generator.normal(size=shape)
    flat = w.reshape(-1)
    places = generator.permutation(flat.size)[: max(4, flat.size // 12)]
    flat[places] = np.resize([np.inf, np.nan, -np.inf, 0.0], places.size)
    return w.astype(dtype)


def padded(w: tuple[int, ...], strides: tuple[int, ...], groups: int = 1) -> Conv:
    ones, pads = (1,) * len(strides), tuple(k // 2 + 1 for k in w[2:])
    return Conv(strides, pads, tuple(p + 1 for p in pads), ones, groups=groups, layout=LAST)


@pytest.mark.parametrize(
    ("x", "w", "strides", "groups"),
    [
        ("f32[1, 5, 4, 2]", (3, 2, 1, 1), (1, 1), 1),
        ("f32[2, 7, 6, 3]", (20, 3, 3, 3), (2, 2), 1),
        ("f32[1, 6, 7, 3]", (5, 3, 3, 3), (1, 1), 1),
        ("f32[1, 6, 5, 8]", (8, 1, 3, 3), (1, 2), 8),
        ("f32[1, 6, 5, 8]", (6, 4, 2, 3), (1, 1), 2),
        ("f32[1, 9, 4]", (7, 4, 5), (2,), 1),
        ("f32[1, 4, 5, 3, 2]", (3, 2, 2, 1, 3), (1, 2, 1), 1),
        ("f16[1, 6, 5, 3]", (4, 3, 3, 2), (1, 1), 1),
        ("f64[1, 6, 5, 3]", (4, 3, 3, 2), (1, 1), 1),
        ("f32[1, 0, 5, 3]", (4, 3, 3, 2), (1, 1), 1),
    ],
    ids=["1x1", "strided", "3x3", "depthwise", "grouped", "1d", "3d", "f16", "f64", "empty"],
)
def test_padding_times_an_infinity_is_nan(
    x: str, w: tuple[int, ...], strides: tuple[int, ...], groups: int
) -> None:
    """The image as an input of the model, which has no zeros around it, and as a result."""
    op, given = padded(w, strides, groups), value(x)
    weights = odd_weights(w, given.dtype.numpy)
    assert not np.isfinite(weights).all()
    open_weights = value(f"{given.dtype}[{', '.join(map(str, w))}]", "w")
    graph = graph_of(
        op(given, constant(weights)), op(Abs()(given), constant(weights)), op(given, open_weights)
    )
    check(graph, feeds_for(graph) | {"w": weights})


@pytest.mark.parametrize("layout", [LAST, FIRST])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "extra"),
    [
        ((2, 2), (1, 1), 0, 0),
        ((3, 4), (2, 2), 0, 1),
        ((3, 3), (2, 1), 1, 0),
        ((2, 2), (2, 2), 0, 0),
    ],
    ids=["dense", "phases", "cropped", "apart"],
)
def test_transposed_multiplies_only_what_is_there(
    kernel: tuple[int, int], strides: tuple[int, int], pads: int, extra: int, layout: str
) -> None:
    more = (extra,) * 2
    op = ConvTranspose(strides, (pads,) * 2, (pads,) * 2, (1, 1), more, layout=layout)
    x = value("f32[1, 3, 4, 2]" if layout == LAST else "f32[1, 2, 3, 4]")
    w = np.random.default_rng(3).normal(size=(2, 3, *kernel)).astype(np.float32)
    w[0, :, 1, 1] = np.inf, -np.inf, np.nan
    graph = graph_of(op(x, constant(w)), op(x, value(f"f32[2, 3, {kernel[0]}, {kernel[1]}]", "w")))
    feeds = feeds_for(graph) | {"w": w}
    feeds["x"][0, 0, 0] = 0
    lowered = expand(graph)
    with np.errstate(all="ignore"):
        expected, given = evaluate(graph, feeds), evaluate(lowered, feeds)
    assert 0 < np.isfinite(expected[0]).sum() < expected[0].size
    agree(graph, feeds, given, expected, "as other ops")
    check(lowered, feeds)
