"""Files that contradict themselves, or break a rule that ONNX Runtime does not insist on.

Such files are read the way ONNX Runtime reads them, and one warning names what was found:

- nodes that are not sorted are sorted;
- of two initialisers of one name, and of two opsets of one domain, the last one counts;
- a domain that ONNX Runtime knows needs no opset import: its newest opset is taken;
- a negative size is an open one;
- a shape that the file declares for a computed value gives way to the one that is computed.

Everything else stays an error (`validate`). All walks are iterative and linear in the file's size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from monograph.errors import ModelError
from monograph.frontend.onnx.dtypes import declared_type
from monograph.frontend.onnx.functions import all_nodes
from monograph.frontend.onnx.node import normalise_domain
from monograph.ir import TensorType, Type, Value
from monograph.ir.sizes import any_open, is_open
from monograph.ir.types import accepts

_log = logging.getLogger("monograph")
SHOWN = 3
"""The most contradictions that the warning lists."""
_MICROSOFT_OPSET = 1


@dataclass
class Contradictions:
    """The contradictions found in one file; each is reported once."""

    found: dict[str, str] = field(default_factory=dict)
    """The reported texts, by the name that each is about."""
    _reported: int = 0

    def add(self, subject: str, text: str) -> None:
        self.found.setdefault(subject, text)

    def report(self, name: str) -> None:
        """Log one warning about the contradictions added since the last report."""
        new = list(self.found.values())[self._reported :]
        self._reported = len(self.found)
        if not new:
            return
        more = f"; and {len(new) - SHOWN} more" if len(new) > SHOWN else ""
        _log.warning(
            "the model file contradicts itself and is read as ONNX Runtime reads it: %s%s (%s)",
            "; ".join(new[:SHOWN]),
            more,
            name,
        )

    def compare(
        self, infos: Iterable[onnx.ValueInfoProto], values: Mapping[str, Value], what: str
    ) -> None:
        """Record every value whose computed type differs from the declared one."""
        for info in infos:
            value = values.get(info.name)
            declared = _declared(info)
            if value is None or declared is None:
                continue
            computed = _at_hints(value.type)
            if _agree(declared, computed):
                continue
            self.add(
                f"{what} {info.name}",
                f"{what} {info.name!r} is declared {declared} and computed {computed}",
            )


def _declared(info: onnx.ValueInfoProto) -> Type | None:
    try:
        return declared_type(info)
    except ModelError:
        return None  # an unknown type; nothing reads it


def _at_hints(type_: Type) -> Type:
    """Return a type with the sizes of the compiling run: a warning must not decide on others."""
    if not isinstance(type_, TensorType) or type_.shape is None or not any_open(type_.shape):
        return type_
    return TensorType(type_.dtype, tuple(d.hint if is_open(d) else d for d in type_.shape))


def _agree(declared: Type, computed: Type) -> bool:
    if not isinstance(declared, TensorType) or not isinstance(computed, TensorType):
        return True  # elements of sequences are declared loosely
    return accepts(declared, computed)


# Files


def mend(model: onnx.ModelProto, found: Contradictions) -> onnx.ModelProto:
    """Return the model, or a corrected copy; the given model is never changed."""
    for info in model.graph.input:
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim if d.dim_value < -1]
        if sizes:
            found.add(f"size of {info.name}", f"input {info.name!r} has the size {sizes[0]}")
    imports = _imports(model, found)
    graphs = [*_graphs(model)]
    doubled = [_doubled(g, found) for g in graphs]
    orders = [_order(g.node) for g in graphs]
    if imports is None and not any(doubled) and all(order is None for order in orders):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if imports is not None:
        del made.opset_import[:]
        made.opset_import.extend(imports)
    # Both models list their graphs in the same order. Inner graphs are corrected before outer ones,
    # whose nodes are copied when they are sorted.
    for graph, twice, order in [*zip(_graphs(made), doubled, orders, strict=True)][::-1]:
        if twice:
            _keep_last(graph)
        if order is not None:
            found.add(f"order of {graph.name}", f"the nodes of {graph.name!r} are not sorted")
            nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
            del graph.node[:]
            graph.node.extend(nodes[i] for i in order)
    return made


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield every graph and function body of a file, outer ones first."""
    stack: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            stack.extend(_bodies(node))


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute if len(node.attribute) else ():
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def _imports(model: onnx.ModelProto, found: Contradictions) -> list[onnx.OperatorSetIdProto] | None:
    """Return the opsets as ONNX Runtime understands them; None if they need no change."""
    if not model.opset_import:
        return None  # a file older than opsets, or an invalid one
    last = {normalise_domain(o.domain): o for o in model.opset_import}
    imports = [*last.values()]
    if any(last[normalise_domain(o.domain)].version != o.version for o in model.opset_import):
        found.add("opsets", "a domain has two opsets")
    own = {normalise_domain(f.domain) for f in model.functions}
    newest = {d: versions[1] for d, versions in onnx.defs.C.schema_version_map().items()}
    newest["com.microsoft"] = _MICROSOFT_OPSET
    used = {n.domain for n in all_nodes(model.graph.node)}
    for domain in sorted({normalise_domain(d) for d in used if isinstance(d, str)} - own):
        if domain in newest and domain not in last:
            found.add(f"opset of {domain}", f"no opset of {domain or 'ai.onnx'} is imported")
            imports.append(onnx.helper.make_opsetid(domain, newest[domain]))
    return None if imports == [*model.opset_import] else imports


def _doubled(graph: onnx.GraphProto | onnx.FunctionProto, found: Contradictions) -> bool:
    if isinstance(graph, onnx.FunctionProto):
        return False
    names = [t.name for t in graph.initializer]
    if len(set(names)) == len(names):
        return False
    seen: set[str] = set()
    for name in names:
        if name in seen:
            found.add(f"initialiser {name}", f"initialiser {name!r} is there twice")
        seen.add(name)
    return True


def _keep_last(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    assert isinstance(graph, onnx.GraphProto)
    last = {t.name: i for i, t in enumerate(graph.initializer)}
    for i in range(len(graph.initializer) - 1, -1, -1):
        if last[graph.initializer[i].name] != i:
            del graph.initializer[i]


# Order


def _order(nodes: Sequence[onnx.NodeProto]) -> list[int] | None:
    """Return an order in which every node follows its inputs; None if the nodes are in order.

    None also if there is no such order: `validate` then reports the cycle.
    """
    defined: set[str] = set()
    late = False
    made = {name: i for i, n in enumerate(nodes) for name in n.output if name}
    for node in nodes:
        late = late or any(name in made and name not in defined for name in _reads(node))
        defined.update(node.output)
    if not late:
        return None
    needs = [{made[name] for name in _reads(node) if name in made} for node in nodes]
    waiting = [len(n) for n in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(needs):
        for j in before:
            users[j].append(i)
    order = [i for i, count in enumerate(waiting) if count == 0]
    for i in order:  # grows during the loop
        for j in users[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                order.append(j)
    return order if len(order) == len(nodes) else None


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """Yield the names that a node reads, and those that its sub-graphs read or return."""
    if not _bodies(node):
        return node.input
    inside = all_nodes([node])
    ends = (info.name for n in inside for g in _bodies(n) for info in g.output)
    return [*(name for n in inside for name in n.input), *ends]
