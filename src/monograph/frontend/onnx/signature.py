"""Checks a node against the signature of its op: no part of a node may be ignored.

ONNX publishes a schema for each op and opset. Other domains have none; for them the attributes that
the converter has read are the signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import onnx

from monograph.errors import ModelError, UnsupportedError, did_you_mean
from monograph.frontend.onnx.node import Node

_UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class NodeSignature:
    """The inputs, outputs and attributes that a node of an op may have, at one opset."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, int]
    """The type of each attribute, a number of `onnx.AttributeProto`."""
    required: frozenset[str]


@lru_cache(maxsize=4096)
def find_signature(domain: str, name: str, opset: int) -> NodeSignature | None:
    """Return the signature of an op at an opset; None if ONNX publishes none."""
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    return NodeSignature(
        f"{domain or 'ai.onnx'}.{name} since opset {schema.since_version}",
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {key: cast(Any, a.type).value for key, a in schema.attributes.items()},
        frozenset(key for key, a in schema.attributes.items() if a.required),
    )


def check_node(
    signature: NodeSignature,
    inputs: int,
    outputs: int,
    attributes: Mapping[str, onnx.AttributeProto],
) -> None:
    """Raise an error if a node has other inputs, outputs or attributes than its op."""
    for what, count, (least, most) in (
        ("inputs", inputs, signature.inputs),
        ("outputs", outputs, signature.outputs),
    ):
        if not least <= count <= most:
            raise ModelError(
                f"the node has {'fewer' if count < least else 'more'} {what} than its op",
                expected=f"{_range(least, most)} ({signature.name})",
                given=count,
            )
    _check_attributes(signature, attributes)


def _check_attributes(
    signature: NodeSignature, attributes: Mapping[str, onnx.AttributeProto]
) -> None:
    if surplus := [name for name in attributes if name not in signature.attributes]:
        raise ModelError(
            "the node has attributes that its op does not have",
            expected=f"{_listed(signature.attributes)} ({signature.name})",
            given=_listed(surplus),
            hint=did_you_mean(surplus, signature.attributes),
        )
    if missing := sorted(signature.required - attributes.keys()):
        raise ModelError(
            f"the node lacks attributes that its op requires: {', '.join(missing)}",
            expected=f"{_listed(signature.attributes)} ({signature.name})",
            given=_listed(attributes),
        )
    for name, proto in attributes.items():
        if proto.type != signature.attributes[name]:
            raise ModelError(
                f"attribute {name!r} has the wrong kind",
                expected=_kind(signature.attributes[name]),
                given=_kind(proto.type),
            )


def check_all_read(node: Node) -> None:
    """Raise an error if the converter of an op without a schema ignored a part of its node."""
    asked = node.asked
    given = max((i + 1 for i, v in enumerate(node.inputs) if v is not None), default=0)
    if given > asked:
        raise UnsupportedError(
            "the node has inputs that Monograph does not know",
            expected=f"at most {asked}",
            given=given,
        )
    if ignored := sorted(node.attributes.keys() - node.read):
        raise UnsupportedError(
            "the node has attributes that Monograph does not know",
            expected=_listed(sorted(node.read)),
            given=_listed(ignored),
            hint=did_you_mean(ignored, node.read)
            or "an attribute that is ignored may change what the model computes",
        )


def _range(least: int, most: int) -> str:
    if most >= _UNBOUNDED:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _kind(number: int) -> str:
    kinds = onnx.AttributeProto.AttributeType
    return kinds.Name(number) if number in kinds.values() else f"kind {number}"
