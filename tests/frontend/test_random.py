"""Random nodes: distinct, repeatable with a seed, of the right distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import node_model, run_node

T = onnx.TensorProto


def test_two_nodes_with_the_same_attributes_are_two_values() -> None:
    nodes = [helper.make_node("RandomNormal", [], [n], shape=[4]) for n in "ab"]
    nodes.append(helper.make_node("Sub", ["a", "b"], ["y"]))
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = monograph.load(model)
    (first,), (second,) = session.run({}), session.run({})
    assert (first != 0).all()
    assert (first != second).any()


def test_nodes_that_share_a_name_are_two_values() -> None:
    nodes = [helper.make_node("RandomNormal", [], [n], "same", shape=[4]) for n in "ab"]
    nodes.append(helper.make_node("Sub", ["a", "b"], ["y"]))
    graph = helper.make_graph(nodes, "g", [], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert (monograph.load(model).run({})[0] != 0).all()


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
def test_a_seed_repeats_in_a_fresh_session(op: str) -> None:
    model = node_model(op, (), shape=[8], seed=4.0)
    one, two = monograph.load(model), monograph.load(model)
    first = [one.run({})[0], one.run({})[0]]
    np.testing.assert_array_equal(first, [two.run({})[0], two.run({})[0]])
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize("symbolic", [False, True])
def test_like_takes_shape_and_type(symbolic: bool) -> None:
    x = np.zeros((50, 40), np.float64)
    (y,) = run_node("RandomUniformLike", x, low=2.0, high=3.0, seed=1.0, symbolic=symbolic)
    assert y.dtype == np.float64
    assert y.shape == x.shape
    assert 2 <= y.min() < y.max() <= 3
    (y,) = run_node("RandomNormalLike", x, mean=9.0, seed=1.0, dtype=T.FLOAT16, symbolic=symbolic)
    assert y.dtype == np.float16
    # Standard error: 1 / sqrt(2000) = 0.022.
    assert abs(y.astype(float).mean() - 9) < 0.12


def test_bernoulli() -> None:
    x = np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 10_000, 1)
    (y,) = run_node("Bernoulli", x, seed=2.0, symbolic=True)
    assert y.dtype == np.float32
    assert set(np.unique(y)) == {0, 1}
    assert not y[0].any()
    assert y[2].all()
    assert abs(y[1].mean() - 0.25) < 0.02
    assert run_node("Bernoulli", x, dtype=T.INT64)[0].dtype == np.int64


@pytest.mark.parametrize("symbolic", [False, True])
def test_multinomial(symbolic: bool) -> None:
    x = np.log(np.array([[0.2, 0.5, 0.3], [1e-30, 1e-30, 1.0]], np.float32))
    options: dict[str, Any] = {"sample_size": 5000, "seed": 6.0, "symbolic": symbolic}
    (y,) = run_node("Multinomial", x, dtype=T.INT64, **options)
    assert y.shape == (2, 5000)
    assert y.dtype == np.int64
    # Standard error: at most sqrt(0.25 / 5000) = 0.007.
    np.testing.assert_allclose(np.bincount(y[0]) / 5000, [0.2, 0.5, 0.3], atol=0.035)
    assert (y[1] == 2).all()


def test_multinomial_refuses_what_it_cannot_draw_from() -> None:
    with pytest.raises(ModelError, match=r"\[batch, classes\]"):
        run_node("Multinomial", np.zeros(3, np.float32))
    with pytest.raises(ModelError, match="sample_size"):
        run_node("Multinomial", np.zeros((1, 3), np.float32), sample_size=0)
