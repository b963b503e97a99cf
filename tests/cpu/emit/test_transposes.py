"""Operands that are contiguous along another dimension than the result: tiles in registers."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant
from monograph.ir.dtype import f16, f64, u8
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Mul, Sigmoid
from monograph.ops.pad_tile import Tile
from monograph.ops.shape import Broadcast, Reshape, Slice, Transpose
from monograph.ops.window import CHANNELS_LAST
from tests.cpu.against import check
from tests.rules.checks import graph_of, value

SIZES = [(1, 5), (4, 4), (16, 16), (17, 33), (3, 40), (40, 3), (61, 35), (20, 64), (0, 20), (30, 1)]
KINDS = ["f32", "f16", "bf16", "f64", "i8", "u8", "i16", "i32", "i64", "bool"]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[int, int]) -> None:
    """Whole tiles, narrower ones for the rest, and single elements."""
    check(graph_of(Transpose((1, 0))(value(f"f32{list(size)}"))), steps=1)


@pytest.mark.parametrize("kind", KINDS)
def test_element_types(kind: str) -> None:
    check(graph_of(Transpose((1, 0))(value(f"{kind}[37, 45]"))), steps=1)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1), (1, 0, 2)], ids=str)
def test_orders(order: tuple[int, ...]) -> None:
    check(graph_of(Transpose(order)(value("f32[19, 23, 21]"))), steps=1)


def test_four_dimensions() -> None:
    for order in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3), (3, 2, 1, 0)):
        check(graph_of(Transpose(order)(value("f32[2, 18, 9, 20]"))), steps=1)


def test_beside_other_operands() -> None:
    """Operands in the order of the result, along one dimension, and single numbers."""
    x, y = value("f32[35, 41]"), value("f32[41, 35]", "y")
    row, one = value("f32[35]", "r"), value("f32[1]", "s")
    turned = Transpose((1, 0))(x)
    check(graph_of(Mul()(Add()(Add()(turned, y), row), one)), steps=1)
    check(graph_of(Add()(turned, Broadcast((41, 35))(value("f32[41, 1]", "c")))), steps=1)
    check(graph_of(Add()(turned, Transpose((1, 0))(value("f32[35, 41]", "z")))), steps=1)
    check(graph_of(Sigmoid()(Mul()(Abs()(turned), Abs()(y)))), steps=1)


def test_other_orders_beside_each_other() -> None:
    a = Transpose((2, 0, 1))(value("f32[20, 21, 22]"))
    b = Transpose((1, 2, 0))(value("f32[21, 22, 20]", "y"))
    check(graph_of(Add()(a, b)), steps=1)


@pytest.mark.parametrize("to", [f64, f16, u8], ids=str)
def test_conversions(to) -> None:
    check(graph_of(Cast(to)(Abs()(Transpose((1, 0))(value("f32[33, 50]"))))), steps=1)


def test_slices_and_reshapes() -> None:
    x = value("f32[40, 50]")
    part = Slice((3, 2), (37, 45), (1, 1))(x)
    check(graph_of(Transpose((1, 0))(part)), steps=1)
    back = Slice((39, 0), (-1, 50), (-1, 1))(x)
    check(graph_of(Transpose((1, 0))(back)), steps=1)
    check(graph_of(Transpose((1, 0))(Slice((0, 0), (40, 50), (2, 2))(x))), steps=1)
    heads = Transpose((1, 0, 2))(Reshape((40, 5, 10))(x))
    check(graph_of(Transpose((0, 2, 1))(heads)), steps=1)


def test_results_in_the_place_of_an_operand() -> None:
    """A result that overwrites an operand which is read in its own order."""
    x, y = Abs()(value("f32[34, 18]")), Abs()(value("f32[18, 34]", "y"))
    check(graph_of(Abs()(Add()(Transpose((1, 0))(x), y))))


@pytest.mark.parametrize("kind", ["f32", "f16", "f64", "u8", "i64", "bool"])
def test_repeated_and_divided_dimensions(kind: str) -> None:
    """Views that divide a counter: its parts are loops of their own, short rows narrow vectors."""
    for size, repeats in (((3, 28), (2, 2)), ((5, 7), (3, 4)), ((2, 1, 16), (2, 3, 3))):
        check(graph_of(Tile(repeats)(value(f"{kind}{list(size)}"))), steps=1)
    x = value(f"{kind}[2, 12, 20]")
    check(graph_of(Transpose((2, 0, 1))(Reshape((2, 6, 40))(x))), steps=1)
    check(graph_of(Reshape((24, 20))(Transpose((1, 0, 2))(x))), steps=1)
    check(graph_of(Reshape((4, 120))(Tile((1, 1, 2))(Slice((0, 0, 0), (2, 6, 20), (1, 1, 1))(x)))))


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("kind", ["f32", "f64", "i32", "f16"])
def test_few_channels_last(channels: int, kind: str) -> None:
    """Rows of few elements: many of them at once, and those that are left."""
    x = value(f"{kind}[2, {channels}, 7, 37]")
    check(graph_of(Transpose((0, 2, 3, 1))(x)), steps=1)
    scale = value(f"{kind}[{channels}]", "s")
    check(graph_of(Mul()(Transpose((0, 2, 3, 1))(x), scale)), steps=1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("block", "kind", "sizes"),
    [
        (2, "f32", (19, 3, 37)),
        (2, "f64", (3, 2, 34)),
        (3, "i32", (17, 1, 65)),
        (4, "f32", (1, 2, 32)),
        (5, "f32", (2, 1, 33)),
        (2, "f16", (18, 1, 66)),
    ],
)
def test_blocks_of_pixels(
    block: int, kind: str, sizes: tuple[int, int, int], channels_last: bool
) -> None:
    """Depth to space: the columns of a block are interleaved, read in tiles if channels are last.

    Whole tiles along channels and pixels, and what is left of both.
    """
    channels, rows, columns = sizes
    if channels_last:
        x = value(f"{kind}[2, {rows}, {columns}, {block}, {block}, {channels}]")
        order = (0, 5, 1, 3, 2, 4)
    else:
        x = value(f"{kind}[2, {block}, {block}, {channels}, {rows}, {columns}]")
        order = (0, 3, 4, 1, 5, 2)
    shuffled = Reshape((2, channels, rows * block, columns * block))(Transpose(order)(x))
    scale, other = value(f"{kind}[{channels}, 1, 1]", "s"), value(f"{kind}[{columns * block}]", "t")
    check(graph_of(Mul()(Mul()(shuffled, scale), other)), steps=1)


def test_few_channels_of_an_image_with_a_halo() -> None:
    x = value("f32[2, 3, 9, 70]")
    weights = constant(np.random.default_rng(1).normal(size=(8, 3, 3, 3)).astype(np.float32))
    image = Transpose((0, 2, 3, 1))(Add()(x, value("f32[70]", "y")))
    conv = Conv((2, 2), (1, 1), (1, 1), (1, 1), layout=CHANNELS_LAST)
    check(graph_of(conv(image, weights)))
