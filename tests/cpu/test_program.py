"""Whole programs: halos in reused memory, joins, host steps, concurrency."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import TABLE, host_features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, Value, constant, evaluate
from monograph.ops.composite import Silu
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Mul, Neg
from monograph.ops.linear import Dot
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from monograph.ops.sort import NonZero
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
from tests.cpu.against import agree
from tests.program.unsplit import unsplit
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)
FEATURES = [f for f in TABLE.values() if f.name in ("sse2", "avx2", host_features().name)]


def weight(*shape: int) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))


def compiled(graph: Graph, threads: int = 2) -> CpuExecutable:
    return compile_graph(graph, host_features(), threads)


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.normal(size=type_.static).astype(type_.dtype.numpy)
        for name, type_ in zip(graph.input_names, graph.input_types, strict=True)
    }


def check(graph: Graph, threads: int = 2, features=None) -> CpuExecutable:
    executable = compile_graph(graph, features or host_features(), threads)
    for seed in range(3):
        feeds = feeds_of(graph, seed)
        agree(graph, feeds, executable.run(feeds), evaluate(graph, feeds), f"seed {seed}")
    return executable


def conv(x: Value, out: int, kernel: int, stride: int = 1) -> Value:
    pad = kernel // 2
    op = Conv((stride,) * 2, (pad,) * 2, (pad,) * 2, (1, 1), layout="channels_last")
    return op(x, weight(out, x.tensor.static[-1], kernel, kernel))


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_chain_of_padded_convolutions_in_reused_memory(features, threads: int) -> None:
    x = y = value("f32[1, 9, 7, 5]")
    for width, kernel in ((19, 3), (8, 5), (33, 1), (4, 3), (16, 3), (3, 7)):
        y = Silu()(Add()(conv(y, width, kernel), weight(width)))
    graph = graph_of(y)
    executable = check(graph, threads, features)
    assert not executable.host_steps
    # Without reuse the buffers of this chain would take more.
    assert executable.module.arena_bytes < 9 * 7 * 33 * 4 * 6
    assert x in graph.inputs


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(1, 33, 5), (7, 16, 1), (13, 1, 40), (64, 64, 64), (3, 100, 17)])
def test_dots_of_odd_sizes(features, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    x = value(f"f32[{rows}, {depth}]")
    y = Add()(Dot()(x, weight(depth, columns)), weight(columns))
    for threads in (1, 2, 4):
        check(graph_of(Add()(Silu()(y), y)), threads, features)


def test_batched_and_dynamic_dots() -> None:
    x, w = value("f32[2, 3, 5, 7]"), value("f32[3, 7, 9]", "w")
    assert not check(graph_of(Dot()(x, w))).host_steps
    stacked = Dot()(value("f32[4, 6]"), weight(5, 6, 11))
    assert not check(graph_of(Add()(stacked, weight(5, 1, 11)))).host_steps
    scores = Dot()(x, Transpose((0, 1, 3, 2))(value("f32[2, 3, 4, 7]", "k")))
    assert not check(graph_of(scores)).host_steps


def test_a_number_repeated_to_a_matrix_can_be_a_factor() -> None:
    one = Broadcast((7, 9))(value("f32[]", "s"))
    check(graph_of(Dot()(value("f32[4, 7]"), one)))


def test_joins_and_splits() -> None:
    x = value("f32[4, 12]")
    left, right = (Slice((0, a), (4, a + 6), (1, 1))(x) for a in (0, 6))
    joined = Concat(1)(Exp()(left), Dot()(right, weight(6, 5)), right)
    assert not check(graph_of(Dot()(joined, weight(17, 3)), joined)).host_steps


def test_views_of_every_kind_in_one_loop() -> None:
    x = value("f32[3, 4, 5]")
    moved = Reshape((5, 12))(Transpose((2, 0, 1))(x))
    back = Slice((4, 0), (-6, 12), (-1, 3))(moved)
    repeated = Broadcast((2, 5, 4))(back)
    check(graph_of(Neg()(repeated), Mul()(x, Reshape((3, 4, 1))(weight(12)))))


def test_steps_on_the_host_between_native_ones() -> None:
    x = value("f32[6]")
    where = NonZero()(Exp()(x))
    with unsplit(CpuTarget):
        executable = compiled(graph_of(Neg()(x), where))
    assert [s.region.kind for s in executable.host_steps] == ["non_zero"]
    feeds = {"x": np.arange(6, dtype=np.float32)}
    negative, places = executable.run(feeds)
    assert negative.tolist() == [-0.0, -1, -2, -3, -4, -5]
    assert places.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_runs_at_once_on_one_executable() -> None:
    x = value("f32[8, 64]")
    graph = graph_of(Silu()(Dot()(Silu()(Dot()(x, weight(64, 64))), weight(64, 64))))
    executable = compiled(graph)
    inputs = [feeds_of(graph, seed) for seed in range(8)]
    expected = [evaluate(graph, f)[0] for f in inputs]

    def once(i: int) -> float:
        (result,) = executable.run(inputs[i % 8])
        return float(np.abs(result - expected[i % 8]).max())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(once, range(300))) < 1e-4


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = value("f32[37, 53]")
    graph = graph_of(Exp()(Dot()(x, weight(53, 29))))
    feeds = feeds_of(graph)
    results = [compiled(graph, t).run(feeds)[0] for t in (1, 2, 3, 4)]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-6)
