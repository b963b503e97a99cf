"""Several sizes in `--dim`."""

from __future__ import annotations

import pytest

from monograph.cli.size_sets import bench_sets, sets_of
from monograph.errors import ConfigError


def test_lists_make_every_set() -> None:
    assert sets_of(["n=1,4", "h=8"]) == [["n=1", "h=8"], ["n=4", "h=8"]]
    assert sets_of([]) == [[]]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("32..960", 3, [32, 496, 960]),
        ("32..960", 1, [960]),
        ("320..960:32", 3, [320, 640, 960]),
        ("320..959:32", 2, [320, 928]),
        ("1..3", 8, [1, 2, 3]),
        ("5..5", 8, [5]),
        ("0..1", 2, [0, 1]),
    ],
)
def test_a_range_gives_sizes_from_its_first_to_its_last(
    text: str, count: int, expected: list[int]
) -> None:
    found = bench_sets([f"w={text}"], count)
    assert found.sets == [[f"w={size}"] for size in expected]
    assert found.fixed == []


def test_ranges_advance_together_and_lists_go_with_all() -> None:
    found = bench_sets(["n=1,2", "h=8..16:8", "w=10..30", "c=3"], 3)
    assert found.fixed == ["c=3"]
    rows = [["h=8", "w=10"], ["h=8", "w=20"], ["h=16", "w=30"]]
    assert found.sets == [[n, *row] for n in ("n=1", "n=2") for row in rows]


def test_single_sizes_make_no_sets() -> None:
    assert bench_sets(["n=1", "h=8"], 8).sets == []
    assert bench_sets([], 8).sets == []


@pytest.mark.parametrize("text", ["9..3", "1..", "..4", "1..9:0", "a..b", "1..2..3"])
def test_wrong_ranges_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"`--dim w` must be LOW\.\.HIGH"):
        bench_sets([f"w={text}"], 8)
