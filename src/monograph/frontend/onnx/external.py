"""External data: the bytes of tensors in files beside the model (see `safe_open`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx

from monograph.errors import ModelError
from monograph.frontend.onnx.formats import find_format
from monograph.frontend.onnx.memory_budget import Account
from monograph.frontend.safe_open import open_inside
from monograph.ir import Array


def read_external(
    tensor: onnx.TensorProto, nbytes: int, directory: Path | None, label: str, account: Account
) -> Array:
    """Read the bytes of a tensor with external data."""
    entries = _entries(tensor, label)
    location = entries.get("location", "")
    if not location:
        raise ModelError(f"{label} has external data without a location")
    if directory is None:
        raise ModelError(
            f"{label} keeps its data in another file, and the model came without a directory",
            given=location,
            hint="load the model by its path, or embed its data before passing it on",
        )
    offset = _number(entries, "offset", 0, label)
    length = _number(entries, "length", nbytes, label)
    if length != nbytes:
        raise ModelError(
            f"{label} states a length of external data that does not fit its dims",
            expected=f"{nbytes} bytes",
            given=f"{length} bytes",
        )
    handle = open_inside(directory, location, label)
    try:
        data = account.known(handle, offset, nbytes)
        if data is None:
            data = _read(handle, offset, nbytes, location, label, account)
            account.keep(handle, offset, nbytes, data)
        return data
    finally:
        os.close(handle)


def external_files(model: onnx.ModelProto) -> list[str]:
    """List the external files of all tensors of a model."""
    named: set[str] = set()
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            # An unreadable name raises its error when the tensor is read.
            with suppress(ModelError):
                named.add(_entries(tensor, tensor.name).get("location", ""))
    return sorted(named)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model, including sub-graphs and functions, without recursion."""
    graphs = [model.graph]
    bodies: list[object] = [f.node for f in model.functions]
    while graphs or bodies:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            bodies.append(graph.node)
        for node in bodies.pop():  # type: ignore[attr-defined]
            for a in node.attribute:
                yield from (a.t, *a.tensors)
                for sparse in (a.sparse_tensor, *a.sparse_tensors):
                    yield from (sparse.values, sparse.indices)
                graphs += [a.g, *a.graphs] if a.HasField("g") else a.graphs


def _entries(tensor: onnx.TensorProto, label: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in tensor.external_data:
        if not isinstance(entry.key, str) or not isinstance(entry.value, str):
            raise ModelError(f"{label} describes its external data in text that is not UTF-8")
        if entry.key in found:
            raise ModelError(f"{label} gives {entry.key!r} of its external data twice")
        found[entry.key] = entry.value
    return found


def _number(entries: dict[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    # Plain digits only: int() also accepts signs, spaces, underscores and endless strings.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ModelError(
            f"{label} has a bad {key} of external data", expected="a size in bytes", given=text[:40]
        )
    return int(text)


def _why_short(handle: int) -> str | None:
    """Return a remedy if the file is a pointer or empty; None for any other."""
    found = find_format(os.pread(handle, 1024, 0))
    return None if found is None else f"that file is {found.name}: {found.remedy}"


def _read(
    handle: int, offset: int, nbytes: int, location: str, label: str, account: Account
) -> Array:
    """Read exactly these bytes of the file."""
    size = os.fstat(handle).st_size
    if offset + nbytes > size:
        raise ModelError(
            f"the external data of {label} reaches beyond the end of the file",
            expected=f"bytes {offset}..{offset + nbytes} of {location}",
            given=f"{size} bytes",
            hint=_why_short(handle),
        )
    account.take_file(handle, nbytes, label)
    data = np.empty(nbytes, np.uint8)
    view = data.data
    os.lseek(handle, offset, os.SEEK_SET)
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        done = 0
        while done < nbytes:
            count = file.readinto(view[done:])
            if not count:
                raise ModelError(f"the external data of {label} ended early", given=location)
            done += count
    data.flags.writeable = False
    return data
