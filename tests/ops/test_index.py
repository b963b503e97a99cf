"""Gathers and scatters: negative indices, bounds, reductions, unknown sizes."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import parse_tensor_type
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.scatter import Col2Im, ScatterElements, ScatterNd


def infer(op, *texts: str) -> str:
    types = [parse_tensor_type(t) for t in texts]
    return str(op.canonical(*types).infer(*types))


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "types", "result"),
    [
        (Gather(-1), ("f32[N, 4]", "i32[2, M]"), "f32[N, 2, M]"),
        (Gather(0), ("f32[*]", "i64[2]"), "f32[*]"),
        (GatherElements(0), ("f32[N, 4]", "i64[2, 3]"), "f32[2, 3]"),
        (GatherNd(), ("f32[N, 4, 5]", "i64[7, 1]"), "f32[7, 4, 5]"),
        (GatherNd(1), ("f32[N, 4, 5]", "i64[2, 7, 2]"), "f32[2, 7]"),
        (GatherNd(), ("f32[N, 4, 5]", "i64[7, K]"), "f32[*]"),
        (ScatterElements(1), ("f32[N, 4]", "i64[2, 3]", "f32[2, 3]"), "f32[N, 4]"),
        (ScatterNd(), ("f32[N, 4]", "i64[2, 1]", "f32[2, 4]"), "f32[N, 4]"),
        (ScatterNd(), ("f32[N, 4]", "i64[2, K]", "f32[2, 4]"), "f32[N, 4]"),
    ],
)
def test_shapes(op, types: tuple[str, ...], result: str) -> None:
    assert infer(op, *types) == result


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Gather(2), ("f32[3, 4]", "i64[1]"), "axis out of range"),
        (Gather(0), ("f32[3, 4]", "f32[1]"), "indices are integers"),
        (GatherElements(0), ("f32[3, 4]", "i64[1]"), "rank of the tensor"),
        (GatherNd(), ("f32[3, 4]", "i64[5, 3]"), "more coordinates than dimensions"),
        (GatherNd(1), ("f32[3, 4]", "i64[3, 2]"), "do not fit"),
        (GatherNd(1), ("f32[3, 4]", "i64[2, 1]"), "dimensions differ"),
        (GatherNd(), ("f32[3, 4]", "i64[]"), "vectors of coordinates"),
        (ScatterElements(0), ("f32[3]", "i64[2]", "f32[1]"), "dimensions differ"),
        (ScatterElements(0), ("f32[3]", "i64[2]", "f64[2]"), "different element types"),
        (ScatterElements(0, "sub"), ("f32[3]", "i64[2]", "f32[2]"), "no such reduction"),
        (ScatterElements(0, "add"), ("str[3]", "i64[2]", "str[2]"), "element type"),
        (ScatterNd(), ("f32[3, 4]", "i64[2, 1]", "f32[2]"), "updates do not fit"),
        (ScatterNd(), ("f32[3, 4]", "i64[2, 1]", "f32[2, 5]"), "dimensions differ"),
    ],
)
def test_operands_that_do_not_fit(op, types: tuple[str, ...], message: str) -> None:
    with pytest.raises(InferError, match=message):
        infer(op, *types)


def test_gather_with_negative_and_scalar_indices() -> None:
    assert Gather(1).reference(X, np.array([-1, 0])).tolist() == [[3, 0], [7, 4], [11, 8]]
    picked = Gather(0).reference(np.array([5.0, 6.0], np.float32), np.array(-2))
    assert isinstance(picked, np.ndarray)
    assert picked.shape == ()
    assert picked == 5
    words = Gather(0).reference(np.array(["a", "bc"], object), np.array(1))
    assert words.dtype == object
    assert words == "bc"


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (Gather(0), (X, np.array([3]))),
        (Gather(0), (X, np.array([-4]))),
        (GatherElements(1), (X, np.array([[4]]))),
        (GatherNd(), (X, np.array([[0, 4]]))),
        (ScatterElements(1), (X, np.array([[4]]), np.ones((1, 1), np.float32))),
        (ScatterNd(), (X, np.array([[3]]), np.ones((1, 4), np.float32))),
    ],
)
def test_an_index_out_of_range(op, inputs: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(ExecutionError, match="an index is out of range"):
        op.reference(*inputs)


def test_sizes_that_do_not_fit_at_run_time() -> None:
    with pytest.raises(ExecutionError, match="reach beyond"):
        GatherElements(1).reference(X, np.zeros((4, 1), np.int64))
    with pytest.raises(ExecutionError, match="one update for each index"):
        ScatterElements(0).reference(X, np.zeros((1, 2), int), np.ones((2, 1), np.float32))
    with pytest.raises(ExecutionError, match="updates do not fit"):
        ScatterNd().reference(X, np.zeros((1, 1), int), np.ones((1, 3), np.float32))
    with pytest.raises(ExecutionError, match="coordinates do not fit"):
        GatherNd(1).reference(X, np.zeros((2, 1), int))


def test_gather_nd_over_batches() -> None:
    indices = np.array([[[0, 1]], [[-1, 0]]])
    x = np.arange(12).reshape(2, 2, 3)
    assert GatherNd(1).reference(x, indices).tolist() == [[1], [9]]
    # Coordinates of length zero name the whole.
    assert GatherNd().reference(X, np.zeros((2, 0), np.int64)).tolist() == [X.tolist()] * 2


@pytest.mark.parametrize(
    ("reduction", "result"),
    [
        ("none", [1, 30, 3]),
        ("add", [1, 52, 3]),
        ("mul", [1, 1200, 3]),
        ("min", [1, 2, 3]),
        ("max", [1, 30, 3]),
    ],
)
def test_scatter_joins_updates_of_one_place(reduction: str, result: list[int]) -> None:
    x, updates = np.array([1, 2, 3]), np.array([20, 30])
    places = np.array([1, -2])
    assert ScatterElements(0, reduction).reference(x, places, updates).tolist() == result
    assert ScatterNd(reduction).reference(x, places[:, None], updates).tolist() == result
    assert x.tolist() == [1, 2, 3]


def test_a_sum_of_halves_is_rounded_once() -> None:
    x, ones = np.array([2048], np.float16), np.ones(4, np.float16)
    summed = ScatterElements(0, "add").reference(x, np.zeros(4, np.int64), ones)
    assert summed.tolist() == [2052]


def test_scatter_of_the_whole() -> None:
    updates = np.stack([X, X + 1])
    indices = np.zeros((2, 0), np.int64)
    assert ScatterNd("add").reference(X, indices, updates).tolist() == (3 * X + 1).tolist()


def test_blocks_that_overlap_add_up() -> None:
    op = Col2Im((3,), (2,), (1,), (1,), (0,), (0,))
    assert op.reference(np.array([[[1.0, 2], [30, 40]]], np.float32)).tolist() == [[[1, 32, 40]]]
    padded = Col2Im((2,), (2,), (1,), (1,), (1,), (0,))
    # The first element of the first block lies in the padding.
    assert padded.reference(np.array([[[9.0, 2], [30, 40]]], np.float32)).tolist() == [[[32, 40]]]


@pytest.mark.parametrize(
    ("op", "x", "message"),
    [
        (Col2Im((3,), (2,), (1,), (1,), (0,), (0,)), "f32[1, 3, 2]", "do not divide"),
        (Col2Im((3,), (2,), (1,), (1,), (0,), (0,)), "f32[1, 2, 3]", "as many columns"),
        (Col2Im((3,), (2,), (1, 1), (1,), (0,), (0,)), "f32[1, 2, 2]", "one number"),
        (Col2Im((3,), (2,), (0,), (1,), (0,), (0,)), "f32[1, 2, 2]", "positive"),
        (Col2Im((3,), (2,), (1,), (1,), (0,), (0,)), "f32[2, 2]", "rank 3"),
    ],
)
def test_columns_that_do_not_fit(op: Col2Im, x: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        infer(op, x)
