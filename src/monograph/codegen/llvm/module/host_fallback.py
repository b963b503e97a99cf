"""The reasons why a step runs on the host: compiled code cannot hold or compute its values."""

from __future__ import annotations

from collections.abc import Iterable

from monograph.ir import (
    Constant,
    Graph,
    Input,
    Item,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    Value,
    subgraphs,
)
from monograph.ir.dtype import COMPLEX, STRING
from monograph.ops.deferred import Deferred
from monograph.program.dynamic.stages import is_host_loop
from monograph.program.fusion.region import Region
from monograph.program.legalise.lower_complex import in_parts

STRUCTURE = (Constant, Input, Item)
_CONTAINERS = {SequenceType: "a sequence", OptionalType: "an optional", MapType: "a map"}


def named(region: Region) -> str:
    """Return the op that names a region without a kernel."""
    return region.root.op.name if region.anchor is None else region.kind


def of_region(region: Region) -> str:
    """Say why a region that no generator serves runs on the host."""
    reasons = (_of_value(v) for v in (region.root, *region.body, *region.inputs))
    found = next((r for r in reasons if r), "")
    if found:
        return found
    for v in (*region.outputs, *region.inputs, *_inside(region)):
        if _is_open(v.type):
            within = "" if v in region.outputs or v in region.inputs else f"inside it {v.op.name}: "
            return f"{within}the data decide a size that nothing bounds"
    return "its shapes are refused: the reference says why"


def _inside(region: Region) -> list[Value]:
    """The values of the sub-graphs that a region's op carries."""
    if region.anchor is None:
        return []
    return [v for graph in subgraphs(region.anchor.op) for v in graph.values]


def of_graph(graph: Graph) -> dict[str, str]:
    """Return the ops of a graph that run on the host whatever its sizes, and the reasons."""
    graph = in_parts(graph) or graph
    found: dict[str, str] = {}
    for v in graph.values:
        if isinstance(v.op, STRUCTURE) or not (why := _of_value(v)):
            continue
        if is_host_loop(v):  # its iterations are compiled except for these
            for inner in subgraphs(v.op):
                found |= of_graph(inner)
        else:
            found[v.op.name] = why
    return found


def _of_value(value: Value) -> str:
    """Return why an op runs on the host; "" if its kind and types do not decide it."""
    kind = value.op.target_class if isinstance(value.op, Deferred) else type(value.op)
    if kind.host_reason:
        return kind.host_reason
    held = _of_types((value.type, *(v.type for v in value.inputs)))
    if held:
        return held
    for graph in subgraphs(value.op):
        for inner in graph.values:
            if why := _of_value(inner):
                return f"inside it {inner.op.name}: {why}"
    return ""


def _of_types(types: Iterable[Type]) -> str:
    for t in types:
        if isinstance(t, TupleType):
            if found := _of_types(t.items):
                return found
        elif not isinstance(t, TensorType):
            return _CONTAINERS[type(t)]
        elif t.dtype.kind in (STRING, COMPLEX):
            return "strings" if t.dtype.kind == STRING else "complex numbers"
    return ""


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.items))
    return isinstance(type_, TensorType) and not type_.is_static
