"""The command `monograph inspect`: the content of a model, and its unsupported ops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx

from monograph.codegen.llvm.module.select import host_reasons
from monograph.errors import ModelError, MonographError, UnknownRankError
from monograph.frontend.onnx import MissingOp, ModelFile, import_model, missing_ops, read_model
from monograph.frontend.onnx.dtypes import declared_names, from_onnx, value_type
from monograph.frontend.onnx.functions import all_nodes
from monograph.ir import Graph, OptionalType, SequenceType, TensorType, Type
from monograph.ir.graph import all_values
from monograph.ir.op import STRUCTURE
from monograph.program.dynamic.batch_proof import BatchProof
from monograph.program.legalise.lower_random import random_op_names
from monograph.program.work import holds_codes
from monograph.session import ModelSource, load


@dataclass(frozen=True)
class Described:
    """An input or output, as far as the file and the import determine it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    @property
    def shape_text(self) -> str:
        return "any" if self.shape is None else str([*self.shape]).replace("'", "")


@dataclass(frozen=True)
class WeightSummary:
    """The constants of one element type in the file: tensors, elements and bytes."""

    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """Everything that `monograph inspect` shows."""

    name: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Described, ...]
    outputs: tuple[Described, ...]
    nodes: int
    functions: int
    ops: dict[str, int]
    """ONNX ops, with those of sub-graphs and functions."""
    canonical: dict[str, int] | None
    """Ops of the imported graph; None if the import fails."""
    weights: tuple[WeightSummary, ...]
    dimensions: dict[str, list[str]]
    """Open dimensions and the inputs that have them."""
    batching: BatchProof | None
    """The batch axis, or the node that mixes rows; None where no input has an open dimension."""
    random: list[str]
    host: dict[str, str]
    """Canonical ops that run on the host on the CPU target, with the reason."""
    missing: tuple[MissingOp, ...]
    codes: bool
    """True if constants of some size are decoded or cast; rewrites may fold them."""
    problem: MonographError | None
    """The reason why the import fails; None if it does not."""

    @property
    def parameters(self) -> int:
        return sum(w.elements for w in self.weights)

    @property
    def bytes(self) -> int:
        return sum(w.bytes for w in self.weights)

    @property
    def supported(self) -> bool:
        return self.problem is None


def inspect_model(source: ModelSource) -> Inspection:
    """Describe a model, also one with unsupported ops."""
    model = read_model(source)
    proto = model.proto
    missing = tuple(missing_ops(model))
    graph, problem = _try_import(model)
    inputs = [i for i in proto.graph.input if i.name not in model.initialisers]
    described = tuple(_describe(i, None) for i in inputs)
    inferred = dict(graph.outputs) if graph is not None else {}
    outputs = tuple(
        _describe(i, inferred[i.name].type if i.name in inferred else None)
        for i in proto.graph.output
    )
    nodes = _every_node(proto)
    return Inspection(
        name=proto.graph.name,
        producer=" ".join(filter(None, [proto.producer_name, proto.producer_version])).strip(),
        ir_version=proto.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in model.opsets.items()},
        inputs=described,
        outputs=outputs,
        nodes=len(nodes),
        functions=len(model.functions),
        ops=_histogram(_onnx_name(n) for n in nodes),
        canonical=None if graph is None else _canonical(graph),
        weights=_weights(proto),
        dimensions=_open_dimensions(described),
        batching=None if graph is None else _batching(source, described),
        random=[] if graph is None else random_op_names(graph),
        host={} if graph is None else host_reasons(graph),
        missing=missing,
        codes=graph is not None and holds_codes(graph),
        problem=problem,
    )


def _batching(source: ModelSource, inputs: tuple[Described, ...]) -> BatchProof | None:
    """Return the proof that rows are independent, where requests could bring several rows."""
    if not any(i.shape and isinstance(i.shape[0], str) for i in inputs):
        return None
    with load(source, "reference") as session:
        return session.batch_axes()


def _try_import(model: ModelFile) -> tuple[Graph | None, MonographError | None]:
    try:
        return import_model(model), None
    except UnknownRankError:
        # Such a model is imported at its first run, when the shapes of its inputs are known.
        return None, None
    except MonographError as e:
        return None, e


def _describe(info: onnx.ValueInfoProto, inferred: Type | None) -> Described:
    try:
        declared: Type | None = value_type(info.type, info.name)
    except ModelError:
        declared = None  # an output may leave its type to inference
    known = declared if inferred is None else declared_names(inferred, info.type, info.name)
    if known is None:
        return Described(info.name, "?", None)
    if not isinstance(known, TensorType):
        return Described(info.name, _container(known), None)
    if known.shape is None:
        return Described(info.name, str(known.dtype), None)
    shape = known.shape
    if inferred is not None:
        shape = tuple("?" if str(d).startswith("~") else d for d in shape)
    return Described(info.name, str(known.dtype), shape)


def _container(type_: Type) -> str:
    if isinstance(type_, (SequenceType, OptionalType)):
        word = "seq" if isinstance(type_, SequenceType) else "opt"
        return f"{word}<{_container(type_.element)}>"
    return str(type_)


def _every_node(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    bodies = [proto.graph.node, *(f.node for f in proto.functions)]
    return [node for body in bodies for node in all_nodes(body)]


def _onnx_name(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _histogram(names: Iterator[str] | Any) -> dict[str, int]:
    """Count names; order by count, then by name."""
    counted = Counter(names)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _canonical(graph: Graph) -> dict[str, int]:
    return _histogram(v.op.name for v in all_values(graph) if not isinstance(v.op, STRUCTURE))


def _open_dimensions(ports: tuple[Described, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for port in ports:
        for axis, dim in enumerate(port.shape or ()):
            if isinstance(dim, str):
                found.setdefault(dim, []).append(f"{port.name}[{axis}]")
    return found


def _weights(proto: onnx.ModelProto) -> tuple[WeightSummary, ...]:
    """Sum up all initialisers and tensor attributes by element type."""
    counts: dict[str, list[int]] = {}
    for tensor in _tensors(proto):
        dtype = from_onnx(tensor.data_type)
        elements = math.prod(max(int(d), 0) for d in tensor.dims)
        row = counts.setdefault(dtype.name, [0, 0, 0])
        row[0] += 1
        row[1] += elements
        row[2] += 0 if dtype.is_string else (elements * dtype.bits + 7) // 8
    rows = [WeightSummary(name, *row) for name, row in counts.items()]
    return tuple(sorted(rows, key=lambda w: (-w.bytes, w.dtype)))


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = [proto.graph]
    for node in _every_node(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)
    for graph in graphs:
        yield from graph.initializer
        yield from (sparse.values for sparse in graph.sparse_initializer)
