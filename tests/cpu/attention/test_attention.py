"""Attention on the CPU target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.errors import ExecutionError
from monograph.ir import evaluate
from monograph.ops.attention import Attention, CacheUpdate, Rope
from monograph.ops.elementwise import Add, Mul
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import check, feeds_for
from tests.rules.checks import graph_of, value


def run(
    q: str, k: str, v: str | None = None, extra: dict[str, str] | None = None, **options: Any
) -> None:
    names = tuple(extra or ())
    operands = [value(t, n) for n, t in (extra or {}).items()]
    x = Attention(extra=names, **options)(
        value(q, "q"), value(k, "k"), value(v or k, "v"), *operands
    )
    graph = graph_of(x)
    feeds = feeds_for(graph)
    if "lengths" in feeds:
        feeds["lengths"] = np.array([3, 17, 0][: feeds["lengths"].size], feeds["lengths"].dtype)
    check(graph, feeds)


@pytest.mark.parametrize("queries", [1, 2, 7, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_queries(queries: int, causal: bool) -> None:
    run(f"f32[2, 4, {queries}, 16]", "f32[2, 2, 37, 16]", causal=causal)


@pytest.mark.parametrize("depth", [1, 5, 24, 80])
def test_head_sizes(depth: int) -> None:
    run(f"f32[1, 3, 9, {depth}]", f"f32[1, 3, 33, {depth}]", f"f32[1, 3, 33, {depth + 1}]")
    run(f"f32[1, 3, 1, {depth}]", f"f32[1, 3, 33, {depth}]", f"f32[1, 3, 33, {depth + 1}]")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("queries", [1, 9])
def test_element_types(dtype: str, queries: int) -> None:
    run(f"{dtype}[1, 2, {queries}, 8]", f"{dtype}[1, 2, 21, 8]", causal=True)


@pytest.mark.parametrize(
    "mask", ["bool[9, 21]", "f32[2, 1, 1, 21]", "f32[9, 1]", "bool[2, 4, 9, 21]"]
)
def test_masks(mask: str) -> None:
    run("f32[2, 4, 9, 8]", "f32[2, 4, 21, 8]", extra={"mask": mask})


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 9])
@pytest.mark.parametrize("kind", ["bool", "f32"])
def test_fully_masked_queries(kind: str, queries: int, nan: bool) -> None:
    """By masks of bools and of floats, by large finite numbers, by `causal`, by lengths."""
    given = [
        value(f"f32[2, 2, {n}, 8]", name) for n, name in zip((queries, 21, 21), "qkv", strict=True)
    ]
    mask, lengths = value(f"{kind}[2, 1, {queries}, 21]", "mask"), value("i64[2]", "lengths")
    masked = Attention(extra=("mask",), masked_nan=nan)(*given, mask)
    short = Attention(extra=("mask", "lengths"), masked_nan=nan)(*given, mask, lengths)
    graph = graph_of(masked, short)
    feeds = feeds_for(graph)
    feeds["mask"][0, :, -1] = False if kind == "bool" else -np.inf
    if kind == "f32":
        feeds["mask"][1] = np.finfo(np.float32).min
    feeds["lengths"] = np.array([20, 0])
    with np.errstate(all="ignore"):
        expected = evaluate(graph, feeds)
    assert np.isnan(expected[0][0, :, -1]).all() == nan
    assert np.isnan(expected[1][1]).all() == nan
    check(graph, feeds)


@pytest.mark.parametrize("nan", [False, True])
def test_more_queries_than_keys(nan: bool) -> None:
    run("f32[1, 2, 9, 8]", "f32[1, 2, 5, 8]", causal=True, masked_nan=nan)
    run("f32[1, 2, 3, 8]", "f32[1, 2, 0, 8]", masked_nan=nan)


@pytest.mark.parametrize("queries", [1, 5])
def test_everything_at_once(queries: int) -> None:
    run(
        f"f32[3, 4, {queries}, 8]",
        "f32[3, 2, 19, 8]",
        extra={"mask": f"f32[{queries}, 19]", "lengths": "i32[3]", "sinks": "f32[4]"},
        causal=True,
        window=4,
        softcap=2.0,
        scale=0.3,
    )


def test_operands_are_read_through_views() -> None:
    x = value("f32[1, 11, 96]", "x")

    def head(i: int) -> Any:
        part = Slice((0, 0, 32 * i), (1, 11, 32 * i + 32), (1, 1, 1))(Add()(x, x))
        return Transpose((0, 2, 1, 3))(Reshape((1, 11, 2, 16))(part))

    y = value("f32[1, 2, 11, 16]", "y")
    check(graph_of(Mul()(Attention()(head(0), head(1), head(2)), y)), steps=2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("size", "pairs"), [(64, 32), (70, 21), (8, 3), (2, 1)])
def test_rotary_embedding(size: int, pairs: int, interleaved: bool) -> None:
    x, cos, sin = (
        value(f"f32[2, 3, 5, {size}]"),
        value(f"f32[1, 5, {pairs}]", "cos"),
        value(f"f32[2, 5, {pairs}]", "sin"),
    )
    check(graph_of(Rope(interleaved)(x, cos, sin), Mul()(Rope(interleaved)(x, cos, sin), x)))


def test_rotary_embedding_through_views() -> None:
    x, cos, sin = value("f16[1, 5, 64]"), value("f16[1, 5, 8]", "cos"), value("f16[1, 5, 8]", "sin")
    heads = Transpose((0, 2, 1, 3))(Reshape((1, 5, 4, 16))(x))
    check(graph_of(Rope()(heads, cos, sin)), steps=1)


@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize(
    ("x", "update", "axis"),
    [
        ("f32[2, 3, 9, 20]", "f32[2, 3, 2, 20]", 2),
        ("f16[2, 9]", "f16[2, 4]", 1),
        ("i8[2, 5, 33]", "i8[2, 1, 33]", 1),
    ],
)
def test_cache_update(x: str, update: str, axis: int, circular: bool) -> None:
    graph = graph_of(
        CacheUpdate(axis, circular)(value(x), value(update, "u"), value("i64[2]", "start"))
    )
    feeds = feeds_for(graph)
    feeds["start"] = np.array([8 if circular else 0, 3], np.int64)
    check(graph, feeds)


def test_cache_update_out_of_bounds_is_an_error() -> None:
    graph = graph_of(
        CacheUpdate(1)(value("f32[1, 5]"), value("f32[1, 2]", "u"), value("i64[1]", "s"))
    )
    feeds = feeds_for(graph)
    feeds["s"] = np.array([4], np.int64)
    executable = compile_graph(graph, host_features(), 2)
    with pytest.raises(ExecutionError, match="out of bounds"):
        executable.run(feeds)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((1, 0, 2, 3), (1, 0, 4, 3), (1, 0, 4, 5)),
        ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)),
        ((2, 4, 3, 0), (2, 2, 3, 0), (2, 2, 3, 5)),
        ((2, 4, 0, 3), (2, 2, 3, 3), (2, 2, 3, 5)),
    ],
    ids=["no heads", "nothing", "heads without elements", "no queries"],
)
def test_sizes_of_zero(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    """Scores of heads without elements are 0: every key counts alike."""
    arrays = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in (q, k, v)]
    given = Attention().reference(*arrays)
    assert given.shape == (*q[:3], v[3])
    if given.size:
        mean = arrays[2].mean(axis=2, keepdims=True).repeat(2, 1)
        np.testing.assert_allclose(given, np.broadcast_to(mean, given.shape), rtol=1e-6)
    operands = (
        value(f"f32[{', '.join(map(str, s))}]", n) for n, s in zip("qkv", (q, k, v), strict=True)
    )
    graph = graph_of(Attention()(*operands))
    check(graph, dict(zip("qkv", arrays, strict=True)))
