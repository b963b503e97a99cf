"""Support vector machines: kernels and decisions are arithmetic, computed in f64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from monograph.frontend.onnx.convert.common import cast, scalar
from monograph.frontend.onnx.convert.ml import (
    ML,
    NONE,
    class_labels,
    post_transform,
    post_transform_name,
    rows,
    top_label,
    two_scores,
)
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Array, Value, constant
from monograph.ir.dtype import f32, f64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.ml import CoupleProbabilities
from monograph.ops.pad_tile import Pad
from monograph.ops.reduce import ReduceSum

MAX_CLASSES = 1000
MAX_WEIGHTS = 1 << 26
"""The most weights of all vectors in all pairs: mostly zeros, which the file does not store."""


def _kernel(n: Node, x: Value, vectors: Array) -> Value:
    """k(x, v) of every row with every support vector: [N, S]."""
    kind = n.attr_string("kernel_type", "LINEAR")
    gamma, coef0, degree = (*n.attr_floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    product = Dot()(x, constant(vectors.T))
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        # |x - v|^2 = |x|^2 - 2 x v + |v|^2, which rounding may make negative.
        squares = ReduceSum((1,), keep=True)(ew.Mul()(x, x))
        own = constant((vectors**2).sum(1))
        distance = ew.Add()(ew.Sub()(squares, ew.Mul()(product, scalar(2.0, x))), own)
        distance = ew.Max()(distance, scalar(0.0, x))
        return ew.Exp()(ew.Mul()(distance, scalar(-gamma, x)))
    scaled = ew.Add()(ew.Mul()(product, scalar(gamma, x)), scalar(coef0, x))
    if kind == "POLY":
        return ew.Pow()(scaled, scalar(degree, x))
    if kind == "SIGMOID":
        return ew.Tanh()(scaled)
    n.fail("unknown kernel_type", expected="LINEAR, POLY, RBF or SIGMOID", given=kind)


def _vectors(n: Node, count: int) -> Array:
    data = np.array(n.attr_floats("support_vectors", ()))
    if count <= 0 or len(data) % count:
        n.fail(
            "support_vectors must divide into equal vectors",
            expected=f"{count} vectors",
            given=len(data),
        )
    return data.reshape(count, -1)


@converter("SVMRegressor", domain=ML)
def svm_regressor(n: Node) -> Value:
    """Convert SVMRegressor: a weighted sum of kernels, its sign for one class; linear if there are
    no support vectors.
    """
    x = cast(rows(n.input(0)), f64)
    weights = np.array(n.attr_floats("coefficients", ()))
    rho = n.attr_floats("rho", ())
    if len(rho) != 1:
        n.fail("rho must be one number", given=len(rho))
    supports = n.attr_int("n_supports", 0)
    if supports > 0:
        if len(weights) != supports:
            n.fail(
                "there must be one coefficient per support vector",
                expected=supports,
                given=len(weights),
            )
        x = _kernel(n, x, _vectors(n, supports))
    score = ew.Add()(Dot()(x, constant(weights.reshape(-1, 1))), scalar(rho[0], x))
    if n.attr_flag("one_class"):
        inside = ew.Less()(scalar(0.0, score), score)
        score = ew.Where()(inside, scalar(1.0, score), scalar(-1.0, score))
        return cast(score, f32)
    return cast(post_transform(score, post_transform_name(n)), f32)


@converter("SVMClassifier", domain=ML)
def svm_classifier(n: Node) -> Sequence[Value]:
    labels = class_labels(n, "classlabels_ints", "classlabels_strings")
    if labels is None:
        n.fail("one of classlabels_ints and classlabels_strings is needed")
    x = cast(rows(n.input(0)), f64)
    per_class = n.attr_ints("vectors_per_class", ())
    kind = post_transform_name(n)
    if not per_class:
        scores = _linear_decisions(n, x, len(labels))
        return top_label(scores, labels), cast(post_transform(scores, kind), f32)
    decisions = _pair_decisions(n, x, per_class, len(labels))
    label = top_label(_votes(decisions, len(labels)), labels)
    if n.has("prob_a"):
        scores = post_transform(_probabilities(n, decisions, len(labels)), kind)
    elif len(labels) == 2:
        scores = two_scores(decisions, kind, negate=kind == NONE)
    else:
        # Without probabilities the scores are the decisions of the pairs.
        scores = post_transform(decisions, kind)
    return label, cast(scores, f32)


def _linear_decisions(n: Node, x: Value, classes: int) -> Value:
    weights = np.array(n.attr_floats("coefficients", ()))
    rho = n.attr_floats("rho", ())
    if len(weights) % classes or not len(weights) or not rho:
        n.fail("coefficients must divide among the classes", expected=classes, given=len(weights))
    return ew.Add()(Dot()(x, constant(weights.reshape(classes, -1).T)), scalar(rho[0], x))


def _pair_decisions(n: Node, x: Value, per_class: tuple[int, ...], classes: int) -> Value:
    """Return the decision of every pair of classes, [N, P]: positive for the first class."""
    if len(per_class) != classes or min(per_class) < 0:
        n.fail(
            "vectors_per_class must have a number for each class", expected=classes, given=per_class
        )
    if not 2 <= classes <= MAX_CLASSES:
        n.fail("the number of classes is out of range", expected=f"2..{MAX_CLASSES}", given=classes)
    total = sum(per_class)
    vectors = _vectors(n, total)
    coefficients = np.array(n.attr_floats("coefficients", ()))
    pairs = list(combinations(range(classes), 2))
    rho = np.array(n.attr_floats("rho", ()))
    if len(coefficients) != total * (classes - 1) or len(rho) != len(pairs):
        n.fail(
            "coefficients or rho do not fit the classes",
            expected=f"{total * (classes - 1)} and {len(pairs)}",
            given=f"{len(coefficients)} and {len(rho)}",
        )
    # A vector has one coefficient against each other class, in the order of the classes.
    coefficients = coefficients.reshape(classes - 1, total)
    ends = np.cumsum(per_class)
    begins = ends - per_class
    if total * len(pairs) > MAX_WEIGHTS:
        n.unsupported(f"more than {MAX_WEIGHTS:,} weights of vectors in pairs of classes")
    weights = np.zeros((total, len(pairs)))
    for p, (i, j) in enumerate(pairs):
        of_i, of_j = slice(begins[i], ends[i]), slice(begins[j], ends[j])
        weights[of_i, p] = coefficients[j - 1, of_i]
        weights[of_j, p] = coefficients[i, of_j]
    return ew.Add()(Dot()(_kernel(n, x, vectors), constant(weights)), constant(rho))


def _square(pairs: Value, classes: int) -> Value:
    """Turn [N, P] into [N, C, C]: p of the pair i, j in row i, 1 - p in row j, zeros between."""
    count = classes * (classes - 1) // 2
    both = sh.Concat(1)(pairs, ew.Sub()(scalar(1.0, pairs), pairs))
    table = Pad((0, 0), (0, 1))(both, scalar(0.0, pairs))
    places = np.full((classes, classes), 2 * count)
    for k, (i, j) in enumerate(combinations(range(classes), 2)):
        places[i, j], places[j, i] = k, count + k
    return Gather(1)(table, constant(places))


def _votes(decisions: Value, classes: int) -> Value:
    """Return the number of pairs that each class wins, [N, C]."""
    won = cast(ew.Less()(scalar(0.0, decisions), decisions), f64)
    return ReduceSum((2,))(_square(won, classes))


def _probabilities(n: Node, decisions: Value, classes: int) -> Value:
    """Platt's sigmoid of each pair, coupled to probabilities of the classes."""
    a, b = np.array(n.attr_floats("prob_a")), np.array(n.attr_floats("prob_b", ()))
    count = classes * (classes - 1) // 2
    if not len(a) == len(b) == count:
        n.fail("prob_a and prob_b must have a number for each pair", expected=count, given=len(a))
    scaled = ew.Add()(ew.Mul()(decisions, constant(a)), constant(b))
    p = ew.Clip(1e-7, 1 - 1e-7)(ew.Sigmoid()(ew.Neg()(scaled)))
    return CoupleProbabilities()(_square(p, classes))
