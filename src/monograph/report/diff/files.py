"""Differences between the nodes of two ONNX files: ops, attributes and weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.support import label_of
from monograph.report.diff.points import distance

SHOWN = 8
"""The most differences that are told."""
MAX_TEXT = 60
"""The most characters of an attribute."""


@dataclass(frozen=True)
class _File:
    """The nodes of a file by label, its weights, and the ops that make its tensors."""

    nodes: dict[str, onnx.NodeProto]
    weights: dict[str, onnx.TensorProto]
    makers: dict[str, str]

    def source(self, name: str) -> str:
        """Return what a tensor is: a weight, an input, or the result of an op."""
        made = self.makers.get(name)
        return made or ("a weight" if name in self.weights else "an input" if name else "absent")


def node_differences(first: Path, second: Path, labels: Collection[str]) -> tuple[str, ...]:
    """Return how nodes of these labels differ between two files, as text: A's, then B's."""
    a, b = _read(first), _read(second)
    found: list[str] = []
    for label in labels:
        if label in a.nodes and label in b.nodes:
            found += [f"{label}: {text}" for text in _between(a, b, label)]
        elif label in a.nodes or label in b.nodes:
            found.append(f"{label}: only in {'A' if label in a.nodes else 'B'}")
    return tuple(found[:SHOWN])


def _read(path: Path) -> _File:
    graph = read_model(path, None).proto.graph
    return _File(
        {label_of("", node, index): node for index, node in enumerate(graph.node)},
        {w.name: w for w in graph.initializer},
        {name: node.op_type for node in graph.node for name in node.output if name},
    )


def _between(first: _File, second: _File, label: str) -> list[str]:
    """Return the differences of two nodes of one label. Names of tensors may differ."""
    a, b = first.nodes[label], second.nodes[label]
    if a.op_type != b.op_type:
        return [f"{a.op_type} in A, {b.op_type} in B"]
    ours, theirs = _attributes(a), _attributes(b)
    names = [n for n in dict.fromkeys([*ours, *theirs]) if ours.get(n) != theirs.get(n)]
    found = [f"{n} = {ours.get(n, 'absent')} in A, {theirs.get(n, 'absent')} in B" for n in names]
    for number, (given, other) in enumerate(zip(a.input, b.input, strict=False)):
        sources = first.source(given), second.source(other)
        if given in first.weights and other in second.weights:
            found += _weight(given, first.weights[given], second.weights[other])
        elif sources[0] != sources[1]:
            found.append(f"operand {number} is {sources[0]} in A, {sources[1]} in B")
    if len(a.input) != len(b.input):
        found.append(f"{len(a.input)} operands in A, {len(b.input)} in B")
    return found


def _attributes(node: onnx.NodeProto) -> dict[str, str]:
    return {a.name: _text(onnx.helper.get_attribute_value(a)) for a in node.attribute}


def _text(value: Any) -> str:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value).tolist()
    if isinstance(value, onnx.GraphProto):
        return f"a graph of {len(value.node)} nodes"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def _weight(name: str, a: onnx.TensorProto, b: onnx.TensorProto) -> list[str]:
    if (a.data_type, [*a.dims]) != (b.data_type, [*b.dims]):
        return [f"weight {name} has another type or shape"]
    if a.data_location == onnx.TensorProto.EXTERNAL or b.data_location == onnx.TensorProto.EXTERNAL:
        return []  # in files of their own; the numbers of the tensors show them
    ours, theirs = numpy_helper.to_array(a), numpy_helper.to_array(b)
    if ours.dtype.kind not in "fiub" or np.array_equal(ours, theirs):
        return []
    return [f"weight {name} differs by {distance(ours, theirs):.1e} of its root mean square"]
