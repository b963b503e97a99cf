"""Batches of products that share weights: one product of all rows, so weights are read once."""

from __future__ import annotations

import re

import numpy as np
import pytest

from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import TABLE
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Value, constant, dtype
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.shape import Slice, Transpose
from monograph.program.lowering import lower
from tests.cpu.against import check
from tests.cpu.matmul.test_dot_numbers import weights as coded
from tests.cpu.matmul.test_dot_quant_int import check_rounding
from tests.cpu.matmul.test_dot_quant_int import weights as rounded_weights
from tests.rules.checks import graph_of, value

SUMS = re.compile(r"call <16 x float> @llvm\.fmuladd")
SHAPES = ["4, 1", "2, 3", "3, 1, 2", "2, 2, 5", "1, 3, 1", "30, 1"]


def numbers(name: str, *shape: int) -> np.ndarray:
    kind = dtype(name)
    drawn = np.random.default_rng(3).normal(size=shape) * (1 if kind.is_float else 50)
    return drawn.astype(kind.numpy)


def sums_of(*shape: int) -> int:
    """Return the multiply-adds in the text of a product: one loop has those of all rows."""
    x = value(f"f32[{', '.join(map(str, shape))}]")
    graph = graph_of(Dot()(x, constant(numbers("f32", 768, 1280))))
    module = compile_program(lower(graph, CpuTarget()).whole, TABLE["avx512"], 1)
    return sum(len(SUMS.findall(text)) for text in module.texts)


def test_one_pass_over_the_weights_serves_all_rows() -> None:
    assert sums_of(4, 1, 768) == sums_of(2, 2, 768) == sums_of(4, 768)
    assert sums_of(4, 1, 768) > sums_of(1, 1, 768)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["f32", "bf16", "i8"])
def test_rows_of_a_batch_with_an_epilogue(name: str, shape: str) -> None:
    x, more = value(f"{name}[{shape}, 33]"), value(f"{name}[{shape}, 21]", "more")
    y = Dot()(x, constant(numbers(name, 33, 21)))
    check(graph_of(y, Add()(y, more)))


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes(shape: str) -> None:
    x = value(f"u8[{shape}, 70]")
    check(graph_of(Dot(dtype("i32"))(x, constant(numbers("i8", 70, 21)))))


def _swapped(x: Value) -> Value:
    return Transpose((1, 0, 2))(x)


def _every_second(x: Value) -> Value:
    return Slice((0, 0, 0), (4, 6, 33), (1, 2, 1))(x)


@pytest.mark.parametrize("view", [_swapped, _every_second])
def test_rows_at_strides_of_their_own(view: object) -> None:
    """Rows that no single stride reaches stay a batch."""
    x = view(value("f32[4, 6, 33]"))  # type: ignore[operator]
    check(graph_of(Dot()(x, constant(numbers("f32", 33, 21)))))


def test_weights_of_each_batch_stay_apart() -> None:
    check(graph_of(Dot()(value("f32[3, 2, 17]"), constant(numbers("f32", 3, 17, 20)))))
    check(graph_of(Dot()(value("f32[3, 2, 17]"), constant(numbers("f32", 1, 17, 20)))))
    check(graph_of(Dot()(value("f32[2, 17]"), constant(numbers("f32", 3, 17, 20)))))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["i4", "i8", "f8e4m3fn"])
def test_coded_weights(kind: str, shape: str) -> None:
    check(graph_of(Dot()(value(f"f32[{shape}, 64]"), coded(kind, 64, 33, 16))), steps=1)


@pytest.mark.parametrize("shape", [(4, 1, 64), (2, 3, 64), (70, 1, 64)])
def test_rows_rounded_to_bytes(shape: tuple[int, ...]) -> None:
    check_rounding(shape, rounded_weights(dtype("i4"), 64, 40, 16, "floats"), 16)
