"""Tree ensembles of all three forms: against ONNX Runtime, by hand, and malformed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import monograph
from monograph.errors import FeedError, ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

ML = "ai.onnx.ml"
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(trees: int, depth: int, features: int, modes: list[str], seed: int = 0) -> dict:
    """Complete binary trees with random splits among small integers."""
    rng = np.random.default_rng(seed)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    leaf = np.arange(count) >= inner
    ids = np.arange(count)
    tables = {
        "nodes_treeids": np.repeat(np.arange(trees), count),
        "nodes_nodeids": np.tile(ids, trees),
        "nodes_featureids": rng.integers(0, features, trees * count),
        "nodes_truenodeids": np.tile(np.where(leaf, 0, 2 * ids + 1), trees),
        "nodes_falsenodeids": np.tile(np.where(leaf, 0, 2 * ids + 2), trees),
        "nodes_missing_value_tracks_true": rng.integers(0, 2, trees * count),
    }
    attributes: dict = {k: v.tolist() for k, v in tables.items()}
    attributes["nodes_values"] = rng.integers(-2, 3, trees * count).astype(float).tolist()
    chosen = rng.choice(modes, trees * count)
    attributes["nodes_modes"] = np.where(np.tile(leaf, trees), "LEAF", chosen).tolist()
    return attributes


def votes(model: dict, prefix: str, targets: int, per_leaf: int, seed: int = 1) -> dict:
    """Votes at every leaf, each for another target."""
    rng = np.random.default_rng(seed)
    leaves = [i for i, mode in enumerate(model["nodes_modes"]) if mode == "LEAF"]
    owners = np.repeat(leaves, per_leaf)
    chosen = np.concatenate([rng.permutation(targets)[:per_leaf] for _ in leaves])
    name = "target_ids" if prefix == "target" else "class_ids"
    return {
        f"{prefix}_treeids": [model["nodes_treeids"][i] for i in owners],
        f"{prefix}_nodeids": [model["nodes_nodeids"][i] for i in owners],
        name: chosen.tolist(),
        f"{prefix}_weights": rng.normal(size=len(owners)).tolist(),
    }


def rows(count: int, features: int, missing: bool = False) -> np.ndarray:
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (count, features)).astype(np.float32)
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
    return x


def agrees(op: str, x: np.ndarray, outputs: int = 1, opset: int = 3, **attributes) -> list:
    ours = run_node(op, x, opset=opset, domain=ML, outputs=outputs, **attributes)
    theirs = runtime_node(op, x, opset=opset, domain=ML, outputs=outputs, **attributes)
    if outputs == 2:
        assert ours[0].tolist() == np.asarray(theirs[0]).tolist()
    close(ours[outputs - 1 :], theirs[outputs - 1 :], 1e-5)
    return ours


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [False, True])
def test_every_comparison(mode: str, missing: bool) -> None:
    model = forest(5, 4, 3, [mode])
    model |= votes(model, "target", 2, 2)
    agrees("TreeEnsembleRegressor", rows(40, 3, missing), n_targets=2, **model)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "SOFTMAX_ZERO"])
def test_every_aggregate(aggregate: str, targets: int, post: str) -> None:
    model = forest(7, 3, 2, MODES)
    model |= votes(model, "target", targets, targets)
    agrees(
        "TreeEnsembleRegressor", rows(30, 2), n_targets=targets, aggregate_function=aggregate,
        post_transform=post, base_values=[0.5] * targets, **model,
    )  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.int32])
def test_classifier_of_four_classes(post: str, kind: type) -> None:
    model = forest(6, 3, 4, ["BRANCH_LEQ", "BRANCH_GT"])
    model |= votes(model, "class", 4, 4)
    agrees(
        "TreeEnsembleClassifier", rows(50, 4).astype(kind), outputs=2, post_transform=post,
        classlabels_strings=["a", "b", "c", "d"], base_values=[0.1, -0.2, 0.3, 0.0], **model,
    )  # fmt: skip


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("base", [None, [0.25]])
def test_classifier_of_two_classes_with_one_score(post: str, positive: bool, base: list) -> None:
    model = forest(4, 3, 3, ["BRANCH_LEQ"])
    model |= votes(model, "class", 1, 1)
    if positive:
        model["class_weights"] = np.abs(model["class_weights"]).tolist()
    if base is not None:
        model["base_values"] = base
    agrees(
        "TreeEnsembleClassifier", rows(50, 3), outputs=2, post_transform=post,
        classlabels_int64s=[10, 20], **model,
    )  # fmt: skip


def test_classifier_of_two_classes_with_two_scores_takes_the_larger() -> None:
    model = forest(3, 2, 2, ["BRANCH_LEQ"])
    model |= votes(model, "class", 2, 2, seed=2)
    label, scores = run_node(
        "TreeEnsembleClassifier", rows(20, 2), opset=3, domain=ML, outputs=2,
        classlabels_int64s=[10, 20], **model,
    )  # fmt: skip
    assert label.tolist() == [10 if a >= b else 20 for a, b in scores.tolist()]
    assert set(label.tolist()) == {10, 20}


def test_doubles_decide_where_floats_cannot() -> None:
    third = onnx.numpy_helper.from_array(np.array([1 / 3, 0.0, 0.0]))
    weights = onnx.numpy_helper.from_array(np.array([1.0, 2.0]))
    (y,) = run_node(
        "TreeEnsembleRegressor", np.array([[1 / 3], [1 / 3 + 1e-12]]), opset=3, domain=ML,
        n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0], nodes_values_as_tensor=third, target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0], target_weights_as_tensor=weights,
    )  # fmt: skip
    assert y.dtype == np.float32
    assert y.tolist() == [[1.0], [2.0]]


def test_children_may_stand_before_their_parents_and_ids_may_be_any() -> None:
    (y,) = run_node(
        "TreeEnsembleRegressor", np.array([[0.0], [2.0]], np.float32), opset=1, domain=ML,
        n_targets=1, nodes_treeids=[9, 9, 9], nodes_nodeids=[40, 30, 20], nodes_values=[0.0, 0, 1],
        nodes_featureids=[0, 0, 0], nodes_modes=["LEAF", "LEAF", "BRANCH_LEQ"],
        nodes_truenodeids=[0, 0, 40], nodes_falsenodeids=[0, 0, 30], target_treeids=[9, 9],
        target_nodeids=[40, 30], target_ids=[0, 0], target_weights=[5.0, 6.0],
    )  # fmt: skip
    assert y.tolist() == [[5.0], [6.0]]


# Version 5


def tensor(data: list, kind: type) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(data, kind))


def modern(kind: type = np.float32, **changed) -> dict:
    """Two trees: membership of {1, 2} or {5} in turn, and x[1] < 0.5."""
    attributes = {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_modes": tensor([6, 6, 1], np.uint8),
        "nodes_featureids": [0, 0, 1],
        "nodes_splits": tensor([0.0, 0.0, 0.5], kind),
        "nodes_truenodeids": [0, 1, 2],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falsenodeids": [1, 2, 3],
        "nodes_falseleafs": [0, 1, 1],
        "membership_values": tensor([1.0, 2.0, np.nan, 5.0], kind),
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": tensor([1.0, 2.0, 4.0, 8.0], kind),
    }
    return attributes | changed


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_members_and_leaves(kind: type) -> None:
    x = np.array([[1, 0], [2, 1], [5, 0], [3, 1], [np.nan, 0]], kind)
    (y,) = run_node("TreeEnsemble", x, opset=5, domain=ML, **modern(kind))
    assert y.dtype == kind
    assert y.tolist() == [[5, 0], [1, 8], [4, 2], [4, 8], [8, 0]]
    if kind is not np.float16:
        theirs = runtime_node("TreeEnsemble", x, opset=5, domain=ML, **modern(kind))
        np.testing.assert_array_equal(y, theirs[0])


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
def test_modern_aggregates(aggregate: int) -> None:
    x = np.array([[1, 0], [5, 0], [3, 1]], np.float32)
    attributes = modern(leaf_targetids=[0, 0, 0, 0], n_targets=1, aggregate_function=aggregate)
    agrees("TreeEnsemble", x, opset=5, **attributes)


def test_modern_post_transform() -> None:
    x = np.array([[1, 1]], np.float32)
    (y,) = run_node("TreeEnsemble", x, opset=5, domain=ML, **modern(post_transform=1))
    np.testing.assert_allclose(y, [[np.exp(-7) / (1 + np.exp(-7)), 1 / (1 + np.exp(-7))]], 1e-6)


def test_any_number_of_rows_runs() -> None:
    model = node_model("TreeEnsemble", [rows(3, 2)], opset=5, domain=ML, symbolic=True, **modern())
    session = monograph.load(model)
    assert session.run({"x0": rows(7, 2)})[0].shape == (7, 2)
    assert session.run({"x0": rows(0, 2)})[0].shape == (0, 2)
    with pytest.raises(FeedError, match="a feature that is not there"):
        session.run({"x0": rows(2, 1)})


def test_a_deep_tree_is_one_loop() -> None:
    depth = 20_000
    attributes = modern(
        n_targets=1,
        tree_roots=[0],
        nodes_modes=tensor([0] * depth, np.uint8),
        nodes_featureids=[0] * depth,
        nodes_splits=tensor(range(depth), np.float32),
        nodes_truenodeids=[0] * depth,
        nodes_trueleafs=[1] * depth,
        nodes_falsenodeids=[*range(1, depth), 1],
        nodes_falseleafs=[0] * (depth - 1) + [1],
        leaf_targetids=[0, 0],
        leaf_weights=tensor([1.0, 2.0], np.float32),
    )
    del attributes["membership_values"]
    x = np.array([[depth - 1.0], [depth]], np.float32)
    assert run_node("TreeEnsemble", x, opset=5, domain=ML, **attributes)[0].tolist() == [[1], [2]]


# Malformed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_falsenodeids": [0, 2, 3]}, "form a circle"),
        ({"nodes_falsenodeids": [9, 2, 3]}, "not there"),
        ({"nodes_truenodeids": [0, -1, 2]}, "not there"),
        ({"nodes_truenodeids": [0, 1]}, "another length"),
        ({"tree_roots": [7]}, "root is out of range"),
        ({"tree_roots": [-1]}, "root is out of range"),
        ({"leaf_targetids": [0, 1, 2, 0]}, "target is out of range"),
        ({"n_targets": 0}, "targets"),
        ({"n_targets": 1 << 40}, "targets"),
        ({"nodes_featureids": [0, 0, 5]}, "a feature that is not there"),
        ({"nodes_featureids": [0, 0, -1]}, "negative"),
        ({"nodes_modes": tensor([6, 6, 9], np.uint8)}, "unknown mode"),
        ({"membership_values": tensor([1.0], np.float32)}, "each member node must have a set"),
        ({"aggregate_function": 4}, "unknown aggregate_function"),
        ({"post_transform": -1}, "unknown post_transform"),
    ],
)
def test_malformed_tables_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_node("TreeEnsemble", rows(3, 2), opset=5, domain=ML, **modern(**change))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes_truenodeids", 0, "form a circle"),
        ("nodes_truenodeids", 77, "not there"),
        ("nodes_nodeids", 1, "defined twice"),
        ("nodes_modes", "BRANCH_MAYBE", "unknown mode"),
        ("target_nodeids", 99, "not there"),
        ("target_ids", 5, "target is out of range"),
    ],
)
def test_malformed_nodes_are_refused(name: str, value: object, message: str) -> None:
    model = forest(1, 2, 2, ["BRANCH_LEQ"])
    model |= votes(model, "target", 1, 1)
    model[name] = [value, *model[name][1:]]
    with pytest.raises(ModelError, match=message):
        run_node("TreeEnsembleRegressor", rows(3, 2), opset=3, domain=ML, n_targets=1, **model)


def test_a_tree_without_a_root_is_refused() -> None:
    with pytest.raises(ModelError, match="no root"):
        run_node(
            "TreeEnsembleRegressor", rows(3, 2), opset=3, domain=ML, n_targets=1,
            nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_values=[0.0],
            nodes_modes=["BRANCH_LT"], nodes_truenodeids=[0], nodes_falsenodeids=[0],
        )  # fmt: skip


def test_a_circle_beside_the_root_is_refused() -> None:
    model = forest(1, 2, 2, ["BRANCH_LEQ"])
    model |= votes(model, "target", 1, 1)
    model["nodes_truenodeids"][2] = 2
    with pytest.raises(ModelError, match="form a circle"):
        run_node("TreeEnsembleRegressor", rows(3, 2), opset=3, domain=ML, n_targets=1, **model)
