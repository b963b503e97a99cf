"""Runs graphs through the GPU target's kernels and holds the results to the reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import numpy as np

from monograph.codegen.triton import select
from monograph.codegen.triton.kernel import GpuContext
from monograph.ir import Array, Graph, evaluate
from monograph.program.program import Step
from monograph.runtime.gpu.devices import Device, Interpreter
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu, lower_for_gpu
from monograph.runtime.tolerance import derive
from tests.cpu.against import feeds_for


@cache
def device() -> Device:
    """Triton's interpreter, or with MONOGRAPH_TEST_DEVICE=cuda a GPU."""
    if os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda":
        from monograph.runtime.gpu.cuda import CudaDevice

        return CudaDevice()
    return Interpreter()


def check(
    graph: Graph,
    feeds: Mapping[str, Array] | None = None,
    steps: int | None = None,
    every: bool = True,
    expected: list[Array] | None = None,
) -> None:
    """Compares a graph with the reference: with every candidate of every step, or the defaults."""
    feeds = feeds_for(graph) if feeds is None else feeds
    if expected is None:
        with np.errstate(all="ignore"):
            expected = evaluate(graph, feeds)
    names = candidate_names(graph) if every else [[]]
    program = lower_for_gpu(graph)
    assert steps is None or len(program.steps) == steps, str(program)
    rounds = max(len(n) for n in names) if every else 1
    for number in range(max(rounds, 1)):
        module = compile_for_gpu(
            graph, device().arch, lambda s, found, n=number: found[n % len(found)]
        )
        executable = GpuExecutable(module, device())
        given = executable.run(feeds)
        _compare(graph, given, expected, f"candidate {number}")


def candidate_names(graph: Graph) -> list[list[str]]:
    """The candidates of each step."""
    program = lower_for_gpu(graph)

    def of(step: Step) -> list[str]:
        found = select.candidates(GpuContext(program, step, device().arch))
        return [c.name for c in found]

    return [of(step) for step in program.steps]


def _compare(graph: Graph, given: list[Array], expected: list[Array], where: str) -> None:
    tolerances = derive(graph)
    for (name, _), a, b in zip(graph.outputs, given, expected, strict=True):
        assert a.shape == b.shape
        if a.dtype.kind not in "fV":
            np.testing.assert_array_equal(a, b, err_msg=f"{name}, {where}")
            continue
        wide, right = a.astype(np.float64), b.astype(np.float64)
        finite = right[np.isfinite(right)]
        largest = np.abs(finite).max() if finite.size else 0.0
        rtol = tolerances[name].rtol
        np.testing.assert_allclose(
            wide, right, rtol, rtol * largest + tolerances[name].atol, err_msg=f"{name}, {where}"
        )
