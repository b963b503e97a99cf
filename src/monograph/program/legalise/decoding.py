"""Decoding steps for targets without a kernel for them: split into cache updates and attention."""

from __future__ import annotations

from monograph.ir import Graph, Item, Value
from monograph.ops.decoding import DecodeAttention


def split_decoding(graph: Graph) -> Graph:
    """Replace decoding steps by cache updates and attention."""
    if not any(isinstance(v.op, DecodeAttention) for v in graph.values):
        return graph

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        if isinstance(old.op, Item) and isinstance(inputs[0].op, DecodeAttention):
            return inputs[0].op.parts(*inputs[0].inputs)[old.op.index]
        return old.op(*inputs) if old.inputs else old

    return graph.rebuild(rebuilt)
