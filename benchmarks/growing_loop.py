"""A small model whose Loop appends a row to its state in every turn, and reads all of it.

Each turn is a step of a recurrent cell that attends to all earlier states, as decoders of tables
and of speech do. Data decide when it ends: here after 500 turns.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TURNS = 500
WIDTH = 64
_INT, _FLOAT, _BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


def growing_loop(turns: int = TURNS, width: int = WIDTH) -> onnx.ModelProto:
    """Return the model: `x[N, width]` to the last state and all states `[turns + 1, N, width]`."""
    draw = np.random.default_rng(20)
    stored = [
        numpy_helper.from_array(np.array(2**31), "most"),
        numpy_helper.from_array(np.array(turns), "turns"),
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array([0]), "first"),
        *(
            numpy_helper.from_array(
                (draw.normal(size=(width, width)) / width**0.5).astype(np.float32), name
            )
            for name in ("own", "seen")
        ),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["x", "first"], ["start"]),
            helper.make_node(
                "Loop", ["most", "yes", "x", "start"], ["y", "all"], body=_body(width)
            ),
        ],
        "growing_loop",
        [helper.make_tensor_value_info("x", _FLOAT, ["N", width])],
        [
            helper.make_tensor_value_info("y", _FLOAT, ["N", width]),
            helper.make_tensor_value_info("all", _FLOAT, ["T", "N", width]),
        ],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _body(width: int) -> onnx.GraphProto:
    """Return one turn: attention of the state `h` to all earlier ones, a cell, and a new row."""
    nodes = [
        helper.make_node("Mul", ["rows", "h"], ["products"]),
        helper.make_node("ReduceSum", ["products", "last"], ["scores"], keepdims=1),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=0),
        helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "first"], ["context"], keepdims=0),
        helper.make_node("MatMul", ["h", "own"], ["a"]),
        helper.make_node("MatMul", ["context", "seen"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Tanh", ["c"], ["next"]),
        helper.make_node("Unsqueeze", ["next", "first"], ["row"]),
        helper.make_node("Concat", ["rows", "row"], ["longer"], axis=0),
        helper.make_node("Shape", ["longer"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["length"]),
        helper.make_node("LessOrEqual", ["length", "turns"], ["short"]),
        # Data decide: a state that is not finite ends the loop.
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Equal", ["total", "total"], ["finite"]),
        helper.make_node("And", ["short", "finite"], ["again"]),
    ]
    stored = [
        numpy_helper.from_array(np.array([-1]), "last"),
        numpy_helper.from_array(np.array(0), "zero"),
    ]
    return helper.make_graph(
        nodes,
        "turn",
        [
            helper.make_tensor_value_info("i", _INT, []),
            helper.make_tensor_value_info("go", _BOOL, []),
            helper.make_tensor_value_info("h", _FLOAT, ["N", width]),
            helper.make_tensor_value_info("rows", _FLOAT, ["T", "N", width]),
        ],
        [
            helper.make_tensor_value_info("again", _BOOL, []),
            helper.make_tensor_value_info("next", _FLOAT, ["N", width]),
            helper.make_tensor_value_info("longer", _FLOAT, ["T1", "N", width]),
        ],
        stored,
    )
