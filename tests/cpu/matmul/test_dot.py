"""Matrix products on the CPU target: any element type, constant and dynamic operands."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant, dtype
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Slice, Transpose
from tests.cpu.against import check
from tests.rules.checks import graph_of, value

SIZES = [(1, 33, 70), (7, 33, 5), (13, 64, 48), (2, 5, 1)]


def weights(name: str, *shape: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    kind = dtype(name)
    if kind.is_float:
        return generator.normal(size=shape).astype(kind.numpy)
    low = 0 if kind.kind == "uint" else -100
    return generator.integers(low, 100, shape).astype(kind.numpy)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64", "i32", "i64"])
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_products(name: str, m: int, k: int, n: int) -> None:
    x = value(f"{name}[{m}, {k}]")
    check(
        graph_of(Dot()(x, constant(weights(name, k, n))), Dot()(x, value(f"{name}[{k}, {n}]", "w")))
    )


@pytest.mark.parametrize(
    ("left", "right"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")]
)
@pytest.mark.parametrize(("m", "k", "n"), [*SIZES, (3, 260, 20)])
def test_small_integers(left: str, right: str, m: int, k: int, n: int) -> None:
    x = value(f"{left}[{m}, {k}]")
    w = constant(weights(right, k, n))
    out = Dot(dtype("i32"))
    check(graph_of(out(x, w), Cast(dtype("f32"))(Add()(out(x, w), constant(np.int32(7))))))
    check(graph_of(out(x, value(f"{right}[{k}, {n}]", "w"))))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("m", "k", "n", "part"),
    [(29, 37, 150, 37), (13, 2048, 48, 2048), (26, 40, 64, 19), (40, 700, 96, 700)],
)
def test_rows_of_halves_are_widened_together(name: str, m: int, k: int, n: int, part: int) -> None:
    """Whole vectors and a rest, rows apart by a page, rows of a slice, a chunk of the depth."""
    x = Slice((0, k - part), (m, k), (1, 1))(value(f"{name}[{m}, {k}]"))
    w = constant(weights(name, part, n))
    graph = graph_of(Dot()(x, w), Dot()(x, value(f"{name}[{part}, {n}]", "w")))
    check(graph)


def test_batches() -> None:
    x, w = value("f16[2, 1, 4, 9]"), value("f16[3, 9, 21]", "w")
    check(graph_of(Dot()(x, w), Dot()(x, constant(weights("f16", 3, 9, 21)))))


@pytest.mark.parametrize("m", [1, 2, 9])
@pytest.mark.parametrize(
    ("kind", "k", "n", "block", "zero"),
    [
        ("i4", 64, 40, 32, False),
        ("u4", 64, 33, 16, True),
        ("u4", 70, 16, 32, True),
        ("u4", 45, 20, 15, True),
        ("i8", 64, 7, 32, False),
        ("u8", 33, 64, 0, True),
    ],
)
def test_coded_weights(m: int, kind: str, k: int, n: int, block: int, zero: bool) -> None:
    codes = dtype(kind)
    generator = np.random.default_rng(2)
    low, high = (-8, 8) if kind == "i4" else (0, 16)
    data = generator.integers(low, high, (n, k)).astype(codes.numpy)
    shape = (n, -(-k // block)) if block else (n,)
    scale = generator.uniform(0.01, 0.1, shape).astype(np.float32)
    points = [constant(generator.integers(0, 15, shape).astype(codes.numpy))] if zero else []
    axis = 1 if block else 0
    w = Dequantize(dtype("f32"), axis, block)(constant(data), constant(scale), *points)
    x, bias = value(f"f32[{m}, {k}]"), value(f"f32[{n}]", "bias")
    graph = graph_of(Add()(Dot()(x, Transpose((1, 0))(w)), bias))
    check(graph, steps=1)


def test_coded_weights_that_something_else_reads() -> None:
    data = np.arange(64, dtype=np.int8).reshape(8, 8)
    w = Dequantize(dtype("f32"))(constant(data), constant(np.float32(0.1)))
    check(graph_of(Dot()(value("f32[2, 8]"), w), Add()(w, w)))


def test_coded_weights_in_blocks_of_columns() -> None:
    data = np.arange(64, dtype=np.int8).reshape(8, 8)
    scale = constant(np.linspace(1, 2, 16, dtype=np.float32).reshape(8, 2))
    w = Dequantize(dtype("f32"), 1, 4)(constant(data), scale)
    check(graph_of(Dot()(value("f32[2, 8]"), w)), steps=1)


def test_operands_are_read_through_views() -> None:
    x, w = value("f32[5, 3, 20]"), value("f32[9, 4, 21]", "w")
    rows = Slice((1, 0, 2), (5, 3, 11), (1, 1, 1))(Transpose((0, 1, 2))(Add()(x, x)))
    columns = Transpose((1, 0, 2))(w)
    some = Slice((0, 0, 0), (4, 9, 21), (1, 1, 1))(columns)
    check(graph_of(Add()(Dot()(rows, some), constant(np.float32(1)))), steps=2)
