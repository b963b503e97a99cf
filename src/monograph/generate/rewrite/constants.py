"""Folds small computations that an exporter left in the graph.

The operands of a size decide what is a size, and what is data that depends on the position. Some
exporters write such numbers as ops: a Constant with an attribute for each type, an Identity, an
Unsqueeze around it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from monograph.generate.check.parts import part_of
from monograph.generate.rewrite.surgery import graphs_of

FEW = 64
"""The most elements of constants that sizes are computed with."""


def fold_few(model: onnx.ModelProto, directory: Path) -> None:
    """Fold nodes with small results that depend on small constants only."""
    graph = model.graph
    results = {o.name for o in graph.output}
    small = {
        t.name
        for t in graph.initializer
        if math.prod(t.dims) <= FEW and t.data_location != TensorProto.EXTERNAL
    }
    nodes = []
    for node in graph.node:
        known = all(not name or name in small for name in node.input)
        if known and _is_plain(node) and not results.intersection(node.output):
            nodes.append(node)
            small.update(node.output)
    names = [name for node in nodes for name in node.output if name]
    if not names:
        return
    made = part_of(model, directory, names).run({})
    few = {name: np.asarray(x) for name, x in made.items() if np.size(x) <= FEW}
    folded = {id(n) for n in nodes if all(name in few for name in n.output if name)}
    kept = [node for node in graph.node if id(node) not in folded]
    gone = {name for n in nodes if id(n) in folded for name in n.output if name}
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(numpy_helper.from_array(few[name], name) for name in sorted(gone))


def _is_plain(node: onnx.NodeProto) -> bool:
    """Return True if a node is deterministic."""
    if node.domain not in ("", "ai.onnx") or any(graphs_of(node)):
        return False
    if node.op_type == "Constant":
        return all(math.prod(a.t.dims) <= FEW for a in node.attribute if a.HasField("t"))
    return "Random" not in node.op_type and node.op_type not in ("Bernoulli", "Multinomial")
