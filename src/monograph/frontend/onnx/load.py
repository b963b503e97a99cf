"""Reads a model file. A model file is untrusted input."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from monograph.errors import ModelError
from monograph.frontend.onnx.functions import FunctionKey, check_recursion
from monograph.frontend.onnx.registry import normalise_domain
from monograph.frontend.onnx.tensors import read_sparse, read_tensor
from monograph.ir import Literal


@dataclass
class ModelFile:
    """A parsed model and the directory that its external data may come from."""

    proto: onnx.ModelProto
    directory: Path | None = None

    @cached_property
    def opsets(self) -> dict[str, int]:
        return {normalise_domain(o.domain): o.version for o in self.proto.opset_import}

    @cached_property
    def functions(self) -> dict[FunctionKey, onnx.FunctionProto]:
        found = {
            FunctionKey(normalise_domain(f.domain), f.name, f.overload): f
            for f in self.proto.functions
        }
        check_recursion(found)
        return found

    @cached_property
    def initialisers(self) -> dict[str, Literal]:
        """The weights of the main graph by name, read once for all imports."""
        return self.read_initialisers(self.proto.graph)

    def read_initialisers(self, graph: onnx.GraphProto) -> dict[str, Literal]:
        """The constants that a graph carries, by name."""
        named = [(t.name, read_tensor(t, self.directory)) for t in graph.initializer]
        named += [(t.values.name, read_sparse(t, self.directory)) for t in graph.sparse_initializer]
        found = dict(named)
        if len(found) < len(named):
            raise ModelError("two initialisers share a name", given=graph.name)
        return found


def read_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ModelFile:
    """A model from a path, the bytes of a file, or a ModelProto."""
    if isinstance(source, onnx.ModelProto):
        return ModelFile(source)
    if isinstance(source, bytes):
        return ModelFile(_parse(source, "the given bytes"))
    path = Path(source)
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise ModelError(f"the model file cannot be read: {e.strerror}", given=str(path)) from e
    return ModelFile(_parse(raw, str(path)), path.resolve().parent)


def _parse(raw: bytes, name: str) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(raw)
    except (DecodeError, RecursionError) as e:
        raise ModelError("not an ONNX model: the file does not parse", given=name) from e
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model: there is no graph in it", given=name)
    return proto
