"""What the tests of data movement share: running a graph compiled and by its reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.features import TABLE, Features, host_features
from monograph.ir import Graph, Op, evaluate
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
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
    tolerance: float = 0.0,
    native: bool = True,
) -> CpuExecutable:
    """Compiles a graph, runs it twice and compares; inputs that are not given are random.

    Floats may differ by `tolerance`, relative to the largest of the result.
    """
    executable = compile_graph(graph, features or host(), threads)
    assert not native or not executable.host_steps
    feeds = {
        name: make_input(str(type_), seed)
        for seed, (name, type_) in enumerate(zip(graph.input_names, graph.input_types, strict=True))
    } | dict(given or {})
    wanted = evaluate(graph, feeds)
    for _ in range(2):
        for a, b in zip(executable.run(feeds), wanted, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            same(a, b, tolerance)
    return executable


def same(a: np.ndarray, b: np.ndarray, tolerance: float) -> None:
    if a.dtype.kind not in "fV":
        np.testing.assert_array_equal(a, b)
        return
    wide = b.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    # One rounding of f32 is always allowed: exponentials round differently.
    allowed = max(tolerance, 2.4e-7) * float(finite.max(initial=0))
    np.testing.assert_allclose(a.astype(np.float64), wide, rtol=0, atol=allowed)


def check_samples(op: type[Op], features: Features, threads: int, tolerance: float = 0.0) -> None:
    """Runs every sample of an op, compiled."""
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds, features=features, threads=threads, tolerance=tolerance)
