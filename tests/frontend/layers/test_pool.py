"""Pool nodes: ONNX Runtime as second opinion, with symbols and every kind of padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import InferError, ModelError, UnsupportedError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 7, 6)).astype(np.float32)
WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2]},
    {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 4], "strides": [3, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "VALID"},
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pools(op: str, window: Any, symbolic: bool) -> None:
    theirs = runtime_node(op, X, opset=11, **window)
    close(run_node(op, X, opset=11, symbolic=symbolic, **window), theirs, 1e-5)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"dilations": [2, 1], "ceil_mode": 1}),
        ("MaxPool", {"ceil_mode": 1, "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"ceil_mode": 1, "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("AveragePool", {"pads": [1, 0, 0, 1], "count_include_pad": 1}),
        ("AveragePool", {"dilations": [1, 2]}),
        ("LpPool", {"p": 1, "ceil_mode": 1}),
        ("LpPool", {"p": 3, "dilations": [2, 2]}),
    ],
)
def test_later_attributes(op: str, attributes: Any) -> None:
    attributes = {"kernel_shape": [2, 3], "strides": [2, 2], "opset": 19, **attributes}
    close(run_node(op, X, **attributes), runtime_node(op, X, **attributes), 1e-5)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("window", WINDOWS[:2])
def test_max_pool_gives_places(window: Any, order: int) -> None:
    options = {**window, "outputs": 2, "storage_order": order, "opset": 12}
    close(run_node("MaxPool", X, **options), runtime_node("MaxPool", X, **options), 0)


def test_places_are_computed_only_where_they_are_used() -> None:
    graph = monograph.load(node_model("MaxPool", (X,), kernel_shape=[2, 2])).graph
    assert [v.op.name for v in graph.values if v.inputs] == ["max_pool"]


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_max_pool_of_small_integers(kind: Any) -> None:
    x = RNG.integers(-100 if kind == np.int8 else 0, 100, (1, 2, 5, 5)).astype(kind)
    options: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "opset": 12}
    close(run_node("MaxPool", x, **options), runtime_node("MaxPool", x, **options), 0)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalMaxPool", {}),
        ("GlobalAveragePool", {}),
        ("GlobalLpPool", {}),
        ("GlobalLpPool", {"p": 3}),
    ],
)
def test_global_pools_are_reductions(op: str, attributes: Any) -> None:
    theirs = runtime_node(op, X, **attributes)
    for symbolic in (False, True):
        close(run_node(op, X, symbolic=symbolic, **attributes), theirs, 1e-5)
    names = {v.op.name for v in monograph.load(node_model(op, (X,), **attributes)).graph.values}
    assert names & {"reduce_max", "reduce_sum"}


def test_a_global_average_of_many_halves_does_not_overflow() -> None:
    x = np.full((1, 1, 300, 300), 4, np.float16)
    (y,) = run_node("GlobalAveragePool", x)
    assert (y.dtype, y.item()) == (np.float16, 4)


@pytest.mark.parametrize("constant", [(), (2,)])
def test_max_unpool(constant: tuple[int, ...]) -> None:
    x, places = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    options: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "opset": 11}
    (plain,) = run_node("MaxUnpool", x, places, **options)
    expected = np.zeros((1, 1, 4, 4), np.float32)
    expected.reshape(-1)[[5, 7, 13, 15]] = [1, 2, 3, 4]
    np.testing.assert_array_equal(plain, expected)
    sizes = np.array([1, 1, 5, 5])
    (larger,) = run_node("MaxUnpool", x, places, sizes, constant=constant, **options)
    np.testing.assert_array_equal(larger, np.pad(expected, [(0, 0), (0, 0), (0, 1), (0, 1)]))


def test_nodes_refused() -> None:
    with pytest.raises(ModelError, match="requires: kernel_shape"):
        run_node("MaxPool", X)
    with pytest.raises(ModelError, match="input of a global pool must be"):
        run_node("GlobalMaxPool", X[0, 0])
    with pytest.raises(ModelError, match="the order of a norm must be positive"):
        run_node("GlobalLpPool", X, p=0)
    with pytest.raises(UnsupportedError, match="p is not a whole number"):
        run_node("LpPool", X, opset=1, kernel_shape=[2, 2], p=2.5)


WIDE: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2,), {"kernel_shape": [3], "strides": [2]}),
    ((2,), {"kernel_shape": [5], "strides": [4]}),
    ((3,), {"kernel_shape": [2], "strides": [4], "dilations": [3]}),
    ((2,), {"kernel_shape": [5], "strides": [3], "pads": [1, 0]}),
    ((2,), {"kernel_shape": [4], "strides": [3], "pads": [0, 1], "dilations": [2]}),
    ((2,), {"kernel_shape": [4], "strides": [2]}),  # none at all
    ((2, 5), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((5, 1), {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ((1, 4, 2), {"kernel_shape": [3, 2, 4], "strides": [3, 2, 4], "pads": [1, 0, 0, 0, 1, 1]}),
]
"""Windows larger than the padded input, along some axis."""


@pytest.mark.parametrize(("sizes", "window"), WIDE)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {}),
        ("MaxPool", {"outputs": 2}),
        ("MaxPool", {"outputs": 2, "storage_order": 1}),
        ("AveragePool", {}),
        ("AveragePool", {"count_include_pad": 1}),
        ("LpPool", {"p": 3}),
    ],
)
def test_a_window_larger_than_the_input(op: str, attributes: Any, sizes: Any, window: Any) -> None:
    """With ceil_mode the last window may reach beyond the end, also where it is the only one."""
    x = RNG.normal(size=(2, 9, *sizes)).astype(np.float32)
    options = {**window, **attributes, "ceil_mode": 1, "opset": 19}
    theirs = runtime_node(op, x, **options)
    close(run_node(op, x, **options), theirs, 1e-5)
    close(run_node(op, x, symbolic=True, **options), theirs, 1e-5)
    compiled = monograph.load(node_model(op, (x,), **options), target="cpu")
    close(compiled.run({"x0": x}), theirs, 1e-5)


def test_one_window_holds_all_there_is() -> None:
    x = np.array([[[1, 2]]], np.float32)
    window: dict[str, Any] = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "opset": 19}
    for op, expected in (("MaxPool", 2.0), ("AveragePool", 1.5), ("LpPool", np.sqrt(5.0))):
        np.testing.assert_allclose(run_node(op, x, **window)[0], [[[expected]]], 1e-6)


@pytest.mark.parametrize("ceil", [0, 1])
def test_a_window_that_fits_nowhere_is_refused(ceil: int) -> None:
    x = np.ones((1, 1, 2), np.float32)
    with pytest.raises(InferError, match="larger than the padded input"):
        run_node("MaxPool", x, kernel_shape=[5], strides=[1], ceil_mode=ceil)
