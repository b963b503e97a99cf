"""Reads a model file. A model file is untrusted input: see `validate` and `tensors`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from monograph.errors import FeedError, ModelError, did_you_mean
from monograph.frontend.onnx.contradictions import Contradictions, mend
from monograph.frontend.onnx.fold import Account
from monograph.frontend.onnx.formats import find_format
from monograph.frontend.onnx.functions import FunctionKey
from monograph.frontend.onnx.node import normalise_domain
from monograph.frontend.onnx.tensors import DATA_FIELDS, read_sparse, read_tensor
from monograph.frontend.onnx.validate import model_opsets, validate
from monograph.ir import Literal
from monograph.ir.lazy import lazy

MAX_FILE_BYTES = (1 << 31) - 1
"""The largest file that protobuf reads."""


@dataclass
class ModelFile:
    """A parsed, well-formed model and the directory that its external data may come from."""

    proto: onnx.ModelProto
    directory: Path | None = None
    account: Account = field(default_factory=Account)
    name: str = "the given model"
    contradictions: Contradictions = field(default_factory=Contradictions)

    def __post_init__(self) -> None:
        self.proto = mend(self.proto, self.contradictions)
        validate(self.proto)

    @lazy
    def opsets(self) -> dict[str, int]:
        return model_opsets(self.proto)

    @lazy
    def functions(self) -> dict[FunctionKey, onnx.FunctionProto]:
        return {
            FunctionKey(normalise_domain(f.domain), f.name, f.overload): f
            for f in self.proto.functions
        }

    @lazy
    def initialisers(self) -> dict[str, Literal]:
        """The weights of the main graph by name, read once for all imports.

        Afterwards `proto` is a copy without their data, so that it is not in memory twice. The
        caller may change the original model then.
        """
        found = self.read_initialisers(self.proto.graph, self.account)
        self.proto = _without_data(self.proto)
        # Cached functions refer to the old message and would keep it alive.
        self.__dict__.pop("functions", None)
        return found

    def add_outputs(self, names: Iterable[str]) -> None:
        """Make values of the main graph outputs too; raise a FeedError for other names."""
        # Reading them replaces the message by a copy of our own.
        known = {*self.initialisers, *(info.name for info in self.proto.graph.input)}
        known |= {name for node in self.proto.graph.node for name in node.output if name}
        wanted = dict.fromkeys(names)
        if unknown := [name for name in wanted if name not in known]:
            raise FeedError(
                "the model has no such output, and no such value",
                expected=[info.name for info in self.proto.graph.output],
                given=unknown,
                hint=did_you_mean(unknown, known),
            )
        for name in wanted:
            self.proto.graph.output.add(name=name)

    def read_initialisers(self, graph: onnx.GraphProto, account: Account) -> dict[str, Literal]:
        """Read the initialisers of a graph, by name."""
        try:
            found = {t.name: read_tensor(t, self.directory, account) for t in graph.initializer}
            for sparse in graph.sparse_initializer:
                found[sparse.values.name] = read_sparse(sparse, self.directory, account)
        except MemoryError as e:
            raise ModelError("out of memory for the initialisers", given=graph.name) from e
        return found


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without the data of its weights; names, types and dims stay."""
    made = onnx.ModelProto()
    _copy_fields(model, made, ("graph",))
    made.graph.SetInParent()
    _copy_fields(model.graph, made.graph, ("initializer", "sparse_initializer"))
    for tensor in model.graph.initializer:
        _copy_fields(tensor, made.graph.initializer.add(), DATA_FIELDS)
    for sparse in model.graph.sparse_initializer:
        copy = made.graph.sparse_initializer.add()
        copy.dims.extend(sparse.dims)
        for part in ("values", "indices"):
            _copy_fields(getattr(sparse, part), getattr(copy, part), DATA_FIELDS)
    return made


def _copy_fields(given: Message, made: Message, left_out: Collection[str]) -> None:
    for descriptor, value in given.ListFields():
        name = descriptor.name
        if name in left_out:
            continue
        if hasattr(value, "MergeFrom"):  # a message, or a repeated field
            getattr(made, name).MergeFrom(value)
        else:
            setattr(made, name, value)


def read_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, digest: str | None = None
) -> ModelFile:
    """Read a model from a path, the bytes of a file, or a ModelProto.

    digest: the expected SHA-256 of the file, if it was read before.
    """
    if isinstance(source, onnx.ModelProto):
        return ModelFile(_with_graph(source, "the given ModelProto"), name="the given ModelProto")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return ModelFile(_parse(bytes(source), "the given bytes"))
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(
            "a model must be a path, the bytes of a file, or a ModelProto",
            given=type(source).__name__,
            hint="pass its content: source.read()" if hasattr(source, "read") else None,
        )
    path = Path(source)
    try:
        raw = _read_file(path)
        directory = path.parent.resolve()
    except OSError as e:
        raise ModelError(
            f"the model file cannot be read: {e.strerror}",
            given=str(path),
            hint=_in_place_of(path) if path.is_dir() else None,
        ) from e
    except ValueError as e:  # a path with a null character
        raise ModelError(f"the model file cannot be read: {e}", given=str(path)) from e
    if digest is not None and hashlib.sha256(raw).hexdigest() != digest:
        raise ModelError(
            "the model file has changed since the session was made",
            given=str(path),
            hint="load it again",
        )
    return ModelFile(_parse(raw, str(path)), directory, name=str(path))


def _in_place_of(folder: Path) -> str:
    """Suggest what to load instead of a folder."""
    files = sorted(folder.glob("*.onnx"), key=lambda f: (f.name != "model.onnx", f.name))
    file = f"give the file itself, {files[0]}" if files else "give an ONNX file"
    return f"{file}; folders with decoders are for `monograph generate` and monograph.Generator"


def _read_file(path: Path) -> bytes:
    """Read a regular file of at most protobuf's limit; open nothing else."""
    status = path.stat()
    # open() reports a directory. Reading a pipe would wait for ever, and a device has no end.
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ModelError("the model file cannot be read: it is not a plain file", given=str(path))
    if status.st_size > MAX_FILE_BYTES:
        raise ModelError(
            "the model file is too large",
            expected=f"at most {MAX_FILE_BYTES:,} bytes, as protobuf demands",
            given=f"{path}: {status.st_size:,} bytes",
            hint="keep large weights as external data",
        )
    return path.read_bytes()


def _parse(raw: bytes, name: str) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(raw)
    except (DecodeError, RecursionError) as e:
        _refuse_format(raw, name)
        raise ModelError(f"not an ONNX model: the file does not parse: {e}", given=name) from e
    except MemoryError as e:
        raise ModelError("out of memory for the model file", given=name) from e
    if not proto.HasField("graph"):
        _refuse_format(raw, name)
    return _with_graph(proto, name)


def _refuse_format(raw: bytes, name: str) -> None:
    """Raise ModelError if the bytes are in another known format."""
    found = find_format(raw)
    if found is not None:
        raise ModelError(
            f"not an ONNX model: the file is {found.name}", given=name, hint=found.remedy
        )


def _with_graph(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model: there is no graph in it", given=name)
    return proto
