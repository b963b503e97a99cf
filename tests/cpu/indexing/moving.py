"""Helpers of the tests of data movement: run a graph compiled and by its reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monograph.codegen.llvm.module.features import TABLE, Features, host_features
from monograph.ir import Graph, Op, evaluate
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
from tests.cpu.against import agree
from tests.samples import make_input, sample_graph

FEATURES = [f for f in TABLE.values() if f.name in ("sse2", "avx2", host_features().name)]
THREADS = (1, 2, 4)


def host() -> Features:
    return host_features()


def check(
    graph: Graph,
    given: Mapping[str, Any] | None = None,
    *,
    features: Features | None = None,
    threads: int = 2,
    native: bool = True,
) -> CpuExecutable:
    """Compiles a graph, runs it twice and compares; inputs that are not given are random."""
    executable = compile_graph(graph, features or host(), threads)
    assert not native or not executable.host_steps
    feeds = {
        name: make_input(str(type_), seed)
        for seed, (name, type_) in enumerate(zip(graph.input_names, graph.input_types, strict=True))
    } | dict(given or {})
    wanted = evaluate(graph, feeds)
    for _ in range(2):
        agree(graph, feeds, executable.run(feeds), wanted, "compiled")
    return executable


def check_samples(op: type[Op], features: Features, threads: int) -> None:
    """Runs every sample of an op, compiled."""
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds, features=features, threads=threads)
