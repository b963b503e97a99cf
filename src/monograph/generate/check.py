"""Checks that a rewritten decoder places its queries and keys as its export does.

Masks, positions and biases of an export are computed from lengths, positions and the attention
mask, not from data. So the reference evaluates them for a few lengths, in the export and in the
step, and the visible keys of each query must be the same. A decoder that uses its lengths in an
unknown way is rejected here instead of giving other tokens. Parts of a graph are models of their
own (`part_of`): the effect of lengths is measured, not guessed from ops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from monograph.config import make_config
from monograph.errors import UnsupportedError
from monograph.frontend.onnx import ModelFile
from monograph.generate.discover.decoder import GROUPED, Decoder
from monograph.generate.rewrite.surgery import Surgery, names_read, needed_nodes
from monograph.ir import Array
from monograph.runtime.cache.store import UnreadModel
from monograph.session import Session


class RewrittenSource(UnreadModel):
    """A model made from a file: its weights may be beside that file."""

    def __init__(self, model: onnx.ModelProto, directory: Path) -> None:
        super().__init__(model)
        self._model = model
        self.directory = directory
        self.digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()

    def read(self) -> ModelFile:
        return ModelFile(self._model, self.directory)


@dataclass(frozen=True)
class PartialGraph:
    """The part of a graph that computes some values, for any lengths."""

    session: Session
    names: tuple[str, ...]

    def filled(self, shapes: Mapping[str | None, tuple[int, ...]]) -> dict[str, Array]:
        """Return zeros of these shapes for every input."""
        found = {}
        for port in self.session.inputs:
            assert port.dtype is not None
            found[port.name] = np.zeros(shapes[port.name], port.dtype.numpy)
        return found

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(self.names, self.session.run(feeds), strict=True))


def part_of(
    model: onnx.ModelProto,
    directory: Path,
    names: Iterable[str],
    free: Mapping[str, int] | None = None,
) -> PartialGraph:
    """Return the part of a model that computes these values.

    free: axes of inputs that may have any size, whatever the model declares.
    """
    wanted = tuple(names)
    graph, part = model.graph, onnx.ModelProto(ir_version=model.ir_version)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = "part"
    nodes = needed_nodes(list(graph.node), set(wanted))
    read = {name for node in nodes for name in names_read(node)}
    part.graph.node.extend(nodes)
    part.graph.input.extend(i for i in graph.input if i.name in read)
    for info in part.graph.input:
        if free and info.name in free:
            info.type.tensor_type.shape.dim[free[info.name]].dim_param = f"~{info.name}"
    part.graph.initializer.extend(t for t in graph.initializer if t.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    config = make_config(target="reference", cache_dir="")
    return PartialGraph(Session(RewrittenSource(part, directory), config, {}, {}), wanted)


def exported_part(
    model: onnx.ModelProto, directory: Path, decoder: Decoder, names: Iterable[str]
) -> PartialGraph:
    """Return a part of an export, for pasts of any length."""
    free = {c.past: 2 for c in decoder.caches}
    if decoder.mask is not None:
        free[decoder.mask] = 1
    return part_of(model, directory, names, free)


def exported_feeds(part: PartialGraph, decoder: Decoder, past: int, new: int) -> dict[str, Array]:
    """Return the feeds of a part of the export for new tokens after a past, in one row."""
    shapes: dict[str | None, tuple[int, ...]] = {
        c.past: (1, c.heads, past, c.size) for c in decoder.caches
    }
    shapes[decoder.tokens] = shapes[decoder.positions] = (1, new)
    shapes[decoder.mask] = (1, past + new)
    feeds = part.filled(shapes)
    numbers = {decoder.mask: np.ones(1), decoder.positions: np.arange(past, past + new)}
    for name, given in numbers.items():
        if name in feeds:
            feeds[name][:] = given
    return feeds


_SIZES = {"Expand": 1, "Pad": 1, "Reshape": 1, "Slice": 1, "Split": 1, "Tile": 1}
"""The first input of each op that is a size; sizes of tensors with data are not compared."""
_GROUPED_LENGTHS = slice(5, 7)
"""Inputs of GroupQueryAttention that are lengths: the step provides its own."""
_STEPS = ((0, 1), (0, 4), (3, 2), (7, 1), (-3, 2), (-2, 1))
"""Lengths of pasts (from the maximum if negative), and numbers of new tokens."""


class Export:
    """The values that an exported decoder computes from lengths alone."""

    def __init__(self, s: Surgery, directory: Path, decoder: Decoder) -> None:
        self._decoder, self._directory = decoder, directory
        self._names = [*dict.fromkeys(_made_of_lengths(s, decoder))]
        self._part = (
            exported_part(s.model, directory, decoder, self._names) if self._names else None
        )

    def check(self, step: onnx.ModelProto, maximum: int) -> bool:
        """Raise an error if a step differs; return True if padding before a row changes nothing."""
        if self._part is None:
            return True
        part = part_of(step, self._directory, self._names)
        equal = True
        for begin, new in _STEPS:
            past = begin if begin >= 0 else maximum + begin
            if not 0 <= past < maximum - new or (self._decoder.single and new > 1):
                continue
            expected = self._part.run(exported_feeds(self._part, self._decoder, past, new))
            found = part.run(self._feeds(part, past, new, 0, maximum))
            padded = part.run(self._feeds(part, past + 1, new, 1, maximum))
            for name, right in expected.items():
                if not _same(found[name], right, past, new):
                    raise _unknown(name)
                wide = right.shape[-1:] == (past + new,) and padded[name].shape[-1] == maximum
                shown = padded[name][..., 1:] if wide else padded[name]
                equal = equal and _same(shown, right, past, new)
        return equal

    def _feeds(
        self, part: PartialGraph, past: int, new: int, start: int, maximum: int
    ) -> dict[str, Array]:
        """Return the feeds of a part of the step, in one row with padding up to `start`."""
        numbers = {"position": past, "start": start, "count": new}
        shapes: dict[str | None, tuple[int, ...]] = dict.fromkeys(numbers, (1,))
        shapes["tokens"] = (1, new)
        for cache in self._decoder.caches:
            shapes[cache.past] = (1, cache.heads, maximum, cache.size)
        feeds = part.filled(shapes)
        for name, number in numbers.items():
            if name in feeds:
                feeds[name][:] = number
        return feeds


def _unknown(name: str) -> UnsupportedError:
    return UnsupportedError(
        "the decoder makes something of the length of its past that a step cannot",
        expected="masks and positions that are those of the export at every position",
        given=name,
        hint="give a smaller max_length, or export it with position_ids",
    )


def _same(found: Array, right: Array, past: int, new: int) -> bool:
    """Return True if values are the same where a query sees them."""
    if found.ndim != right.ndim:
        return False
    cut = found[tuple(slice(0, n) for n in right.shape)]
    if cut.shape != right.shape:
        return False
    differ = (cut != right) & ~((cut != cut) & (right != right))
    if right.shape[-2:] == (new, past + new):  # keys after a query are hidden anyway
        differ = differ & np.tri(new, past + new, past, dtype=bool)
    return not differ.any()


def _made_of_lengths(s: Surgery, decoder: Decoder) -> Iterator[str]:
    """Yield values computed from lengths and positions, where they meet data."""
    places = {n for n in (decoder.mask, decoder.positions) if n is not None}
    data = {decoder.tokens, *(c.past for c in decoder.caches)}
    for node in s.graph.node:
        read = set(names_read(node))
        if node.op_type == "Shape":
            places.update(node.output)
        elif read & data:
            data.update(node.output)
            first = _SIZES.get(node.op_type, len(node.input))
            sizes = set(node.input[first:]) - set(node.input[:first])
            if node.op_type == GROUPED:
                sizes |= set(node.input[_GROUPED_LENGTHS])
            yield from (n for n in (read & places) - sizes if n in s.producers)
        elif read & places:
            places.update(node.output)
