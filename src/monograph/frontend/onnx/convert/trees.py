"""Tree ensembles: the three forms of ai.onnx.ml, as one table of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.frontend.onnx.convert.common import cast, scalar
from monograph.frontend.onnx.convert.ml import (
    ML,
    POST_TRANSFORMS,
    choose_label,
    class_labels,
    post_transform,
    post_transform_name,
    rows,
    top_label,
    two_scores,
)
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Array, DType, Literal, Value, constant
from monograph.ir.dtype import f32, f64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.trees import LEAF, MEMBER, TreeEnsemble

_MODES = {
    "BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
    "BRANCH_NEQ": 5, "LEAF": LEAF,
}  # fmt: skip
_AGGREGATES = ("average", "sum", "min", "max")


def _numbers(n: Node, name: str) -> Array:
    """Return the floats of an attribute, or the doubles of the same with `_as_tensor`."""
    if n.has(f"{name}_as_tensor"):
        literal: Literal = n.attr_literal(f"{name}_as_tensor")
        if not literal.dtype.is_float:
            n.fail(f"{name}_as_tensor must hold floats", given=literal.type)
        return literal.array.reshape(-1)
    return np.array(n.attr_floats(name, ()), np.float32)


def _ints(n: Node, name: str, count: int | None = None) -> Array:
    """Return a list of integers, which must have this length."""
    given = np.array(n.attr_ints(name, () if count is None else (0,) * count), np.int64)
    if count is not None and len(given) != count:
        n.fail(f"{name} has another length than the nodes", expected=count, given=len(given))
    return given


def _offsets(owners: Array, count: int) -> Array:
    """Return the start of each owner's items, with the items sorted by owner."""
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))])


# TreeEnsembleRegressor and TreeEnsembleClassifier


@dataclass(frozen=True)
class _Nodes:
    """The nodes of versions 1 and 3: ids within trees, leaves among the nodes."""

    trees: Array
    ids: Array
    modes: Array
    places: dict[tuple[int, int], int]

    @staticmethod
    def read(n: Node) -> _Nodes:
        trees = _ints(n, "nodes_treeids")
        count = len(trees)
        ids = _ints(n, "nodes_nodeids", count)
        names = n.attr_strings("nodes_modes")
        if len(names) != count or count == 0:
            n.fail(
                "nodes_modes has another length than the nodes", expected=count, given=len(names)
            )
        unknown = [m for m in names if m not in _MODES]
        if unknown:
            n.fail("unknown mode of a node", expected=" ".join(_MODES), given=unknown[0])
        keys = list(zip(trees.tolist(), ids.tolist(), strict=True))
        places = {key: i for i, key in enumerate(keys)}
        if len(places) < count:
            n.fail("a node is defined twice in its tree")
        modes = np.array([_MODES[m] for m in names], np.uint8)
        return _Nodes(trees, ids, modes, places)

    def find(self, n: Node, what: str, trees: Array, ids: Array) -> Array:
        """Return the indices of nodes given by tree and id."""
        keys = zip(trees.tolist(), ids.tolist(), strict=True)
        found = [self.places.get(key, -1) for key in keys]
        if -1 in found:
            i = found.index(-1)
            n.fail(f"{what} names a node that is not there", given=f"tree {trees[i]}, id {ids[i]}")
        return np.array(found, np.int64)

    def children(self, n: Node, name: str) -> Array:
        """Return the index of each inner node's child."""
        ids = _ints(n, name, len(self.trees))
        inner = self.modes != LEAF
        result = np.zeros(len(self.trees), np.int64)
        result[inner] = self.find(n, name, self.trees[inner], ids[inner])
        return result

    def roots(self, n: Node, yes: Array, no: Array) -> Array:
        """Return the first node of each tree that is no child."""
        inner = self.modes != LEAF
        is_child = np.zeros(len(self.trees), bool)
        is_child[yes[inner]] = True
        is_child[no[inner]] = True
        first: dict[int, int] = {}
        for i in np.flatnonzero(~is_child).tolist():
            first.setdefault(int(self.trees[i]), i)
        missing = set(self.trees.tolist()) - set(first)
        if missing:
            n.fail("a tree has no root: its nodes form a circle", given=f"tree {min(missing)}")
        return np.array(list(first.values()), np.int64)


def _ensemble(
    n: Node, x: Value, votes: str, target_ids: str, targets: int, aggregate: str
) -> tuple[Value, Array, Array]:
    """The ensemble's scores, and the targets and weights of its votes."""
    nodes = _Nodes.read(n)
    count = len(nodes.modes)
    yes = nodes.children(n, "nodes_truenodeids")
    no = nodes.children(n, "nodes_falsenodeids")
    splits, weights = _numbers(n, "nodes_values"), _numbers(n, f"{votes}_weights")
    if len(splits) != count:
        n.fail("nodes_values has another length than the nodes", expected=count, given=len(splits))
    total = len(weights)
    owners = nodes.find(
        n,
        f"{votes}_nodeids",
        _ints(n, f"{votes}_treeids", total),
        _ints(n, f"{votes}_nodeids", total),
    )
    voted = _ints(n, target_ids, total)
    # Votes at an inner node never count.
    cast_ = nodes.modes[owners] == LEAF
    owners, voted, weights = owners[cast_], voted[cast_], weights[cast_]
    order = np.argsort(owners, kind="stable")
    doubles = f64 in (x.dtype, Literal(splits).dtype, Literal(weights).dtype)
    scores = TreeEnsemble(
        roots=Literal(nodes.roots(n, yes, no)),
        modes=Literal(nodes.modes),
        features=Literal(_ints(n, "nodes_featureids", count)),
        splits=Literal(splits),
        yes=Literal(yes),
        no=Literal(no),
        missing_yes=Literal(_ints(n, "nodes_missing_value_tracks_true", count) == 1),
        first_vote=Literal(_offsets(owners, count)),
        vote_targets=Literal(voted[order]),
        vote_weights=Literal(weights[order]),
        first_member=Literal(np.zeros(count + 1, np.int64)),
        members=Literal(np.zeros(0)),
        targets=targets,
        aggregate=aggregate,
        out=f64 if doubles else f32,
    )(x)
    return scores, voted, weights


def _add_base(n: Node, scores: Value, targets: int) -> Value:
    base = _numbers(n, "base_values")
    if not len(base):
        return scores
    if len(base) != targets:
        n.fail("base_values has another length than the targets", expected=targets, given=len(base))
    return ew.Add()(scores, constant(base, scores.dtype))


@converter("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(n: Node) -> Value:
    targets = n.attr_int("n_targets")
    aggregate = n.attr_string("aggregate_function", "SUM").lower()
    if aggregate not in _AGGREGATES:
        n.fail("unknown aggregate_function", expected=" ".join(_AGGREGATES), given=aggregate)
    x = rows(n.input(0))
    scores, _, _ = _ensemble(n, x, "target", "target_ids", targets, aggregate)
    scores = _add_base(n, scores, targets)
    return cast(post_transform(scores, post_transform_name(n)), f32)


@converter("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(n: Node) -> Sequence[Value]:
    """Convert TreeEnsembleClassifier: the top class and the scores.

    If there are two classes with votes for one only, that score decides alone: against 0.5 if all
    weights are positive (a probability), else against 0.
    """
    labels = class_labels(n, "classlabels_int64s", "classlabels_strings")
    if labels is None:
        n.fail("one of classlabels_int64s and classlabels_strings is needed")
    count = len(labels)
    kind = post_transform_name(n)
    scores, voted, weights = _ensemble(n, rows(n.input(0)), "class", "class_ids", count, "sum")
    classes = np.unique(voted)
    if count != 2 or len(classes) != 1:
        scores = _add_base(n, scores, count)
        return top_label(scores, labels), cast(post_transform(scores, kind), f32)
    column = int(classes[0])
    base = _numbers(n, "base_values")
    if len(base) not in (0, 1, 2):
        n.fail("base_values has another length than the classes", expected=2, given=len(base))
    if len(base):
        base = np.resize(base, 2) if len(base) == 1 else base
        scores = ew.Add()(scores, constant(base, scores.dtype))
    positive = bool((weights >= 0).all())
    score = sh.Slice((0, column), (np.iinfo(np.int64).max, column + 1), (1, 1))(scores)
    threshold = scalar(0.5 if positive else 0.0, scores)
    second = ew.Less()(threshold, sh.Squeeze((1,))(score))
    if column == 0:
        shown = two_scores(score, kind, negate=not positive)
    else:
        shown = post_transform(scores, kind)
    return choose_label(second, labels), cast(shown, f32)


# TreeEnsemble (version 5)


def _member_sets(n: Node, modes: Array) -> tuple[Array, Array]:
    """Return the members of each MEMBER node, and the start of each node's members."""
    is_member = modes == MEMBER
    literal: Literal | None = n.attr_literal("membership_values", None)
    values = np.zeros(0) if literal is None else literal.array.reshape(-1)
    ends = np.isnan(values.astype(np.float64))
    # A NaN ends a set; the last set may lack it.
    sets = int(ends.sum()) + bool(len(values) and not ends[-1])
    if sets != int(is_member.sum()):
        n.fail("each member node must have a set", expected=int(is_member.sum()), given=sets)
    number, kept = np.cumsum(ends), ~ends
    owners = np.flatnonzero(is_member)[number[kept]]
    return values[kept], _offsets(owners, len(modes))


def _choice(n: Node, name: str, choices: Sequence[str], default: int) -> str:
    given = n.attr_int(name, default)
    if not 0 <= given < len(choices):
        n.fail(f"unknown {name}", expected=f"0..{len(choices) - 1}", given=given)
    return choices[given]


@converter("TreeEnsemble", since=5, domain=ML)
def tree_ensemble(n: Node) -> Value:
    """Convert TreeEnsemble, whose inner nodes and leaves are separate; here leaves follow nodes."""
    modes_literal: Literal = n.attr_literal("nodes_modes")
    inner = modes_literal.array.reshape(-1)
    count = len(inner)
    if inner.dtype.kind not in "iu" or bool((inner > MEMBER).any()):
        n.fail("unknown mode of a node", expected=f"0..{MEMBER}", given=modes_literal.type)
    weights: Array = n.attr_literal("leaf_weights").array.reshape(-1)
    targets = n.attr_int("n_targets")
    splits: Array = n.attr_literal("nodes_splits").array.reshape(-1)
    if len(splits) != count:
        n.fail("nodes_splits has another length than the nodes", expected=count, given=len(splits))
    members, first_member = _member_sets(n, inner)
    leaves = len(weights)

    def padded(table: Array, filler: Any = 0) -> Literal:
        return Literal(np.concatenate([table, np.full(leaves, filler, table.dtype)]))

    def children(name: str, is_leaf: str) -> Literal:
        ids, leaf = _ints(n, name, count), _ints(n, is_leaf, count) != 0
        limit = np.where(leaf, leaves, count)
        wrong = (ids < 0) | (ids >= limit)
        if wrong.any():
            n.fail(f"{name} names a node or leaf that is not there", given=int(ids[wrong][0]))
        return padded(np.where(leaf, ids + count, ids))

    out: DType = n.input(0).dtype
    scores = TreeEnsemble(
        roots=Literal(_ints(n, "tree_roots")),
        modes=padded(inner.astype(np.uint8), LEAF),
        features=padded(_ints(n, "nodes_featureids", count)),
        splits=padded(splits),
        yes=children("nodes_truenodeids", "nodes_trueleafs"),
        no=children("nodes_falsenodeids", "nodes_falseleafs"),
        missing_yes=padded(_ints(n, "nodes_missing_value_tracks_true", count) == 1),
        first_vote=Literal(np.concatenate([np.zeros(count, np.int64), np.arange(leaves + 1)])),
        vote_targets=Literal(_ints(n, "leaf_targetids", leaves)),
        vote_weights=Literal(weights),
        first_member=padded(first_member, len(members)),
        members=Literal(members),
        targets=targets,
        aggregate=_choice(n, "aggregate_function", _AGGREGATES, 1),
        out=out,
    )(rows(n.input(0)))
    return post_transform(scores, _choice(n, "post_transform", POST_TRANSFORMS, 0))
