"""Runs graphs through the GPU target's kernels and holds the results to the reference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import Candidate, GpuContext
from monograph.ir import Array, Graph, evaluate
from monograph.program.legalise.lower_random import random_ops
from monograph.program.program import Step
from monograph.runtime.gpu.driver.devices import Device, Interpreter
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu, lower_for_gpu
from tests.cpu.against import agree, feeds_for

TARGET = "gpu" if os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda" else "gpu:interpreter"
"""The target of sessions in these tests."""


@cache
def device() -> Device:
    """Triton's interpreter, or with MONOGRAPH_TEST_DEVICE=cuda a GPU."""
    if os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda":
        from monograph.runtime.gpu.driver.cuda import CudaDevice

        return CudaDevice()
    return Interpreter()


def check(
    graph: Graph,
    feeds: Mapping[str, Array] | None = None,
    steps: int | None = None,
    every: bool = True,
    expected: list[Array] | None = None,
    chosen: Sequence[str] = (),
) -> None:
    """Compares a graph with the reference: by every candidate of every step, or the defaults.

    With `chosen`, by the candidates of these names where a step has them.
    """
    feeds = feeds_for(graph) if feeds is None else feeds
    restart_turns(graph)
    if expected is None:
        with np.errstate(all="ignore"):
            expected = evaluate(graph, feeds)
    program = lower_for_gpu(graph)
    assert steps is None or len(program.steps) == steps, str(program)
    rounds = max((len(n) for n in candidate_names(graph)), default=1) if every else 1
    for number in range(len(chosen) or rounds):

        def choose(step: Step, found: list[Candidate], number: int = number) -> Candidate:
            if chosen:
                return next((c for c in found if c.name == chosen[number]), found[0])
            return found[number % len(found)]

        restart_turns(graph)
        executable = GpuExecutable(compile_for_gpu(graph, device().arch, choose), device())
        agree(graph, feeds, executable.run(feeds), expected, f"by candidate {number}")


def restart_turns(graph: Graph) -> None:
    """Let random ops draw in the next run what they draw in every run that begins so."""
    for op in random_ops(graph):
        op.turns.count[0] = 0


def candidate_names(graph: Graph) -> list[list[str]]:
    """The candidates of each step."""
    program = lower_for_gpu(graph)

    def of(step: Step) -> list[str]:
        found = select.candidates(GpuContext(program, step, device().arch))
        return [c.name for c in found]

    return [of(step) for step in program.steps]
