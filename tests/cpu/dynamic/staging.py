"""Helpers of the tests of programs in stages: compile, run, compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np

from monograph.codegen.llvm.module.features import Features
from monograph.ir import Graph, Op, Value, evaluate
from monograph.runtime.cpu import executable as runtime
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.dynamic.staged import compile_stages
from monograph.runtime.executable import Executable
from tests.cpu.against import agree
from tests.cpu.indexing.moving import host
from tests.samples import sample_graph


def compiled(
    graph: Graph, *, features: Features | None = None, threads: int = 2, kept: int = 16
) -> Executable:
    """A graph in stages; small ones are shared out too."""
    with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
        return compile_stages(graph, Compiler(features or host(), threads, kept=kept))


def matches(executable: Executable, graph: Graph, feeds: Mapping[str, Any]) -> None:
    """Runs a graph and compares: the reference's values, shapes and types, all of it compiled."""
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, feeds)
    agree(graph, feeds, executable.run(feeds), wanted, "in stages")
    assert not executable.host_steps, [str(s) for s in executable.host_steps]


def check(graph: Graph, feeds: Mapping[str, Any], **options: Any) -> Executable:
    executable = compiled(graph, **options)
    for _ in range(2):
        matches(executable, graph, feeds)
    return executable


def check_samples(op: type[Op], features: Features, threads: int) -> None:
    """Runs every sample of an op in stages."""
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds, features=features, threads=threads)


def body(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")
