"""The most rows of a batch, by the times of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from monograph.serve.batch_limit import BatchLimit


def served(limit: BatchLimit, seconds: Callable[[int], float], waiting: int, runs: int
           ) -> Counter[int]:  # fmt: skip
    """Return the sizes of batches while so many rows wait at each run."""
    found: Counter[int] = Counter()
    for _ in range(runs):
        rows = min(waiting, limit.rows(waiting))
        limit.ran(rows, seconds(rows))
        found[rows] += 1
    return found


@pytest.mark.parametrize(
    ("cost", "best"),
    [
        (lambda rows: 1.0 + rows, 32),  # the start of a run is shared
        (lambda rows: float(rows), 32),  # all sizes cost the same
        (lambda rows: rows * (1 + rows / 8), 1),  # rows drive each other out of the cache
        (lambda rows: 1.0 + rows if rows <= 8 else 2.0 * rows, 8),
    ],
)
def test_the_size_with_the_least_time_for_a_row_wins(
    cost: Callable[[int], float], best: int
) -> None:
    limit = BatchLimit(64)
    served(limit, cost, 32, 40)
    found = served(limit, cost, 32, 480)
    assert found[best] >= 0.94 * 480, found


def test_a_size_that_becomes_better_is_found() -> None:
    limit = BatchLimit(64)
    served(limit, lambda rows: float(rows**2), 32, 100)
    found = served(limit, lambda rows: 1.0 + rows, 32, 1500)
    assert found[32] > 900, found
    assert served(limit, lambda rows: 1.0 + rows, 32, 100)[32] >= 90


def test_what_waits_goes_together_before_anything_is_known() -> None:
    assert BatchLimit(64).rows(40) == 64
    assert BatchLimit(6).rows(100) == 6
    assert BatchLimit(1).rows(100) == 1


def test_low_load_is_not_delayed_or_split() -> None:
    limit = BatchLimit(16)
    served(limit, lambda rows: float(rows**2), 16, 100)
    assert limit.rows(1) == 16
    assert served(limit, lambda rows: 1.0 + rows, 3, 400)[3] > 300
