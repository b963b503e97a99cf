"""Products with weights of few bits: every form of codes, in the rows where kernels differ."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from monograph.codegen.llvm.matmul.dot_codes import read_codes
from monograph.ir import Array, Value, constant, dtype
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Reshape, Transpose
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import MACHINES, check
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(7)


def codes_of(kind: str, shape: tuple[int, ...]) -> Array:
    """All codes of a type that are numbers."""
    of = dtype(kind)
    if not of.is_float:
        low = -(2 ** (of.bits - 1)) if of.is_signed else 0
        return rng.integers(low, low + 2**of.bits, shape).astype(of.numpy)
    every = np.arange(2**of.bits, dtype=np.uint8).view(of.numpy)
    finite = every[np.isfinite(every.astype(np.float64))]
    return rng.choice(finite, shape)


def weights(
    kind: str, depth: int, columns: int, block: int, zero: str = "", to: str = "f32"
) -> Value:
    """[depth, columns], decoded; codes lie as MatMulNBits has them."""
    of = dtype(kind)
    shape = (columns, -(-depth // block)) if block else (columns,)
    # Some 8-bit floats are large: scales bring their sums near one.
    size = 1e-3 if kind == "f8e5m2" else 1.0
    scale = (rng.uniform(0.01, 0.1, shape) * size).astype(dtype(to).numpy)
    parts = [constant(codes_of(kind, (columns, depth))), constant(scale)]
    if zero == "own":
        parts.append(constant(codes_of(kind, shape)))
    elif zero == "float":
        parts.append(constant(rng.uniform(0, 8, shape).astype(np.float32)))
    assert of.bits <= 8
    return Transpose((1, 0))(Dequantize(dtype(to), 1 if block else 0, block)(*parts))


KINDS = ("i2", "u2", "i4", "u4", "i8", "u8", "f8e4m3fn", "f8e5m2", "f4e2m1", "f8e4m3fnuz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_every_form_of_codes(kind: str, rows: int) -> None:
    x, bias = value(f"f32[{rows}, 96]"), value("f32[40]", "bias")
    check(graph_of(Add()(Dot()(x, weights(kind, 96, 40, 32)), bias)), steps=1)


@pytest.mark.parametrize("kind", ["i4", "u4", "u2", "u8", "i8"])
@pytest.mark.parametrize("zero", ["own", "float"])
@pytest.mark.parametrize("rows", [1, 5])
def test_zero_points(kind: str, zero: str, rows: int) -> None:
    check(graph_of(Dot()(value(f"f32[{rows}, 64]"), weights(kind, 64, 33, 16, zero))), steps=1)


@pytest.mark.parametrize("kind", ["i4", "u2", "i8", "f8e4m3fn", "f4e2m1"])
@pytest.mark.parametrize(("depth", "block"), [(45, 32), (33, 0), (7, 16), (70, 15), (1, 0)])
def test_depths_that_fill_no_word(kind: str, depth: int, block: int) -> None:
    for rows in (1, 4):
        w = weights(kind, depth, 20, block)
        check(graph_of(Dot()(value(f"f32[{rows}, {depth}]"), w)), steps=1)


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "f8e4m3fn", "f4e2m1"])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_narrow_activations(kind: str, to: str) -> None:
    for rows in (1, 3):
        w = weights(kind, 64, 40, 32, to=to)
        check(graph_of(Dot()(value(f"{to}[{rows}, 64]"), w)), steps=1)


def test_a_code_that_is_no_number() -> None:
    codes = np.ones((16, 32), ml_dtypes.float8_e4m3fn)
    codes[3, 5] = np.nan
    w = Dequantize(dtype("f32"))(constant(codes.T), constant(np.float32(0.5)))
    check(graph_of(Dot()(value("f32[2, 32]"), w)), steps=1)


def test_numbers_below_the_normal_ones_count() -> None:
    """Denormals are zeros inside native functions; those of 8-bit floats are numbers."""
    codes = np.full((32, 16), 1, np.uint8).view(ml_dtypes.float8_e4m3fn)
    w = Dequantize(dtype("f32"))(constant(codes), constant(np.float32(1)))
    graph = graph_of(Dot()(value("f32[1, 32]"), w))
    feeds = {graph.input_names[0]: np.ones((1, 32), np.float32)}
    for features, threads in MACHINES:
        (y,) = compile_graph(graph, features, threads).run(feeds)
        np.testing.assert_array_equal(y, np.full((1, 16), 32 * 2.0**-9, np.float32), features.name)


@pytest.mark.parametrize("kind", ["i4", "u4", "f4e2m1"])
def test_weights_stay_packed_in_memory(kind: str) -> None:
    depth, columns, block = 256, 512, 32
    w = weights(kind, depth, columns, block, "own" if kind == "u4" else "")
    graph = graph_of(Dot()(value(f"f32[1, {depth}]"), w))
    scales = depth * columns // block * 4 * (2 if kind == "u4" else 1)
    for features, threads in MACHINES:
        assert columns % features.lanes(32) == 0
        made = compile_graph(graph, features, threads).constant_bytes
        assert made <= depth * columns // 2 + scales + 256, features.name


def test_parameters_are_read_without_being_spread() -> None:
    """A scale for each block stays that, however the weights are seen."""
    plain = weights("i4", 64, 24, 16)
    found = read_codes(plain)
    assert found is not None
    assert found.scale.shape == (4, 24)
    assert found.middle == 8
    flipped = Transpose((1, 0))(Transpose((1, 0))(plain))
    moved = Reshape((64, 24))(Reshape((64, 4, 6))(plain))
    for other in (flipped, moved):
        again = read_codes(other)
        assert again is not None
        np.testing.assert_array_equal(again.codes, found.codes)
        np.testing.assert_array_equal(again.scale, found.scale)
