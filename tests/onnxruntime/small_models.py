"""Models of one or two nodes, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)


def tensor(name: str, element: int, shape: Sequence[int | str | None] | None) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *initialisers: Any,
    opset: int = 18,
    properties: dict[str, str] | None = None,
    **facts: Any,
) -> bytes:
    graph = helper.make_graph(nodes, "small", inputs, outputs, list(initialisers))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, **facts)
    helper.set_model_props(made, properties or {})
    return made.SerializeToString()


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


@cache
def square() -> bytes:
    """Y = X * X on f32[3, 2]."""
    return model(
        [node("Mul", "X X", "Y")],
        [tensor("X", FLOAT, [3, 2])],
        [tensor("Y", FLOAT, [3, 2])],
        properties={"labels": "cat,dog", "stride": "32"},
        producer_name="producer",
        doc_string="describes",
        domain="domain",
        model_version=7,
    )


@cache
def open_sizes() -> bytes:
    """Y = relu(X), Z = -X on f32[N, ?, 4]."""
    return model(
        [node("Relu", "X", "Y"), node("Neg", "X", "Z")],
        [tensor("X", FLOAT, ["N", None, 4])],
        [tensor("Y", FLOAT, ["N", None, 4]), tensor("Z", FLOAT, None)],
    )


@cache
def two_inputs() -> bytes:
    """Y = A + B, Z = A - B on f32[2]."""
    return model(
        [node("Add", "A B", "Y"), node("Sub", "A B", "Z")],
        [tensor("A", FLOAT, [2]), tensor("B", FLOAT, [2])],
        [tensor("Y", FLOAT, [2]), tensor("Z", FLOAT, [2])],
    )


@cache
def with_default() -> bytes:
    """Y = X + W, where W is [1, 2] unless it is fed."""
    return model(
        [node("Add", "X W", "Y")],
        [tensor("X", FLOAT, [2]), tensor("W", FLOAT, [2])],
        [tensor("Y", FLOAT, [2])],
        helper.make_tensor("W", FLOAT, [2], [1, 2]),
    )


@cache
def identity(element: int, shape: tuple[int, ...] = (2,)) -> bytes:
    """Y = X."""
    return model(
        [node("Identity", "X", "Y")],
        [tensor("X", element, shape)],
        [tensor("Y", element, shape)],
    )


@cache
def gather() -> bytes:
    """Y = X[i] on f32[3]."""
    return model(
        [node("Gather", "X i", "Y")],
        [tensor("X", FLOAT, [3]), tensor("i", INT64, ["n"])],
        [tensor("Y", FLOAT, ["n"])],
    )


@cache
def element_of_sequence() -> bytes:
    """Y = S[i]."""
    return model(
        [node("SequenceAt", "S i", "Y")],
        [helper.make_tensor_sequence_value_info("S", FLOAT, None), tensor("i", INT64, [])],
        [tensor("Y", FLOAT, None)],
    )


@cache
def to_sequence() -> bytes:
    """S = [A, B]."""
    return model(
        [node("SequenceConstruct", "A B", "S")],
        [tensor("A", FLOAT, [2]), tensor("B", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("S", FLOAT, None)],
    )


@cache
def has_element() -> bytes:
    """Y = the optional O has a value."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    return model(
        [node("OptionalHasElement", "O", "Y")],
        [helper.make_value_info("O", kind)],
        [tensor("Y", BOOL, [])],
    )


@cache
def zipmap() -> bytes:
    """Z = a dict of class to probability for each row of X."""
    element = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    kind = helper.make_sequence_type_proto(element)
    return model(
        [node("ZipMap", "X", "Z", domain="ai.onnx.ml", classlabels_int64s=[10, 20])],
        [tensor("X", FLOAT, ["n", 2])],
        [helper.make_value_info("Z", kind)],
    )


@cache
def random_normal() -> bytes:
    """Y = random numbers without a seed, f32[4]."""
    return model([node("RandomNormal", "", "Y", shape=[4])], [], [tensor("Y", FLOAT, [4])])


@cache
def unknown_op() -> bytes:
    return model(
        [node("Frobnicate", "X", "Y")], [tensor("X", FLOAT, [2])], [tensor("Y", FLOAT, [2])]
    )


@cache
def bad_shapes() -> bytes:
    """A product of f32[2, 3] with itself."""
    return model(
        [node("MatMul", "X X", "Y")], [tensor("X", FLOAT, [2, 3])], [tensor("Y", FLOAT, [2, 2])]
    )


X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
"""A feed of `square`."""


def parsed(raw: bytes) -> onnx.ModelProto:
    return onnx.load_from_string(raw)
