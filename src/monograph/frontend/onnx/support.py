"""What a model needs and Monograph does not have, for the whole model at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from monograph.errors import UnsupportedError
from monograph.frontend.onnx.functions import FunctionKey, all_nodes, has_schema_function
from monograph.frontend.onnx.load import ModelFile
from monograph.frontend.onnx.registry import find_converter, normalise_domain

SHOWN_NODES = 5


@dataclass(frozen=True)
class MissingOp:
    """An op that nothing converts: where it stands in the model."""

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
    """Every op of the model that has neither a converter nor a function body."""
    found: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    bodies = [(model.proto.graph.node, model.opsets)]
    for function in model.functions.values():
        own = {normalise_domain(o.domain): o.version for o in function.opset_import}
        bodies.append((function.node, {**model.opsets, **own}))
    for nodes, opsets in bodies:
        for index, node in enumerate(all_nodes(nodes)):
            domain = normalise_domain(node.domain)
            opset = opsets.get(domain, 1)
            if FunctionKey(domain, node.op_type, node.overload) in model.functions:
                continue
            if find_converter(domain, node.op_type, opset) is not None:
                continue
            if has_schema_function(domain, node.op_type, opset):
                continue
            found[domain, node.op_type, opset].append(node.name or f"{node.op_type}#{index}")
    return [MissingOp(*key, tuple(nodes)) for key, nodes in sorted(found.items())]


def check_supported(model: ModelFile) -> None:
    missing = missing_ops(model)
    if not missing:
        return
    raise UnsupportedError(
        f"the model needs {len(missing)} op(s) that Monograph does not implement:\n"
        + "\n".join(f"    {m}" for m in missing),
        hint="export the model with other ops, express each as a model-local function of"
        " supported ops, or add a converter (docs/adding-an-op.md)",
    )
