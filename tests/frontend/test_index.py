"""Gathers, scatters, and what is built on them."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, ModelError
from tests.frontend.nodes import close, run_node, runtime_node
from tests.frontend.test_shape import in_every_way, ints

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
RANDOM = np.random.default_rng(1)


def test_gather() -> None:
    indices = np.array([[0, -1], [2, 1]])
    np.testing.assert_array_equal(
        in_every_way("Gather", X, indices, axis=1), np.take(X, indices % 3, 1)
    )
    assert in_every_way("Gather", X, np.array(1)).tolist() == X[1].tolist()
    with pytest.raises(ExecutionError, match="an index is out of range"):
        run_node("Gather", X, ints(2))


def test_gather_elements_and_nd_against_the_runtime() -> None:
    places = RANDOM.integers(-3, 3, (2, 2, 4))
    theirs = runtime_node("GatherElements", X, places, axis=1)
    close([in_every_way("GatherElements", X, places, axis=1)], theirs, 0)
    for batch, indices in ((0, np.array([[0, 1], [1, -1]])), (1, np.array([[2, 1], [0, 0]]))):
        theirs = runtime_node("GatherND", X, indices, batch_dims=batch)
        close([in_every_way("GatherND", X, indices, batch_dims=batch)], theirs, 0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatters_against_the_runtime(reduction: str) -> None:
    # Without a reduction the places differ: which update stays is not defined.
    places = np.array([[[0, 1, 2, -1]]]) if reduction == "none" else np.array([[[0, -1, 3, 3]]])
    updates = RANDOM.normal(size=(1, 1, 4)).astype(np.float32)
    ways = {"axis": 2, "reduction": reduction}
    theirs = runtime_node("ScatterElements", X, places, updates, opset=18, **ways)
    close([in_every_way("ScatterElements", X, places, updates, **ways)], theirs, 1e-6)
    rows = np.array([[0, 1], [1, 2]]) if reduction == "none" else np.array([[1, 2], [1, -1]])
    updates = RANDOM.normal(size=(2, 4)).astype(np.float32)
    theirs = runtime_node("ScatterND", X, rows, updates, opset=18, reduction=reduction)
    close([in_every_way("ScatterND", X, rows, updates, reduction=reduction)], theirs, 1e-6)


def test_scatter_of_opset_9() -> None:
    (result,) = run_node("Scatter", ints(1, 2, 3), ints(2), ints(9), opset=9)
    assert result.tolist() == [1, 2, 9]


CACHE = np.zeros((2, 4, 1), np.float32)
UPDATE = np.array([[[1], [2]], [[3], [4]]], np.float32)


@pytest.mark.parametrize("symbolic", [False, True])
def test_tensor_scatter(symbolic: bool) -> None:
    ways = {"opset": 24, "symbolic": symbolic}
    (result,) = run_node("TensorScatter", CACHE, UPDATE, ints(0, 2), **ways)
    assert result[..., 0].tolist() == [[1, 2, 0, 0], [0, 0, 3, 4]]
    (result,) = run_node("TensorScatter", CACHE, UPDATE, ints(3, 5), mode="circular", **ways)
    assert result[..., 0].tolist() == [[2, 0, 0, 1], [0, 3, 4, 0]]
    (result,) = run_node("TensorScatter", CACHE, UPDATE, **ways)
    assert result[..., 0].tolist() == [[1, 2, 0, 0], [3, 4, 0, 0]]
    with pytest.raises(ExecutionError, match="out of range"):
        run_node("TensorScatter", CACHE, UPDATE, ints(0, 3), **ways)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(symbolic: bool, time: int, batch: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    lengths = ints(1, 0, 3, 2) if batch else ints(4, 1, 2)
    ways = {"time_axis": time, "batch_axis": batch}
    ours = run_node("ReverseSequence", x, lengths, symbolic=symbolic, **ways)
    expected = x.copy()
    for i, n in enumerate(lengths):
        part = (slice(n), i) if time == 0 else (i, slice(n))
        expected[part] = expected[part][::-1]
    np.testing.assert_array_equal(ours[0], expected)


def test_reverse_sequence_along_one_axis_only() -> None:
    with pytest.raises(ModelError, match="different axes"):
        run_node("ReverseSequence", X, ints(1, 1), time_axis=0, batch_axis=0)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("axis", "shape"), [(-1, (2, 2, 3)), (0, (3, 2, 2)), (1, (2, 3, 2))])
def test_one_hot(symbolic: bool, axis: int, shape: tuple[int, ...]) -> None:
    indices = np.array([[0, -1], [3, 1]])
    values = np.array([5, 7], np.int32)
    (result,) = run_node(
        "OneHot", indices, np.array(3.0, np.float32), values, axis=axis, symbolic=symbolic
    )
    assert result.shape == shape
    codes = [[[7, 5, 5], [5, 5, 7]], [[5, 5, 5], [5, 7, 5]]]
    assert np.moveaxis(result, axis, -1).tolist() == codes


@pytest.mark.parametrize("symbolic", [False, True])
def test_trilu_and_eye(symbolic: bool) -> None:
    x = np.arange(1, 13).reshape(3, 4)
    for k in (-1, 0, 2):
        for upper, expected in ((1, np.triu(x, k)), (0, np.tril(x, k))):
            (result,) = run_node("Trilu", x, np.array(k), upper=upper, symbolic=symbolic)
            np.testing.assert_array_equal(result, expected)
        (eye,) = run_node("EyeLike", x, k=k, dtype=1, symbolic=symbolic)
        np.testing.assert_array_equal(eye, np.eye(3, 4, k, np.float32))
        assert eye.dtype == np.float32
    (upper,) = run_node("Trilu", np.stack([x, x]), symbolic=symbolic)
    np.testing.assert_array_equal(upper, np.triu(np.stack([x, x])))
    with pytest.raises(ModelError, match="rank 2"):
        run_node("EyeLike", X)
    with pytest.raises(ModelError, match="rank >= 2"):
        run_node("Trilu", ints(1))


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0, 5, 1), (1, 10, 3), (10, 1, -3), (5, 0, 1), (0, -7, -2), (3, 3, 1), (0, 9, 3)],
)
@pytest.mark.parametrize("kind", [np.int16, np.int64, np.float32, np.float64])
def test_range(start: int, limit: int, delta: int, kind: type) -> None:
    numbers = [np.array(v, kind) for v in (start, limit, delta)]
    result = in_every_way("Range", *numbers)
    assert result.tolist() == list(range(start, limit, delta))
    assert result.dtype == kind


def test_range_of_fractions() -> None:
    numbers = [np.array(v, np.float32) for v in (0, 1, 0.1)]
    assert in_every_way("Range", *numbers).shape == (10,)


def test_constant_of_shape() -> None:
    (zeros,) = run_node("ConstantOfShape", ints(2, 3))
    assert zeros.tolist() == [[0] * 3] * 2
    assert zeros.dtype == np.float32
    (scalar,) = run_node("ConstantOfShape", ints(), constant=[0])
    assert scalar.shape == ()
    with pytest.raises(ModelError, match="too large"):
        run_node("ConstantOfShape", ints(2**40), constant=[0])
