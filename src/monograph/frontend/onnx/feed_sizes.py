"""Errors for sizes that a model cannot accept; they name the feed or the `dims` at fault."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from monograph.errors import ConfigError, FeedError, InferError
from monograph.frontend.onnx.dtypes import value_type
from monograph.ir import Array, TensorType


def feed_misfit(
    graph: onnx.GraphProto, error: InferError, arrays: Mapping[str, Array]
) -> FeedError:
    """Return the error for feeds whose sizes break a rule of an op.

    It names the inputs with open dimensions that the op depends on, with the declared and the given
    shapes.
    """
    needed = _ancestors(graph, error.node)
    lines: list[str] = []
    others: list[str] = []
    for info in graph.input:
        kind = value_type(info.type, info.name)
        array = arrays.get(info.name)
        if array is None or not isinstance(kind, TensorType) or kind.is_static:
            continue
        line = f"    {info.name}: expected {kind}, given {[*array.shape]}"
        (lines if needed is None or info.name in needed else others).append(line)
    listed = "\n".join(lines or others)
    return FeedError(
        f"the model cannot take inputs of these sizes: {error.message}\n{listed}".rstrip(),
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint or "give sizes for which this holds",
    )


def dims_misfit(error: InferError, dims: Mapping[str, int]) -> ConfigError:
    """The error for sizes of dimensions that break a rule of an op."""
    listed = ", ".join(f"{name}={size}" for name, size in dims.items())
    return ConfigError(
        f"the model cannot take these sizes ({listed}): {error.message}",
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint or "give other sizes: dims={...}",
    )


def _ancestors(graph: onnx.GraphProto, label: str | None) -> set[str] | None:
    """Return the names of all values that a node depends on; None if the node is not found."""
    makers: dict[str, onnx.NodeProto] = {}
    start: onnx.NodeProto | None = None
    for index, node in enumerate(graph.node):
        makers |= dict.fromkeys(node.output, node)
        if label is not None and label in (node.name, f"{node.op_type}#{index}"):
            start = node
    if start is None:
        return None
    found: set[str] = set()
    stack = [*start.input]
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        if name in makers:
            node = makers[name]
            # The captures of a sub-graph are not listed, so any input may matter.
            if any(a.HasField("g") or a.graphs for a in node.attribute):
                return None
            stack.extend(node.input)
    return found
