"""Convolutions on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, TensorType, Value, constant, dtype
from monograph.ops.composite import Silu
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Add
from monograph.ops.shape import Slice, Transpose
from monograph.ops.window import CHANNELS_FIRST, CHANNELS_LAST
from tests.gpu.against import candidate_names, check


def tensor(name: str, shape: tuple[int, ...], kind: str = "f32") -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


def weights(shape: tuple[int, ...], kind: str = "f32", seed: int = 1) -> Value:
    data = np.random.default_rng(seed).normal(size=shape) * 0.2
    return constant(data.astype(dtype(kind).numpy))


def conv(kernel: int, stride: int, pad: int, groups: int = 1, dilation: int = 1, **more) -> Conv:
    both = ((stride,) * 2, (pad,) * 2, (pad,) * 2, (dilation,) * 2)
    return Conv(*both, groups, layout=more.pop("layout", CHANNELS_LAST), **more)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "channels", "results"),
    [(1, 1, 0, 32, 20), (3, 1, 1, 3, 16), (3, 2, 1, 32, 40), (5, 3, 2, 7, 5)],
)
def test_a_layer_is_one_kernel(
    kind: str, kernel: int, stride: int, pad: int, channels: int, results: int
) -> None:
    x = tensor("x", (2, 7, 9, channels), kind)
    w = weights((results, channels, kernel, kernel), kind)
    y = Silu()(Add()(conv(kernel, stride, pad)(x, w), weights((results,), kind, 2)))
    check(Graph((x,), (("y", y),)), steps=1, every=kind == "f32" and channels < 32)


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("constant_weights", [True, False])
def test_groups(groups: int, constant_weights: bool) -> None:
    x = tensor("x", (1, 6, 5, 6))
    shape = (12 if groups == 2 else 6, 6 // groups, 3, 3)
    w = weights(shape) if constant_weights else tensor("w", shape)
    given = (x,) if constant_weights else (x, w)
    check(Graph(given, (("y", conv(3, 1, 1, groups, dilation=2)(x, w)),)), every=False)


def test_weights_that_are_data() -> None:
    x, w = tensor("x", (1, 6, 5, 4)), tensor("w", (5, 4, 3, 2))
    y = Conv((1, 2), (1, 0), (0, 1), (1, 1), layout=CHANNELS_LAST)(x, w)
    check(Graph((x, w), (("y", y),)), steps=1, every=False)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_dimensions_and_channels_first(rank: int) -> None:
    ones = (1,) * rank
    x = tensor("x", (2, 3, *(5, 4, 6)[:rank]))
    op = Conv((2,) * rank, ones, ones, ones, layout=CHANNELS_FIRST)
    check(Graph((x,), (("y", op(x, weights((4, 3, *(3,) * rank)))),)), every=False)


def test_the_image_is_read_through_views() -> None:
    x = tensor("x", (1, 8, 6, 6))
    part = Slice((0, 0, 0, 2), (1, 6, 6, 7), (1, 1, 1, 1))(Transpose((0, 2, 3, 1))(x))
    check(Graph((x,), (("y", conv(3, 1, 1)(part, weights((4, 5, 3, 3)))),)), steps=1, every=False)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(groups: int) -> None:
    x = tensor("x", (2, 4, 3, 6))
    op = ConvTranspose((2, 1), (1, 0), (0, 1), (1, 2), (1, 0), groups=groups, layout=CHANNELS_LAST)
    w = weights((6, 8 // groups, 3, 2))
    check(Graph((x,), (("y", op(x, w)),)), every=False)


def test_integers() -> None:
    x, w = tensor("x", (1, 6, 6, 4), "u8"), tensor("w", (5, 4, 3, 3), "i8")
    check(Graph((x, w), (("y", conv(3, 1, 1, out=dtype("i32"))(x, w)),)), every=False)


def test_deep_sums_are_split() -> None:
    x = tensor("x", (1, 5, 4, 130))
    y = Add()(conv(3, 1, 1)(x, weights((18, 130, 3, 3))), weights((18,)))
    graph = Graph((x,), (("y", y),))
    names = candidate_names(graph)[0]
    assert any("split" in n for n in names)
    check(graph, chosen=[n for n in names if "split" in n][:2])


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 1), (7, 2, 3), (2, 1, 0)])
def test_few_channels_are_read_in_runs(kernel: int, stride: int, pad: int) -> None:
    x = tensor("x", (2, 9, 11, 3))
    graph = Graph((x,), (("y", conv(kernel, stride, pad)(x, weights((20, 3, kernel, kernel)))),))
    names = [n for n in candidate_names(graph)[0] if n.startswith("runs")]
    assert names
    check(graph, chosen=names[:3])


LIBRARY = ("library conv",)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("layout", [CHANNELS_LAST, CHANNELS_FIRST])
def test_by_a_library(kind: str, groups: int, layout: str) -> None:
    """The op behind the convolution is a kernel of its own; the image may be a view."""
    last = layout == CHANNELS_LAST
    whole = tensor("x", (2, 9, 9, 6) if last else (2, 6, 9, 9), kind)
    x = Slice((0, 1, 1, 0), (2, 9, 8, 6), (1,) * 4)(whole) if last else whole
    y = conv(3, 2, 1, groups, dilation=2, layout=layout)(x, weights((12, 6 // groups, 3, 3), kind))
    graph = Graph((whole,), (("y", y), ("z", Silu()(y))))
    assert any(LIBRARY[0] in names for names in candidate_names(graph))
    check(graph, chosen=LIBRARY)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_lines_and_volumes_by_a_library(dimensions: int) -> None:
    both = ((2,) * dimensions, (1,) * dimensions, (1,) * dimensions, (1,) * dimensions)
    x = tensor("x", (2, *(7, 5, 6)[:dimensions], 4))
    w = tensor("w", (5, 4, *(3, 2, 3)[:dimensions]))
    graph = Graph((x, w), (("y", Conv(*both, layout=CHANNELS_LAST)(x, w)),))
    assert LIBRARY[0] in candidate_names(graph)[0]
    check(graph, chosen=LIBRARY)


def test_a_library_does_not_see_what_it_cannot_do() -> None:
    x, w = tensor("x", (1, 6, 5, 4)), weights((5, 4, 3, 2))
    uneven = Conv((1, 2), (1, 0), (0, 1), (1, 1), layout=CHANNELS_LAST)(x, w)
    assert LIBRARY[0] not in candidate_names(Graph((x,), (("y", uneven),)))[0]
