"""The partition of a product among threads keeps all of them busy."""

from __future__ import annotations

import pytest

from monograph.codegen.llvm.matmul.tiles import (
    BATCH,
    PANELS,
    ROWS,
    Run,
    busiest,
    choose_share,
    split,
)


def chosen(batch: int, rows: int, vectors: int, threads: int) -> str:
    panels = [(run, False) for run in split(vectors, 3)]
    return choose_share(batch, panels, split(rows, 8), threads)


@pytest.mark.parametrize(
    ("batch", "rows", "vectors", "way"),
    [
        (6, 16, 32, BATCH),
        (3, 128, 4, ROWS),  # three batches on two threads: one would wait for the other
        (1, 1, 64, PANELS),
        (1, 196, 36, PANELS),  # 25 tiles of rows are not even
        (1, 128, 24, ROWS),
        (1, 128, 4, ROWS),
    ],
)
def test_two_threads(batch: int, rows: int, vectors: int, way: str) -> None:
    assert chosen(batch, rows, vectors, 2) == way


def test_one_thread_has_all_of_it() -> None:
    assert chosen(5, 7, 9, 1) == BATCH
    assert busiest([Run(0, 3, 7), Run(21, 2, 1)], 1) == 1.0


def test_the_last_panel_stands_alone() -> None:
    assert busiest([Run(0, 2, 4)], 2, last=2) == pytest.approx(6 * 2 / 10)
