"""Fusion of a decoding step into one op: rope, cache update and attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monograph.ir import Graph, Input, Value, unpack
from monograph.ops.attention import LENGTHS, Attention, CacheUpdate, Rope
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Loop
from monograph.ops.subgraph import state_donated
from monograph.passes.base import Environment, Pass, joined_origins, substitute


@dataclass(frozen=True)
class FuseDecoding(Pass):
    """attention(rope(q), cache_update(keys, rope(k)), cache_update(values, v)) -> one op

    It needs one query per sequence, caches that are updated in place, and a target with a kernel.
    """

    exact = True

    def run(self, graph: Graph, environment: Environment) -> Graph:
        if not environment.cost.decodes:
            self._note_target(graph, environment)
            return graph
        return self._fused(self._inside_loops(graph, environment), environment)

    def run_inside(self, graph: Graph, environment: Environment) -> Graph:
        """Leave a sub-graph alone: only the loop around it knows which inputs are its state."""
        return graph

    def _note_target(self, graph: Graph, environment: Environment) -> None:
        """Name the decoding steps of a target without a kernel for them."""
        donated = _donated(graph)
        for value in graph.values:
            if isinstance(value.op, Attention) and _declined(value, donated) is None:
                reason = "the target has no kernel for a whole decoding step"
                environment.trace.note_missed(self.name, graph.place(value), reason, 100)

    def _inside_loops(self, graph: Graph, environment: Environment) -> Graph:
        if not any(isinstance(v.op, Loop) for v in graph.values):
            return graph

        def rebuilt(value: Value, inputs: tuple[Value, ...]) -> Value:
            if not isinstance(value.op, Loop):
                return value.op(*inputs) if value.inputs else value
            body = state_donated(value.op.body, value.op.carried)
            after = self.run(body, environment)
            if after is body:
                return value.op(*inputs)
            return replace(value.op, body=replace(after, donations=()))(*inputs)

        return graph.rebuild(rebuilt)

    def _fused(self, graph: Graph, environment: Environment) -> Graph:
        donated = _donated(graph)
        replacement: dict[Value, Value] = {}
        origins: dict[Value, str] = {}
        for value in graph.values:
            if not isinstance(value.op, Attention) or environment.exhausted:
                continue
            why = _declined(value, donated)
            if why is not None:
                environment.trace.note_missed(self.name, graph.place(value), why, 50)
                continue
            step = _fused(value)
            replaced = (value, value.inputs[1], value.inputs[2])
            replacement |= dict(zip(replaced, unpack(step), strict=True))
            origins[step] = joined_origins(graph, replaced)
            environment.trace.note_fired(
                self.name, graph.place(value), "2 x cache_update + attention", step.op.name
            )
        return substitute(graph, replacement, origins) if replacement else graph


def _donated(graph: Graph) -> dict[Value, Value]:
    """Return the input that each donated output is written over."""
    inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
    outputs = dict(graph.outputs)
    return {outputs[new]: inputs[old] for new, old in graph.donations}


def _declined(value: Value, donated: dict[Value, Value]) -> str | None:
    """Return the reason why an attention is not a decoding step; None where it is one."""
    op, (q, keys, values, *_) = value.op, value.inputs
    assert isinstance(op, Attention)
    if not op.causal:
        return "the attention is not causal"
    if op.extra != (LENGTHS,):
        if not op.extra:
            return f"the sequences have no lengths of their own (expected {LENGTHS})"
        return f"lengths are not the only mask (expected {LENGTHS}, given {', '.join(op.extra)})"
    if op.masked_nan:
        return "a sequence of length 0 gives NaN (expected 0)"
    if q.tensor.dims[2] != 1:
        return f"a sequence has {q.tensor.dims[2]} queries (expected 1)"
    for cache in (keys, values):
        if not isinstance(cache.op, CacheUpdate) or cache.op.circular or cache.op.axis != 2:
            return "keys and values are not updated caches"
        if cache.inputs[1].tensor.dims[2] != 1:
            return "the caches are updated by more than one row"
        state = cache.inputs[0]
        if not isinstance(state.op, Input) or donated.get(cache) is not state:
            return "a cache is not donated, so all of it would be copied"
    if keys.inputs[2] is not values.inputs[2]:
        return "keys and values are updated at different positions"
    turned = [isinstance(x.op, Rope) for x in (q, keys.inputs[1])]
    if turned[0] != turned[1]:
        return "only one of query and key has a rotary embedding"
    if turned[0] and (q.op != keys.inputs[1].op or q.inputs[1:] != keys.inputs[1].inputs[1:]):
        return "query and key have different rotary embeddings"
    return None


def _fused(value: Value) -> Value:
    op, (q, keys, values, lengths) = value.op, value.inputs
    assert isinstance(op, Attention)
    assert op.scale is not None
    k, interleaved = keys.inputs[1], False
    turns: tuple[Value, ...] = ()
    if isinstance(q.op, Rope):
        interleaved, turns = q.op.interleaved, q.inputs[1:]
        q, k = q.inputs[0], k.inputs[0]
    step = DecodeAttention(op.scale, op.window, op.softcap, interleaved)
    caches = (keys.inputs[0], values.inputs[0], keys.inputs[2], lengths)
    return step(q, k, values.inputs[1], *caches, *turns)
