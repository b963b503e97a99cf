"""Edits of an ONNX graph: producers and readers of values, new nodes, new functions.

A step consists of functions of a model (`onnx_functions`), which do not depend on the opset that a
decoder was exported with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from monograph.ir import Array

OWN = "monograph"
"""The domain of the functions, and of ops that ONNX lacks."""
_PLAIN = ("Add", "Cast", "Identity", "Range", "Sub")
"""ONNX ops that mean the same at every opset since 13."""


class Surgery:
    """A graph that is edited in place. New names start with `~`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self._front: list[onnx.NodeProto] = []
        self._added: list[tuple[onnx.NodeProto | None, onnx.NodeProto]] = []
        self._count = 0
        self.producers: dict[str, onnx.NodeProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self.constants = {t.name: t for t in self.graph.initializer}
        for node in self.graph.node:
            for name in node.output:
                self.producers[name] = node
            for name in {*names_read(node)}:
                self.readers[name].append(node)

    # Queries

    def input(self, name: str) -> onnx.ValueInfoProto | None:
        return next((i for i in self.graph.input if i.name == name), None)

    def output(self, name: str) -> onnx.ValueInfoProto | None:
        return next((o for o in self.graph.output if o.name == name), None)

    def known(self, name: str) -> Array | None:
        """Return the data of a small constant in the file itself; None for any other value."""
        tensor = self.constants.get(name)
        node = self.producers.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    # Edits

    def add(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str] | int = 1, **attributes: Any
    ) -> list[str]:
        """Add a node before all others: it may read inputs, constants and such nodes only."""
        node = self._make(op, inputs, outputs, attributes)
        self._front.append(node)
        return list(node.output)

    def add_before(
        self, place: onnx.NodeProto, op: str, inputs: Sequence[str], **attributes: Any
    ) -> str:
        """Add a node right before another one; return its result."""
        node = self._make(op, inputs, 1, attributes)
        self._added.append((place, node))
        return str(node.output[0])

    def add_last(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str] | int = 1, **attributes: Any
    ) -> list[str]:
        """Add a node after all others."""
        node = self._make(op, inputs, outputs, attributes)
        self._added.append((None, node))
        return list(node.output)

    def constant(self, data: Any, dtype: Any = np.int64) -> str:
        self._count += 1
        name = f"~constant{self._count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def reread(self, old: str, new: str) -> None:
        """Make every node that reads `old` read `new` instead."""
        for node in list(self.readers[old]):
            for i, name in enumerate(node.input):
                if name == old:
                    node.input[i] = new
            for graph in graphs_of(node):
                rename_captures(graph, old, new)

    def drop_input(self, name: str) -> None:
        kept = [i for i in self.graph.input if i.name != name]
        del self.graph.input[:]
        self.graph.input.extend(kept)

    def finish(self) -> None:
        """Insert the new nodes, and remove those that nothing reads any more."""
        before: dict[int, list[onnx.NodeProto]] = defaultdict(list)
        last = [node for place, node in self._added if place is None]
        for place, node in self._added:
            if place is not None:
                before[id(place)].append(node)
        nodes = list(self._front)
        for node in self.graph.node:
            nodes += [*before[id(node)], node]
        kept = needed_nodes([*nodes, *last], {o.name for o in self.graph.output})
        copies = [_copy(node) for node in kept]
        del self.graph.node[:]
        self.graph.node.extend(copies)
        read = {name for node in copies for name in names_read(node)}
        read |= {o.name for o in self.graph.output}
        tensors = [t for t in self.graph.initializer if t.name in read]
        if len(tensors) != len(self.graph.initializer):
            del self.graph.initializer[:]
            self.graph.initializer.extend(tensors)
        del self.graph.value_info[:]

    def _make(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | int,
        attributes: dict[str, Any],
    ) -> onnx.NodeProto:
        self._count += 1
        if isinstance(outputs, int):
            outputs = [f"~{op}{self._count}.{i}" for i in range(outputs)]
        name, domain = f"~{op}{self._count}", "" if op in _PLAIN else OWN
        return helper.make_node(op, list(inputs), list(outputs), name, domain=domain, **attributes)


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The sub-graphs of a node."""
    found = []
    for attribute in node.attribute:
        found += [attribute.g] if attribute.HasField("g") else [*attribute.graphs]
    return found


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, itself or in its sub-graphs."""
    stack = [node]
    while stack:
        inner = stack.pop()
        yield from filter(None, inner.input)
        for graph in graphs_of(inner):
            stack.extend(graph.node)
            yield from (o.name for o in graph.output)


def rename_captures(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Make the nodes of a sub-graph read another value of the graph around it."""
    own = {n for node in graph.node for n in node.output} | {i.name for i in graph.input}
    if old in own:
        return
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
        for inner in graphs_of(node):
            rename_captures(inner, old, new)
    for output in graph.output:
        if output.name == old:
            output.name = new


def free_names(graph: onnx.GraphProto, names: set[str]) -> None:
    """Rename the values of a graph that have one of these names."""
    made = {t.name for t in graph.initializer} | {n for node in graph.node for n in node.output}
    for old in sorted(names & made):
        new = f"~own.{old}"
        for tensor in graph.initializer:
            tensor.name = new if tensor.name == old else tensor.name
        for output in graph.output:
            output.name = new if output.name == old else output.name
        for node in graph.node:
            for listed in (node.input, node.output):
                for i, name in enumerate(listed):
                    if name == old:
                        listed[i] = new
            for inner in graphs_of(node):
                rename_captures(inner, old, new)


def inline_branch(model: onnx.ModelProto, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    """Replace an If by the nodes of one branch."""
    graph = model.graph
    results = dict(zip((o.name for o in branch.output), node.output, strict=True))
    made = {name for inner in branch.node for name in inner.output}
    nodes = []
    for inner in branch.node:
        copy = _copy(inner)
        for names in (copy.input, copy.output):
            for i, name in enumerate(names):
                names[i] = results.get(name, name)
        for sub in graphs_of(copy):
            for old, new in results.items():
                rename_captures(sub, old, new)
        nodes.append(copy)
    # A value that a branch only passes on has no producer in it.
    passed = [(old, new) for old, new in results.items() if old not in made]
    nodes += [helper.make_node("Identity", [old], [new]) for old, new in passed]
    tensors = [onnx.TensorProto.FromString(t.SerializeToString()) for t in branch.initializer]
    kept = [_copy(n) for n in graph.node if n is not node]
    before = next(i for i, n in enumerate(graph.node) if n is node)
    del graph.node[:]
    graph.node.extend([*kept[:before], *nodes, *kept[before:]])
    graph.initializer.extend(tensors)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    return made


def needed_nodes(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that some wanted value depends on, in their order."""
    wanted = set(wanted)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(names_read(node))
    return kept[::-1]
