"""Collects everything that a model needs and Monograph lacks, for one error.

There are two kinds: ops without a converter, which the file shows, and nodes that use an
unsupported feature of an op, which their converters report during import.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx

from monograph.errors import ModelError, MonographError, UnsupportedError
from monograph.frontend.onnx.dtypes import declared_type
from monograph.frontend.onnx.functions import FunctionKey, has_schema_function
from monograph.frontend.onnx.load import ModelFile
from monograph.frontend.onnx.node import find_converter, normalise_domain
from monograph.ir import TensorType, Type
from monograph.ir.dtype import f32
from monograph.ir.lazy import lazy

SHOWN_NODES = 5
SHOWN_REFUSALS = 20
MAX_LABEL = 400
"""The longest label of the origin of a value, in characters."""
HINT = (
    "export the model with other ops, express each as a model-local function of supported ops,"
    " or add a converter (docs/adding-an-op.md)"
)
_ORIGINAL = "give the model that it was made from"
_HINTS = {
    "com.microsoft.nchwc": (
        "ONNX Runtime has rewritten this file for the caches of one CPU (com.microsoft.nchwc):"
        f" {_ORIGINAL}, or save it with graph_optimization_level ORT_ENABLE_EXTENDED at most"
    ),
    "com.ms.internal.nhwc": (
        "ONNX Runtime has rewritten this file for one of its execution providers"
        f" (com.ms.internal.nhwc): {_ORIGINAL}"
    ),
    "ai.onnx.contrib": (
        "these ops are of the package onnxruntime-extensions: run them outside of the model"
        " (tokenisers and decoders of files before it), and export the rest"
    ),
    "org.pytorch.aten": (
        "the exporter has left ops of PyTorch in the file: export it without the ATen fallback"
    ),
    "trt": f"the file holds engines or plugins of TensorRT: {_ORIGINAL}",
}
"""Remedies for ops of domains that only other software has."""
_COMPILED = f"the file holds code that was compiled for one device (EPContext): {_ORIGINAL}"


def label_of(path: str, node: onnx.NodeProto, index: int) -> str:
    """Return the label of a node in messages; bounded, because every value keeps one."""
    label = path + (node.name or f"{node.op_type}#{index}")
    if len(label) <= MAX_LABEL:
        return label
    return f"{label[: MAX_LABEL // 2]}...{label[-MAX_LABEL // 2 :]}"


@dataclass(frozen=True)
class MissingOp:
    """An op without a converter, and its nodes in the model."""

    domain: str
    name: str
    opset: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.nodes) - SHOWN_NODES
        listed = ", ".join(self.nodes[:SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")
        name = f"{self.domain or 'ai.onnx'}.{self.name}"
        return f"{name} (opset {self.opset}) x{len(self.nodes)}: {listed}"


def missing_ops(model: ModelFile) -> list[MissingOp]:
    """List every op of the model that has neither a converter nor a function body."""
    found: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for domain, node, opset, label in _reached(model):
        if find_converter(domain, node.op_type, opset) is not None:
            continue
        if not has_schema_function(domain, node.op_type, opset):
            found[domain, node.op_type, opset].append(label)
    return [MissingOp(*key, tuple(nodes)) for key, nodes in sorted(found.items())]


def _reached(model: ModelFile) -> Iterator[tuple[str, onnx.NodeProto, int, str]]:
    """Yield the nodes that the model runs: domain, node, opset and label.

    The body of a function counts once, at its first call; the body of an unused function does not
    count.
    """
    called: set[FunctionKey] = set()
    stack: list[tuple[Iterable[onnx.NodeProto], dict[str, int], str]]
    stack = [(model.proto.graph.node, model.opsets, "")]
    while stack:
        nodes, opsets, path = stack.pop()
        for index, node in enumerate(nodes):
            label = label_of(path, node, index)
            domain = normalise_domain(node.domain)
            key = FunctionKey(domain, node.op_type, node.overload)
            for attribute in node.attribute:
                graphs = [attribute.g] if attribute.HasField("g") else [*attribute.graphs]
                stack += [(g.node, opsets, f"{label}.{attribute.name}/") for g in graphs]
            function = model.functions.get(key)
            if function is None:
                yield domain, node, opsets.get(domain, 1), label
            elif key not in called:
                called.add(key)
                own = {normalise_domain(o.domain): o.version for o in function.opset_import}
                stack.append((function.node, {**opsets, **own}, f"{label}/"))


@dataclass
class Refusals:
    """The nodes that an import could not convert because Monograph does not implement them.

    The import goes on after such a node to find the others: its outputs become inputs of the
    declared types. Other errors after it may be consequences and are ignored.
    """

    model: ModelFile
    missing: tuple[MissingOp, ...]
    found: dict[str, MonographError] = field(default_factory=dict)
    """Errors by the label of the node."""

    def add(self, label: str, error: MonographError) -> None:
        self.found.setdefault(label, error)

    def declared(self, name: str) -> Type:
        """Return the type that the main graph declares for a value; a very general one if none."""
        info = self._infos.get(name)
        try:
            return (info and declared_type(info)) or TensorType(f32, None)
        except ModelError:
            return TensorType(f32, None)

    @lazy
    def _infos(self) -> dict[str, onnx.ValueInfoProto]:
        graph = self.model.proto.graph
        return {info.name: info for info in (*graph.value_info, *graph.output)}

    def error(self) -> MonographError | None:
        """Return one error for everything that was found; None if nothing was."""
        names = {m.name for m in self.missing}
        nodes = {k: e for k, e in self.found.items() if e.op not in names}
        if not self.missing and len(nodes) == 1:
            return next(iter(nodes.values()))
        parts = []
        if self.missing:
            parts.append(
                f"the model needs {len(self.missing)} op(s) that Monograph does not implement:\n"
                + "\n".join(f"    {m}" for m in self.missing)
            )
        if nodes:
            listed = [f"    {k} ({e.op}): {e.message}" for k, e in nodes.items()]
            more = len(listed) - SHOWN_REFUSALS
            listed[SHOWN_REFUSALS:] = [f"    and {more} more"] if more > 0 else []
            parts.append(
                f"{len(nodes)} node(s) ask for what Monograph does not implement:\n"
                + "\n".join(listed)
            )
        return UnsupportedError("\n".join(parts), hint=self._hint()) if parts else None

    def _hint(self) -> str:
        """Return the remedies: one for each domain that has its own."""
        found = [_HINTS[m.domain] for m in self.missing if m.domain in _HINTS]
        found += [_COMPILED for m in self.missing if m.name == "EPContext"]
        others = len(found) < len(self.missing) or not self.missing
        return "; ".join(dict.fromkeys([*found, *([HINT] if others else [])]))
