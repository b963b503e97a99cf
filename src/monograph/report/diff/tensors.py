"""The tensors of an ONNX file as values of its imported graph, and the nodes that make them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from monograph.bindings import Bindings
from monograph.config import make_config
from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.support import label_of
from monograph.ir import Graph, TensorType, Value, evaluate
from monograph.ops.quant import Dequantize, Quantize
from monograph.runtime.cache.store import UnreadModel
from monograph.runtime.progress import silent

_TRACES = ("pkg.torch.onnx.stack_trace", "stack_trace", "pkg.onnxscript.stack_trace")
"""Keys under which exporters record where in the user's program a node comes from."""
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n?(?P<code>.*)')


@dataclass(frozen=True)
class NodeInfo:
    """An ONNX node: its label, its op, and its line of Python where the exporter recorded it."""

    label: str
    op: str
    outputs: tuple[str, ...]
    source: str = ""

    def __str__(self) -> str:
        return f"{self.label} ({self.op})"


def read_nodes(proto: onnx.ModelProto) -> list[NodeInfo]:
    """Return the nodes of the main graph of a model, in order."""
    return [
        NodeInfo(
            label_of("", node, index),
            node.op_type,
            tuple(name for name in node.output if name),
            source_line({p.key: p.value for p in node.metadata_props}),
        )
        for index, node in enumerate(proto.graph.node)
    ]


def main_node(label: str, known: Container[str]) -> str | None:
    """Return the node of the main graph that a label belongs to; None if it is none of these.

    It is the node itself, or the one in whose function body or sub-graph it is.
    """
    while label not in known:
        label = label.rpartition("/")[0]
        if not label:
            return None
    return label


def source_line(metadata: Mapping[str, str]) -> str:
    """Return the recorded line of Python of a node: "FILE:LINE in NAME: CODE".

    It is the innermost line of the user's program; within a library only if there is no other.
    """
    for key in _TRACES:
        frames = [*_FRAME.finditer(metadata.get(key, ""))]
        if frames:
            last = ([f for f in frames if not _INSTALLED.search(f["file"])] or frames)[-1]
            code = last["code"].strip()
            return f"{last['file']}:{last['line']} in {last['name']}" + (
                f": {code}" if code else ""
            )
    return ""


@dataclass(frozen=True)
class OnnxTensors:
    """The tensors of a model on some inputs. The outputs of `graph` are all of them, in order."""

    graph: Graph
    nodes: tuple[NodeInfo, ...]
    feeds: Mapping[str, Any]
    codes: Mapping[str, Value] = field(default_factory=dict)
    """Quantised tensors: their integers. The graph's output is what they stand for."""

    @cached_property
    def values(self) -> dict[str, Value]:
        """The value of each tensor of floats, by name, in an order in which they can be made."""
        order = {v: i for i, v in enumerate(self.graph.values)}
        found = [(n, v) for n, v in self.graph.outputs if _is_float(v)]
        return dict(sorted(found, key=lambda item: order[self.codes.get(item[0], item[1])]))

    @cached_property
    def made_by(self) -> dict[str, NodeInfo]:
        """The node that makes each tensor."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def by_label(self) -> dict[str, NodeInfo]:
        return {node.label: node for node in self.nodes}

    def nodes_of(self, labels: Iterable[str]) -> tuple[NodeInfo, ...]:
        """Return the nodes of the main graph that labels belong to, each once."""
        found = (main_node(label, self.by_label) for label in labels)
        return tuple(self.by_label[n] for n in dict.fromkeys(found) if n is not None)

    @cached_property
    def reference(self) -> dict[Value, Any]:
        """The reference's results for each tensor, and for the integers of quantised ones."""
        wanted = {*self.values.values(), *self.codes.values()}
        wanted |= {x for v in self.codes.values() for x in v.inputs[1:]}
        found: dict[Value, Any] = {}

        def observe(value: Value, data: Any) -> None:
            if value in wanted:
                found[value] = data

        evaluate(self.graph, self.feeds, observe)
        return found

    def decoded(self, name: str, integers: Any) -> Any:
        """Return the floats that integers stand for, for a quantised tensor."""
        quantise = self.codes[name]
        value = self.values[name]
        return value.op.reference(integers, *(self.reference[v] for v in quantise.inputs[1:]))


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def read_tensors(model: Path, feeds: Mapping[str, Any], dims: Mapping[str, int]) -> OnnxTensors:
    """Read a model with every tensor of its main graph as an output, for these inputs."""
    proto = read_model(model, None).proto
    nodes, own = read_nodes(proto), {o.name for o in proto.graph.output}
    made = dict.fromkeys(name for node in nodes for name in node.outputs)
    names = tuple(name for name in made if name not in own)
    source = UnreadModel(model).with_values(names)
    bindings = Bindings(source, make_config(target="reference"), dims, {}, silent)
    graph = bindings.bound(dict(feeds))
    codes = {n: v for n, v in graph.outputs if isinstance(v.op, Quantize) and _decodes(v)}
    outputs = tuple((n, _decode(v) if n in codes else v) for n, v in graph.outputs)
    return OnnxTensors(replace(graph, outputs=outputs), tuple(nodes), feeds, codes)


def _decodes(value: Value) -> bool:
    return _is_float(value.inputs[0])


def _decode(value: Value) -> Value:
    op = value.op
    assert isinstance(op, Quantize)
    kind = value.inputs[0].type
    assert isinstance(kind, TensorType)
    return Dequantize(kind.dtype, op.axis, op.block)(value, *value.inputs[1:])


def float_twin(tensors: OnnxTensors) -> OnnxTensors:
    """Return the model without the roundings of its activations to integers.

    Weights keep the values that their integers stand for.
    """

    def take(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Dequantize) and isinstance(inputs[0].op, Quantize):
            original = inputs[0].inputs[0]
            if original.type == old.type:
                return original
        return old if inputs == old.inputs else old.op(*inputs)

    return OnnxTensors(tensors.graph.rebuild(take), tensors.nodes, tensors.feeds)
