"""Statements of ops that they go row by row: rows added at the end change nothing before them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from monograph.errors import MonographError
from monograph.ir import Op, Sample, TensorType, from_numpy
from monograph.ops import OPS
from monograph.ops.composite import Softmax
from monograph.ops.index import Gather, GatherNd
from monograph.ops.reduce import CumSum, ReduceMax, ReduceSum
from monograph.ops.scalar import is_pointwise
from monograph.ops.shape import (
    COPY,
    FAR,
    INFER,
    Concat,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from tests.samples import sample_graph

N = "n"
"""A size that is not known."""
STATES = {
    "concat", "cum_prod", "cum_sum", "dot", "gather", "gather_nd", "log_softmax", "reduce_max",
    "reduce_min", "reduce_prod", "reduce_sum", "reshape", "slice", "softmax", "squeeze",
    "transpose", "unsqueeze",
}  # fmt: skip
"""The ops that state anything: all others have to know a size that data decide."""


def open_types(arrays: list[np.ndarray], axes: dict[int, int]) -> list[TensorType]:
    """The types of arrays, with an open size at these axes of these operands."""
    types = []
    for i, x in enumerate(arrays):
        shape = tuple(N if axes.get(i) == a else d for a, d in enumerate(x.shape))
        types.append(TensorType(from_numpy(x.dtype), shape))
    return types


def choices(arrays: list[np.ndarray]) -> Iterator[dict[int, int]]:
    """Return which operands grow, along which axis: each alone, and all of them together."""
    for i, x in enumerate(arrays):
        yield from ({i: a} for a in range(x.ndim))
    ranks = {x.ndim for x in arrays}
    if len(arrays) > 1 and len(ranks) == 1:
        yield from (dict.fromkeys(range(len(arrays)), a) for a in range(ranks.pop()))


def stated_axis(op: Op, arrays: list[np.ndarray], axes: dict[int, int]) -> int | None:
    """The axis that an op states for operands that grow; None where it states none."""
    types = open_types(arrays, axes)
    op = op.canonical(*types)
    made = op.infer(*types)
    if not isinstance(made, TensorType):
        return None
    stated = {op.row_axis(i, a, *types) for i, a in axes.items()}
    axis = stated.pop() if len(stated) == 1 else None
    # Where another operand has a size there, that is the size of the result.
    return axis if axis is not None and isinstance(made.dims[axis], str) else None


def holds(op: Op, arrays: list[np.ndarray], axes: dict[int, int], axis: int) -> None:
    """Compares the result for some rows with the first rows of the result for all."""
    for count in range(min(arrays[i].shape[a] for i, a in axes.items())):
        fewer = [
            np.take(x, range(count), axes[i]) if i in axes else x for i, x in enumerate(arrays)
        ]
        some, every = op.reference(*fewer), op.reference(*arrays)
        assert some.shape[axis] == count
        np.testing.assert_array_equal(np.take(every, range(count), axis), some)


CASES = [
    pytest.param(op, s, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.row_axis is not Op.row_axis
    for i, s in enumerate(op.samples)
]


@pytest.mark.parametrize(("kind", "sample"), CASES)
def test_statements_hold_for_every_sample(kind: type[Op], sample: Sample) -> None:
    _, feeds = sample_graph(kind, sample)
    arrays = list(feeds.values())
    op = kind(**sample.attributes)
    for axes, axis in statements(op, arrays):
        holds(op, arrays, axes, axis)


def statements(op: Op, arrays: list[np.ndarray]) -> Iterator[tuple[dict[int, int], int]]:
    """Axes of operands that may grow, each choice with the axis of the result that grows too."""
    for axes in choices(arrays):
        try:
            axis = stated_axis(op, arrays, axes)
        except MonographError:
            continue  # this size cannot be another one
        if axis is not None:
            yield axes, axis


@pytest.mark.parametrize("name", sorted(STATES))
def test_some_sample_of_each_op_has_a_statement(name: str) -> None:
    kind = OPS[name]
    given = [(kind(**s.attributes), [*sample_graph(kind, s)[1].values()]) for s in kind.samples]
    assert any(True for op, arrays in given for _ in statements(op, arrays))


def test_only_these_ops_state_anything() -> None:
    assert {op.name for op in OPS.values() if op.row_axis is not Op.row_axis} == STATES


def test_work_on_single_elements_needs_no_statement() -> None:
    stating = [OPS[name] for name in STATES]
    assert not any(is_pointwise(op(**op.samples[0].attributes)) for op in stating)


X = TensorType(from_numpy(np.dtype(np.float32)), (2, N, 3))
PLACES = TensorType(from_numpy(np.dtype(np.int64)), (4, 2))
WHOLE = (0, 0, 0), (FAR, FAR, FAR), (1, 1, 1)


@pytest.mark.parametrize(
    ("op", "types", "expected"),
    [
        (Slice(*WHOLE), (X,), 1),
        (Slice((1, 0, -1), (2, FAR, -9), (1, 1, -1)), (X,), 1),
        (Slice((0, -1, 0), (FAR, -FAR, FAR), (1, -1, 1)), (X,), None),
        (Slice((0, FAR, 0), (FAR, -FAR, FAR), (1, -1, 1)), (X,), None),
        (Slice((0, 1, 0), (FAR, FAR, FAR), (1, 1, 1)), (X,), None),
        (Slice((0, 0, 0), (FAR, -1, FAR), (1, 1, 1)), (X,), None),
        (Slice((0, 0, 0), (FAR, 2, FAR), (1, 1, 1)), (X,), None),
        (Slice((0, 0, 0), (FAR, FAR, FAR), (1, 2, 1)), (X,), None),
        (CumSum(1), (X,), 1),
        (CumSum(1, exclusive=True), (X,), 1),
        (CumSum(1, reverse=True), (X,), None),
        (CumSum(2, reverse=True), (X,), 1),
        (ReduceSum((0,)), (X,), 0),
        (ReduceSum((0,), keep=True), (X,), 1),
        (ReduceMax((1,)), (X,), None),
        (Softmax(1), (X,), None),
        (Softmax(2), (X,), 1),
        (Transpose((2, 0, 1)), (X,), 2),
        (Squeeze((0,)), (X.with_shape((1, N, 3)),), 0),
        (Unsqueeze((0, 2)), (X,), 3),
        (Reshape((2, INFER, 3, 1)), (X,), 1),
        (Reshape((2, COPY, 3)), (X,), 1),
        (Reshape((INFER, 3)), (X,), None),
        (Reshape((2, INFER)), (X,), None),
        (Reshape((INFER, 1, 3)), (X.with_shape((1, N, 3)),), 0),
        (Concat(0), (X, X), 1),
        (Concat(1), (X, X), None),
        (Gather(0), (X, PLACES), 2),
        (Gather(1), (X, PLACES), None),
        (Gather(2), (X, PLACES), 1),
        (GatherNd(), (X, PLACES), None),
    ],
    ids=str,
)  # fmt: skip
def test_statements_by_attributes(op: Op, types: tuple[TensorType, ...], expected: int) -> None:
    assert op.canonical(*types).row_axis(0, 1, *types) == expected
