"""TopK, Unique, NonZero and Compress."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import FeedError, MonographError
from tests.frontend.nodes import close, run_node, runtime_node
from tests.frontend.test_shape import in_every_way, ints

X = np.random.default_rng(4).permutation(24).astype(np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 1])
def test_top_k_against_the_runtime(symbolic, constant, largest: int, axis: int) -> None:
    ways = {"outputs": 2, "largest": largest, "axis": axis, "constant": constant}
    ours = run_node("TopK", X, ints(2), symbolic=symbolic, **ways)
    close(ours, runtime_node("TopK", X, ints(2), **ways), 0)


def test_top_k_of_old_opsets() -> None:
    values, places = run_node("TopK", X, opset=1, k=1, outputs=2)
    np.testing.assert_array_equal(values, X.max(-1, keepdims=True))
    np.testing.assert_array_equal(places, X.argmax(-1)[..., None])
    values, _ = run_node("TopK", X, ints(1), opset=10, axis=0, outputs=2)
    np.testing.assert_array_equal(values, X.max(0, keepdims=True))


def test_more_than_there_is() -> None:
    with pytest.raises(MonographError, match="so many"):
        run_node("TopK", X, ints(5), outputs=2)
    with pytest.raises(FeedError, match="so many"):
        run_node("TopK", X, ints(5), outputs=2, constant=[1], symbolic=True)


@pytest.mark.parametrize("symbolic", [False, True])
def test_unique(symbolic: bool) -> None:
    x = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float32)
    for ways in ({}, {"sorted": 0}, {"axis": 0}, {"axis": -1, "sorted": 0}):
        ours = run_node("Unique", x, outputs=4, symbolic=symbolic, **ways)
        close(ours, runtime_node("Unique", x, outputs=4, **ways), 0)


@pytest.mark.parametrize("symbolic", [False, True])
def test_nonzero_and_compress(symbolic: bool) -> None:
    x = np.array([[1, 0], [0, 2], [3, 4]], np.float32)
    (places,) = run_node("NonZero", x, symbolic=symbolic)
    np.testing.assert_array_equal(places, np.array(np.nonzero(x)))
    keep = np.array([False, True, True])
    np.testing.assert_array_equal(in_every_way("Compress", x, keep, axis=0), x[1:])
    np.testing.assert_array_equal(in_every_way("Compress", x, keep), [0, 0])
    np.testing.assert_array_equal(in_every_way("Compress", x, keep[:2], axis=-1), x[:, 1:])
