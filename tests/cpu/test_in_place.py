"""Compiled code that writes over its operands gives the numbers of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.errors import ExecutionError, FeedError
from monograph.ir import Graph, Value, constant, dtype, evaluate
from monograph.ir.dtype import f32
from monograph.ops.attention import CacheUpdate
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Mul, Neg, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.scatter import ScatterElements, ScatterNd
from monograph.ops.shape import Concat, Slice, Transpose
from monograph.program.lowering import lower
from monograph.runtime.cpu.executable import CpuExecutable, compile_graph
from tests.cpu.against import MACHINES, check, feeds_for
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))


def in_place(graph: Graph) -> list[str]:
    program = compile_graph(graph, host_features(), 2).program
    return [s.region.kind for s in program.steps if program.in_place(s)]


def dot_stream(rows: int, width: int) -> Graph:
    """Residuals around pairs of dots: each sum may take the memory of the one before it."""
    kept = Dot()(value(f"f32[{rows}, {width}]"), weight(width, width))
    for _ in range(3):
        inner = Sigmoid()(Dot()(kept, weight(width, 2 * width)))
        kept = Add()(Dot()(inner, weight(2 * width, width)), kept)
    return graph_of(Dot()(kept, weight(width, 5)))


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 33), (13, 100), (64, 96), (37, 17)])
def test_residuals_of_dots(rows: int, width: int) -> None:
    graph = dot_stream(rows, width)
    assert in_place(graph) == ["dot"] * 3
    check(graph)


def conv(v: Value, out: int, kernel: int) -> Value:
    pad = (kernel // 2,) * 2
    op = Conv((1, 1), pad, pad, (1, 1), layout="channels_last")
    return op(v, weight(out, v.tensor.static[-1], kernel, kernel))


@pytest.mark.parametrize(("size", "channels"), [(9, 16), (14, 5), (23, 32), (8, 48)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_residuals_of_convolutions(size: int, channels: int, kernel: int) -> None:
    image = value(f"f32[1, {size}, {size + 3}, {channels}]")
    kept = conv(image, channels, 3)
    for _ in range(2):
        inner = Sigmoid()(conv(kept, channels, 3))
        kept = Add()(conv(inner, channels, kernel), kept)
    # All sums are read by padded windows: they have halos, which have to stay zero.
    graph = graph_of(conv(kept, channels, 3))
    assert in_place(graph) == ["conv"] * 2
    check(graph)


@pytest.mark.parametrize(("channels", "groups"), [(24, 24), (32, 4), (20, 5), (64, 64)])
def test_residuals_of_grouped_convolutions(channels: int, groups: int) -> None:
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1), groups, layout="channels_last")
    kept = conv(value(f"f32[2, 9, 11, {channels}]"), channels, 3)
    inner = Sigmoid()(conv(kept, channels, 3))
    total = Add()(op(inner, weight(channels, channels // groups, 3, 3)), kept)
    graph = graph_of(conv(total, 8, 3))
    assert in_place(graph) == ["conv"]
    check(graph)


@pytest.mark.parametrize("rows", [1, 5, 19])
@pytest.mark.parametrize("bits", ["u4", "i8"])
def test_residuals_of_dots_with_narrow_weights(rows: int, bits: str) -> None:
    def dot(v: Value, depth: int, width: int) -> Value:
        low, high = (0, 16) if bits == "u4" else (-100, 100)
        codes = rng.integers(low, high, (depth, width)).astype(dtype(bits).numpy)
        scale = (rng.random((depth // 32, width)) / high).astype(np.float32)
        return Dot()(v, Dequantize(f32, 0, 32)(constant(codes), constant(scale)))

    kept = Dot()(value(f"f32[{rows}, 64]"), weight(64, 64))
    total = Add()(dot(Sigmoid()(dot(kept, 64, 96)), 96, 64), kept)
    graph = graph_of(Dot()(total, weight(64, 5)))
    assert in_place(graph) == ["dot"]
    check(graph)


@pytest.mark.parametrize("shape", ["1", "63, 5", "4, 129", "2, 3, 50"])
def test_loops_over_elements(shape: str) -> None:
    x = value(f"f32[{shape}]")
    axes = tuple(range(x.tensor.rank))
    a, b = Exp()(x), Sigmoid()(x)
    for _ in range(2):
        # Sums make both be stored; the products may take the memory of either.
        total = Add()(ReduceSum(axes, True)(a), ReduceSum(axes, True)(b))
        a, b = Mul()(Mul()(a, b), total), Add()(b, total)
    graph = graph_of(ReduceSum(axes)(a), ReduceSum(axes)(b))
    check(graph)


def test_parts_of_a_join_stay_apart() -> None:
    x = value("f32[6, 16]")
    joined = Concat(1)(Dot()(x, weight(16, 16)), Exp()(x))
    left, right = (Slice((0, k), (6, k + 16), (1, 1))(joined) for k in (0, 16))
    swapped = Add()(Dot()(Exp()(Dot()(x, weight(16, 32))), weight(32, 32)), joined)
    check(graph_of(Dot()(swapped, weight(32, 8)), Mul()(left, right)))


def donated(graph: Graph, **pairs: str) -> Graph:
    return replace(graph, donations=tuple(pairs.items()))


def updated_in_place(graph: Graph, feeds: dict[str, np.ndarray], state: str = "x") -> None:
    """Runs a graph whose first output is donated its state; no copy is made, none is changed."""
    expected = evaluate(graph, feeds)
    for features, threads in MACHINES:
        executable = compile_graph(graph, features, threads)
        assert executable.program.donated == {"y0": state}, str(executable.program)
        kept = feeds[state].copy()
        untouched = executable.run(feeds)
        np.testing.assert_array_equal(feeds[state], kept)
        assert executable.copies == 1
        given = executable.run({**feeds, state: kept}, {"y0": kept})
        assert given[0] is kept
        assert executable.copies == 1
        for a, b, c in zip(given, untouched, expected, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("axis", "circular", "starts"),
    [(2, False, [0, 3]), (2, True, [4, 9]), (3, False, [1, 0]), (1, True, [2, 1])],
)
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64"])
def test_cache_updates(axis: int, circular: bool, starts: list[int], dtype: str) -> None:
    x = value(f"{dtype}[2, 3, 5, 21]")
    rows = ["2", "3", "5", "21"]
    rows[axis] = "2"
    update = value(f"{dtype}[{', '.join(rows)}]", "update")
    y = CacheUpdate(axis, circular)(x, update, value("i64[2]", "starts"))
    graph = donated(graph_of(y, Neg()(y)), y0="x")
    feeds = {**feeds_for(graph), "starts": np.array(starts)}
    updated_in_place(graph, feeds)


def test_rows_outside_a_cache_leave_it_alone() -> None:
    x, update = value("f32[2, 4, 8]"), value("f32[2, 2, 8]", "update")
    graph = donated(graph_of(CacheUpdate(1)(x, update, value("i64[2]", "starts"))), y0="x")
    executable = compile_graph(graph, host_features(), 2)
    for start in (-1, 3, 2**40, -(2**40)):
        guarded = np.zeros((4, 4, 8), np.float32)
        feeds = {"x": guarded[1:3], "update": np.ones((2, 2, 8), np.float32)}
        feeds["starts"] = np.array([start, start])
        with pytest.raises(ExecutionError, match="out of bounds"):
            executable.run(feeds, {"y0": feeds["x"]})
        assert not guarded[0].any()
        assert not guarded[3].any()


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_scatters(reduction: str, dtype: str) -> None:
    x = value(f"{dtype}[6, 40]")
    indices = constant(np.array([[0, 3, 3], [5, 1, -1], [2, 2, 0]]))
    lines = ScatterElements(1, reduction)(x, indices, value(f"{dtype}[3, 3]", "update"))
    graph = donated(graph_of(lines), y0="x")
    updated_in_place(graph, feeds_for(graph))
    places = constant(np.array([[1], [4], [1]]))
    slices = ScatterNd(reduction)(x, places, value(f"{dtype}[3, 40]", "update"))
    graph = donated(graph_of(slices), y0="x")
    updated_in_place(graph, feeds_for(graph))


def test_old_state_is_read_before_it_is_written_over() -> None:
    x = value("f32[9, 9]")
    moved = Add()(x, value("f32[9, 9]", "step"))
    graph = donated(
        graph_of(moved, Exp()(Dot()(moved, weight(9, 9))), Dot()(x, weight(9, 9))), y0="x"
    )
    updated_in_place(graph, feeds_for(graph))


def given_arrays(graph: Graph) -> tuple[CpuExecutable, dict[str, np.ndarray]]:
    return compile_graph(graph, host_features(), 2), feeds_for(graph)


def test_outputs_go_where_they_are_told() -> None:
    x = value("f32[5, 7]")
    executable, feeds = given_arrays(graph_of(Exp()(x), Neg()(x)))
    place = np.full((5, 7), np.nan, np.float32)
    first, second = executable.run(feeds, {"y1": place})
    assert second is place
    np.testing.assert_array_equal(second, -feeds["x"])
    assert not np.shares_memory(first, second)
    with pytest.raises(FeedError, match="does not fit"):
        executable.run(feeds, {"y1": np.empty((7, 5), np.float32)})


def random_graph(seed: int) -> Graph:
    """A graph of a few dozen values of one shape, many of them read more than once."""
    draw = np.random.default_rng(seed)
    values = [value("f32[8, 8]", "a"), value("f32[8, 8]", "b")]
    weights = [constant((draw.normal(size=(8, 8)) / 4).astype(np.float32)) for _ in range(3)]
    halves = [Slice((0, 0), (4, 8), (1, 1)), Slice((4, 0), (8, 8), (1, 1))]
    makers = [
        lambda x, y: Add()(x, y),
        lambda x, y: Mul()(Sigmoid()(x), y),
        lambda x, y: Add()(Dot()(x, weights[draw.integers(3)]), y),
        lambda x, y: Sigmoid()(Dot()(x, y)),
        lambda x, y: Add()(Transpose((1, 0))(x), y),
        lambda x, y: Concat(0)(halves[1](x), halves[0](y)),
        lambda x, y: Mul()(x, ReduceMax((1,), True)(y)),
    ]
    for _ in range(24):
        x, y = (values[-1 - min(int(draw.exponential(3)), len(values) - 1)] for _ in range(2))
        values.append(makers[draw.integers(len(makers))](x, y))
    return graph_of(values[-1], values[-4])


@pytest.mark.parametrize("seed", range(12))
def test_the_same_bits_as_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(seed)
    feeds = feeds_for(graph, seed)
    given = compile_graph(graph, host_features(), 2).run(feeds)
    monkeypatch.setattr(CpuTarget, "overwrites", lambda self, region: False)
    plain = compile_graph(graph, host_features(), 2)
    assert not plain.program.places.over
    for a, b in zip(given, plain.run(feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_graphs_are_written_over() -> None:
    programs = [lower(random_graph(seed), CpuTarget()).whole for seed in range(12)]
    assert sum(len(p.places.over) for p in programs) > 24
