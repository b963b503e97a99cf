"""A whole generation as one model: a Loop whose body is the step, ended by stop tokens.

Captures of the body (weights, the sampler's data) stay outside of it. Tokens, positions, caches and
generated tokens are its state, of the same shapes in every iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from monograph.generate.rewrite.onnx_functions import add_pieces
from monograph.generate.rewrite.sampling import NOW_SEEN, SEEN
from monograph.generate.rewrite.step import (
    BATCH,
    COUNT,
    NEXT,
    NEXT_POSITION,
    POSITION,
    TOKENS,
    DecodeStep,
)
from monograph.generate.rewrite.surgery import OWN

TURNS, STOP, MADE, ALL_MADE, TURN = "turns", "stop", "made", "all_made", "made_turns"
ENDED = "ended"
_IN, _OUT = "first.", "last."
"""Prefixes of the names of the state before and after the loop."""


@dataclass(frozen=True)
class LoopModel:
    """A generation as a model."""

    model: onnx.ModelProto
    directory: Path
    donate: dict[str, str]
    """Outputs by input: the caches, written over their inputs."""
    state: dict[str, str]
    """Names of the state in the step, by the names outside."""


def build_loop(step: DecodeStep) -> LoopModel:
    """Build the loop around a step. It returns the tokens, [batch, maximum], and the iterations."""
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    graph = model.graph
    infos = {i.name: i for i in graph.input}
    kept = {c.past: c.present for c in step.decoder.caches}
    if SEEN in infos:
        kept[SEEN] = NOW_SEEN
    make, int64 = helper.make_tensor_value_info, TensorProto.INT64
    rows: list[int | str | None] = [BATCH, step.maximum]
    carried = {
        TOKENS: (NEXT, make("", int64, [BATCH, 1]).type),
        POSITION: (NEXT_POSITION, infos[POSITION].type),
        ENDED: ("~ended", make("", TensorProto.BOOL, [BATCH]).type),
        MADE: ("~made", make("", int64, rows).type),
        TURN: ("~turns", make("", int64, [1]).type),
        **{past: (present, infos[past].type) for past, present in kept.items()},
    }
    body = _body(step, graph, carried)
    outer = [_typed(_IN + name, t) for name, (_, t) in carried.items() if name != TURN]
    captured = [i for n, i in infos.items() if n not in carried and n != COUNT]
    limits = [make(TURNS, int64, [1]), make(STOP, int64, ["stops"])]
    outputs = [make(ALL_MADE, int64, rows), make(TURN, int64, [1])]
    outputs += [_typed(_OUT + n, carried[n][1]) for n in (TOKENS, POSITION, *kept)]
    results = {ENDED: "~last.ended", MADE: ALL_MADE, TURN: TURN}
    zero = helper.make_node(
        "Constant", [], ["~zero"], value=helper.make_tensor("~0", int64, [1], [0])
    )
    go = helper.make_node(
        "Constant", [], ["~go"], value=helper.make_tensor("~1", TensorProto.BOOL, [], [True])
    )
    loop = helper.make_node(
        "Loop",
        [TURNS, "~go", *("~zero" if n == TURN else _IN + n for n in carried)],
        [results.get(n, _OUT + n) for n in carried],
        "~generation",
        body=body,
    )
    captured = [_typed(i.name, i.type) for i in captured]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend([zero, go, loop])
    graph.input.extend([*outer, *limits, *captured])
    graph.output.extend(outputs)
    add_pieces(model)
    state = {_IN + n: n for n in kept}
    return LoopModel(model, step.directory, {_OUT + n: _IN + n for n in kept}, state)


def _body(
    step: DecodeStep, graph: onnx.GraphProto, carried: dict[str, tuple[str, onnx.TypeProto]]
) -> onnx.GraphProto:
    """Return the step with the iteration count, the generated tokens and the ended rows."""
    own = [_node("Together" if step.aligned else "Going", [ENDED], [COUNT])]
    nodes = [_seeing(node) for node in graph.node]
    last = [
        _node("Ended", [NEXT, ENDED, STOP], ["~ended", "~on"]),
        _node("Record", [MADE, NEXT, TURN], ["~made"]),
        _node("Turned", [TURN], ["~turns"]),
    ]
    inputs = [
        helper.make_tensor_value_info("~turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("~still", TensorProto.BOOL, []),
        *(_typed(name, t) for name, (_, t) in carried.items()),
    ]
    outputs = [
        helper.make_tensor_value_info("~on", TensorProto.BOOL, []),
        *(_typed(new, t) for new, t in carried.values()),
    ]
    return helper.make_graph([*own, *nodes, *last], "generation", inputs, outputs)


def _seeing(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that marks seen tokens, changed to skip ended rows; others unchanged."""
    if (node.domain, node.op_type) != (OWN, "See"):
        return node
    return _node("SeeGoing", [*node.input, ENDED], list(node.output))


def _node(op: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, f"~{op}", domain=OWN)


def _typed(name: str, type_: onnx.TypeProto) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto(name=name)
    made.type.CopyFrom(type_)
    return made
