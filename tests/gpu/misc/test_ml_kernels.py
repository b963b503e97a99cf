"""Ops of classical models on the GPU target: trees, coupled probabilities, grams of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Input, Literal, TensorType, Value, dtype
from monograph.ops.elementwise import Add
from monograph.ops.ml import CoupleProbabilities
from monograph.ops.shape import Transpose
from monograph.ops.text import Ngrams
from monograph.ops.trees import AGGREGATES, LEAF, MEMBER, TreeEnsemble
from tests.gpu.against import check

rng = np.random.default_rng(3)


def tensor(name: str, shape: tuple[int, ...], kind: str = "f32") -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


def forest(trees: int, features: int, targets: int, aggregate: str) -> TreeEnsemble:
    """Trees of random depths with every mode, and leaves with several votes or none."""
    rows: list[list[int]] = []
    roots = []

    def grow(depth: int) -> int:
        at = len(rows)
        rows.append([LEAF, 0, 0])
        if depth and rng.random() < 0.8:
            rows[at] = [int(rng.integers(0, LEAF)), grow(depth - 1), grow(depth - 1)]
        return at

    for _ in range(trees):
        roots.append(grow(4))
    modes, yes, no = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    votes = np.where(modes == LEAF, rng.integers(0, 4, count), 0)
    members = np.where(modes == MEMBER, rng.integers(0, 3, count), 0)
    return TreeEnsemble(
        roots=Literal(np.array(roots)),
        modes=Literal(modes.astype(np.uint8)),
        features=Literal(rng.integers(0, features, count)),
        splits=Literal(rng.integers(-2, 3, count).astype(np.float64)),
        yes=Literal(yes),
        no=Literal(no),
        missing_yes=Literal(rng.random(count) < 0.5),
        first_vote=Literal(np.cumsum([0, *votes])),
        vote_targets=Literal(rng.integers(0, targets, votes.sum())),
        vote_weights=Literal(rng.normal(size=votes.sum())),
        first_member=Literal(np.cumsum([0, *members])),
        members=Literal(rng.integers(-2, 3, members.sum()).astype(np.float64)),
        targets=targets,
        aggregate=aggregate,
    )


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("kind", ["f32", "i64"])
def test_trees(aggregate: str, kind: str) -> None:
    x = tensor("x", (3, 40), kind)
    y = forest(9, 3, 4, aggregate)(Transpose((1, 0))(x))
    data = rng.integers(-2, 3, (3, 40)).astype(dtype(kind).numpy)
    if kind == "f32":
        data[rng.random(data.shape) < 0.1] = np.nan
    check(Graph((x,), (("y", Add()(y, y)),)), {"x": data}, every=False)


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_coupled_probabilities(classes: int, kind: str) -> None:
    x = tensor("x", (7, classes, classes), kind)
    upper = np.triu(rng.uniform(0.05, 0.95, (7, classes, classes)), 1)
    data = upper + np.tril(1 - np.swapaxes(upper, 1, 2), -1) + 0.5 * np.eye(classes)
    y = CoupleProbabilities()(x)
    graph = Graph((x,), (("y", Add()(y, y)),))
    check(graph, {"x": data.astype(dtype(kind).numpy)})


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("shape", [(17,), (3, 17)])
def test_grams(once: bool, shape: tuple[int, ...]) -> None:
    pool = Literal(np.array([1, 2, 3, 1, 2, 2, 2, 1, 1, 1, 2, 3, 2, 2, 2]))
    op = Ngrams(pool, (0, 3, 9), (4, 0, 2, 2, 1, 5, 5, 0), 1, 3, 2, once, tuple(rng.normal(size=8)))
    x = tensor("x", shape, "i32")
    data = rng.integers(0, 4, shape).astype(np.int32)
    check(Graph((x,), (("y", op(x)),)), {"x": data}, every=False)
