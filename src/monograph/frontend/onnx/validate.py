"""Checks the structure of a model file before anything is built from it.

It checks names and their order, opsets and functions, which the importer relies on. Types,
attributes of ops and data of tensors are checked where they are read. All walks are iterative and
linear in the size of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from monograph.errors import ModelError
from monograph.frontend.onnx.functions import FunctionKey, all_nodes
from monograph.frontend.onnx.node import normalise_domain

MAX_GRAPH_NESTING = 48
"""The deepest nesting of sub-graphs."""
MAX_NODES = 1_000_000
"""The most nodes in a file."""
MAX_INLINED, INLINED_FACTOR, INLINED_FREE = 200_000, 100, 10_000
"""Limits on the nodes after inlining: a multiple of the nodes in the file plus a constant, at most
MAX_INLINED unless the file itself has more.
"""
MAX_NAME = 1 << 14
"""The longest name, in characters; names recur in labels and messages."""
SHOWN = 8


def validate(model: onnx.ModelProto) -> None:
    """Raise ModelError unless the model's graphs and functions are well formed."""
    check_text(model.producer_name, "the producer")
    check_text(model.producer_version, "the producer's version")
    opsets = model_opsets(model)
    functions = _functions(model)
    for key, function in functions.items():
        where = f"function {key.name!r}"
        own = {**opsets, **_read_opsets(function.opset_import, where)}
        _walk(_function_steps(function, _Context(where, own, functions, in_function=True)))
    _walk(_graph_steps(model.graph, None, _Context("", opsets, functions), "the graph"))
    _check_calls(model.graph, functions)


@dataclass(frozen=True)
class _Context:
    """The facts that the nodes of one body share."""

    where: str
    opsets: Mapping[str, int]
    functions: Mapping[FunctionKey, onnx.FunctionProto]
    in_function: bool = False

    def label(self, node: onnx.NodeProto, index: int) -> str:
        label = f"{node.name or f'{node.op_type}#{index}'}"[:200]
        return f"{label} of {self.where}" if self.where else label


@dataclass
class _Names:
    """The names that one graph or function body has defined so far."""

    parent: _Names | None = None
    defined: set[str] = field(default_factory=set)
    captured: set[str] = field(default_factory=set)

    def define(self, name: str, what: str, node: str | None = None) -> None:
        if name in self.defined or name in self.captured:
            raise ModelError("a name is defined twice", node=node, given=f"{what} {name!r}")
        self.defined.add(name)

    def sees(self, name: str) -> bool:
        """Return True if the name is defined here or outside; an outer name counts as captured."""
        passed: list[_Names] = []
        names: _Names | None = self
        while names is not None:
            if name in names.defined:
                for inner in passed:
                    inner.captured.add(name)
                return True
            passed.append(names)
            names = names.parent
        return False


# Text


def check_name(given: Any, what: str, node: str | None = None) -> str:
    """Return a name; raise an error if it is missing. Protobuf returns invalid UTF-8 as bytes."""
    text = check_text(given, what, node)
    if not text:
        raise ModelError(f"{what} has no name", node=node)
    return text


def check_text(given: Any, what: str, node: str | None = None) -> str:
    if not isinstance(given, str):
        raise ModelError(f"{what} has a name that is not UTF-8", node=node, given=given[:40])
    if len(given) > MAX_NAME:
        raise ModelError(
            f"{what} has a name that is too long",
            node=node,
            expected=f"at most {MAX_NAME} characters",
            given=f"{given[:40]!r}... of {len(given)}",
        )
    return given


# Opsets


def model_opsets(model: onnx.ModelProto) -> dict[str, int]:
    """The opset of each domain that the model imports."""
    if model.ir_version < 3 and not model.opset_import:
        return {"": 1}  # files older than opsets
    return _read_opsets(model.opset_import, "the model")


def _read_opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    newest = onnx.defs.C.schema_version_map()
    for entry in imports:
        domain = normalise_domain(check_text(entry.domain, "an opset domain"))
        shown = domain or "ai.onnx"
        if not 1 <= entry.version < 2**31:
            raise ModelError(
                f"{where} imports an impossible opset of {shown}",
                expected="1 or more, in 32 bits",
                given=entry.version,
            )
        if domain in newest and entry.version > newest[domain][1]:
            raise ModelError(
                f"{where} imports an opset of {shown} that is too new",
                expected=f"at most {newest[domain][1]} (onnx {onnx.__version__})",
                given=entry.version,
                hint="install a newer onnx package, or export the model for an older opset",
            )
        if found.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{where} imports two opsets of {shown}", given=[found[domain], entry.version]
            )
    return found


# Functions


def _functions(model: onnx.ModelProto) -> dict[FunctionKey, onnx.FunctionProto]:
    found: dict[FunctionKey, onnx.FunctionProto] = {}
    for index, function in enumerate(model.functions):
        name = check_name(function.name, f"function #{index}")
        domain = normalise_domain(check_text(function.domain, f"the domain of function {name!r}"))
        key = FunctionKey(
            domain, name, check_text(function.overload, f"an overload of function {name!r}")
        )
        if key in found:
            raise ModelError("two functions share a name", given=":".join(filter(None, key)))
        found[key] = function
    return found


def _function_steps(function: onnx.FunctionProto, context: _Context) -> Iterator[Any]:
    names = _Names()
    for name in function.input:
        names.define(check_name(name, "a function's input", context.where), "input", context.where)
    declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
    for name, count in Counter(declared).items():
        check_name(name, "a function's attribute", context.where)
        if count > 1:
            raise ModelError("an attribute is declared twice", node=context.where, given=name)
    yield from _node_steps(function.node, names, context)
    for name in function.output:
        if not names.sees(check_name(name, "a function's output", context.where)):
            raise ModelError("a function's output is not defined", node=context.where, given=name)


def _check_calls(
    graph: onnx.GraphProto, functions: Mapping[FunctionKey, onnx.FunctionProto]
) -> None:
    """Raise an error if functions call themselves, or if calls multiply without bounds."""
    sizes: dict[FunctionKey, int] = {}
    calls: dict[FunctionKey, Counter[FunctionKey]] = {}
    callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in functions}
    for key, function in functions.items():
        sizes[key], calls[key] = _count(function.node, functions)
        for callee in calls[key]:
            callers[callee].append(key)
    written = sum(sizes.values())
    waiting = {key: len(callees) for key, callees in calls.items()}
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        key = ready.pop()
        del waiting[key]
        sizes[key] += sum(sizes[callee] * n for callee, n in calls[key].items())
        for caller in callers[key]:
            waiting[caller] -= 1
            if waiting[caller] == 0:
                ready.append(caller)
    if waiting:
        raise ModelError(
            "functions of the model call themselves", given=_listed(k.name for k in waiting)
        )
    total, called = _count(graph.node, functions)
    written += total
    total += sum(sizes[callee] * n for callee, n in called.items())
    if written > MAX_NODES:
        raise ModelError(
            "the model has too many nodes", expected=f"at most {MAX_NODES:,}", given=f"{written:,}"
        )
    limit = max(written, min(INLINED_FACTOR * written + INLINED_FREE, MAX_INLINED))
    if total > limit:
        raise ModelError(
            "the model has too many nodes once its functions are inlined",
            expected=f"at most {limit:,} of the {written:,} in the file",
            given=f"{total:,}" if total < 10**18 else "more than 10^18",
        )


def _count(
    nodes: Sequence[onnx.NodeProto], functions: Mapping[FunctionKey, Any]
) -> tuple[int, Counter[FunctionKey]]:
    """Return the number of nodes, and the number of calls of each function."""
    everything = all_nodes(nodes)
    if not functions:
        return len(everything), Counter()
    keys = (FunctionKey(normalise_domain(n.domain), n.op_type, n.overload) for n in everything)
    return len(everything), Counter(k for k in keys if k in functions)


# Graphs


def _walk(steps: Iterator[Any]) -> None:
    """Run steps; those that a step yields, from a sub-graph, run before it continues."""
    stack = [steps]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
            continue
        if len(stack) > MAX_GRAPH_NESTING:
            raise ModelError(
                "sub-graphs are nested too deeply", expected=f"at most {MAX_GRAPH_NESTING}"
            )
        stack.append(inner)


def _graph_steps(
    graph: onnx.GraphProto, parent: _Names | None, context: _Context, where: str
) -> Iterator[Any]:
    names = _Names(parent)
    constants: set[str] = set()
    check_text(graph.name, where)
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    for tensor in tensors:
        name = check_name(tensor.name, f"an initialiser of {where}")
        if name in constants:
            raise ModelError("two initialisers share a name", node=where, given=name)
        constants.add(name)
    for info in graph.input:
        name = check_name(info.name, f"an input of {where}")
        names.define(name, "input", where)
        _check_dimensions(info)
    for name in constants:
        # An initialiser is the default of its input; old files have no other initialisers.
        if name not in names.defined:
            names.define(name, "initialiser", where)
    yield from _node_steps(graph.node, names, context)
    _check_outputs(graph, names, where)


def _check_outputs(graph: onnx.GraphProto, names: _Names, where: str) -> None:
    main = names.parent is None
    if main and not graph.output:
        raise ModelError("the graph has no outputs", given=graph.name)
    seen: set[str] = set()
    for info in graph.output:
        name = check_name(info.name, f"an output of {where}")
        if not names.sees(name):
            raise ModelError("an output is not defined by any node", node=where, given=name)
        if main and name in seen:
            raise ModelError("two outputs share a name", node=where, given=name)
        seen.add(name)


def _check_dimensions(info: onnx.ValueInfoProto) -> None:
    type_ = info.type
    for _ in range(MAX_GRAPH_NESTING):
        kind = type_.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type"):
            break
        type_ = getattr(type_, kind).elem_type
    if type_.HasField("tensor_type"):
        for dim in type_.tensor_type.shape.dim:
            check_text(dim.dim_param, f"a dimension of {info.name!r}")


def _node_steps(nodes: Sequence[onnx.NodeProto], names: _Names, context: _Context) -> Iterator[Any]:
    for index, node in enumerate(nodes):
        check_text(node.name, f"node #{index}")
        op_type = check_name(node.op_type, f"the op of node {node.name or index!r}")
        domain = normalise_domain(check_text(node.domain, "an op's domain", node.name))
        check_text(node.overload, "an op's overload", node.name)
        if (
            domain not in context.opsets
            and FunctionKey(domain, op_type, node.overload) not in context.functions
        ):
            raise ModelError(
                f"no opset is imported for the domain {domain or 'ai.onnx'!r}",
                node=context.label(node, index),
                op=op_type,
                expected=f"one of {[d or 'ai.onnx' for d in context.opsets]}",
            )
        for name in node.input:
            check_text(name, "an input", context.label(node, index))
            if name and not names.sees(name):
                raise _undefined(nodes, index, name, context)
        for attribute in node.attribute if len(node.attribute) else ():
            if attribute.HasField("g") or len(attribute.graphs):
                label = f"{attribute.name!r} of {context.label(node, index)}"
                single = [attribute.g] if attribute.HasField("g") else []
                for graph in [*single, *attribute.graphs]:
                    yield _graph_steps(graph, names, context, label)
        _check_attributes(node, index, context)
        for name in node.output:
            check_text(name, "an output", context.label(node, index))
            if name:
                names.define(name, "output", context.label(node, index))


def _check_attributes(node: onnx.NodeProto, index: int, context: _Context) -> None:
    seen: set[str] = set()
    for attribute in node.attribute:
        label = context.label(node, index)
        name = check_name(attribute.name, "an attribute", label)
        if name in seen:
            raise ModelError("an attribute is given twice", node=label, given=name)
        seen.add(name)
        if check_text(attribute.ref_attr_name, "an attribute", label) and not context.in_function:
            raise ModelError(
                "an attribute outside of a function refers to a function's attribute",
                node=label,
                given=f"{name!r} -> {attribute.ref_attr_name!r}",
            )
        if attribute.type == onnx.AttributeProto.GRAPH and not (
            attribute.HasField("g") or attribute.ref_attr_name
        ):
            raise ModelError("an attribute has no graph in it", node=label, given=name)


def _undefined(
    nodes: Sequence[onnx.NodeProto], index: int, name: str, context: _Context
) -> ModelError:
    """Return the error for a name that is read before it is defined."""
    node = context.label(nodes[index], index)
    maker = {out: i for i, n in enumerate(nodes) for out in n.output if out}
    if name not in maker:
        return ModelError(
            "a name is used that nothing before it defines",
            node=node,
            op=nodes[index].op_type,
            given=name,
        )
    # Search backward from the name's producer: it depends on this node, or it comes late.
    came_from: dict[int, int] = {maker[name]: index}
    stack = [maker[name]]
    while stack and index not in came_from:
        at = stack.pop()
        for read in _reads(nodes[at]):
            before = maker.get(read)
            if before is not None and before not in came_from:
                came_from[before] = at
                stack.append(before)
    if maker[name] != index and index not in came_from:
        return ModelError(
            "a name is used before the node that defines it: nodes are not sorted",
            node=node,
            op=nodes[index].op_type,
            given=name,
            hint="sort the nodes topologically, as ONNX demands",
        )
    cycle, at = [index], came_from.get(index, index)
    while at != index:
        cycle.append(at)
        at = came_from[at]
    return ModelError(
        "the graph has a cycle",
        node=node,
        given=_listed(context.label(nodes[i], i) for i in [*cycle, index]),
    )


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    return (name for n in all_nodes([node]) for name in n.input if name)


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - SHOWN
    return " -> ".join(shown[:SHOWN]) + (f" and {more} more" if more > 0 else "")
