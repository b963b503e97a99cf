"""Rewrites a decoder to write its cache at a position that is data, with room for the maximum.

The op that reads a cache tells two kinds of exports apart. GroupQueryAttention takes lengths as
data already. In other exports a Concat appends new rows to the past: it becomes an update of rows,
and scores after the position are masked. Such an export sees a past of length `maximum - S`, so
that all its sizes agree. A mask that it computes from that places its queries at the end of the
cache: it hides no key that they may see, and the rest is hidden here. Numbers that it counts up
from the length of the past are positions, and start at the position; they are the same for all rows
of a batch, so shorter rows get padding in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from monograph.errors import UnsupportedError
from monograph.generate.discover.decoder import GROUPED, KEY, Cache, Decoder
from monograph.generate.rewrite.lengths import Lengths, tell_position
from monograph.generate.rewrite.surgery import OWN, Surgery

MICROSOFT = "com.microsoft"
_TO_SCORES = {
    "Add", "Cast", "Clip", "Div", "Einsum", "Expand", "FusedMatMul", "Identity", "MatMul", "Max",
    "Mul", "Reshape", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Ops between keys and the softmax of scores."""


@dataclass
class Given:
    """The names of the inputs of every step."""

    tokens: str
    position: str
    start: str
    maximum: int


def is_plain(s: Surgery, decoder: Decoder) -> bool:
    """Return True if new rows are joined to a past: then all rows must be at one position."""
    return any(n.op_type == "Concat" for c in decoder.caches for n in s.readers[c.past])


def rewrite_caches(s: Surgery, decoder: Decoder, given: Given, lengths: Lengths) -> None:
    """Update every cache at the position, and limit attention to the valid keys."""
    updated: list[onnx.NodeProto] = []
    for cache in decoder.caches:
        readers = s.readers[cache.past]
        grouped = [n for n in readers if (n.domain, n.op_type) == (MICROSOFT, GROUPED)]
        joins = [n for n in readers if n.op_type == "Concat"]
        shapes = [n for n in readers if n.op_type == "Shape"]
        others = [n for n in readers if n not in grouped + joins + shapes]
        if others or len(grouped) + len(joins) != 1:
            raise UnsupportedError(
                "the decoder uses its cache in an unknown way",
                expected=f"one {GROUPED}, or one Concat with the new rows",
                given=f"{cache.past}: {', '.join(n.op_type for n in readers) or 'nothing'}",
            )
        for node in joins:
            _update(node, cache, given)
            if cache.kind == KEY:
                updated.append(node)
        _reshape(s, shapes, cache, given)
    grouped = [n for n in s.graph.node if (n.domain, n.op_type) == (MICROSOFT, GROUPED)]
    _tell_lengths(s, grouped, given)
    if updated:
        _refuse_counting(s, decoder)
        tell_position(s, lengths, given)
        _hide(s, updated, given)


def give_mask(s: Surgery, decoder: Decoder, given: Given, masked: bool) -> None:
    """Provide a mask for its readers: all ones if scores are masked anyway."""
    if decoder.mask is None:
        return
    if masked:
        maximum = s.constant([given.maximum])
        (mask,) = s.add("Ones", [given.tokens, maximum])
    else:
        maximum = s.constant(given.maximum)
        (mask,) = s.add("Filled", [given.tokens, given.position, maximum])
    s.reread(decoder.mask, cast_input(s, decoder.mask, mask))
    s.drop_input(decoder.mask)


def cast_input(s: Surgery, old: str, new: str) -> str:
    """Cast an i64 value to the type of an input of the export."""
    info = s.input(old)
    assert info is not None
    dtype = info.type.tensor_type.elem_type
    return new if dtype == onnx.TensorProto.INT64 else s.add("Cast", [new], to=dtype)[0]


def _tell_lengths(s: Surgery, nodes: list[onnx.NodeProto], given: Given) -> None:
    """Give GroupQueryAttention its lengths as data, and the room of the cache as total length."""
    if not nodes:
        return
    (last,) = s.add("LastKey", [given.tokens, given.position])
    total = s.constant(given.maximum, np.int32)
    for node in nodes:
        node.input[5], node.input[6] = last, total


def _update(node: onnx.NodeProto, cache: Cache, given: Given) -> None:
    """Replace Concat(past, new) along the length by CacheUpdate(past, new, position)."""
    axis = next(a.i for a in node.attribute if a.name == "axis")
    if list(node.input)[:1] != [cache.past] or len(node.input) != 2 or axis not in (2, -2):
        raise UnsupportedError(
            "the decoder extends its cache in an unknown way",
            node=node.name,
            expected=f"Concat({cache.past}, new rows) along axis 2",
            given=f"Concat({', '.join(node.input)}) along axis {axis}",
        )
    node.input.append(given.position)
    node.op_type, node.domain = "CacheUpdate", OWN
    next(a for a in node.attribute if a.name == "axis").i = 2


def _reshape(s: Surgery, shapes: list[onnx.NodeProto], cache: Cache, given: Given) -> None:
    """Give readers of the past's shape that of a past that leaves room for the step."""
    for node in shapes:
        bounds = {a.name: a.i for a in node.attribute}
        (whole,) = s.add("PastShape", [cache.past, given.tokens])
        node.input[0] = whole
        del node.attribute[:]
        if not bounds:
            node.op_type = "Identity"
            continue
        node.op_type = "Slice"
        node.input.append(s.constant([bounds.get("start", 0)]))
        node.input.append(s.constant([bounds.get("end", 4)]))


def _refuse_counting(s: Surgery, decoder: Decoder) -> None:
    """Raise an error if positions are counted in the mask: a mask of ones has none of them."""
    for node in s.graph.node:
        if node.op_type == "CumSum" and decoder.mask in {*_upstream(s, node.input[0], {"Cast"})}:
            raise UnsupportedError(
                "positions are counted in the attention mask",
                node=node.name,
                given=node.op_type,
                hint="export the decoder with position_ids as an input",
            )


def _upstream(s: Surgery, name: str, through: set[str]) -> Iterator[str]:
    """Yield a name, and all its sources through these ops alone."""
    stack, seen = [name], {name}
    while stack:
        found = stack.pop()
        yield found
        node = s.producers.get(found)
        if node is None or node.op_type not in through:
            continue
        for n in node.input:
            if n not in seen:
                seen.add(n)
                stack.append(n)


def _hide(s: Surgery, updates: list[onnx.NodeProto], given: Given) -> None:
    """Hide the keys after its queries from every softmax of scores."""
    found: dict[int, onnx.NodeProto] = {}
    from_keys: set[str] = set()
    for update in updates:
        reached = [n for n in _reached(s, update.output[0], from_keys) if n.op_type == "Softmax"]
        if not reached:
            raise UnsupportedError(
                "the keys of a cache must reach a softmax of scores",
                node=update.name,
                given=update.output[0],
            )
        found |= {id(n): n for n in reached}
    maximum = s.constant(given.maximum)
    (visible,) = s.add("Visible", [given.tokens, given.position, given.start, maximum])
    hidden: dict[str, str] = {}
    for node in [n for n in s.graph.node if id(n) in found]:
        place, at = node, 0
        made = s.producers.get(node.input[0])
        while made is not None and made.op_type == "Cast":
            made = s.producers.get(made.input[0])
        if made is not None and made.op_type == "Add":
            masks = [i for i, name in enumerate(made.input) if name not in from_keys]
            place, at = (made, masks[0]) if masks else (place, at)
        name = place.input[at]
        if name not in hidden:
            hidden[name] = s.add_before(place, "Hide", [name, visible])
        place.input[at] = hidden[name]


def _reached(s: Surgery, name: str, passed: set[str]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes on a value's way to scores; `passed` collects the values between."""
    stack = [name]
    while stack:
        value = stack.pop()
        if value in passed:
            continue
        passed.add(value)
        for node in s.readers[value]:
            yield node
            if node.op_type in _TO_SCORES:
                stack.extend(node.output)
