"""Support vector machines against ONNX Runtime, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

ML = "ai.onnx.ml"
RNG = np.random.default_rng(7)
X = RNG.normal(size=(6, 3)).astype(np.float32)
KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0], "POLY": [0.5, 1.5, 3.0], "RBF": [0.7, 0.0, 0.0],
    "SIGMOID": [0.3, 0.1, 0.0],
}  # fmt: skip


def machine(classes: int, kernel: str = "RBF", probabilities: bool = False) -> dict:
    rng = np.random.default_rng(classes)
    per_class = [2 + i for i in range(classes)]
    total, pairs = sum(per_class), classes * (classes - 1) // 2
    attributes = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "vectors_per_class": per_class,
        "support_vectors": rng.normal(size=total * 3).tolist(),
        "coefficients": rng.normal(size=total * (classes - 1)).tolist(),
        "rho": rng.normal(size=pairs).tolist(),
        "classlabels_ints": list(range(10, 10 + classes)),
    }
    if probabilities:
        attributes["prob_a"] = (-np.abs(rng.normal(size=pairs))).tolist()
        attributes["prob_b"] = (rng.normal(size=pairs) * 0.1).tolist()
    return attributes


def classify(attributes: dict, tolerance: float = 5e-6) -> list[np.ndarray]:
    ours = run_node("SVMClassifier", X, opset=1, domain=ML, outputs=2, **attributes)
    theirs = runtime_node("SVMClassifier", X, opset=1, domain=ML, outputs=2, **attributes)
    assert ours[0].tolist() == theirs[0].tolist()
    close(ours[1:], theirs[1:], tolerance)
    return ours


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 4])
def test_every_kernel(kernel: str, classes: int) -> None:
    _, scores = classify(machine(classes, kernel), tolerance=3e-5 if kernel == "POLY" else 5e-6)
    assert scores.shape == (6, 2 if classes == 2 else 6), "pairs of four classes"


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_probabilities(classes: int) -> None:
    _, scores = classify(machine(classes, probabilities=True), tolerance=1e-5)
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("post", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(("classes", "probabilities"), [(2, False), (3, False), (3, True)])
def test_post_transforms(post: str, classes: int, probabilities: bool) -> None:
    attributes = machine(classes, probabilities=probabilities) | {"post_transform": post}
    classify(attributes, tolerance=1e-5)


def test_string_labels() -> None:
    attributes = machine(3)
    del attributes["classlabels_ints"]
    label, _ = classify(attributes | {"classlabels_strings": ["a", "b", "c"]})
    assert label.dtype == object


def test_without_vectors_it_is_linear() -> None:
    weights = RNG.normal(size=9)
    label, scores = classify(
        {"kernel_params": [0.0, 0.0, 0.0], "coefficients": weights.tolist(), "rho": [0.25],
         "classlabels_ints": [0, 1, 2]}
    )  # fmt: skip
    by_hand = X @ weights.reshape(3, 3).T + 0.25
    np.testing.assert_allclose(scores, by_hand, rtol=1e-5, atol=1e-6)
    assert label.tolist() == by_hand.argmax(1).tolist()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor(kernel: str, one_class: int) -> None:
    attributes = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "n_supports": 4,
        "support_vectors": RNG.normal(size=12).tolist(),
        "coefficients": RNG.normal(size=4).tolist(),
        "rho": [0.1],
        "one_class": one_class,
    }
    ours = run_node("SVMRegressor", X, opset=1, domain=ML, **attributes)
    theirs = runtime_node("SVMRegressor", X, opset=1, domain=ML, **attributes)
    close(ours, theirs, 3e-5 if kernel == "POLY" else 5e-6)
    if one_class:
        assert set(ours[0].reshape(-1).tolist()) <= {1.0, -1.0}


def test_a_kernel_keeps_its_precision_far_from_the_origin() -> None:
    far = np.array([[10_000.0, 1.0]], np.float32)
    (y,) = run_node(
        "SVMRegressor", far, opset=1, domain=ML, kernel_type="RBF", kernel_params=[1.0, 0.0, 0.0],
        n_supports=1, support_vectors=[10_000.0, 0.0], coefficients=[1.0], rho=[0.0],
    )  # fmt: skip
    np.testing.assert_allclose(y, [[np.exp(-1.0)]], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_type": "COSINE"}, "unknown kernel_type"),
        ({"rho": [1.0]}, "do not fit the classes"),
        ({"vectors_per_class": [2, 3]}, "a number for each class"),
        ({"vectors_per_class": [2, 3, -4]}, "a number for each class"),
        ({"support_vectors": [1.0, 2.0]}, "must divide"),
        ({"prob_a": [1.0]}, "a number for each pair"),
        ({"post_transform": "COSH"}, "unknown post_transform"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_node("SVMClassifier", X, opset=1, domain=ML, outputs=2, **(machine(3) | change))
