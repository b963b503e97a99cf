"""Parts of a join that are reshapes: what they are reshapes of lies in the join."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, TensorType, Value, constant
from monograph.ir.dtype import f32
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul
from monograph.ops.shape import Concat, Reshape, Unsqueeze
from monograph.ops.window import CHANNELS_LAST
from monograph.program.index import split_strides
from tests.cpu.against import check


def tensor(name: str, *shape: int) -> Value:
    return Input(name, TensorType(f32, shape))()


@pytest.mark.parametrize(
    ("shape", "strides", "finer", "expected"),
    [
        ((2, 12), (100, 3), (2, 3, 4), (100, 12, 3)),
        ((6, 4), (4, 1), (2, 3, 1, 4), (12, 4, 4, 1)),
        ((24,), (2,), (24, 1), (2, 2)),
        ((4, 6), (6, 1), (8, 3), None),
        ((1, 5), (9, 1), (5,), (1,)),
    ],
)
def test_split_strides(shape, strides, finer, expected) -> None:  # type: ignore[no-untyped-def]
    assert split_strides(shape, strides, finer) == expected


def test_layers_of_several_sizes_meet_without_a_copy() -> None:
    ones, none = (1, 1), (0, 0)
    weights = constant(np.random.default_rng(0).normal(size=(6, 4, 1, 1)).astype(np.float32))
    parts, inputs = [], []
    for number, size in enumerate((5, 3)):
        x = tensor(f"x{number}", 2, size, size, 4)
        y = Add()(
            Conv(ones, none, none, ones, layout=CHANNELS_LAST)(x, weights), constant(np.float32(2))
        )
        inputs.append(x)
        parts.append(Reshape((2, size * size, 6))(y))
    check(Graph(tuple(inputs), (("z", Concat(1)(*parts)),)), steps=2)


def test_a_reshape_that_splits_dimensions_differently_is_copied() -> None:
    x, y = tensor("x", 4, 6), tensor("y", 2, 3)
    z = Concat(0)(Reshape((8, 3))(Mul()(x, x)), Mul()(y, y))
    check(Graph((x, y), (("z", z),)))


def test_a_value_joined_twice_is_copied_once() -> None:
    x = tensor("x", 3, 4)
    y = Add()(x, x)
    z = Concat(0)(Reshape((1, 12))(y), Reshape((1, 12))(y))
    check(Graph((x,), (("z", z),)))


def test_new_dimensions_of_one() -> None:
    x = tensor("x", 5, 7)
    z = Concat(2)(Unsqueeze((2,))(Mul()(x, x)), Unsqueeze((2,))(Add()(x, x)))
    check(Graph((x,), (("z", z),)), steps=2)
