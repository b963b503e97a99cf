"""State of loops that starts as a placeholder of another rank, as Paddle exports it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import UnknownRankError

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def info(name: str, shape: list[Any] | None, element: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def placeholder_loop(
    trips: int | None, limit: int = 100, shape: tuple[Any, ...] = (2, 3), known: bool = True
) -> onnx.ModelProto:
    """State `s` starts as a scalar, which the body never reads; `t` is read; turns are counted.

    s = x * (i + 1), t = t + s, and what is collected is the sum of s. The loop ends when i + 1
    reaches the limit. Behind the loop s is an operand of Softmax, whose rank must be known.
    """
    body = helper.make_graph(
        [
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Cast", ["next"], ["factor"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "factor"], ["s_out"]),
            helper.make_node("Add", ["t", "s_out"], ["t_out"]),
            helper.make_node("ReduceSum", ["s_out"], ["kept"], keepdims=0),
            helper.make_node("Less", ["next", "limit"], ["go_on"]),
        ],
        "body",
        [info("i", [], 7), info("c", [], 9), info("s", None), info("t", None)],
        [info("go_on", [], 9), info("s_out", None), info("t_out", None), info("kept", [])],
    )
    nodes = [
        helper.make_node(
            "Loop", ["" if trips is None else "n", "start", "s0", "x"], ["s1", "t1", "all"],
            body=body,
        ),
        helper.make_node("Softmax", ["s1"], ["y"], axis=1),
    ]  # fmt: skip
    weights = [
        numpy_helper.from_array(np.float32(7).reshape(()), "s0"),
        numpy_helper.from_array(np.array(1), "one"),
        numpy_helper.from_array(np.array(limit), "limit"),
    ]
    if trips is not None:
        weights.append(numpy_helper.from_array(np.array(trips), "n"))
    inputs = [info("x", list(shape))]
    if known:
        weights.append(numpy_helper.from_array(np.array(True), "start"))
    else:
        inputs.append(info("start", [], 9))
    outputs = [info("y", None), info("t1", None), info("all", None)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model: onnx.ModelProto, target: str, **more: Any) -> None:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), quiet)
    session = monograph.load(model, target=target)
    for scale in (1, 0.5):
        feeds = {"x": X * np.float32(scale), **more}
        for a, b in zip(session.run(feeds), theirs.run(None, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@TARGETS
@pytest.mark.parametrize("shape", [(2, 3), ("a", "b")], ids=["static", "open"])
@pytest.mark.parametrize(("trips", "limit"), [(1, 9), (2, 9), (5, 9), (5, 3), (5, 1), (None, 4)])
def test_a_placeholder_takes_the_rank_of_the_first_turn(
    trips: int | None, limit: int, shape: tuple[Any, ...], target: str
) -> None:
    check(placeholder_loop(trips, limit, shape), target)


@TARGETS
def test_a_loop_that_may_not_turn_has_no_such_rank(target: str) -> None:
    """The placeholder may be the result if the condition is data."""
    session = monograph.load(placeholder_loop(3, known=False), target=target)
    with pytest.raises(UnknownRankError):
        _ = session.graph


@TARGETS
@pytest.mark.parametrize("start", [True, False])
def test_a_condition_in_the_data_decides_the_rank(start: bool, target: str) -> None:
    model = placeholder_loop(3, known=False)
    model.graph.node[1].CopyFrom(helper.make_node("Neg", ["s1"], ["y"]))
    check(model, target, start=np.array(start))


@TARGETS
def test_a_loop_without_turns_keeps_its_placeholder(target: str) -> None:
    model = placeholder_loop(0)
    model.graph.node[1].CopyFrom(helper.make_node("Neg", ["s1"], ["y"]))
    check(model, target)


@TARGETS
def test_nested_loops_with_placeholders(target: str) -> None:
    """The inner loop is imported for the first turn of the outer one, and for the others."""
    inner = placeholder_loop(3).graph
    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["s0"], value=inner.initializer[0]),
            inner.node[0],
            helper.make_node("Softmax", ["s1"], ["u_out"], axis=1),
            helper.make_node("Identity", ["k"], ["k_out"]),
        ],
        "outer",
        [info("j", [], 7), info("k", [], 9), info("u", None)],
        [info("k_out", [], 9), info("u_out", None), info("all", None)],
    )
    nodes = [
        helper.make_node("Loop", ["m", "start", "u0"], ["u1", "every"], body=body),
        helper.make_node("Softmax", ["u1"], ["y"], axis=1),
    ]
    weights = [w for w in inner.initializer if w.name != "s0"]
    weights += [
        numpy_helper.from_array(np.array(2), "m"),
        numpy_helper.from_array(np.zeros(3, np.float32), "u0"),
    ]
    graph = helper.make_graph(
        nodes, "net", [info("x", [2, 3])], [info("y", None), info("every", None)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    check(model, target)
