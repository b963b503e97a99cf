"""Corrects the length of the past where an export uses it as data.

After the rewrite all shapes are those of a past that leaves room for the step, `maximum - S`, so
numbers derived from the past's length are as large as that. For a number that is a size this is
right. A number that is data (the first of counted positions, the diagonal of a triangle, the row at
which a table is cut) must use the real length of the past. The growth of a number with the past is
measured on the export itself, at two lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from monograph.errors import ModelError, UnsupportedError
from monograph.generate.check import exported_feeds, exported_part, part_of
from monograph.generate.discover.decoder import GROUPED, Decoder
from monograph.generate.rewrite.surgery import Surgery, graphs_of
from monograph.ir import Array

FEW = 64
"""The most elements of constants that sizes are computed with."""


def fold_few(model: onnx.ModelProto, directory: Path) -> None:
    """Fold nodes with small results that depend on small constants only.

    The operands of a size decide what is a size, and what is data that depends on the position.
    Some exporters write such numbers as ops: a Constant with an attribute for each type, an
    Identity, an Unsqueeze around it.
    """
    graph = model.graph
    results = {o.name for o in graph.output}
    small = {
        t.name
        for t in graph.initializer
        if math.prod(t.dims) <= FEW and t.data_location != TensorProto.EXTERNAL
    }
    nodes = []
    for node in graph.node:
        known = all(not name or name in small for name in node.input)
        if known and _is_plain(node) and not results.intersection(node.output):
            nodes.append(node)
            small.update(node.output)
    names = [name for node in nodes for name in node.output if name]
    if not names:
        return
    made = part_of(model, directory, names).run({})
    few = {name: np.asarray(x) for name, x in made.items() if np.size(x) <= FEW}
    folded = {id(n) for n in nodes if all(name in few for name in n.output if name)}
    kept = [node for node in graph.node if id(node) not in folded]
    gone = {name for n in nodes if id(n) in folded for name in n.output if name}
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(numpy_helper.from_array(few[name], name) for name in sorted(gone))


def _is_plain(node: onnx.NodeProto) -> bool:
    """Return True if a node is deterministic."""
    if node.domain not in ("", "ai.onnx") or any(graphs_of(node)):
        return False
    if node.op_type == "Constant":
        return all(math.prod(a.t.dims) <= FEW for a in node.attribute if a.HasField("t"))
    return "Random" not in node.op_type and node.op_type not in ("Bernoulli", "Multinomial")


_MOVED = {"Abs", "Cast", "CastLike", "Gather", "Identity", "Reshape", "Slice", "Squeeze"}
_MOVED |= {"ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Unsqueeze"}
_COMPUTED = {"Add", "Concat", "Div", "Equal", "Max", "Min", "Mul", "Neg", "Sub", "Where"}
"""Ops that compute sizes."""
_SIZE_SLOTS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Split": 1, "Tile": 1, "Shape": 0}
"""Inputs that are sizes, whatever they hold."""
_ANGLES = {GROUPED: 7, "RotaryEmbedding": 2}
"""The input of each op that is a table of angles."""
_PASTS = (5, 12)
"""The lengths that are tried."""
_END = 1 << 30
"""Ends of a Slice from here on mean "to the end"."""


@dataclass(frozen=True)
class Length:
    """One or more numbers that grow with the past."""

    first: Array
    """The value at the first of the tried lengths."""
    growth: Array
    """The growth per row of the past; 0 for elements that do not grow."""


@dataclass(frozen=True)
class Lengths:
    """The sizes of a graph, and those that are used as data and grow with the past."""

    sizes: frozenset[str]
    grown: dict[str, Length]
    new: int = 0
    """The number of new tokens during the measurement."""


def find_lengths(s: Surgery, directory: Path, decoder: Decoder) -> Lengths:
    """Return what an unchanged export computes from the length of its past."""
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
    """Return small numbers computed from shapes and constants alone."""
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
    """Return True if a shape is that of a size, as exporters expand to -1."""
    node = s.producers.get(name)
    return node is not None and node.op_type == "Shape" and node.input[0] in sizes


def _uses(s: Surgery, sizes: frozenset[str]) -> Iterator[tuple[onnx.NodeProto, int, str]]:
    """Yield the uses of sizes in nodes whose result is no size."""
    for node in s.graph.node:
        if node.output[0] in sizes:
            continue
        for slot, name in enumerate(node.input):
            if name in sizes:
                yield node, slot, name


def tell_position(s: Surgery, found: Lengths, given: Any) -> None:
    """Give every use of such a length as data the real length of the past."""
    shifted: dict[str, str] = {}
    lengths = found.grown
    for node in list(s.graph.node):
        if node.output[0] in found.sizes:
            continue  # a size computed from another; its own uses count
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
    """Return a number corrected for the real past."""
    factor = s.constant(growth, growth.dtype)
    maximum = s.constant(given.maximum)
    return s.add_before(place, "Shifted", [name, factor, given.tokens, given.position, maximum])


def _count(s: Surgery, node: onnx.NodeProto, found: Lengths, given: Any) -> None:
    """Correct a Range: its length stays, and it starts at the end of the real past."""
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
    """Correct a Slice: rows from the end of the past on are read at the end of the real past."""
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
            "a Slice uses the length of the past in an unknown way",
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
    """Yield position tables and buffers that masks are cut from, with the axis of positions."""
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
    """Raise an error if a position table has too few rows for the maximum length."""
    for node, table, axis in position_tables(s, decoder, lengths):
        if (rows := table.dims[axis]) < maximum:
            raise ModelError(
                "the maximum length is more than the decoder has positions for",
                node=node.name,
                expected=f"at most {rows}, the rows of {table.name}",
                given=maximum,
                hint=f"give max_length={rows}, or less",
            )
