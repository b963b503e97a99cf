"""Kernels that round an input first make the same bits of one that is rounded already."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module.kernel import Candidate
from monograph.ir import DType, Graph, Value, constant
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Reshape, Transpose
from monograph.ops.window import CHANNELS_LAST
from monograph.program.legalise.normalise import cast_first
from monograph.program.program import Step
from monograph.runtime.gpu.driver.devices import Interpreter
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.against import candidate_names, device
from tests.rules.checks import graph_of, value

ROWS, WIDTH = 20, 48
MODELS = ("dot", "one row", "behind views", "conv", "softmax", "norm", "sum", "pointwise")


def weights(kind: DType, *shape: int) -> Value:
    r = np.random.default_rng(0)
    return constant(r.standard_normal(shape).astype(np.float32).astype(kind.numpy))


def model(name: str, kind: DType) -> Graph:
    """Something done with an input that is rounded first."""
    rows = 1 if name == "one row" else ROWS
    x = value(f"f32[{rows}, {WIDTH}]")
    cast = Cast(kind)(x)
    if name in ("dot", "one row"):
        made = Dot()(cast, weights(kind, WIDTH, 32))
    elif name == "behind views":
        made = Dot()(Cast(kind)(Transpose((1, 0))(x)), weights(kind, ROWS, 32))
    elif name == "conv":
        op = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=CHANNELS_LAST)
        pixels = Transpose((0, 2, 3, 1))(Cast(kind)(Reshape((1, 3, 16, 20))(x)))
        made = op(pixels, weights(kind, 16, 3, 3, 3))
    elif name == "softmax":
        made = Softmax(1)(cast)
    elif name == "norm":
        made = LayerNorm((1,))(cast)
    elif name == "sum":
        made = ReduceSum((0,))(cast)
    else:
        made = Add()(Mul()(Cast(f32)(cast), constant(np.float32(3))), constant(np.float32(0.1)))
    return graph_of(made)


def rounded(x: np.ndarray, kind: DType) -> np.ndarray:
    """Return what the device makes of numbers: Triton's interpreter only cuts bits off for bf16."""
    graph = graph_of(Cast(f32)(Cast(kind)(value(f"f32{list(x.shape)}"))))
    executable = GpuExecutable(compile_for_gpu(graph, device().arch), device())
    (found,) = executable.run({"x": x})
    assert (found != x).any()
    if kind == f16 or not isinstance(device(), Interpreter):
        np.testing.assert_array_equal(found, x.astype(kind.numpy).astype(np.float32))
    return np.array(found)


@pytest.mark.parametrize("kind", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_it_does_not_matter_who_rounds(name: str, kind: DType) -> None:
    graph = model(name, kind)
    assert list(cast_first(graph).values()) == [kind]
    r = np.random.default_rng(1)
    x = r.standard_normal(graph.inputs[0].tensor.static).astype(np.float32)
    narrowed = rounded(x, kind)
    for number in range(max(map(len, candidate_names(graph)))):

        def choose(_: Step, found: list[Candidate], number: int = number) -> Candidate:
            return found[number % len(found)]

        executable = GpuExecutable(compile_for_gpu(graph, device().arch, choose), device())
        (whole,) = (y.copy() for y in executable.run({"x": x}))
        (half,) = executable.run({"x": narrowed})
        np.testing.assert_array_equal(whole.view(np.uint8), half.view(np.uint8), str(number))
