"""One step of a decoder as a model of its own: tokens and state in, the next token and state out.

`docs/generate.md` says what goes in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from monograph.errors import ModelError
from monograph.frontend.onnx import read_model
from monograph.generate.caching import Given, cast_input, give_mask, rewrite_caches
from monograph.generate.decoder import Decoder, find_roles, fold_merged
from monograph.generate.folder import Settings
from monograph.generate.pieces import add_pieces
from monograph.generate.sampling import NOW_SEEN, SEEN, Shape, add_sampling
from monograph.generate.surgery import Surgery

TOKENS, POSITION, COUNT, START = "tokens", "position", "count", "start"
NEXT, NEXT_POSITION, LOGITS = "next", "next_position", "next_logits"
BATCH, SEQUENCE = "batch", "sequence"
_DATA = {
    "seed": TensorProto.INT64,
    "temperature": TensorProto.FLOAT,
    "top_p": TensorProto.FLOAT,
    "penalty": TensorProto.FLOAT,
}
_HEADS = ("MatMul", "MatMulNBits")
_BEHIND_HEAD = ("Add", "Cast", "Div", "Identity", "Mul", "Tanh")


@dataclass(frozen=True)
class Step:
    """A rewritten decoder, and what it was found to be."""

    model: onnx.ModelProto
    directory: Path
    decoder: Decoder
    maximum: int
    donate: Mapping[str, str]
    aligned: bool
    """Whether rows of a batch have to be at one position, with padding in front of short ones."""


def build_step(settings: Settings, maximum: int, shape: Shape, logits: bool = False) -> Step:
    """The step of a decoder, for caches of `maximum` rows; with the logits, where asked for."""
    file = read_model(settings.model)
    model = file.proto
    assert file.directory is not None
    fold_merged(model)
    s = Surgery(model)
    decoder = find_roles(s, settings)
    if clash := sorted({n for n in s.producers if n in _reserved()}):
        raise ModelError("the graph has names that a step needs", given=clash)
    given = Given(TOKENS, POSITION, START, maximum)
    aligned = rewrite_caches(s, decoder, given)
    give_mask(s, decoder, given, aligned)
    if decoder.positions is not None:
        if aligned:
            (places,) = s.add("PlacesFrom", [TOKENS, POSITION, START])
        else:
            (places,) = s.add("Places", [TOKENS, POSITION])
        s.reread(decoder.positions, cast_input(s, decoder.positions, places))
    s.reread(decoder.tokens, cast_input(s, decoder.tokens, TOKENS))
    _choose(s, decoder, shape, logits)
    donate = {c.present: c.past for c in decoder.caches}
    if shape.penalised:
        donate[NOW_SEEN] = SEEN
    _declare(s, decoder, maximum, shape, logits, aligned)
    s.finish()
    add_pieces(model)
    return Step(model, file.directory, decoder, maximum, donate, aligned)


def _reserved() -> set[str]:
    names = (TOKENS, POSITION, COUNT, START, NEXT, NEXT_POSITION, LOGITS, SEEN, NOW_SEEN, *_DATA)
    return set(names)


def _choose(s: Surgery, decoder: Decoder, shape: Shape, logits: bool) -> None:
    """The head on the last real token only, then the choice of the next one."""
    rows = decoder.logits
    head = _head(s, rows)
    if head is not None:
        head.input[0] = s.add_before(head, "LastRow", [head.input[0], COUNT])
    else:
        (rows,) = s.add_last("LastRow", [rows, COUNT])
    (flat,) = s.add_last("Flat", [rows], [LOGITS])
    s.add_last("Add", [POSITION, COUNT], [NEXT_POSITION])
    if shape.penalised:
        s.add("See", [SEEN, TOKENS], [NOW_SEEN])
    chosen = add_sampling(s, shape, flat, NEXT_POSITION, decoder.vocabulary)
    s.add_last("Identity", [chosen], [NEXT])


def _head(s: Surgery, logits: str) -> onnx.NodeProto | None:
    """The product that logits come from, where only single elements are changed behind it."""
    node = s.producers.get(logits)
    while node is not None and node.op_type in _BEHIND_HEAD:
        made = [n for n in node.input if n in s.producers and s.known(n) is None]
        if len(made) != 1:
            return None
        node = s.producers[made[0]]
    if node is None or node.op_type not in _HEADS:
        return None
    only = len(s.readers[node.output[0]]) <= 1
    return node if only else None


def _declare(
    s: Surgery, decoder: Decoder, maximum: int, shape: Shape, logits: bool, aligned: bool
) -> None:
    """The inputs and outputs of the step."""
    make = helper.make_tensor_value_info
    int64, float32 = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        make(TOKENS, int64, [BATCH, SEQUENCE]),
        make(POSITION, int64, [BATCH]),
        make(COUNT, int64, [BATCH]),
    ]
    inputs += [make(START, int64, [BATCH])] if aligned else []
    outputs = [make(NEXT, int64, [BATCH, 1]), make(NEXT_POSITION, int64, [BATCH])]
    if logits:
        outputs.append(make(LOGITS, float32, [BATCH, decoder.vocabulary]))
    for cache in decoder.caches:
        dims: list[int | str | None] = [BATCH, cache.heads, maximum, cache.size]
        inputs.append(make(cache.past, cache.dtype, dims))
        outputs.append(make(cache.present, cache.dtype, dims))
    if shape.penalised:
        dims = [BATCH, decoder.vocabulary]
        inputs.append(make(SEEN, TensorProto.UINT8, dims))
        outputs.append(make(NOW_SEEN, TensorProto.UINT8, dims))
    wanted = {"seed": shape.drawn, "temperature": shape.drawn}
    wanted |= {"top_p": shape.nucleus, "penalty": shape.penalised}
    inputs += [make(name, _DATA[name], [1]) for name, used in wanted.items() if used]
    del s.graph.input[:]
    s.graph.input.extend(inputs)
    del s.graph.output[:]
    s.graph.output.extend(outputs)
