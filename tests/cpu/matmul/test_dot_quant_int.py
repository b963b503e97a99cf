"""Dots with coded weights whose left operand may be integers."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, Graph, Input, Value, constant, evaluate, tensor
from monograph.ir.dtype import f32, i4, i8, u4, u8
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose
from monograph.runtime.cpu import executable as runtime
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import MACHINES, check

rng = np.random.default_rng(0)
RANGES = {i4: (-8, 8), u4: (0, 16), i8: (-128, 128), u8: (0, 256)}


def weights(dtype: object, depth: int, columns: int, block: int, zeros: str) -> Value:
    """Coded weights [depth, columns], as MatMulNBits has them."""
    low, high = RANGES[dtype]  # type: ignore[index]
    blocks = -(-depth // block)
    codes = rng.integers(low, high, (columns, depth)).astype(dtype.numpy)  # type: ignore[attr-defined]
    scale = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    given = [constant(codes), constant(scale)]
    if zeros == "integers":
        each = rng.integers(low, high, (columns, blocks))
        given.append(constant(each.astype(dtype.numpy)))  # type: ignore[attr-defined]
    elif zeros == "floats":
        given.append(constant(rng.uniform(0, 8, (columns, blocks)).astype(np.float32)))
    return Transpose((1, 0))(Dequantize(f32, 1, block)(*given))


def rounded(x: Array, block: int) -> Array:
    """x as bytes with a scale for each block."""
    parts = x.reshape(*x.shape[:-1], -1, block).astype(np.float64)
    scale = np.abs(parts).max(-1, keepdims=True) / 127
    scale[scale == 0] = 1
    return (np.rint(parts / scale) * scale).reshape(x.shape)


def run_all(graph: Graph, x: Array) -> list[tuple[Features, Array]]:
    results = []
    for features, threads in MACHINES:
        with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
            executable = compile_graph(graph, features, threads)
        results.append((features, executable.run({"x": x})[0]))
    return results


def check_rounding(shape: tuple[int, ...], w: Value, block: int, x: Array | None = None) -> None:
    """Compare with the product of the rounded operand: exactly where the CPU rounds so."""
    given = Input("x", tensor(f32, *shape))()
    graph = Graph((given,), (("y", Dot(None, 8)(given, w)),))
    x = rng.normal(size=shape).astype(np.float32) if x is None else x
    matrix = evaluate(Graph((), (("w", w),)), {})[0].astype(np.float64)
    for features, y in run_all(graph, x):
        right = (rounded(x, block) if features.dot_i8 else x.astype(np.float64)) @ matrix
        np.testing.assert_allclose(y, right, 1e-5, 1e-5 * np.abs(right).max(), features.name)


@pytest.mark.parametrize("dtype", [i4, u4, i8, u8], ids=str)
@pytest.mark.parametrize("zeros", ["none", "integers", "floats"])
def test_codes(dtype: object, zeros: str) -> None:
    check_rounding((3, 96), weights(dtype, 96, 40, 32, zeros), 32)


@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 3, 64), (2, 1, 5, 64), (70, 64)])
@pytest.mark.parametrize("columns", [16, 5, 200])
def test_sizes(shape: tuple[int, ...], columns: int) -> None:
    check_rounding(shape, weights(i4, 64, columns, 16, "none"), 16)


def test_blocks_of_zeros_and_tiny_numbers() -> None:
    x = rng.normal(size=(4, 128)).astype(np.float32)
    x[0] = 0
    x[1, :32] = 0
    x[2, 32:64] *= np.float32(1e-30)
    check_rounding((4, 128), weights(i4, 128, 33, 32, "none"), 32, x)


def test_what_is_not_finite_stays_so() -> None:
    x = rng.normal(size=(3, 64)).astype(np.float32)
    x[0, 5], x[1, 40] = np.nan, np.inf
    given = Input("x", tensor(f32, 3, 64))()
    graph = Graph((given,), (("y", Dot(None, 8)(given, weights(i4, 64, 20, 32, "none"))),))
    for _, y in run_all(graph, x):
        assert not np.isfinite(y[:2]).any()
        assert np.isfinite(y[2]).all()


def test_within_what_the_permission_allows() -> None:
    x, r = (Input(name, tensor(f32, 5, n))() for name, n in (("x", 256), ("r", 48)))
    w = weights(u4, 256, 48, 32, "integers")
    check(Graph((x, r), (("y", Add()(Dot(None, 8)(x, w), r)),)), steps=1)


@pytest.mark.parametrize(("depth", "block"), [(80, 32), (60, 20)])
def test_odd_blocks_are_not_rounded(depth: int, block: int) -> None:
    x = Input("x", tensor(f32, 3, depth))()
    w = weights(i4, depth, 20, block, "none")
    permitted, plain = (Graph((x,), (("y", Dot(None, n)(x, w)),)) for n in (8, 0))
    data = rng.normal(size=(3, depth)).astype(np.float32)
    for (_, a), (_, b) in zip(run_all(permitted, data), run_all(plain, data), strict=True):
        np.testing.assert_array_equal(a, b)
