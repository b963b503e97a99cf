"""Parts of a decoder's graph as models that the reference runs.

The effect of lengths on an export is measured, not guessed from its ops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from monograph.config import make_config
from monograph.frontend.onnx import ModelFile
from monograph.generate.discover.decoder import Decoder
from monograph.generate.rewrite.surgery import names_read, needed_nodes
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
