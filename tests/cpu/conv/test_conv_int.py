"""Convolutions and dots of bytes: exact on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Array, Graph, Input, Value, constant, tensor
from monograph.ir.dtype import DType, f32, i8, i32, u8
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip, Mul, Sub
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.shape import Slice, Transpose
from monograph.ops.window import CHANNELS_LAST
from monograph.program.lowering import lower
from tests.cpu.against import check
from tests.cpu.emit.scalar_kernels import instruction_sets
from tests.rules.checks import graph_of

rng = np.random.default_rng(0)


def weights(*shape: int) -> Value:
    """All signed bytes, the extremes among them."""
    data = rng.integers(-128, 128, shape)
    data.reshape(-1)[:2] = (-128, 127)
    return constant(data.astype(np.int8))


def extremes(type_: DType, *shape: int) -> Array:
    """All values of a type of bytes, the extremes among them."""
    low, high = (-128, 127) if type_ == i8 else (0, 255)
    data = rng.integers(low, high + 1, shape)
    data.reshape(-1)[:2] = (low, high)
    return data.astype(type_.numpy)


def conv(rank: int, **given: object) -> Conv:
    ones, none = (1,) * rank, (0,) * rank
    options = {"strides": ones, "pads_begin": none, "pads_end": none, "dilations": ones} | given
    return Conv(**options, out=i32, layout=CHANNELS_LAST)  # type: ignore[arg-type]


def check_conv(op: Conv, dtype: DType, shape: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    x = Input("x", tensor(dtype, *shape))()
    graph = Graph((x,), (("y", op(x, weights(*kernel))),))
    check(graph, {"x": extremes(dtype, *shape)})


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize(
    ("shape", "kernel", "op"),
    [
        ((2, 19, 16), (33, 16, 3), conv(1, pads_begin=(1,), pads_end=(1,))),
        ((1, 23, 12), (20, 12, 3), conv(1, pads_begin=(2,), pads_end=(2,), dilations=(2,))),
        ((1, 9, 11, 3), (17, 3, 3, 5), conv(2, pads_begin=(1, 2), pads_end=(0, 1), strides=(2, 2))),
        ((1, 5, 7, 7), (40, 7, 1, 1), conv(2)),
        ((2, 4, 6, 1), (8, 1, 2, 3), conv(2)),
        ((1, 3, 4, 5, 9), (6, 9, 2, 2, 2), conv(3, pads_begin=(1, 0, 1), pads_end=(0, 1, 0))),
    ],
    ids=["1-D", "dilated", "strided", "1x1", "one channel", "3-D"],
)
def test_dense(dtype: DType, shape: tuple[int, ...], kernel: tuple[int, ...], op: Conv) -> None:
    check_conv(op, dtype, shape, kernel)


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize(
    ("shape", "kernel", "groups"),
    [
        ((1, 6, 7, 40), (40, 20, 3, 3), 2),
        ((1, 6, 7, 12), (24, 2, 3, 3), 6),
        ((1, 6, 7, 33), (33, 1, 3, 3), 33),
        ((1, 6, 7, 5), (10, 1, 3, 3), 5),
    ],
    ids=["wide", "joined", "depthwise", "multiplier"],
)
def test_groups(dtype: DType, shape: tuple[int, ...], kernel: tuple[int, ...], groups: int) -> None:
    op = conv(2, pads_begin=(1, 1), pads_end=(1, 1), groups=groups)
    check_conv(op, dtype, shape, kernel)


@pytest.mark.parametrize("features", instruction_sets(), ids=lambda f: f.name)
def test_machines_use_what_they_have(features: Features) -> None:
    x = Input("x", tensor(u8, 1, 9, 16))()
    name = features.dot_i8 or features.dot_i16
    call = f"= call <{features.lanes(32)} x i32> @{name}("
    for y in (conv(1)(x, weights(20, 16, 3)), Dot(i32)(x, weights(16, 8))):
        program = lower(Graph((x,), (("y", y),)), CpuTarget()).whole
        text = "".join(compile_program(program, features, 1).texts)
        assert (call in text) == bool(name)


def test_depthwise_strided_and_long() -> None:
    check_conv(conv(1, strides=(2,), dilations=(3,), groups=18), u8, (2, 50, 18), (18, 1, 5))


def test_operands_that_do_not_lie_side_by_side() -> None:
    x = Input("x", tensor(u8, 2, 12, 9))()
    turned = conv(1)(Transpose((0, 2, 1))(x), weights(5, 12, 3))
    part = conv(1)(Slice((0, 0, 2), (2, 12, 9), (1, 1, 1))(x), weights(20, 7, 3))
    dot = Dot(i32)(Transpose((0, 2, 1))(x), weights(12, 20))
    check(Graph((x,), (("a", turned), ("b", part), ("c", dot))), {"x": extremes(u8, 2, 12, 9)})


def test_what_follows_is_done_in_registers() -> None:
    x = Input("x", tensor(u8, 1, 6, 7, 16))()
    scale = constant(rng.uniform(0.001, 0.01, 20).astype(np.float32))
    sums = conv(2, pads_begin=(1, 1), pads_end=(1, 1))(x, weights(20, 16, 3, 3))
    real = Dequantize(f32, axis=3)(Add()(sums, constant(np.arange(20, dtype=np.int32))), scale)
    y = Quantize(u8)(real, constant(np.float32(0.5)), constant(np.uint8(7)))
    plain = Clip(0.0, 6.0)(Mul()(Cast(f32)(sums), constant(np.float32(0.001))))
    feeds = {"x": extremes(u8, 1, 6, 7, 16)}
    check(Graph((x,), (("y", y),)), feeds)
    check(Graph((x,), (("y", plain),)), feeds)


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize("size", [(1, 5, 3), (3, 64, 40), (17, 131, 33), (1, 4, 200), (40, 8, 16)])
def test_dots(dtype: DType, size: tuple[int, int, int]) -> None:
    m, k, n = size
    x = Input("x", tensor(dtype, m, k))()
    check(Graph((x,), (("y", Dot(i32)(x, weights(k, n))),)), {"x": extremes(dtype, m, k)})


@pytest.mark.parametrize("left", [i8, u8], ids=str)
@pytest.mark.parametrize("right", [i8, u8], ids=str)
@pytest.mark.parametrize("size", [(1, 5, 7), (9, 13, 37), (20, 8, 16), (5, 1, 1), (30, 67, 70)])
def test_dots_of_data(left: DType, right: DType, size: tuple[int, int, int]) -> None:
    """Both operands are known only in a run, as are their zero points."""
    m, k, n = size
    x, w = Input("x", tensor(left, m, k))(), Input("w", tensor(right, k, n))()
    feeds = {"x": extremes(left, m, max(k, 2))[:, :k], "w": extremes(right, k, max(n, 2))[:, :n]}
    zeros = {"y": extremes(left, 2)[1:].reshape(()), "z": extremes(right, n + 2)[:n]}
    y = Input("y", tensor(left))()
    z = Input("z", tensor(right, n))()
    check(graph_of(Dot(i32)(x, w)), feeds)
    left_centred = Sub()(Cast(i32)(x), Cast(i32)(y))
    right_centred = Sub()(Cast(i32)(w), Cast(i32)(z))
    check(graph_of(Dot(i32)(left_centred, Cast(i32)(w))), feeds | {"y": zeros["y"]})
    check(graph_of(Dot(i32)(Cast(i32)(x), right_centred)), feeds | {"z": zeros["z"]})
    check(graph_of(Dot(i32)(left_centred, right_centred)), feeds | zeros)


def test_batches_of_dots_of_data() -> None:
    x, w = Input("x", tensor(u8, 2, 3, 6, 10))(), Input("w", tensor(u8, 3, 10, 19))()
    rows = Input("y", tensor(u8, 6, 1))()
    feeds = {"x": extremes(u8, 2, 3, 6, 10), "w": extremes(u8, 3, 10, 19)}
    centred = Sub()(Cast(i32)(x), Cast(i32)(rows))
    check(graph_of(Dot(i32)(centred, Cast(i32)(w))), feeds | {"y": extremes(u8, 6, 1)})
    turned = Transpose((0, 1, 3, 2))(Input("w", tensor(i8, 2, 1, 19, 10))())
    given = {"x": feeds["x"], "w": extremes(i8, 2, 1, 19, 10)}
    check(graph_of(Dot(i32)(x, turned)), given)


@pytest.mark.parametrize("features", instruction_sets(), ids=lambda f: f.name)
def test_machines_multiply_bytes_that_are_data(features: Features) -> None:
    x, w = Input("x", tensor(u8, 8, 16))(), Input("w", tensor(u8, 16, 16))()
    zero = Cast(i32)(Input("y", tensor(u8))())
    graph = graph_of(Dot(i32)(Sub()(Cast(i32)(x), zero), Cast(i32)(w)))
    text = "".join(compile_program(lower(graph, CpuTarget()).whole, features, 1).texts)
    name = features.dot_i8 or features.dot_i16
    assert (f"= call <{features.lanes(32)} x i32> @{name}(" in text) == bool(name)
