"""Loops with a counter and a condition, as TensorFlow's exporter writes them: their iterations are
counted during the import, and state that the body only passes on is a capture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.ir import Graph, known
from monograph.ops.control import Loop

BOOL, INT, FLOAT = TensorProto.BOOL, TensorProto.INT32, TensorProto.FLOAT
X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
W = np.array([[1, 2, 0], [0, 1, -1], [1, 0, 1]], np.float32)


def info(name: str, element: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def rows_loop(limit: str = "rows", start: int = 0, step: int = 1) -> onnx.ModelProto:
    """h = tanh(x[i] @ w + h) for each row, and every h; the counter ends at `limit`."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["at", "step"], ["at_out"]),
            helper.make_node("Gather", ["x", "at"], ["row"]),
            helper.make_node("MatMul", ["row", "w_in"], ["product"]),
            helper.make_node("Add", ["product", "h"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["h_out"]),
            helper.make_node("Identity", ["h_out"], ["kept"]),
            helper.make_node("Cast", ["at_out"], ["a"], to=FLOAT),
            helper.make_node("Cast", ["limit_in"], ["b"], to=FLOAT),
            helper.make_node("Less", ["a", "b"], ["go_on"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []), info("c", BOOL, []), info("at", INT, []),
            info("h", FLOAT, [3]), info("limit_in", INT, []), info("w_in", FLOAT, [3, 3]),
        ],
        [
            info("go_on", BOOL, []), info("at_out", INT, []), info("h_out", FLOAT, [3]),
            info("limit_in", INT, []), info("w_in", FLOAT, [3, 3]), info("kept", FLOAT, [3]),
        ],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows64"]),
        helper.make_node("Cast", ["rows64"], ["rows"], to=INT),
        helper.make_node("Less", ["start", limit], ["first"]),
        helper.make_node(
            "Loop", ["", "first", "start", "h0", limit, "w"],
            ["at1", "y", "limit1", "w1", "all"], body=body,
        ),
    ]  # fmt: skip
    weights = {
        "zero": np.int64(0), "start": np.int32(start), "step": np.int32(step), "w": W,
        "h0": np.zeros(3, np.float32),
    }  # fmt: skip
    inputs = [info("x", FLOAT, ["n", 3])]
    if limit != "rows":
        inputs.append(info(limit, INT, []))
    graph = helper.make_graph(
        nodes, "g", inputs,
        [info(n, t, None) for n, t in (("at1", INT), ("y", FLOAT), ("all", FLOAT), ("w1", FLOAT))],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def loops(graph: Graph) -> list[Any]:
    return [v for v in graph.values if isinstance(v.op, Loop)]


def check(model: onnx.ModelProto, feeds: dict[str, Any], target: str) -> Any:
    """Compare with ONNX Runtime; return the session."""
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    session = monograph.load(model, target=target)
    for found, expected in zip(session.run(feeds), theirs.run(None, feeds), strict=True):
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)
    return session


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("start", "step"), [(0, 1), (1, 1), (0, 2)])
def test_a_loop_over_rows(target: str, start: int, step: int) -> None:
    session = check(rows_loop(start=start, step=step), {"x": X}, target)
    (loop,) = loops(session.bound_graph({"x": X}))
    assert known(loop.inputs[0]) == len(range(start, 4, step))
    assert known(loop.op.body.outputs[0][1])
    assert loop.op.carried == 2  # the counter and h; the limit and the weights are captures


def test_other_rows_are_counted_anew() -> None:
    session = check(rows_loop(), {"x": X}, "cpu")
    for rows in (1, 3):
        given = {"x": X[:rows]}
        assert session.run(given)[2].shape == (rows, 3)
        assert known(loops(session.bound_graph(given))[0].inputs[0]) == rows
    assert session.stats["launches_per_run"] == 1


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_loop_whose_condition_depends_on_data_is_not_counted(target: str) -> None:
    feeds = {"x": X, "limit": np.array(3, np.int32)}
    session = check(rows_loop("limit"), feeds, target)
    (loop,) = loops(session.bound_graph(feeds))
    assert known(loop.op.body.outputs[0][1]) is None
    assert loop.op.carried == 2  # fixed state is a capture all the same
    assert session.run(feeds | {"limit": np.array(2, np.int32)})[2].shape == (2, 3)


def test_no_iteration() -> None:
    feeds = {"x": X[:0]}
    assert monograph.load(rows_loop(), target="cpu").run(feeds)[2].shape == (0, 3)


def test_a_loop_that_would_take_long_to_count_is_left_alone() -> None:
    model = rows_loop(step=0)  # which never ends
    graph = monograph.load(model, target="reference").bound_graph({"x": X})
    assert known(loops(graph)[0].op.body.outputs[0][1]) is None


def test_a_loop_whose_iterations_fail_is_left_alone() -> None:
    """An error of an iteration belongs to the run, not to the import."""
    model = rows_loop()
    body = next(n for n in model.graph.node if n.op_type == "Loop").attribute[0].g
    body.node.append(helper.make_node("Div", ["at_out", "nothing"], ["halved"]))
    body.node.append(helper.make_node("Less", ["halved", "limit_in"], ["other"]))
    body.output[0].name = "other"
    model.graph.initializer.append(numpy_helper.from_array(np.int32(0), "nothing"))
    monograph.load(model, target="reference").bound_graph({"x": X})


def assigning(rows: str, length: int = 1, count: int = 4) -> onnx.ModelProto:
    """y[at : at + length] = 2 * x[at : at + length] for at = 0, 1, ..., as Paddle assigns."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["at"], ["real"], to=FLOAT),
            helper.make_node("Add", ["real", "one_f"], ["next_f"]),
            helper.make_node("Cast", ["next_f"], ["next"], to=TensorProto.INT64),
            helper.make_node("Add", ["at", "length"], ["stop"]),
            helper.make_node("Slice", [rows, "at", "stop", "axes"], ["part"]),
            helper.make_node("Add", ["part", "part"], ["twice"]),
            helper.make_node("Squeeze", ["at"], ["first"]),
            helper.make_node("Squeeze", ["stop"], ["last"]),
            helper.make_node("Range", ["first", "last", "one"], ["places"]),
            helper.make_node("Unsqueeze", ["places", "last_axis"], ["column"]),
            helper.make_node("Shape", ["part"], ["shape"]),
            helper.make_node("Expand", ["column", "shape"], ["indices"]),
            helper.make_node("ScatterElements", ["y", "indices", "twice"], ["y_out"], axis=0),
            helper.make_node("Less", ["next", "end"], ["go_on"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []), info("c", BOOL, []),
            info("at", TensorProto.INT64, [1]), info("y", FLOAT, [6, 3]),
        ],
        [
            info("go_on", BOOL, [1]), info("next", TensorProto.INT64, [1]),
            info("y_out", FLOAT, None),
        ],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "yes", "zero", "y0"], ["at1", "y1"], body=body)
    weights = {
        "zero": np.array([0]), "one": np.int64(1), "one_f": np.array([1], np.float32),
        "length": np.array([length]), "axes": np.array([0]), "last_axis": np.array([1]),
        "end": np.array([count]), "yes": np.array(True), "y0": np.zeros((6, 3), np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        [loop], "g", [info("x", FLOAT, [6, 3])], [info("y1", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("rows", ["x", "y"])
@pytest.mark.parametrize(("length", "count"), [(1, 6), (2, 3), (3, 1), (0, 2)])
def test_slices_at_the_counter_have_known_sizes(
    target: str, rows: str, length: int, count: int
) -> None:
    """The whole loop is one native function, although every turn reads and writes elsewhere."""
    feeds = {"x": np.arange(18, dtype=np.float32).reshape(6, 3)}
    session = check(assigning(rows, length, count), feeds, target)
    (loop,) = loops(session.bound_graph(feeds))
    assert all(v.type.is_static for v in loop.op.body.values)
    if target == "cpu":
        assert session.stats["launches_per_run"] == 1
        assert session.stats["specialisations"] == 0


def test_slices_whose_length_differs_wait_for_the_run() -> None:
    """The last turn reads fewer rows: the sizes are those of the turn."""
    feeds = {"x": np.arange(18, dtype=np.float32).reshape(6, 3)}
    model = assigning("x", length=3, count=5)
    (loop,) = loops(monograph.load(model, target="reference").bound_graph(feeds))
    assert not all(v.type.is_static for v in loop.op.body.values)


@pytest.mark.parametrize(("start", "step"), [(0, 1), (1, 1), (0, 3), (6, 1)])
def test_a_loop_up_to_an_open_size_is_compiled_once(start: int, step: int) -> None:
    """A turn is made in any case where the condition before the loop holds."""
    model = rows_loop(start=start, step=step)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    session = monograph.load(
        model, target="cpu", specialise="off", checked=True, cache_bytes=0, threads=2
    )
    rows = np.random.default_rng(0).normal(size=(29, 3)).astype(np.float32)
    for count in (12, 29, 8, 7, 12):
        feeds = {"x": rows[:count]}
        for found, expected in zip(session.run(feeds), theirs.run(None, feeds), strict=True):
            assert found.shape == expected.shape
            assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    stats = session.stats
    assert stats["exact_reason"] == ""
    assert stats["variants"] == 1
    assert stats["launches_per_run"] == 1


def test_a_limit_that_data_decide_or_a_counter_that_may_stand_is_not_counted() -> None:
    feeds = {"x": X, "limit": np.array(3, np.int32)}
    session = monograph.load(rows_loop("limit"), target="cpu", specialise="off", cache_bytes=0)
    assert session.run(feeds)[2].shape == (3, 3)
    assert session.run(feeds | {"x": X[:3]})[2].shape == (3, 3)
    backwards = rows_loop(step=-1, start=2)
    graph = monograph.load(backwards, target="reference").bound_graph({"x": X[:3]})
    assert known(loops(graph)[0].op.body.outputs[0][1]) is None
