"""Towers of layers for tests of passes, and what is counted of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Array, Graph, Value, constant, dtype, verify
from monograph.ops.composite import LayerNorm, RmsNorm
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip, Mul, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.passes.base import Environment, Pass, run_pass
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.passes.horizontal.fuse_shared_input import FuseSharedInput
from monograph.pipeline import optimise
from monograph.program.lowering import lower
from monograph.rewrite import CPU_COST, CostModel
from tests.rules.checks import check_numbers

rng = np.random.default_rng(0)
Step = Callable[[Value], Value]
relu = Clip(lo=0.0)


def weight(*shape: int, kind: str = "f32") -> Value:
    return constant(rng.normal(size=shape).astype(dtype(kind).numpy))


def silu(x: Value) -> Value:
    return Mul()(x, Sigmoid()(x))


def norm(x: Value) -> Value:
    width = x.tensor.static[-1]
    return LayerNorm((-1,))(x, weight(width), weight(width))


def root_norm(x: Value) -> Value:
    return RmsNorm((-1,))(x, weight(x.tensor.static[-1]))


def layer(x: Value, width: int, kind: str = "f32") -> Value:
    return Add()(Dot()(x, weight(x.tensor.static[-1], width, kind=kind)), weight(width, kind=kind))


def tower(x: Value, widths: Sequence[int], *steps: Step) -> Value:
    """Layers of these widths, and steps after all but the last."""
    for i, width in enumerate(widths):
        x = layer(x, width)
        if i < len(widths) - 1:
            for step in steps:
                x = step(x)
    return x


def fuse(
    before: Graph, *passes: Pass, cost: CostModel = CPU_COST, exact: bool = False
) -> tuple[Graph, list[str]]:
    """The graph after the passes, checked, and the reasons of all rewrites that declined."""
    environment = Environment(cost)
    after = before
    for step in passes or (BatchTowers(), FuseSharedInput()):
        after = verify(run_pass(step, after, environment))
    check_numbers(before, after, exact=exact)
    misses = environment.trace.misses.values()
    return after, [m.reason for found in misses for m in found]


def count(graph: Graph, *names: str) -> list[int]:
    found = Counter(v.op.name for v in graph.values)
    return [found[n] for n in names]


def kernels(graph: Graph, cost: CostModel = CPU_COST) -> int:
    """The kernels of a graph behind the whole pipeline."""
    return len(lower(optimise(graph, environment=Environment(cost)), CpuTarget()).whole.steps)


def coded(k: int, n: int, codes: str, form: str, size: int = 4) -> Value:
    """Weights [k, n] as codes with one scale, one for each column, or one for each block."""
    by_column = form.startswith("transposed")
    shape = (n, k) if by_column else (k, n)
    block, axis = 0, None
    scales: tuple[int, ...] = ()
    if form.endswith("blocks"):
        block, axis = size, 1 if by_column else 0
        scales = (n, -(-k // size)) if by_column else (-(-k // size), n)
    elif form.endswith("columns"):
        axis, scales = (0 if by_column else 1), (n,)
    given: list[Array] = [
        rng.integers(0, 8, shape),
        rng.random(scales) / 4,
        rng.integers(0, 8, scales),
    ]
    kinds = (dtype(codes), dtype("f32"), dtype(codes))
    data = [constant(np.asarray(g).astype(t.numpy)) for g, t in zip(given, kinds, strict=True)]
    made = Dequantize(dtype("f32"), axis, block)(*data)
    return Transpose((1, 0))(made) if by_column else made


FORMS = ["blocks", "transposed blocks", "columns", "transposed columns", "scalar"]


def coded_tower(x: Value, widths: Sequence[int], codes: str, form: str, size: int = 4) -> Value:
    for width in widths:
        weights = coded(x.tensor.static[-1], width, codes, form, size)
        x = silu(Add()(Dot()(x, weights), weight(width)))
    return x


def cut(x: Value, start: int, stop: int) -> Value:
    sizes = x.tensor.static
    starts, stops = (0,) * (len(sizes) - 1), sizes[:-1]
    return Slice((*starts, start), (*stops, stop), (1,) * len(sizes))(x)


def siamese(x: Value, kernels: Sequence[Value], top: Value) -> Value:
    for w in kernels:
        x = relu(Conv((1, 1), (1, 1), (1, 1), (1, 1), 1)(x, w))
    pooled = ReduceSum((2, 3))(x)
    return Dot()(Reshape((x.tensor.static[0], x.tensor.static[1]))(pooled), top)
