"""Function bodies: those of the model, and those by which ONNX defines some of its ops."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx

from monograph.errors import InferError, UnsupportedError
from monograph.frontend.onnx.dtypes import type_proto
from monograph.ir import Value


class FunctionKey(NamedTuple):
    domain: str
    name: str
    overload: str = ""


def _schema(domain: str, name: str, opset: int) -> Any:
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def has_schema_function(domain: str, name: str, opset: int) -> bool:
    """Return True if ONNX defines the op by a function body."""
    schema = _schema(domain, name, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def schema_function(
    proto: onnx.NodeProto,
    domain: str,
    opset: int,
    inputs: tuple[Value | None, ...],
    attributes: dict[str, onnx.AttributeProto],
) -> onnx.FunctionProto:
    """The body by which ONNX defines an op, for these inputs."""
    schema = _schema(domain, proto.op_type, opset)
    body = b""
    if schema is not None and schema.has_function:
        body = schema.get_function_with_opset_version(
            _newest(schema.function_opset_versions, opset)
        )
    if schema is not None and not body and schema.has_context_dependent_function:
        resolved = onnx.NodeProto()
        resolved.CopyFrom(proto)
        del resolved.attribute[:]
        resolved.attribute.extend(attributes.values())
        types = [b"" if v is None else type_proto(v.type).SerializeToString() for v in inputs]
        written = _newest(schema.context_dependent_function_opset_versions, opset)
        try:
            body = schema.get_context_dependent_function_with_opset_version(
                written, resolved.SerializeToString(), types
            )
        except RuntimeError as e:
            raise InferError(
                f"ONNX has no function body of this op for these inputs: {e}",
                op=proto.op_type,
                given=", ".join("none" if v is None else str(v.type) for v in inputs),
            ) from e
    if not body:
        raise UnsupportedError("no converter and no function body for this op", op=proto.op_type)
    function: onnx.FunctionProto = onnx.FunctionProto.FromString(body)
    if schema is not None:
        _add_defaults(function, schema)
    return function


def _newest(versions: list[int], opset: int) -> int:
    """Return the opset that a body is written in, which it imports itself."""
    return max((v for v in versions if v <= opset), default=opset)


def _add_defaults(function: onnx.FunctionProto, schema: Any) -> None:
    """Gives the body the default values of the op's attributes."""
    given = {a.name for a in function.attribute_proto}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if name not in given and default is not None and default.type:
            function.attribute_proto.append(default)


def all_nodes(nodes: object) -> list[onnx.NodeProto]:
    """These nodes and those of their sub-graphs, without recursion."""
    found: list[onnx.NodeProto] = []
    stack = [nodes]
    while stack:
        for node in stack.pop():  # type: ignore[attr-defined]
            found.append(node)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g.node)
                stack.extend(g.node for g in attribute.graphs)
    return found
