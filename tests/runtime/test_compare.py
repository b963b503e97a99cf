from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monograph.runtime.numerics.compare import (
    ALL_NAN,
    CONSTANT,
    EMPTY,
    OutputPath,
    compare,
    compare_outputs,
    flatten,
    match_rows,
)
from monograph.runtime.numerics.tolerance import EXACT, Tolerance

NAN, INF = float("nan"), float("inf")
LOOSE = Tolerance(rtol=0.01)


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def test_equal_arrays_agree_without_a_tolerance():
    d = compare("y", f32(1, -0.0, NAN, INF), f32(1, 0, NAN, INF), EXACT)
    assert d.ok
    assert (d.max_abs, d.used, d.worst) == (0, 0, None)


def test_the_worst_element_is_named_with_both_values():
    d = compare("y", f32(1, 2.5, 4), f32(1, 2, 4), LOOSE)
    assert not d.ok
    assert d.problem == "1 of 3 beyond the tolerance"
    assert (d.worst, d.given, d.expected) == ((1,), 2.5, 2.0)
    assert d.max_abs == 0.5
    assert d.max_rel == 0.125  # of the largest expected element, 4


def test_the_tolerance_is_relative_to_the_element_alone():
    # 0.01 * 2 = 0.02, whatever the other element is
    assert compare("y", f32(2.019, 8e9), f32(2, 8e9), LOOSE).ok
    assert not compare("y", f32(2.021, 8e9), f32(2, 8e9), LOOSE).ok


def test_a_given_tolerance_is_that_of_numpy():
    plain = Tolerance(rtol=0.01, atol=0.5)
    assert compare("y", f32(2.51, 100), f32(2, 100), plain).ok  # 0.5 + 0.02
    assert not compare("y", f32(2.53, 100), f32(2, 100), plain).ok


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f32(1, NAN), f32(1, 2)),
        (f32(1, 2), f32(1, NAN)),
        (f32(NAN, 1), f32(1, NAN)),
        (f32(1, INF), f32(1, 2)),
        (f32(1, INF), f32(1, -INF)),
        (f32(1, 2), f32(1, INF)),
        (f32(NAN), f32(INF)),
    ],
)
def test_nan_and_infinity_must_be_in_the_same_places(given: Any, expected: Any):
    d = compare("y", given, expected, Tolerance(rtol=1e9, atol=1e9))
    assert not d.ok
    assert d.worst is not None


def test_nans_in_different_places_are_called_that():
    d = compare("y", f32(1, NAN), f32(1, 2), LOOSE)
    assert d.problem == "NaN in different places; 1 of 2 beyond the tolerance"


def test_shapes_and_dtypes_must_agree():
    d = compare("y", np.zeros((2, 1), "f4"), np.zeros(2, "f4"), LOOSE)
    assert d.problem == "shape: expected [2], given [2, 1]"
    d = compare("y", np.zeros(2, "f8"), np.zeros(2, "f4"), LOOSE)
    assert d.problem == "dtype: expected float32, given float64"


def test_empty_arrays_agree():
    assert compare("y", np.zeros((0, 3), "f4"), np.zeros((0, 3), "f4"), EXACT).ok
    assert not compare("y", np.zeros((0, 3), "f4"), np.zeros((0, 4), "f4"), EXACT).ok


def test_large_integers_are_not_compared_as_floats():
    a, b = np.array([2**53, 5]), np.array([2**53 + 1, 5])
    d = compare("y", a, b, EXACT)
    assert d.problem == "1 of 2 differ"
    assert (d.worst, d.given, d.expected) == ((0,), 2**53, 2**53 + 1)


def test_quantised_outputs_may_differ_by_a_step():
    a, b = np.array([3, 255], "u1"), np.array([4, 254], "u1")
    assert compare("y", a, b, Tolerance(atol=1)).ok
    assert not compare("y", a, b, EXACT).ok
    assert not compare("y", a, np.array([5, 254], "u1"), Tolerance(atol=1)).ok


def test_bools_strings_and_complex_numbers():
    assert not compare("y", np.array([True]), np.array([False]), EXACT).ok
    texts = np.array(["a", "b"], object)
    assert compare("y", texts, np.array(["a", "b"]), EXACT).ok
    d = compare("y", texts, np.array(["a", "c"]), EXACT)
    assert (d.worst, d.given, d.expected) == ((1,), "b", "c")
    z = np.array([1 + 1j], "c8")
    assert compare("y", z, z, EXACT).ok
    assert not compare("y", z, z.conj(), LOOSE).ok


def test_small_floats_of_other_kinds():
    a = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    d = compare("y", a, np.array([1.0, 3.0], ml_dtypes.bfloat16), LOOSE)
    assert (d.worst, d.given, d.expected) == ((1,), 2.0, 3.0)


def test_sequences_are_compared_element_by_element():
    given = {"s": [f32(1), f32(2)], "y": f32(3)}
    assert list(map(str, flatten(given))) == ["s[0]", "s[1]", "y"]
    assert all(d.ok for d in compare_outputs(given, given, {}))
    results = compare_outputs(given, {"s": [f32(1)], "y": f32(3)}, {})
    assert [(d.name, d.problem) for d in results if not d.ok] == [
        ("s[1]", "only on the given side")
    ]


def test_an_output_may_be_called_like_an_element_of_another():
    """Flattened names collide, places do not: every tensor is compared, by its own tolerance."""
    given = {"y": [f32(1)], "y[0]": f32(7)}
    expected = {"y": [f32(2)], "y[0]": f32(7)}
    for first in (list(given), list(reversed(given))):
        sides = [{n: side[n] for n in first} for side in (given, expected)]
        results = compare_outputs(*sides, {})
        assert {d.place: d.ok for d in results} == {
            OutputPath("y", (0,)): False,
            OutputPath("y[0]"): True,
        }
    close, exact = {"y": [f32(1)], "y[0]": f32(7.01)}, {"y": [f32(1)], "y[0]": f32(7)}
    assert not all(d.ok for d in compare_outputs(close, exact, {"y": LOOSE}))
    assert all(d.ok for d in compare_outputs(close, exact, {"y[0]": LOOSE}))


def test_keys_of_maps_keep_their_kind():
    assert list(flatten({"m": {1: f32(1), "1": f32(2)}})) == [
        OutputPath("m", (1,)),
        OutputPath("m", ("1",)),
    ]


def test_nothing_but_nan_is_a_warning():
    """Equal, but an agreement that says nothing of the numbers."""
    d = compare("y", f32(NAN, NAN), f32(NAN, NAN), EXACT)
    assert d.ok
    assert d.warning == ALL_NAN
    assert compare("y", f32(NAN, 1), f32(NAN, 1), EXACT).warning is None


def test_what_is_empty_or_constant_is_a_warning():
    """Lengths of 0 would leave nothing else."""
    assert compare("y", f32(), f32(), EXACT).warning == EMPTY
    assert compare("y", f32(2, 2), f32(2, 2), EXACT).warning == CONSTANT.format(2)
    assert compare("y", f32(2, 2.001), f32(2, 2), LOOSE).warning is None
    assert compare("y", f32(2), f32(2), EXACT).warning is None  # a single number is one
    assert compare("y", f32(2, 2), f32(3, 3), EXACT).warning is None  # a difference is no agreement
    words = np.array(["a", "a"], object)
    assert compare("y", words, words, EXACT).warning == CONSTANT.format("a")
    assert compare("y", np.zeros(3, bool), np.zeros(3, bool), EXACT).warning is not None
    halves = np.full(3, 0.5, ml_dtypes.bfloat16)
    assert compare("y", halves, halves, EXACT).warning == CONSTANT.format(0.5)


def test_an_output_on_one_side_is_a_mismatch():
    (d,) = compare_outputs({}, {"y": f32(1)}, {})
    assert d.problem == "only on the expected side"
    assert compare("y", None, None, EXACT).ok
    assert compare("y", None, f32(1), EXACT).problem == "absent on one side"


def test_tolerances_are_those_of_the_output():
    given, expected = {"a": f32(1.01), "b": f32(1.01)}, {"a": f32(1), "b": f32(1)}
    results = compare_outputs(given, expected, {"a": Tolerance(rtol=0.01)})
    assert [d.ok for d in results] == [True, False]


def test_rows_may_change_places_when_asked_to():
    rows = np.array([[[1, 10], [2, 20], [3, 30]]], "f4")
    swapped = rows[:, [1, 0, 2]]
    assert np.array_equal(match_rows(swapped, rows), rows)
    assert not compare_outputs({"y": swapped}, {"y": rows}, {})[0].ok
    assert compare_outputs({"y": swapped}, {"y": rows}, {}, ["y"])[0].ok
    # A row that is there twice does not stand in for one that is missing.
    twice = rows[:, [0, 0, 2]]
    assert not compare_outputs({"y": twice}, {"y": rows}, {}, ["y"])[0].ok
    assert match_rows(f32(1), f32(2)) == f32(1)


@pytest.mark.parametrize(("error", "asked", "ok"), [(1.5, [16, 64], True), (3.0, [16], False)])
def test_more_runs_decide_about_an_element_that_is_near(
    error: float, asked: list[int], ok: bool
) -> None:
    heard: list[int] = []

    class Fake:
        def reach(self, place: Any, any_row: bool = False, runs: Sequence[int] = ()) -> Any:
            for count in runs[-1:]:
                heard.append(count)
                yield np.array([1.0, 1.0 if count < 64 else 2.0])

    expected = {"y": np.array([0.0, 1.0], np.float32)}
    given = {"y": np.array([0.0, 1.0 + error], np.float32)}
    (found,) = compare_outputs(given, expected, {"y": Tolerance(spread=Fake())})
    assert heard == asked
    assert found.ok is ok
