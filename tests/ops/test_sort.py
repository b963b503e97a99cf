"""TopK, NonZero and Unique: order of ties, unknown sizes, edge cases."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, parse_tensor_type
from monograph.ops.sort import NonZero, TopK, Unique


def infer(op, text: str) -> str:
    kind = parse_tensor_type(text)
    return str(op.canonical(kind).infer(kind))


def test_ties_go_to_the_lower_index() -> None:
    x = np.array([[1, 3, 3, 1, 3]], np.uint8)
    values, places = TopK(4, 1).reference(x)
    assert values.tolist() == [[3, 3, 3, 1]]
    assert places.tolist() == [[1, 2, 4, 0]]
    values, places = TopK(3, 1, largest=False).reference(x)
    assert values.tolist() == [[1, 1, 3]]
    assert places.tolist() == [[0, 3, 1]]
    assert places.dtype == np.int64


def test_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, np.inf], np.float32)
    assert TopK(2, 0).reference(x)[1].tolist() == [1, 2]
    assert TopK(2, 0, largest=False).reference(x)[1].tolist() == [0, 2]


def test_types_of_top_k() -> None:
    assert infer(TopK(2, -1), "f16[N, M]") == "(f16[N, 2], i64[N, 2])"
    with pytest.raises(InferError, match="so many"):
        infer(TopK(5, 0), "f32[4]")
    with pytest.raises(InferError, match="so many"):
        infer(TopK(-1, 0), "f32[N]")
    with pytest.raises(ExecutionError, match="so many"):
        TopK(5, 0).reference(np.ones(4))


def test_nonzero() -> None:
    x = np.array([[1, 0], [0, -2]])
    assert NonZero().reference(x).tolist() == [[0, 1], [0, 1]]
    assert NonZero().reference(np.array(3.0)).shape == (0, 1)
    assert NonZero().reference(np.array(0.0)).shape == (0, 0)
    assert NonZero().reference(np.zeros((2, 0))).shape == (2, 0)
    assert infer(NonZero(), "bool[2, N]") == f"i64[2, {UNKNOWN}]"


@pytest.mark.parametrize("axis", [None, 0])
def test_all_nan_are_one_element(axis: int | None) -> None:
    x = np.array([np.nan, 1, np.nan, 2, 1], np.float32)
    values, first, inverse, counts = Unique(axis).reference(x)
    np.testing.assert_array_equal(values, np.array([1, 2, np.nan], np.float32))
    assert (first.tolist(), counts.tolist()) == ([1, 3, 0], [2, 1, 2])
    assert inverse.tolist() == [2, 0, 2, 1, 0]
    rows = np.array([[np.nan, 1], [0, np.nan], [np.nan, 1], [np.nan, 2]])
    assert Unique(0).reference(rows)[3].tolist() == [1, 2, 1]


def test_unique_elements() -> None:
    x = np.array([[2, 1, 1], [3, 4, 3]], np.float32)
    values, first, inverse, counts = Unique().reference(x)
    assert values.tolist() == [1, 2, 3, 4]
    assert first.tolist() == [1, 0, 3, 4]
    assert inverse.tolist() == [1, 0, 0, 2, 3, 2]
    assert counts.tolist() == [2, 1, 2, 1]
    values, first, inverse, counts = Unique(sorted=False).reference(x)
    assert values.tolist() == [2, 1, 3, 4]
    assert first.tolist() == [0, 1, 3, 4]
    assert inverse.tolist() == [0, 1, 1, 2, 3, 2]
    assert counts.tolist() == [1, 2, 2, 1]


def test_unique_slices() -> None:
    x = np.array([[1, 5, 1], [0, 2, 0]])
    values, first, inverse, counts = Unique(axis=1).reference(x)
    assert values.tolist() == [[1, 5], [0, 2]]
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([0, 1], [0, 1, 0], [2, 1])
    # The first column decides before the second.
    rows = np.array([[2, 0], [1, 9], [1, 3]])
    assert Unique(axis=0).reference(rows)[0].tolist() == [[1, 3], [1, 9], [2, 0]]


def test_unique_of_words_and_of_nothing() -> None:
    words = np.array(["b", "a", "b"], object)
    values, _, inverse, _ = Unique().reference(words)
    assert values.tolist() == ["a", "b"]
    assert inverse.tolist() == [1, 0, 1]
    assert [r.shape for r in Unique().reference(np.zeros(0))] == [(0,)] * 4


def test_types_of_unique() -> None:
    q = UNKNOWN
    assert infer(Unique(), "f32[2, 3]") == f"(f32[{q}], i64[{q}], i64[6], i64[{q}])"
    assert infer(Unique(axis=-1), "f32[2, N]") == f"(f32[2, {q}], i64[{q}], i64[N], i64[{q}])"
