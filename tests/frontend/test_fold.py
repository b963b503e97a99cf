"""Sizes that are known while importing."""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.size_search import known_sizes
from monograph.frontend.onnx.sizes import divided, plus, reshape, size_of, times
from monograph.ir import (
    UNKNOWN,
    Constant,
    Input,
    TensorType,
    constant,
    dtype,
    known,
    parse_tensor_type,
)
from monograph.ir.sizes import SizeScope
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.cast import Cast
from monograph.ops.index import Gather
from monograph.ops.logic import Less
from monograph.ops.reduce import ReduceProd, ReduceSum
from monograph.ops.scatter import ScatterElements
from monograph.ops.slice import Slice

X = Input("x", parse_tensor_type("f32[N, 3, 4]"))()
SHAPE = sh.ShapeOf()(X)
i64, i32, u8 = dtype("i64"), dtype("i32"), dtype("u8")


def ints(*numbers: int):
    return constant(np.array(numbers, np.int64))


def test_sizes_are_followed_through_shape_ops() -> None:
    assert known_sizes(SHAPE) == ("N", 3, 4)
    assert known_sizes(Gather(0)(SHAPE, ints(-1, 0))) == (4, "N")
    assert known_sizes(sh.Slice((1,), (9,), (1,))(SHAPE)) == (3, 4)
    assert known_sizes(sh.Concat(0)(SHAPE, ints(-1))) == ("N", 3, 4, -1)
    assert known_sizes(Cast(i32)(SHAPE)) == ("N", 3, 4)
    scalar = sh.Squeeze((0,))(Gather(0)(SHAPE, ints(0)))
    assert known_sizes(sh.Unsqueeze((0,))(scalar)) == ("N",)


def test_arithmetic_on_sizes() -> None:
    two = ints(2)
    assert known_sizes(ew.Mul()(SHAPE, two)) == (UNKNOWN, 6, 8)
    assert known_sizes(ew.Mul()(SHAPE, ints(1))) == ("N", 3, 4)
    assert known_sizes(ew.Sub()(SHAPE, ints(0, 5, 4))) == ("N", -2, 0)
    # Division rounds towards zero, and by zero it is left to run time.
    assert known_sizes(ew.Div()(SHAPE, ints(2, -2, 0))) == (UNKNOWN, -1, UNKNOWN)
    assert known_sizes(ew.Mul()(SHAPE, ints(2**40))) == (UNKNOWN,) * 3


def test_what_is_not_known() -> None:
    assert known_sizes(X) is None
    late = Input("n", parse_tensor_type("i64[2]"))()
    assert known_sizes(late) == (UNKNOWN, UNKNOWN)
    assert known_sizes(sh.Concat(0)(late, ints(7))) == (UNKNOWN, UNKNOWN, 7)
    # Narrow types wrap, so nothing is said of them.
    assert known_sizes(Cast(u8)(SHAPE)) is None
    assert known_sizes(Cast(i32)(sh.Concat(0)(late, ints(2**40)))) == (UNKNOWN,) * 3


def test_only_what_is_known_is_folded() -> None:
    folded = known(fold(Gather(0)(SHAPE, ints(1, 2))))
    assert folded is not None
    assert folded.tolist() == [3, 4]
    assert not isinstance(fold(SHAPE).op, Constant)


def test_sizes_as_converters_use_them() -> None:
    n = size_of(X, 0)
    assert size_of(X, -1) == 4
    assert plus(2, 3) == 5
    assert divided(7, 2) == 3
    assert times(2, 3, 4) == 24
    assert times(n, 1) is n
    # The batch is copied, the rest known: nothing is left to run time.
    view = reshape(X, [n, times(size_of(X, 1), size_of(X, 2))])
    assert isinstance(view.op, sh.Reshape)
    assert str(view.type) == "f32[N, 12]"


def test_moved_sizes_are_followed() -> None:
    pads = sh.Concat(0)(SHAPE, ints(0))
    pairs = sh.Reshape((2, 2))(pads)
    assert known_sizes(pairs) == ("N", 3, 4, 0)
    assert known_sizes(sh.Transpose((1, 0))(pairs)) == ("N", 4, 3, 0)
    reversed_rows = Slice((1, 0), (-3, 2), (-1, 1))(pairs)
    assert known_sizes(reversed_rows) == (4, 0, "N", 3)
    assert known_sizes(sh.Broadcast((2, 3))(SHAPE)) == ("N", 3, 4, "N", 3, 4)
    placed = ScatterElements(0)(ints(7, 8, 9), ints(2, 0), Gather(0)(SHAPE, ints(0, 2)))
    assert known_sizes(placed) == (4, 8, "N")
    unknown_place = ScatterElements(0)(ints(7, 8, 9), Gather(0)(SHAPE, ints(0)), ints(1))
    assert known_sizes(unknown_place) == (UNKNOWN,) * 3


def test_more_arithmetic_on_open_sizes() -> None:
    scope = SizeScope()
    w = scope.symbol("w", 20)
    shape = sh.ShapeOf()(Input("x", TensorType(dtype("f32"), (w, 3, 4)))())
    first = Gather(0)(shape, ints(0))
    assert known_sizes(ReduceProd((0,))(shape)) == (w * 12,)
    assert known_sizes(ReduceSum((0,), keep=True)(shape)) == (w + 7,)
    assert known_sizes(ew.Mod()(first, ints(8))) == (w % 8,)
    assert known_sizes(ew.Neg()(first)) == (-w,)
    assert not scope.guards
    assert known_sizes(ew.Max()(first, ints(16))) == (w,)
    assert not scope.holds(dict.fromkeys(scope.hints, 15))
    is_small = Less()(first, ints(64))
    assert known_sizes(ew.Where()(is_small, first, ints(64))) == (w,)
    assert not scope.holds(dict.fromkeys(scope.hints, 64))
