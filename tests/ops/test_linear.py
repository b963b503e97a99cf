"""Dot and Det: types, exact integer sums, one rounding."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import TensorType, dtype, parse_tensor_type
from monograph.ops.linear import Det, Dot

i32 = dtype("i32")


def infer(op, *texts: str) -> str:
    types = [parse_tensor_type(t) for t in texts]
    return str(op.canonical(*types).infer(*types))


@pytest.mark.parametrize(
    ("x", "y", "result"),
    [
        ("f32[2, 3]", "f32[3, 4]", "f32[2, 4]"),
        ("f32[N, 2, 3]", "f32[3, 4]", "f32[N, 2, 4]"),
        ("f32[7, 1, 2, K]", "f32[5, 3, 4]", "f32[7, 5, 2, 4]"),
        ("f32[*]", "f32[3, 4]", "f32[*]"),
    ],
)
def test_shape_of_a_dot(x: str, y: str, result: str) -> None:
    assert infer(Dot(), x, y) == result


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("f32[2, 3]", "f32[4, 5]", "(?s)sizes to be summed over differ.*: 3, .*: 4, "),
        ("f32[3]", "f32[3, 4]", "a dot product is of matrices"),
        ("f32[2, 2, 3]", "f32[4, 3, 4]", "do not broadcast"),
        ("f32[2, 3]", "f16[3, 4]", "different element types"),
        ("i8[2, 3]", "u8[3, 4]", "different element types"),
        ("bool[2, 3]", "bool[3, 4]", "element type not accepted"),
    ],
)
def test_operands_that_do_not_fit(x: str, y: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        infer(Dot(), x, y)


def test_result_type_equal_to_the_operands_is_the_default_form() -> None:
    x = parse_tensor_type("i32[2, 2]")
    assert Dot(i32).canonical(x, x) == Dot()


def test_bytes_are_summed_without_loss() -> None:
    x, y = np.full((1, 1000), -128, np.int8), np.full((1000, 1), 255, np.uint8)
    assert Dot(i32).reference(x, y).tolist() == [[-128 * 255 * 1000]]
    assert Dot(i32).infer(parse_tensor_type("i8[1, 9]"), parse_tensor_type("u8[9, 1]")) == (
        TensorType(i32, (1, 1))
    )


def test_wide_integers_are_exact_and_wrap() -> None:
    big = np.array([[2**62 + 1, 1]], np.int64)
    assert Dot().reference(big, np.array([[1], [2]], np.int64)).tolist() == [[2**62 + 3]]
    assert Dot().reference(big, np.array([[4], [0]], np.int64)).tolist() == [[4]]
    top = np.array([[2**64 - 1]], np.uint64)
    assert Dot().reference(top, top).tolist() == [[1]]


def test_a_half_is_rounded_once() -> None:
    # Each partial sum in f16 would stay at 2048: 1 is half a unit in its last place.
    x, y = np.ones((1, 2049), np.float16), np.ones((2049, 1), np.float16)
    x[0, 0] = 2048
    assert Dot().reference(x, y).tolist() == [[4096.0]]


def test_sizes_that_differ_at_run_time() -> None:
    with pytest.raises(ExecutionError, match="summed over differ"):
        Dot().reference(np.ones((2, 3)), np.ones((4, 2)))


def test_determinant() -> None:
    x = np.array([[[1, 2], [3, 4]], [[2, 0], [0, 2]]], np.float32)
    np.testing.assert_allclose(Det().reference(x), [-2, 4], rtol=1e-6)
    assert infer(Det(), "f32[N, 3, 3]") == "f32[N]"
    with pytest.raises(InferError, match="square"):
        infer(Det(), "f32[2, 3]")
    with pytest.raises(InferError, match="of matrices"):
        infer(Det(), "f32[2]")
    with pytest.raises(ExecutionError, match="square"):
        Det().reference(np.ones((2, 3), np.float32))
