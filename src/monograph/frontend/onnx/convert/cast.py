"""Conversions between element types."""

from __future__ import annotations

import onnx

from monograph.frontend.onnx.dtypes import from_onnx
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import DType, Value
from monograph.ops.cast import BitCast, Cast


def _cast(n: Node, to: DType) -> Value:
    x = n.input(0)
    if x.dtype == to:
        return x
    return Cast(to, n.attr_flag("saturate", True), n.attr_string("round_mode", "up"))(x)


@converter("Cast")
def cast_by_name(n: Node) -> Value:
    """Convert Cast of opsets up to 5, which name the type by a string."""
    name = n.attr_string("to").upper()
    if name not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 (a protobuf enum is no mapping)
        n.fail("no such element type", given=name)
    return _cast(n, from_onnx(onnx.TensorProto.DataType.Value(name)))


@converter("Cast", since=6)
def cast(n: Node) -> Value:
    return _cast(n, n.attr_dtype("to"))


@converter("CastLike")
def cast_like(n: Node) -> Value:
    return _cast(n, n.input(1).dtype)


@converter("BitCast")
def bit_cast(n: Node) -> Value:
    x, to = n.input(0), n.attr_dtype("to")
    return x if x.dtype == to else BitCast(to)(x)
