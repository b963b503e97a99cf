"""Small models with work for the host, which both targets are tested on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LABELS = np.array(["cat", "dog", "eel", ""], object)


def _info(name: str, shape: list[Any] | None, element: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def labelled() -> onnx.ModelProto:
    """The label of the largest score: a row of a constant of strings. Another one is an output."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["labels", "best"], ["y"]),
    ]
    labels = helper.make_tensor("labels", TensorProto.STRING, [4], [s.encode() for s in LABELS])
    outputs = [_info("y", ["n"], TensorProto.STRING), _info("labels", [4], TensorProto.STRING)]
    return _model(helper.make_graph(nodes, "labelled", [_info("x", ["n", 4])], outputs, [labels]))


def writing_loop(nested: bool = False) -> onnx.ModelProto:
    """A loop that writes row i of its state, at most 4: it reads a slice whose size data decide.

    The state keeps its shape, so the loop has a type that compiled code could hold.
    """
    nodes = [
        helper.make_node("Unsqueeze", ["i", "nought"], ["from"]),
        helper.make_node("Add", ["from", "one"], ["to"]),
        helper.make_node("Slice", ["s", "from", "to", "axis"], ["part"]),
        helper.make_node("Shape", ["part"], ["shape"]),
        helper.make_node("Expand", ["x", "shape"], ["new"]),
        helper.make_node("Squeeze", ["from"], ["first"]),
        helper.make_node("Squeeze", ["to"], ["last"]),
        helper.make_node("Range", ["first", "last", "step"], ["rows"]),
        helper.make_node("Reshape", ["rows", "column"], ["index"]),
        helper.make_node("Expand", ["index", "shape"], ["places"]),
        helper.make_node("ScatterElements", ["s", "places", "new"], ["s_out"], axis=1),
        helper.make_node("Identity", ["c"], ["c_out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [_info("i", [], 7), _info("c", [], 9), _info("s", [1, 4, 3])],
        [_info("c_out", [], 9), _info("s_out", [1, 4, 3])],
    )
    loop = helper.make_node("Loop", ["n", "", "s0"], ["y"], body=body)
    if nested:
        outer = helper.make_graph(
            [
                helper.make_node("Loop", ["n", "", "u"], ["v"], body=body),
                helper.make_node("Neg", ["v"], ["u_out"]),
                helper.make_node("Identity", ["k"], ["k_out"]),
            ],
            "outer",
            [_info("j", [], 7), _info("k", [], 9), _info("u", [1, 4, 3])],
            [_info("k_out", [], 9), _info("u_out", [1, 4, 3])],
        )
        loop = helper.make_node("Loop", ["m", "", "s0"], ["y"], body=outer)
    constants: dict[str, Any] = {
        "nought": [0], "one": [1], "axis": [1], "step": 1, "column": [1, -1, 1], "n": 3, "m": 2,
    }  # fmt: skip
    weights = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    inputs = [_info("x", [1, 1, 3]), _info("s0", [1, 4, 3])]
    return _model(helper.make_graph([loop], "net", inputs, [_info("y", [1, 4, 3])], weights))


def writing_feeds() -> dict[str, np.ndarray]:
    x = np.array([[[1, 2, 3]]], np.float32)
    return {"x": x, "s0": np.arange(12, dtype=np.float32).reshape(1, 4, 3) + 10}


def written(nested: bool = False) -> np.ndarray:
    feeds = writing_feeds()
    y = feeds["s0"].copy()
    for _ in range(2 if nested else 1):
        y[:, :3] = feeds["x"]
        y = -y if nested else y
    return y
