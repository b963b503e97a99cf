"""Padding by stretches of memory."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, Value, constant, tensor
from monograph.ir.dtype import DType, f32, i8, i64, u8
from monograph.ops.elementwise import Neg
from monograph.ops.pad_tile import Pad
from monograph.ops.shape import Concat, Slice
from tests.cpu.against import check


def value(dtype: DType, *shape: int, name: str = "x") -> Value:
    return Input(name, tensor(dtype, *shape))()


@pytest.mark.parametrize("dtype", [u8, i8, f32, i64], ids=str)
@pytest.mark.parametrize(
    ("before", "after"),
    [((0, 1, 2, 0), (0, 2, 0, 0)), ((1, 0, 0, 0), (0, 0, 0, 3)), ((0, 2, 0, 0), (0, 0, 0, 0))],
    ids=["image", "ends", "rows"],
)
def test_zeros(dtype: DType, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    x = value(dtype, 2, 3, 5, 7)
    check(Graph((x,), (("y", Pad(before, after)(x)),)), steps=1)


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
def test_bytes_are_padded_with_data(dtype: DType) -> None:
    x, fill = value(dtype, 2, 5, 33), value(dtype, name="fill")
    y = Pad((0, 1, 0), (0, 2, 0))(x, fill)
    check(Graph((x, fill), (("y", y),)), steps=1)
    check(Graph((x, fill), (("y", Neg()(y) if dtype == i8 else y),)))


@pytest.mark.parametrize("dtype", [f32, i64], ids=str)
def test_wider_elements_are_padded_with_data(dtype: DType) -> None:
    """No bytes that are all the same make up such a number."""
    x, fill = value(dtype, 2, 5, 33), value(dtype, name="fill")
    check(Graph((x, fill), (("y", Pad((0, 1, 0), (0, 2, 3))(x, fill)),)))


def test_nothing_added_and_nothing_there() -> None:
    x = value(u8, 3, 4)
    check(Graph((x,), (("y", Pad((0, 0), (0, 0))(x)),)))
    empty = value(u8, 0, 4)
    seven = constant(np.uint8(7))
    check(Graph((empty,), (("y", Pad((2, 0), (0, 1))(empty, seven)),)))


def test_parts_of_other_values() -> None:
    x = value(u8, 3, 6, 8)
    part = Pad((0, 1, 0), (0, 1, 0))(
        Slice((0, 0, 2), (3, 6, 6), (1, 1, 1))(x), constant(np.uint8(9))
    )
    joined = Concat(2)(part, Pad((0, 0, 1), (0, 2, 0))(x))
    check(Graph((x,), (("y", joined),)))
