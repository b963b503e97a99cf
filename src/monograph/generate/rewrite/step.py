"""One decoding step as a model: tokens and state in, the next token and state out.

`docs/adr/0013-a-decoder-becomes-one-closed-step.md` lists its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from monograph.errors import ModelError
from monograph.frontend.onnx import read_model
from monograph.generate.check import Export
from monograph.generate.discover.decoder import Decoder, find_roles, fold_merged
from monograph.generate.discover.folder import Settings
from monograph.generate.rewrite.caching import (
    Given,
    cast_input,
    give_mask,
    is_plain,
    rewrite_caches,
)
from monograph.generate.rewrite.lengths import (
    Lengths,
    check_tables,
    find_lengths,
    fold_few,
    position_tables,
)
from monograph.generate.rewrite.onnx_functions import add_pieces
from monograph.generate.rewrite.sampling import NOW_SEEN, SEEN, SamplerShape, add_sampling
from monograph.generate.rewrite.surgery import Surgery, free_names

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
class DecodeStep:
    """A rewritten decoder, and its properties."""

    model: onnx.ModelProto
    directory: Path
    decoder: Decoder
    maximum: int
    donate: Mapping[str, str]
    aligned: bool
    """True if all rows of a batch must be at one position, with padding before short ones."""
    uniform: bool
    """True if all rows must be equally long, because padding before them would change them."""
    positions: int | None
    """The number of positions of the decoder's tables; None if it has no tables."""


def build_step(
    settings: Settings,
    maximum: int,
    shape: SamplerShape | None,
    logits: bool = False,
    every: bool = False,
) -> DecodeStep:
    """Build the step of a decoder, for caches of `maximum` rows; with the logits if requested.

    Without a sampler's shape the step returns nothing but the logits and the caches; the logits
    after `every` token if requested, not after the last one alone.
    """
    s, decoder, directory, lengths = _read(settings)
    model = s.model
    given = Given(TOKENS, POSITION, START, maximum)
    aligned = is_plain(s, decoder)
    check_tables(s, decoder, lengths, maximum)
    positions = _positions(s, decoder, lengths)
    export = Export(s, directory, decoder)
    rewrite_caches(s, decoder, given, lengths)
    give_mask(s, decoder, given, aligned)
    if decoder.positions is not None:
        if aligned:
            (places,) = s.add("PlacesFrom", [TOKENS, POSITION, START])
        else:
            (places,) = s.add("Places", [TOKENS, POSITION])
        s.reread(decoder.positions, cast_input(s, decoder.positions, places))
    s.reread(decoder.tokens, cast_input(s, decoder.tokens, TOKENS))
    if every:
        assert shape is None
        s.add_last("Cast", [decoder.logits], [LOGITS], to=TensorProto.FLOAT)
    else:
        _choose(s, decoder, shape, aligned)
    donate = {c.present: c.past for c in decoder.caches}
    if shape is not None and shape.penalised:
        donate[NOW_SEEN] = SEEN
    _declare(s, decoder, maximum, shape, logits, aligned)
    if every:
        _declare_every(s, decoder)
    s.finish()
    add_pieces(model)
    # The step with the last logits alone is the one that is compared with the export.
    uniform = not every and not export.check(model, maximum) and aligned
    return DecodeStep(model, directory, decoder, maximum, donate, aligned, uniform, positions)


def most_positions(settings: Settings) -> int | None:
    """Return the number of positions of a decoder's tables; None if it has no tables."""
    s, decoder, _, lengths = _read(settings)
    return _positions(s, decoder, lengths)


def _positions(s: Surgery, decoder: Decoder, lengths: Lengths) -> int | None:
    rows = [table.dims[axis] for _, table, axis in position_tables(s, decoder, lengths)]
    return min(rows, default=None)


def _read(settings: Settings) -> tuple[Surgery, Decoder, Path, Lengths]:
    """Read an exported decoder, and find its roles and lengths."""
    file = read_model(settings.model)
    assert file.directory is not None
    fold_merged(file.proto)
    s = Surgery(file.proto)
    decoder = find_roles(s, settings)
    s = _without_clashes(s, decoder)
    if not is_plain(s, decoder):
        return s, decoder, file.directory, Lengths(frozenset(), {})
    fold_few(s.model, file.directory)
    s = Surgery(s.model)
    return s, decoder, file.directory, find_lengths(s, file.directory, decoder)


def _without_clashes(s: Surgery, decoder: Decoder) -> Surgery:
    """Rename values whose names the step needs; raise an error for names of roles."""
    names = {TOKENS, POSITION, COUNT, START, NEXT, NEXT_POSITION, LOGITS, SEEN, NOW_SEEN, *_DATA}
    roles = {decoder.logits, decoder.mask, decoder.positions}
    roles |= {name for c in decoder.caches for name in (c.past, c.present)}
    roles |= {decoder.tokens} - {TOKENS}
    if clash := sorted(name for name in roles if name in names):
        raise ModelError("inputs and outputs have names that a step needs", given=clash)
    free_names(s.graph, names)
    return Surgery(s.model)


def _choose(s: Surgery, decoder: Decoder, shape: SamplerShape | None, aligned: bool) -> None:
    """Compute the head on the last real token only, then choose the next token if requested."""
    rows = decoder.logits
    head = _head(s, rows)
    if head is not None:
        head.input[0] = s.add_before(head, "LastRow", [head.input[0], COUNT])
    else:
        (rows,) = s.add_last("LastRow", [rows, COUNT])
    (flat,) = s.add_last("Flat", [rows], [LOGITS])
    if shape is None:
        return
    s.add_last("Add", [POSITION, COUNT], [NEXT_POSITION])
    if shape.penalised:
        s.add("See", [SEEN, TOKENS], [NOW_SEEN])
    place = NEXT_POSITION
    if shape.drawn and aligned:
        # Sampling depends on the position in the row; padding before it does not count.
        (place,) = s.add_last("Sub", [NEXT_POSITION, START])
    chosen = add_sampling(s, shape, flat, place, decoder.vocabulary)
    s.add_last("Identity", [chosen], [NEXT])


def _head(s: Surgery, logits: str) -> onnx.NodeProto | None:
    """Return the product that computes the logits, if only pointwise ops follow it."""
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


def _declare_every(s: Surgery, decoder: Decoder) -> None:
    """Declare the logits as those after every token."""
    output = s.output(LOGITS)
    assert output is not None
    dims: list[int | str | None] = [BATCH, SEQUENCE, decoder.vocabulary]
    output.CopyFrom(helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, dims))


def _declare(
    s: Surgery,
    decoder: Decoder,
    maximum: int,
    shape: SamplerShape | None,
    logits: bool,
    aligned: bool,
) -> None:
    """Declare the inputs and outputs of the step."""
    make = helper.make_tensor_value_info
    int64, float32 = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        make(TOKENS, int64, [BATCH, SEQUENCE]),
        make(POSITION, int64, [BATCH]),
        make(COUNT, int64, [BATCH]),
    ]
    inputs += [make(START, int64, [BATCH])] if aligned else []
    outputs = [make(NEXT, int64, [BATCH, 1]), make(NEXT_POSITION, int64, [BATCH])]
    if shape is None:
        outputs, shape, logits = [], SamplerShape(), True
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
