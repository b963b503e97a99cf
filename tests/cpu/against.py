"""Runs graphs on the CPU target and holds the results to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from monograph.ir import Array, Graph, TensorType, evaluate
from monograph.runtime.cpu import executable as runtime
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
from monograph.runtime.numerics.compare import compare_outputs
from monograph.runtime.numerics.spread import tolerances
from tests.cpu.emit.scalar_kernels import instruction_sets

MACHINES = [(f, t) for f in instruction_sets() for t in (1, 2, 4) if t == 2 or f.vector_bits > 128]
"""Instruction sets and numbers of threads to try."""


def feeds_for(graph: Graph, seed: int = 0, scale: float = 1.0) -> dict[str, Array]:
    """Normally distributed floats, small integers, random bools."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for name, type_ in zip(graph.input_names, graph.input_types, strict=True):
        assert isinstance(type_, TensorType)
        if type_.dtype.is_float:
            data: Array = np.asarray(generator.normal(size=type_.static) * scale)
        else:
            low = 0 if type_.dtype.kind != "int" else -4
            high = 2 if type_.dtype.kind == "bool" else 5
            data = np.asarray(generator.integers(low, high, type_.static))
        feeds[name] = data.astype(type_.dtype.numpy)
    return feeds


def check(graph: Graph, feeds: Mapping[str, Array] | None = None, steps: int | None = None) -> None:
    """Compares a graph on every machine with the reference; all of it must be compiled."""
    feeds = feeds_for(graph) if feeds is None else feeds
    with np.errstate(all="ignore"):
        expected = evaluate(graph, feeds)
    for features, threads in MACHINES:
        # Small graphs would run on one thread.
        with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
            executable = compile_graph(graph, features, threads)
        assert not executable.host_steps, [str(s) for s in executable.host_steps]
        assert steps is None or len(executable.program.steps) == steps, str(executable.program)
        compare(graph, executable, feeds, expected, f"{features.name}, {threads} threads")


def compare(
    graph: Graph,
    executable: CpuExecutable,
    feeds: Mapping[str, Array],
    expected: list[Array],
    where: str,
) -> None:
    agree(graph, feeds, executable.run(feeds), expected, f"on {where}")


def agree(
    graph: Graph,
    feeds: Mapping[str, Any],
    given: Sequence[Any],
    expected: Sequence[Any],
    where: str,
) -> None:
    """Every element of every output is within what is derived and measured for it."""
    names = graph.output_names
    left, right = (dict(zip(names, side, strict=True)) for side in (given, expected))
    with np.errstate(all="ignore"):
        found = compare_outputs(left, right, tolerances(graph, feeds))
    assert not (wrong := [d for d in found if not d.ok]), "\n".join(
        f"{d.name} {where}: {d.problem}; {d.given} for {d.expected} at {d.worst}" for d in wrong
    )
