"""The largest elements in order, with ties, special numbers and single rows on several threads."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Item, unpack
from monograph.ops.elementwise import Add, Exp
from monograph.ops.index import GatherElements
from monograph.ops.shape import Concat, Transpose
from monograph.ops.sort import TopK
from tests.cpu.indexing.moving import FEATURES, THREADS, check, check_samples
from tests.rules.checks import EDGES, graph_of, value


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    check_samples(TopK, features, threads)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 2, 37, 300, 999, 1000])
def test_ties_keep_their_order(features, largest: bool, k: int) -> None:
    x = np.random.default_rng(k).integers(0, 9, (3, 1000)).astype(np.float32)
    graph = graph_of(*unpack(TopK(k, 1, largest)(value("f32[3, 1000]"))))
    check(graph, {"x": x}, features=features)


@pytest.mark.parametrize(
    "kind", ["f32", "f16", "bf16", "f64", "i8", "u8", "i32", "u32", "u64", "i64"]
)
@pytest.mark.parametrize("largest", [True, False])
def test_every_type(kind: str, largest: bool) -> None:
    type_ = value(f"{kind}[2, 301, 3]")
    rng = np.random.default_rng(3)
    dtype = type_.dtype.numpy
    if type_.dtype.is_float:
        x = rng.choice(EDGES, (2, 301, 3)).astype(dtype)
    else:
        x = np.frombuffer(rng.bytes(2 * 301 * 3 * dtype.itemsize), dtype).reshape(2, 301, 3)
    graph = graph_of(*unpack(TopK(20, 1, largest)(type_)))
    check(graph, {"x": x})
    last = Transpose((0, 2, 1))(type_)
    check(graph_of(*unpack(TopK(20, 2, largest)(last))), {"x": x})


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("order", ["random", "ascending", "descending", "equal"])
def test_a_long_row_is_shared_out(threads: int, order: str) -> None:
    x = np.random.default_rng(0).normal(size=20000).astype(np.float32)
    x = {"random": x, "ascending": np.sort(x), "descending": -np.sort(x), "equal": 0 * x}[order]
    graph = graph_of(*unpack(TopK(300, 0)(value("f32[20000]"))))
    check(graph, {"x": x}, threads=threads)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("kind", ["f32", "f16", "i32", "u8"])
@pytest.mark.parametrize("k", [32, 45, 300, 600])
def test_many_results_of_many_elements(features, kind: str, k: int) -> None:
    """A bound is known first: ties, special numbers, and types of few values reach it too."""
    x, rng = value(f"{kind}[2, {8 * k + 5}]"), np.random.default_rng(k)
    shape, dtype = x.tensor.static, x.dtype.numpy
    data = [rng.choice(EDGES, shape).astype(dtype), np.zeros(shape, dtype)]
    if x.dtype.is_float:
        data.append(rng.normal(size=shape).astype(dtype))
    else:
        data.append(np.frombuffer(rng.bytes(dtype.itemsize * x.tensor.size), dtype).reshape(shape))
    for largest in (True, False):
        graph = graph_of(*unpack(TopK(k, 1, largest)(x)))
        for given in data:
            check(graph, {"x": given}, features=features)


def test_one_result_alone_and_results_that_go_on() -> None:
    x = value("f32[5, 60]")
    found = TopK(7, 1)(x)
    check(graph_of(Item(1)(found)))
    check(graph_of(Exp()(Item(0)(found))))
    again = GatherElements(1)(Add()(x, x), Item(1)(found))
    check(graph_of(again, Concat(1)(Item(0)(found), again)))
