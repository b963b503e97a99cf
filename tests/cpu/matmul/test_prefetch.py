"""Products whose weights come from memory: what is asked for ahead of its use, in what width."""

from __future__ import annotations

import re

import numpy as np
import pytest

from monograph.codegen.llvm.matmul import tiles
from monograph.codegen.llvm.matmul.tiles import (
    AHEAD_BYTES,
    FAR_BYTES,
    LINE,
    ROW_AHEAD_BYTES,
    choose_ahead,
    even_width,
    row_width,
    streams,
)
from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import TABLE
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import constant
from monograph.ir.dtype import f16, f32
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.program.lowering import lower
from tests.cpu.against import check, feeds_for
from tests.rules.checks import graph_of, value

FETCH = re.compile(r"call void @llvm\.prefetch")


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("vectors", "most", "threads", "width"),
    [
        (256, 4, 2, 4),
        (48, 4, 2, 4),
        (48, 4, 16, 1),  # 12 panels of 4 on 16 threads: four would have nothing to do
        (48, 4, 12, 4),
        (10, 4, 3, 2),
        (1, 4, 2, 4),
        (128, 8, 2, 8),
        (5, 1, 2, 1),
    ],
)
def test_panels_are_as_wide_as_threads_stay_even(
    vectors: int, most: int, threads: int, width: int
) -> None:
    assert even_width(vectors, most, threads) == width


@pytest.mark.parametrize(("name", "lanes", "width"), [("avx512", 16, 4), ("avx2", 8, 8)])
def test_a_row_takes_whole_lines(name: str, lanes: int, width: int) -> None:
    features = TABLE[name]
    assert features.lanes(32) == lanes
    assert row_width(256, lanes, features, 2) == width
    assert row_width(256, 1, features, 2) <= features.registers // 2


def test_only_plain_floats_from_far_away_stream() -> None:
    far = FAR_BYTES + 1
    assert streams(1, f32, far)
    assert not streams(2, f32, far)
    assert not streams(1, f16, far)
    assert not streams(1, f32, FAR_BYTES)


def test_how_far_ahead() -> None:
    far = FAR_BYTES + 1
    assert choose_ahead(1, 1, far, True) == ROW_AHEAD_BYTES
    assert choose_ahead(2, 2, far, False) == 0
    assert choose_ahead(8, 4, far, False) == AHEAD_BYTES
    assert choose_ahead(8, 4, FAR_BYTES, False) == 0
    assert choose_ahead(100, 4, far, False) == 0


@pytest.mark.parametrize(("columns", "fetched"), [(1280, True), (160, False)])
def test_each_line_of_a_panel_is_asked_for_once(columns: int, fetched: bool) -> None:
    """A turn of the loop takes two depths of four vectors: eight lines."""
    graph = graph_of(Dot()(value("f32[1, 768]"), constant(numbers(768, columns))))
    module = compile_program(lower(graph, CpuTarget()).whole, TABLE["avx512"], 1)
    calls = sum(len(FETCH.findall(text)) for text in module.texts)
    assert calls == (2 * 4 * 16 * f32.itemsize // LINE if fetched else 0)


@pytest.mark.parametrize(
    ("batch", "k", "n"),
    [((), 33, 70), ((), 7, 1), ((), 64, 256), ((3,), 17, 90), ((2, 1), 16, 16), ((), 1, 300)],
)
def test_one_row_of_any_shape(
    monkeypatch: pytest.MonkeyPatch, batch: tuple[int, ...], k: int, n: int
) -> None:
    monkeypatch.setattr(tiles, "FAR_BYTES", 0)
    x = value(f"f32[{', '.join(map(str, (*batch, 1, k)))}]")
    made = Dot()(x, constant(numbers(*batch, k, n)))
    check(graph_of(made, Add()(made, constant(numbers(n)))))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_numbers_go_where_they_belong(
    monkeypatch: pytest.MonkeyPatch, special: float
) -> None:
    monkeypatch.setattr(tiles, "FAR_BYTES", 0)
    weights = numbers(40, 100)
    weights[3, 60] = special
    graph = graph_of(Dot()(value("f32[1, 40]"), constant(weights)))
    feeds = feeds_for(graph)
    check(graph, feeds)
    (name,) = feeds
    feeds[name][0, 3] = 0.0  # times an infinity that is NaN, in one column only
    check(graph, feeds)
    feeds[name][0, 7] = special
    check(graph, feeds)
