"""What a cut graph waits for, in words: runs, reports and refusals all say the same."""

from __future__ import annotations

from monograph.ir import Graph, Item, TensorType, TupleType, Type, Value
from monograph.program.dynamic.stages import StageSplit


def stops(parts: StageSplit) -> tuple[str, ...]:
    """The ops where the host comes in, with the ONNX nodes and why; none where it does not.

    That is what has to wait for sizes, loops that are made turn by turn, and where nothing waits,
    the ops that find sizes in data: the host reads them to hand out results of that size.
    """
    found = []
    if waits := [v for v in parts.waiting if v in parts.reasons]:
        found.append(f"{_where(parts.whole, waits[0])}: {parts.reasons[waits[0]]}")
    found += [f"{_where(parts.whole, v)}: a loop made turn by turn" for v in parts.turned]
    if not found:
        sized = [_origin_of_size(v) for v in parts.sources if _is_open(v.type)]
        found = [f"{_where(parts.whole, v)}: data decide its size" for v in dict.fromkeys(sized)]
    return tuple(found)


def _origin_of_size(value: Value) -> Value:
    """The op that finds a size in its data, which a value has taken over."""
    while later := [v for v in value.inputs if _is_open(v.type)]:
        value = later[0]
    return value


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.items))
    return isinstance(type_, TensorType) and not type_.is_static


def _where(graph: Graph, value: Value) -> str:
    """The op and the ONNX nodes it came from, as steps of the host are called."""
    op = value.inputs[0].op if isinstance(value.op, Item) else value.op
    origin = graph.origin(value)
    return f"{op.name} ({origin})" if origin else op.name
