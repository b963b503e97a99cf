"""Batches of products that share weights: one product of all rows, so weights are read once."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import TABLE
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, TensorType, Value, constant, dtype
from monograph.ir.sizes import SizeScope
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.shape import Slice, Transpose
from monograph.program.lowering import lower
from tests.cpu.against import check
from tests.cpu.any_shape_cases import open_graph, opened
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


def sums_of(*shape: int, first_open: bool = False) -> int:
    """Return the multiply-adds in the text of a product: one loop has those of all rows."""
    x = value(f"f32[{', '.join(map(str, shape))}]")
    graph = graph_of(Dot()(x, constant(numbers("f32", 768, 1280))))
    if first_open:
        graph = opened(graph, SizeScope(), lambda _, axis: axis == 0)
    module = compile_program(lower(graph, CpuTarget()).whole, TABLE["avx512"], 1)
    return sum(len(SUMS.findall(text)) for text in module.texts)


def test_one_pass_over_the_weights_serves_all_rows() -> None:
    assert sums_of(4, 1, 768) == sums_of(2, 2, 768) == sums_of(4, 768)
    assert sums_of(4, 1, 768) > sums_of(1, 1, 768)


def test_one_pass_serves_an_open_number_of_rows() -> None:
    assert sums_of(40, 1, 768, first_open=True) == sums_of(40, 768, first_open=True)
    assert sums_of(40, 1, 768, first_open=True) > sums_of(1, 1, 768)


@pytest.mark.parametrize("chosen", [lambda *_: True, lambda _, i: i == 0, lambda _, i: i == 1])
@pytest.mark.parametrize("shape", [*SHAPES, "40, 1", "2, 40", "3, 2, 1"])
@pytest.mark.parametrize("name", ["f32", "i8"])
def test_open_rows_of_a_batch(name: str, shape: str, chosen: Callable[[str, int], bool]) -> None:
    x, more = value(f"{name}[{shape}, 33]"), value(f"{name}[{shape}, 21]", "more")
    y = Dot()(x, constant(numbers(name, 33, 21)))
    _check_open(
        graph_of(y, Add()(y, more)), name, lambda n, i: i <= shape.count(",") and chosen(n, i)
    )


def _check_open(graph: Graph, name: str, chosen: Callable[[str, int], bool]) -> None:
    """Run code for any shape at the sizes of a graph and at others."""
    found = open_graph(graph, chosen)
    if found is None:
        return
    ports = zip(graph.input_names, graph.input_types, strict=True)
    shapes = {n: t.static for n, t in ports if isinstance(t, TensorType)}
    for more in (0, 3, 29):
        sized = {
            n: [
                d + more * (axis + 1) if d >= 2 and chosen(n, axis) else d
                for axis, d in enumerate(s)
            ]
            for n, s in shapes.items()
        }
        feeds = {n: numbers(name, *s) for n, s in sized.items()}
        assert found.code.bind({n: x.shape for n, x in feeds.items()}) is not None
        assert found.problem(feeds) is None


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


@pytest.mark.parametrize("view", [_swapped, _every_second])
def test_open_rows_at_strides_of_their_own(view: Callable[[Value], Value]) -> None:
    y = Dot()(view(value("f32[4, 6, 33]")), constant(numbers("f32", 33, 21)))
    _check_open(graph_of(y), "f32", lambda _, axis: axis == 0)


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
