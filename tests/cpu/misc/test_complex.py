"""Complex numbers are moved, added and multiplied by compiled code, as pairs of real numbers."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.codegen.llvm.module.select import host_reasons
from monograph.ir import Array, Value, constant, evaluate
from monograph.ir.dtype import c64, c128
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, Mul, Sub, Where
from monograph.ops.index import Gather, GatherElements
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.reduce import ReduceSum
from monograph.ops.scatter import ScatterElements
from monograph.ops.shape import Concat, Reshape, ShapeOf, Slice, Transpose
from tests.cpu.dynamic.staging import compiled, matches
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    wide = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return wide.astype({"c64": np.complex64, "c128": np.complex128}[dtype])


def inputs(dtype: str) -> tuple[Value, Value]:
    return value(f"{dtype}[3, 4]"), value(f"{dtype}[3, 4]", "y")


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_moves(dtype: str) -> None:
    x, y = inputs(dtype)
    at, mask = constant(np.array([[2, 0, 1, 2]])), constant(np.eye(3, 4) > 0)
    graph = graph_of(
        Reshape((2, 6))(x),
        Transpose((1, 0))(x),
        Concat(1)(x, y),
        Slice((2, 0), (-4, 4), (-1, 2))(x),
        Gather(0)(x, constant(np.array([2, -1]))),
        GatherElements(0)(x, at),
        ScatterElements(0)(x, at, Slice((0, 0), (1, 4), (1, 1))(y)),
        Where()(mask, x, y),
        Pad((1, 0), (0, 2))(x),
        ShapeOf()(x),
        x,
    )
    given = {"x": numbers((3, 4), dtype), "y": numbers((3, 4), dtype)}
    given["x"][0, 0] = complex(np.nan, -np.inf)
    executable = compiled(graph)
    matches(executable, graph, given)
    matches(executable, graph, given | {"y": np.asfortranarray(given["y"])})
    assert executable.launches == 1
    assert host_reasons(graph) == {}


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_sums_and_products(dtype: str) -> None:
    x, y = inputs(dtype)
    real = Cast(c64 if dtype == "c64" else c128)(value("f32[4]", "r"))
    results = (
        Add()(x, y),
        Sub()(x, y),
        Mul()(x, y),
        ReduceSum((0,))(x),
        Dot()(x, Transpose((1, 0))(y)),
        Add()(x, real),
        constant(np.array([1 + 2j], np.complex64)),
    )
    graph = graph_of(*results)
    given = {"x": numbers((3, 4), dtype), "y": numbers((3, 4), dtype)}
    given["r"] = np.array([1, np.inf, -2, 0], np.float32)
    executable = compiled(graph)
    for a, b in zip(executable.run(given), evaluate(graph, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == "c64" else 1e-13)
    assert not executable.host_steps


def test_a_quotient_is_the_hosts_and_says_why() -> None:
    graph = graph_of(Div()(*inputs("c64")))
    executable = compiled(graph)
    given = {"x": numbers((3, 4), "c64"), "y": numbers((3, 4), "c64")}
    np.testing.assert_array_equal(executable.run(given)[0], evaluate(graph, given)[0])
    assert executable.host_reasons == host_reasons(graph) == {"div": "complex numbers"}


def test_a_session_moves_complex_numbers() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["": 20]>
        g (complex64[N, 3] x, int64[2] n) => (complex64[p, q] y, complex64[N, 6] z) {
            y = Reshape(x, n)
            z = Concat<axis = 1>(x, x)
        }
        """
    )
    session = monograph.load(model, target="cpu", cache_bytes=0)
    x = numbers((4, 3), "c64")
    out = np.empty((4, 6), np.complex64)
    y, z = session.run({"x": x, "n": np.array([2, 6])}, out={"z": out})
    assert z is out
    np.testing.assert_array_equal(y, x.reshape(2, 6))
    np.testing.assert_array_equal(z, np.concatenate([x, x], axis=1))
    assert session.stats["host_steps"] == []
    assert session.stats["specialisations"] == 1
