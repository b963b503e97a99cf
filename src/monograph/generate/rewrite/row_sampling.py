"""Sampling of many rows as a model of its own: options are data of each row.

Logits [batch, vocabulary] become one token for each row. A draw depends on the seed, the position
and the token only, never on the row or on other rows. So that the kind of model that the neighbours
of a row need does not change its token, all kinds compute a row's scores by the same ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx.parser
from onnx import TensorProto, helper

from monograph.generate.rewrite.onnx_functions import add_pieces
from monograph.generate.rewrite.surgery import OWN

ROW_LOGITS, CHOSEN = "row_logits", "chosen"
DRAWN = ("position", "seed", "temperature")
LIMITED = ("top_k", "top_p", "min_p")
ADJUSTED = ("seen", "penalty", "bias")
_TYPES = {
    "position": TensorProto.INT64,
    "seed": TensorProto.INT64,
    "temperature": TensorProto.FLOAT,
    "top_k": TensorProto.INT64,
    "top_p": TensorProto.FLOAT,
    "min_p": TensorProto.FLOAT,
    "seen": TensorProto.UINT8,
    "penalty": TensorProto.FLOAT,
    "bias": TensorProto.FLOAT,
}


@dataclass(frozen=True)
class RowSamplerKind:
    """The work that some row of a step needs."""

    drawn: bool = False
    limited: bool = False
    """Some row draws from its most likely tokens only."""
    adjusted: bool = False
    """Some row has penalties or biases."""


def build_row_sampler(kind: RowSamplerKind, vocabulary: int) -> onnx.ModelProto:
    """Build the model that chooses a token for each row."""
    make, batch = helper.make_tensor_value_info, "batch"
    one: list[int | str | None] = [batch]
    whole: list[int | str | None] = [batch, vocabulary]
    names = [*(DRAWN if kind.drawn else ()), *(LIMITED if kind.limited else ())]
    names += ADJUSTED if kind.adjusted else ()
    inputs = [make(ROW_LOGITS, TensorProto.FLOAT, whole)]
    for name in names:
        inputs.append(make(name, _TYPES[name], whole if name in ("seen", "bias") else one))
    nodes, logits = [], ROW_LOGITS
    if kind.adjusted:
        nodes.append(_node("AdjustRows", [logits, *ADJUSTED], "~adjusted"))
        logits = "~adjusted"
    if kind.drawn:
        nodes.append(_node("ScaleRows", [logits, "temperature"], "~scaled"))
        tokens = "~scaled"
        nodes.append(_node("RowScores", [logits, tokens, *DRAWN], "~scores"))
        if kind.limited:
            nodes.append(_node("LimitRows", [tokens, "~scores", "temperature", *LIMITED], "~kept"))
        logits = "~kept" if kind.limited else "~scores"
    nodes.append(helper.make_node("ArgMax", [logits], [CHOSEN], axis=1, keepdims=0))
    outputs = [make(CHOSEN, TensorProto.INT64, [batch])]
    graph = helper.make_graph(nodes, "row sampler", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    add_pieces(model)
    return model


def _node(op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], f"~{op}", domain=OWN)
