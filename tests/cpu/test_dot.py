"""Matrix products on the CPU target: any element type, constant and dynamic operands."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import constant, dtype
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
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
    check(graph_of(Dot()(x, constant(weights(name, k, n))), Dot()(x, value(f"{name}[{k}, {n}]", "w"))))


@pytest.mark.parametrize(("left", "right"), [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize(("m", "k", "n"), [*SIZES, (3, 260, 20)])
def test_small_integers(left: str, right: str, m: int, k: int, n: int) -> None:
    x = value(f"{left}[{m}, {k}]")
    w = constant(weights(right, k, n))
    out = Dot(dtype("i32"))
    check(graph_of(out(x, w), Cast(dtype("f32"))(Add()(out(x, w), constant(np.int32(7))))))
    check(graph_of(out(x, value(f"{right}[{k}, {n}]", "w"))))


def test_batches() -> None:
    x, w = value("f16[2, 1, 4, 9]"), value("f16[3, 9, 21]", "w")
    check(graph_of(Dot()(x, w), Dot()(x, constant(weights("f16", 3, 9, 21)))))
