"""Reads a model file. A model file is untrusted input: see `validate`, `tensors`, `external`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from monograph.errors import ModelError
from monograph.frontend.onnx.functions import FunctionKey
from monograph.frontend.onnx.registry import normalise_domain
from monograph.frontend.onnx.tensors import read_sparse, read_tensor
from monograph.frontend.onnx.validate import model_opsets, validate
from monograph.ir import Literal


@dataclass
class ModelFile:
    """A parsed, well-formed model and the directory that its external data may come from."""

    proto: onnx.ModelProto
    directory: Path | None = None

    def __post_init__(self) -> None:
        validate(self.proto)

    @cached_property
    def opsets(self) -> dict[str, int]:
        return model_opsets(self.proto)

    @cached_property
    def functions(self) -> dict[FunctionKey, onnx.FunctionProto]:
        return {
            FunctionKey(normalise_domain(f.domain), f.name, f.overload): f
            for f in self.proto.functions
        }

    @cached_property
    def initialisers(self) -> dict[str, Literal]:
        """The weights of the main graph by name, read once for all imports."""
        return self.read_initialisers(self.proto.graph)

    def read_initialisers(self, graph: onnx.GraphProto) -> dict[str, Literal]:
        """The constants that a graph carries, by name."""
        try:
            found = {t.name: read_tensor(t, self.directory) for t in graph.initializer}
            for sparse in graph.sparse_initializer:
                found[sparse.values.name] = read_sparse(sparse, self.directory)
        except MemoryError as e:
            raise ModelError("out of memory for the initialisers", given=graph.name) from e
        return found


def read_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ModelFile:
    """A model from a path, the bytes of a file, or a ModelProto."""
    if isinstance(source, onnx.ModelProto):
        return ModelFile(_with_graph(source, "the given ModelProto"))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return ModelFile(_parse(bytes(source), "the given bytes"))
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            "a model is a path, the bytes of a file, or a ModelProto",
            given=type(source).__name__,
            hint="pass what it reads: source.read()" if hasattr(source, "read") else None,
        )
    path = Path(source)
    try:
        raw = path.read_bytes()
        directory = path.parent.resolve()
    except OSError as e:
        raise ModelError(f"the model file cannot be read: {e.strerror}", given=str(path)) from e
    except ValueError as e:  # a path with a null character
        raise ModelError(f"the model file cannot be read: {e}", given=str(path)) from e
    return ModelFile(_parse(raw, str(path)), directory)


def _parse(raw: bytes, name: str) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(raw)
    except (DecodeError, RecursionError, MemoryError) as e:
        raise ModelError(f"not an ONNX model: the file does not parse: {e}", given=name) from e
    return _with_graph(proto, name)


def _with_graph(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model: there is no graph in it", given=name)
    return proto
