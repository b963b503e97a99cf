"""Fused elementwise work on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, TensorType, Value, constant
from monograph.ir.dtype import bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from monograph.ops.cast import Cast
from monograph.ops.composite import Gelu
from monograph.ops.elementwise import Add, Mul, Sub
from monograph.ops.shape import Concat, Reshape, Slice, Transpose
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.against import check, device


def tensor(name: str, shape: tuple[int, ...], dtype=f32) -> Value:
    return Input(name, TensorType(dtype, shape))()


def test_a_chain_of_views_is_one_kernel() -> None:
    x = tensor("x", (3, 5, 7))
    y = Transpose((2, 0, 1))(Add()(x, constant(np.float32(1.5))))
    z = Mul()(Reshape((7, 15))(y), Reshape((7, 15))(y))
    check(Graph((x,), (("z", z),)), steps=1)


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i8, u8, i32, i64, boolean], ids=str)
def test_casts(dtype) -> None:
    x = tensor("x", (130,))
    y = Cast(f32)(Cast(dtype)(x))
    check(Graph((x,), (("y", y), ("z", Cast(dtype)(Mul()(x, x))))))


@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize(("dtype", "rtol"), [(f64, 1e-5), (f32, 2e-3), (f16, 1e-3)], ids=str)
def test_gelu_does_not_cancel(dtype, rtol: float, approximate: bool) -> None:
    """Relative to itself, where it is the little that is left of x; the reference is in f64."""
    x = tensor("x", (1201,), dtype)
    graph = Graph((x,), (("y", Gelu(approximate)(x)),))
    given = np.linspace(-6, 6, 1201).astype(dtype.numpy)
    made = GpuExecutable(compile_for_gpu(graph, device().arch), device()).run({"x": given})[0]
    expected = Gelu(approximate).compute(given.astype(np.float64))
    # f16 has few bits below 2^-14, and none below 2^-24.
    lowest = 2.0**-24 if dtype == f16 else 0.0
    np.testing.assert_allclose(made.astype(np.float64), expected, rtol, lowest)


def test_parts_of_a_join_are_written_in_place() -> None:
    x, y = tensor("x", (4, 3)), tensor("y", (4, 5))
    joined = Concat(1)(Add()(x, x), Sub()(y, y))
    z = Slice((0, 1), (4, 7), (1, 2))(joined)
    check(Graph((x, y), (("z", Mul()(z, z)),)), steps=3)
