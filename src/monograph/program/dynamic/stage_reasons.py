"""The reasons why a program is split into stages, for runs, reports and errors alike."""

from __future__ import annotations

from monograph.ir import Graph, Item, TensorType, TupleType, Type, Value
from monograph.program.dynamic.stages import StageSplit


def stops(parts: StageSplit) -> tuple[str, ...]:
    """Return the ops where the host takes part, with their ONNX nodes and the reasons.

    These are the ops that wait for sizes and the host loops. If there are none: the ops that find
    sizes in data, because the host reads these sizes to return results of that size.
    """
    found = []
    if waits := [v for v in parts.waiting if v in parts.reasons]:
        found.append(f"{_where(parts.whole, waits[0])}: {parts.reasons[waits[0]]}")
    found += [f"{_where(parts.whole, v)}: a host loop" for v in parts.host_loops]
    if not found:
        sized = [_origin_of_size(v) for v in parts.sources if _is_open(v.type)]
        found = [f"{_where(parts.whole, v)}: data decide its size" for v in dict.fromkeys(sized)]
    return tuple(found)


def _origin_of_size(value: Value) -> Value:
    """Return the op that finds the size of a value in its data."""
    while later := [v for v in value.inputs if _is_open(v.type)]:
        value = later[0]
    return value


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.items))
    return isinstance(type_, TensorType) and not type_.is_static


def _where(graph: Graph, value: Value) -> str:
    """Return the op and its ONNX nodes, as for host steps."""
    op = value.inputs[0].op if isinstance(value.op, Item) else value.op
    origin = graph.origin(value)
    return f"{op.name} ({origin})" if origin else op.name
