"""The length of a past where an export uses it as data: there it is told the position.

Behind the rewrite all shapes are those of a past that leaves room for the step, `maximum - S`, so
what an export derives from the length of its past is as large as that. Where such a number makes a
size, that is right. Where it is data (the first of the positions that are counted up, the diagonal
of a triangle, a row that a table is cut at), it has to be what the past really is. How a number
grows with the past is measured on the export itself, at two lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from monograph.errors import ModelError, UnsupportedError
from monograph.generate.check.parts import exported_feeds, exported_part
from monograph.generate.discover.decoder import GROUPED, Decoder
from monograph.generate.rewrite.constants import FEW
from monograph.generate.rewrite.surgery import Surgery
from monograph.ir import Array

_MOVED = {"Abs", "Cast", "CastLike", "Gather", "Identity", "Reshape", "Slice", "Squeeze"}
_MOVED |= {"ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Unsqueeze"}
_COMPUTED = {"Add", "Concat", "Div", "Equal", "Max", "Min", "Mul", "Neg", "Sub", "Where"}
"""Ops that sizes are computed with: of the first kind where what they move is a size."""
_SIZE_SLOTS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Split": 1, "Tile": 1, "Shape": 0}
"""Inputs that are sizes, whatever is in them."""
_ANGLES = {GROUPED: 7, "RotaryEmbedding": 2}
"""Which input of an op is a table of angles."""
_PASTS = (5, 12)
"""The lengths that are tried."""
_END = 1 << 30
"""From here on an end of a Slice is no number, but all there is."""


@dataclass(frozen=True)
class Length:
    """A number, or several, that grow with the past."""

    first: Array
    """At the first of the lengths that were tried."""
    growth: Array
    """By how much for each row of the past; 0 for elements that do not."""


@dataclass(frozen=True)
class Lengths:
    """The sizes of a graph, and those of them that are used as data and grow with the past."""

    sizes: frozenset[str]
    grown: dict[str, Length]
    new: int = 0
    """How many tokens came behind the past when these were looked at."""


def find_lengths(s: Surgery, directory: Path, decoder: Decoder) -> Lengths:
    """What an export, as it is, makes of the length of its past."""
    sizes = _sizes(s)
    wanted: dict[str, None] = {}
    for node, slot, name in _uses(s, sizes):
        if slot != _SIZE_SLOTS.get(node.op_type):
            wanted[name] = None
    if not wanted:
        return Lengths(sizes, {})
    part, new = exported_part(s.model, directory, decoder, wanted), 1 if decoder.single else 3
    few, many = (part.run(exported_feeds(part, decoder, past, new)) for past in _PASTS)
    found = {}
    for name, first in few.items():
        second = many[name]
        if first.shape != second.shape or first.dtype == np.bool_ or not (first != second).any():
            continue
        growth = (second - first) / (_PASTS[1] - _PASTS[0])
        if np.issubdtype(first.dtype, np.integer):
            growth = growth.round().astype(np.int64)
        found[name] = Length(first, growth.astype(growth.dtype))
    return Lengths(sizes, found, new)


def _sizes(s: Surgery) -> frozenset[str]:
    """Small numbers that are made of shapes and constants alone."""
    found: set[str] = set()

    def few(name: str) -> bool:
        data = s.known(name)
        return not name or (data is not None and data.size <= FEW)

    for node in s.graph.node:
        inputs = list(node.input)
        if node.op_type == "Shape" or (node.op_type in _MOVED and inputs[0] in found):
            found.update(node.output)
        elif node.op_type in _COMPUTED and any(n in found for n in inputs):
            if all(n in found or few(n) for n in inputs):
                found.update(node.output)
        elif node.op_type == "ConstantOfShape" and _is_shape_of(s, inputs[0], found):
            found.update(node.output)
    return frozenset(found)


def _is_shape_of(s: Surgery, name: str, sizes: set[str]) -> bool:
    """Whether a shape is that of a size: as exporters expand to -1."""
    node = s.producers.get(name)
    return node is not None and node.op_type == "Shape" and node.input[0] in sizes


def _uses(s: Surgery, sizes: frozenset[str]) -> Iterator[tuple[onnx.NodeProto, int, str]]:
    """Where sizes are used for something that is no size itself."""
    for node in s.graph.node:
        if node.output[0] in sizes:
            continue
        for slot, name in enumerate(node.input):
            if name in sizes:
                yield node, slot, name


def tell_position(s: Surgery, found: Lengths, given: Any) -> None:
    """Has every use of such a length as data see what the past really is."""
    shifted: dict[str, str] = {}
    lengths = found.grown
    for node in list(s.graph.node):
        if node.output[0] in found.sizes:
            continue  # one size made of another: what it is used for counts
        if node.op_type == "Range":
            _count(s, node, found, given)
        elif node.op_type == "Slice" and len(node.input) > 1:
            _cut(s, node, lengths, given)
        else:
            for slot, name in enumerate(node.input):
                if name in lengths and slot != _SIZE_SLOTS.get(node.op_type):
                    if name not in shifted:
                        shifted[name] = _shift(s, node, name, lengths[name].growth, given)
                    node.input[slot] = shifted[name]


def _shift(s: Surgery, place: onnx.NodeProto, name: str, growth: Array, given: Any) -> str:
    """A number as it is for the past that there really is."""
    factor = s.constant(growth, growth.dtype)
    maximum = s.constant(given.maximum)
    return s.add_before(place, "Shifted", [name, factor, given.tokens, given.position, maximum])


def _count(s: Surgery, node: onnx.NodeProto, found: Lengths, given: Any) -> None:
    """Range: it stays as long as it is, and starts where the past really ends."""
    start, limit = (found.grown.get(name) for name in node.input[:2])
    if start is None:
        return
    step = s.known(node.input[2])
    plain = limit is not None and int(limit.first - start.first) == found.new and step == 1
    if plain and start.growth == 1 and start.first == _PASTS[0]:
        places = s.add_before(node, "Counted", [given.tokens, given.position, node.input[0]])
    else:
        whole = s.add_before(node, "Range", list(node.input))
        places = _shift(s, node, whole, start.growth, given)
    _become(node, "Identity", [places])


def _cut(s: Surgery, node: onnx.NodeProto, lengths: dict[str, Length], given: Any) -> None:
    """Slice: rows from the end of the past on are looked up where the past really ends."""
    start = lengths.get(node.input[1])
    if start is None:
        return
    end = lengths.get(node.input[2])
    last = s.known(node.input[2])
    axes = s.known(node.input[3]) if len(node.input) > 3 else np.zeros(1, np.int64)
    step = s.known(node.input[4]) if len(node.input) > 4 else np.ones(1, np.int64)
    known = axes is not None and step is not None and start.first.size == 1 and (step == 1).all()
    with_past = end is not None and (end.growth == start.growth).all()
    to_end = last is not None and last.size == 1 and int(last[0]) > _END
    to_end = to_end and (start.growth == 1).all() and int(start.first[0]) == _PASTS[0]
    if not known or not (with_past or to_end):
        raise UnsupportedError(
            "rows are cut by the length of the past in a way that is not known",
            node=node.name,
            expected="from the past's length to that of past and new tokens",
            given=f"Slice({', '.join(node.input)})",
        )
    first, limit = node.input[1], node.input[2]
    rows = (
        s.add_before(node, "Rows", [first, limit])
        if with_past
        else s.add_before(node, "RowsFrom", [first, given.tokens])
    )
    places = _shift(s, node, rows, start.growth, given)
    assert axes is not None
    _become(node, "Gather", [node.input[0], places], axis=int(axes[0]))


def _become(node: onnx.NodeProto, op: str, inputs: list[str], **attributes: int) -> None:
    node.op_type, node.domain = op, ""
    del node.input[:], node.attribute[:]
    node.input.extend(inputs)
    node.attribute.extend(onnx.helper.make_attribute(n, x) for n, x in attributes.items())


def position_tables(
    s: Surgery, decoder: Decoder, lengths: Lengths
) -> Iterator[tuple[onnx.NodeProto, onnx.TensorProto, int]]:
    """Tables of positions and buffers that masks are cut from, and which axis of them counts."""
    places = {decoder.positions}
    for node in s.graph.node:
        inputs = list(node.input)
        table = s.constants.get(inputs[0]) if inputs else None
        at = _ANGLES.get(node.op_type, len(inputs))
        angles = s.constants.get(inputs[at]) if at < len(inputs) else None
        if angles is not None and len(angles.dims) == 2:
            yield node, angles, 0
        elif node.op_type == "Gather" and table is not None and inputs[1] in places:
            yield node, table, next((a.i for a in node.attribute if a.name == "axis"), 0)
        elif node.op_type == "Slice" and table is not None and inputs[1:2]:
            axes = s.known(inputs[3]) if len(inputs) > 3 else np.zeros(1, np.int64)
            if inputs[1] in lengths.grown and axes is not None and axes.size == 1:
                yield node, table, int(axes[0])
        counted = node.op_type == "Range" and inputs[0] in lengths.grown
        if counted or (node.op_type in _MOVED and inputs[0] in places):
            places.update(node.output)


def check_tables(s: Surgery, decoder: Decoder, lengths: Lengths, maximum: int) -> None:
    """Refuses a maximum length that some table of positions has no rows for."""
    for node, table, axis in position_tables(s, decoder, lengths):
        if (rows := table.dims[axis]) < maximum:
            raise ModelError(
                "the maximum length is more than the decoder has positions for",
                node=node.name,
                expected=f"at most {rows}, the rows of {table.name}",
                given=maximum,
                hint=f"give max_length={rows}, or less",
            )
