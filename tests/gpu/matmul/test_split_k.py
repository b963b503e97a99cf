"""Split sums that the last program of a tile finishes: one kernel, the same bits each time."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module.kernel import Candidate
from monograph.codegen.triton.module.launch import ARENA, KEPT
from monograph.ir import Graph, Input, TensorType, evaluate
from monograph.ir.dtype import f16, f32
from monograph.ops.elementwise import Add
from monograph.ops.functions import Sigmoid
from monograph.ops.linear import Dot
from monograph.program.program import Step
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.cpu.against import feeds_for
from tests.gpu.against import check, device


def product(batch: int, m: int, n: int, kind: str = "f32") -> Graph:
    types = {"f32": f32, "f16": f16}
    x = Input("x", TensorType(types[kind], (batch, m, 512)))()
    y = Input("y", TensorType(types[kind], (batch, 512, n)))()
    b = Input("b", TensorType(types[kind], (n,)))()
    return Graph((x, y, b), (("z", Sigmoid()(Add()(Dot()(x, y), b))),))


def split(step: Step, found: list[Candidate]) -> Candidate:
    return next(c for c in found if "split 4" in c.name)


@pytest.mark.parametrize(("batch", "m", "n"), [(1, 33, 20), (2, 16, 32), (3, 9, 1)])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_many_runs_of_one_kernel(batch: int, m: int, n: int, kind: str) -> None:
    graph = product(batch, m, n, kind)
    executable = GpuExecutable(compile_for_gpu(graph, device().arch, split), device())
    assert executable.kernels == executable.launches == 1
    feeds = feeds_for(graph)
    first, *others = (executable.run(feeds)[0] for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(first, other)
    # Whatever was counted is counted no more.
    assert not executable.buffers[KEPT].cpu().any()


def test_the_result_is_the_reference_s() -> None:
    graph = product(2, 33, 20)
    names = ["tiles 16x16x32 w2 s3 split 2", "tiles 16x32x16 w4 s3 split 8"]
    check(graph, chosen=names)


def test_no_part_depends_on_what_memory_held() -> None:
    graph = product(1, 33, 20)
    executable = GpuExecutable(compile_for_gpu(graph, device().arch, split), device())
    feeds = feeds_for(graph)
    executable.buffers[ARENA].fill_(0xFF)
    (found,) = executable.run(feeds)
    np.testing.assert_allclose(found, evaluate(graph, feeds)[0], rtol=1e-4, atol=1e-5)
