"""Proofs that index maps stay inside of buffers: by intervals, and exactly."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from monograph.errors import InternalError
from monograph.program.fusion import index_bounds
from monograph.program.fusion.index_bounds import extremes, inside, shown, substitute
from monograph.program.index import Counter, Index, Quotient, Remainder, counter, kept_counter

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))


def one(atom: Counter | Quotient | Remainder) -> Index:
    return Index(0, ((atom, 1),))


def even(extent: int) -> Index:
    """i - i % 2, which an interval takes for -1 .. extent - 1."""
    i = counter("i", extent)
    return i + one(Remainder(i, 2)) * -1


def test_interval_proves_linear_maps_and_refuses_those_outside() -> None:
    i, j = counter("i", 4), counter("j", 6)
    assert inside(i * 6 + j, 24)
    assert inside(i * -6 + j + 18, 24)
    for wrong in (i * 6 + j + 1, i * 6 + j + -1, i * -6 + j):
        with pytest.raises(InternalError, match="outside of its buffer"):
            inside(wrong, 24)


def test_exact_evaluation_proves_what_intervals_cannot() -> None:
    assert even(7).bounds() == (-1, 6)
    assert extremes(even(7)) == (0, 6)
    assert inside(even(7), 7)
    with pytest.raises(InternalError, match=r"0\.\.6"):
        inside(even(7), 6, "x")


def test_terms_without_a_common_counter_are_evaluated_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_bounds, "MOST_POINTS", 64)
    j = counter("j", 10**9)
    assert inside(even(50) + j * 50, 50 * 10**9)


def test_maps_too_large_to_evaluate_are_left_to_the_run() -> None:
    assert extremes(even(10**9)) is None
    assert inside(even(10**9), 10**9) is False


def test_without_points_there_is_nothing_outside() -> None:
    assert inside(counter("i", 0) + 7, 3)
    assert inside(one(kept_counter("i", 0)) + 7, 3)


def test_kept_counter_of_one_number_stays_and_counts_as_one() -> None:
    i = kept_counter("i", 1)
    assert (one(i) * 5 + counter("j", 5)).counters == {i, Counter("j", 5)}
    assert inside(one(i) * 5 + counter("j", 5), 5)
    assert inside(one(Quotient(one(i) * 5 + counter("j", 5), 3)), 2)
    with pytest.raises(InternalError):
        inside(one(kept_counter("i", 2)) * 5 + counter("j", 5), 5)


def test_substitute_reaches_what_is_divided() -> None:
    i, later = counter("i", 9), counter("i", 8) + 1
    (held,) = i.counters
    index = one(Quotient(i + 2, 3)) * 4 + one(Remainder(i + 2, 3)) + i
    made = substitute(index, {held: later})
    assert extremes(made) == (5, 21)
    assert substitute(index, {}) is index


def test_error_shows_index_interval_and_extent() -> None:
    with pytest.raises(InternalError) as error:
        inside(counter("i", 4) * 6 + one(Remainder(counter("j", 5), 3)), 20, "input 0 'x'")
    for part in ("6*i<4>", "% 3", "0..20", "0..19", "input 0 'x'", "report"):
        assert part in str(error.value), part
    assert error.value.internal
    assert shown(Index()) == "0"


def test_random_maps_are_judged_as_numpy_judges_them() -> None:
    judged = {True: 0, False: 0}
    for case in range(1500):
        rng = random.Random(SEED * 1500 + case)
        every = [counter(f"i{k}", rng.randrange(1, 6)) for k in range(rng.randrange(1, 4))]
        index = Index(rng.randrange(-6, 12))
        for c in every:
            index = index + c * rng.choice([-4, -3, -1, 1, 2, 5])
            if rng.random() < 0.5:
                divided = (c * rng.choice([-2, 1, 3]) + every[0]) // rng.randrange(2, 5)
                index = index + divided * rng.choice([-2, 1, 2])
            if rng.random() < 0.5:
                index = index + (c * 3 + every[-1]) % rng.randrange(2, 5)
        counted = sorted(index.counters, key=lambda c: c.name)
        grids = np.meshgrid(*(np.arange(c.extent) for c in counted), indexing="ij")
        values = index_bounds.evaluate(index, dict(zip(counted, grids, strict=True)))
        assert extremes(index) == (values.min(), values.max()), f"seed {SEED}, case {case}"
        extent = int(values.max()) + rng.choice([0, 1, 1])
        good = bool(values.min() >= 0 and values.max() < extent)
        judged[good] += 1
        if good:
            assert inside(index, extent)
        elif extent > 0:
            with pytest.raises(InternalError):
                inside(index, extent)
    assert min(judged.values()) > 100
