"""A case of a campaign: a model, what it is fed run after run, and where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.draw import Draw

Feeds = dict[str, np.ndarray]
Given = np.ndarray | None
IR_VERSION = 10
OPENED = 0.25
"""The share of single ops whose inputs have open dimensions."""


@dataclass(frozen=True)
class Case:
    """A model and its runs, made in one session one after the other."""

    kind: str
    seed: int
    number: int
    model: onnx.ModelProto
    runs: tuple[Feeds, ...]
    special: bool = False
    """True if feeds hold NaN, infinities and the like."""

    @property
    def name(self) -> str:
        return f"{self.kind} seed {self.seed} number {self.number}"

    @property
    def ops(self) -> list[str]:
        """The ops of the model, in order."""
        return [n.op_type for n in self.model.graph.node]

    def with_model(self, model: onnx.ModelProto, runs: Sequence[Feeds]) -> Case:
        return replace(self, model=model, runs=tuple(runs))

    def digest(self) -> str:
        return hashlib.sha256(self.model.SerializeToString(deterministic=True)).hexdigest()[:12]


@dataclass
class Node:
    """One op with its operands: what a generator of single ops makes."""

    op: str
    inputs: list[Given]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 21
    domain: str = ""
    constant: set[int] = field(default_factory=set)
    """Inputs that are initialisers."""
    maybe: set[int] = field(default_factory=set)
    """Inputs that may be initialisers, as weights and sizes mostly are."""
    skipped: set[int] = field(default_factory=set)
    """Outputs that are left out."""


def element_type(x: np.ndarray) -> int:
    """ONNX's number of an array's element type."""
    if x.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(x.dtype))


def tensor(x: np.ndarray, name: str) -> onnx.TensorProto:
    """An array as an initialiser."""
    return numpy_helper.from_array(x, name)


def single_model(node: Node, d: Draw) -> tuple[onnx.ModelProto, Feeds]:
    """The model of one op, and its feeds; some operands are initialisers, some sizes open."""
    constant = set(node.constant)
    constant |= {i for i in node.maybe if d.chance(0.6)}
    given = [i for i, x in enumerate(node.inputs) if x is not None]
    if given and set(given) <= constant:
        constant.discard(given[0])  # else all of it would be folded
    opened = d.chance(OPENED)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(node.inputs)]
    while names and not names[-1]:
        names.pop()
    results = ["" if i in node.skipped else f"y{i}" for i in range(node.outputs)]
    made = helper.make_node(node.op, names, results, domain=node.domain)
    made.attribute.extend(helper.make_attribute(k, v) for k, v in node.attributes.items())
    infos, initialisers, feeds = [], [], {}
    for i in given:
        x = np.asarray(node.inputs[i])
        if i in constant:
            initialisers.append(tensor(x, names[i]))
            continue
        shape = [f"d{i}_{a}" for a in range(x.ndim)] if opened else list(x.shape)
        infos.append(helper.make_tensor_value_info(names[i], element_type(x), shape))
        feeds[names[i]] = x
    return finish([made], infos, [r for r in results if r], initialisers, node.opset), feeds


def finish(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    initialisers: Sequence[onnx.TensorProto],
    opset: int,
) -> onnx.ModelProto:
    """A model whose outputs have the types that ONNX infers."""
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "campaign", inputs, results, initialisers)
    imports = [helper.make_opsetid("", opset)]
    if any(n.domain == "com.microsoft" for n in nodes):
        imports.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
