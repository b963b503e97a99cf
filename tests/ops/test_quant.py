"""Quantise and dequantise against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, TensorType, from_numpy, parse_tensor_type
from monograph.ir.dtype import f4e2m1, f8e4m3fn, f8e5m2, f16, f32, i2, i4, i8, i16, u4, u8
from monograph.ops.quant import Dequantize, Quantize


def f(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def typed(op: Any, *types: str) -> TensorType:
    return op(*(Input(f"x{i}", parse_tensor_type(t))() for i, t in enumerate(types))).type


def test_quantize_rounds_halves_to_even_and_saturates() -> None:
    x = f(-1000, -2.5, -0.5, 0.5, 1.5, 2.5, 1000)
    y = Quantize(i8).reference(x, np.float32(1).reshape(()), np.int8(1).reshape(()))
    assert y.tolist() == [-128, -1, 1, 1, 3, 3, 127]
    assert y.dtype == np.int8


@pytest.mark.parametrize(
    ("to", "low", "high"),
    [(u8, 0, 255), (i16, -32768, 32767), (i4, -8, 7), (u4, 0, 15), (i2, -2, 1)],
)
def test_quantize_saturates_to_the_range_of_its_type(to: Any, low: int, high: int) -> None:
    y = Quantize(to).reference(f(-1e9, 1e9), np.float32(0.5).reshape(()))
    assert y.astype(int).tolist() == [low, high]
    assert from_numpy(y.dtype) == to


def test_quantize_rounds_the_quotient_in_the_precision_of_the_scale() -> None:
    # Just below 3.5 in f32, but 3.5 itself in f16, which goes to the even 4.
    x, scale = f(3.4999998), np.float32(1).reshape(())
    assert Quantize(u8).reference(x, scale).tolist() == [3]
    assert Quantize(u8, precision=f16).reference(x, scale).tolist() == [4]


def test_quantize_of_nan_is_the_zero_point() -> None:
    y = Quantize(u8).reference(f(np.nan), np.float32(1).reshape(()), np.uint8(7).reshape(()))
    assert y.tolist() == [7]


def test_quantize_to_floats() -> None:
    x, scale = f(1e9, -1e9, 3.3), np.float32(1).reshape(())
    saturated = Quantize(f8e4m3fn).reference(x, scale).astype(np.float32)
    assert saturated.tolist() == [448, -448, 3.25]
    overflowed = Quantize(f8e5m2, saturate=False).reference(x, scale).astype(np.float32)
    assert overflowed.tolist() == [np.inf, -np.inf, 3.5]
    small = Quantize(f4e2m1).reference(f(0.3, 2.6, -9), scale).astype(np.float32)
    assert small.tolist() == [0.5, 3.0, -6.0]


def test_dequantize_by_tensor_axis_and_block() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    whole = Dequantize(f32).reference(x, np.float32(0.5).reshape(()), np.uint8(2).reshape(()))
    assert whole.tolist() == [[-0.5, 0, 0.5], [1, 1.5, 2]]
    rows = Dequantize(f32, axis=0).reference(x, f(1, 10), np.array([0, 4], np.uint8))
    assert rows.tolist() == [[1, 2, 3], [0, 10, 20]]
    scale = np.array([[1, 10], [2, 20]], np.float32)
    blocks = Dequantize(f32, axis=1, block=2).reference(x, scale)
    assert blocks.tolist() == [[1, 2, 30], [8, 10, 120]]


def test_dequantize_takes_a_real_zero_point() -> None:
    x = np.array([[0, 15]], ml_dtypes.uint4)
    zero = np.array([[7.5]], np.float32)
    y = Dequantize(f32, axis=1, block=2).reference(x, np.array([[2]], np.float32), zero)
    assert y.tolist() == [[-15, 15]]


def test_dequantize_of_i32_rounds_once() -> None:
    x, scale = np.array([2**31 - 1], np.int32), np.float32(3).reshape(())
    assert Dequantize(f32).reference(x, scale).tolist() == [float(np.float32(3 * (2**31 - 1)))]


def test_a_scalar_scale_has_one_canonical_form() -> None:
    x, scale = Input("x", parse_tensor_type("u8[2, 3]"))(), Input("s", parse_tensor_type("f32[]"))()
    assert Dequantize(f32, axis=1)(x, scale) is Dequantize(f32)(x, scale)
    y, scales = Input("y", parse_tensor_type("f32[2, 3]"))(), Input("t", TensorType(f32, (3,)))()
    assert Quantize(u8, axis=-1, precision=f32)(y, scales) is Quantize(u8, axis=1)(y, scales)
    assert Quantize(u8, saturate=False)(y, scale) is Quantize(u8)(y, scale)


def test_types_with_symbols() -> None:
    assert str(typed(Dequantize(f16, axis=1), "u8[N, C]", "f16[C]", "u8[C]")) == "f16[N, C]"
    assert str(typed(Quantize(i4, axis=0, block=8), "f32[N, 4]", "f32[M, 4]")) == "i4[N, 4]"
    assert str(typed(Dequantize(f32), "i8[*]", "f32[]")) == "f32[*]"


@pytest.mark.parametrize(("op", "types", "words"), [
    (Dequantize(f32, axis=1), ("u8[2, 3]", "f32[2]"), r"wrong shape"),
    (Dequantize(f32, axis=1, block=2), ("u8[2, 3]", "f32[2, 3]"), r"wrong shape"),
    (Dequantize(f32), ("u8[2]", "f32[2]"), r"wrong shape"),
    (Dequantize(f32), ("u8[2]", "f32[]", "i8[]"), r"another element type"),
    (Dequantize(i8), ("u8[2]", "f32[]"), r"not accepted"),
    (Dequantize(f32, axis=3), ("u8[2]", "f32[2]"), r"axis out of range"),
    (Dequantize(f32, axis=0, block=-1), ("u8[2]", "f32[2]"), r"positive size"),
    (Quantize(u8), ("f32[2]", "f32[]", "i8[]"), r"another element type"),
    (Quantize(u8), ("f32[2]", "i32[]"), r"not accepted"),
    (Quantize(u8), ("f32[2]", "f32[]", "u8[]", "u8[]"), r"at most one"),
])  # fmt: skip
def test_wrong_types_are_refused(op: Any, types: tuple[str, ...], words: str) -> None:
    with pytest.raises(InferError, match=words):
        typed(op, *types)


def test_sizes_that_show_only_at_run_time_are_checked() -> None:
    x = np.zeros((2, 3), np.uint8)
    with pytest.raises(ExecutionError, match="each index"):
        Dequantize(f32, axis=1).reference(x, f(1, 2))
    with pytest.raises(ExecutionError, match="each block"):
        Dequantize(f32, axis=1, block=2).reference(x, np.ones((2, 3), np.float32))
    with pytest.raises(ExecutionError, match="one scale for all"):
        Dequantize(f32).reference(x, f(1, 2))
