"""Tensors of a model file, or of files beside it (external data), as constant data.

No statement of a tensor is trusted: its dims are checked before anything is allocated, and against
its data. Bytes in numpy's own format are used in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from monograph.errors import ModelError
from monograph.frontend.onnx.dtypes import from_onnx
from monograph.frontend.onnx.fold import Account
from monograph.frontend.onnx.formats import find_format
from monograph.frontend.safe_open import open_inside
from monograph.ir import Array, DType, Literal
from monograph.ir.memory import MAX_RANK, MAX_TENSOR_BYTES, count_elements, machine_memory


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


DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data",
    "uint64_data",
)  # fmt: skip
_TYPED_FIELD = {
    "f32": "float_data", "c64": "float_data", "f64": "double_data", "c128": "double_data",
    "i64": "int64_data", "u64": "uint64_data", "u32": "uint64_data", "str": "string_data",
}  # fmt: skip
"""The field that holds the elements of a type; `int32_data` for all others."""


def read_tensor(
    tensor: onnx.TensorProto, directory: Path | None, account: Account | None = None
) -> Literal:
    """Read the data of a tensor; external data comes from files inside the directory.

    Its memory counts on the account of its model.
    """
    account = Account() if account is None else account
    label = f"tensor {tensor.name[:200]!r}"
    try:
        dtype = from_onnx(tensor.data_type)
    except ModelError as e:
        raise ModelError(f"{label} has an unknown element type", given=e.given) from None
    if dtype.bits < 8 and 8 % dtype.bits:
        raise ModelError(f"{label} has an element type without a defined packing", given=dtype)
    shape = check_dims(tensor.dims, dtype, label)
    if tensor.HasField("segment"):
        raise ModelError(f"{label} is stored in segments, which is not supported")
    present = [f for f in DATA_FIELDS if len(getattr(tensor, f))]
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if len(present) + external > 1:
        listed = present + ["external data"] * external
        raise ModelError(f"{label} has its data in two fields", given=" and ".join(listed))
    if external or present == ["raw_data"]:
        array = _from_bytes(tensor, dtype, shape, directory, label, account)
    else:
        array = _from_field(tensor, dtype, shape, present, label)
    return _frozen(array)


def _frozen(array: Array) -> Literal:
    """Return a literal of an array without a copy; the caller must hold no other reference."""
    array.flags.writeable = False
    return Literal(array)


def check_dims(dims: Sequence[int], dtype: DType, label: str) -> tuple[int, ...]:
    """Return dims as a shape; raise an error if numpy cannot hold it."""
    if len(dims) > MAX_RANK:
        raise ModelError(
            f"{label} has too many dims", expected=f"at most {MAX_RANK}", given=len(dims)
        )
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{label} has a negative dimension", expected=">= 0", given=list(shape))
    # The product uses Python ints: in 64 bits it may wrap to a plausible size.
    limit = min(MAX_TENSOR_BYTES, machine_memory())
    if count_elements(shape) * dtype.itemsize > limit:
        raise ModelError(
            f"{label} is too large", expected=f"at most {limit:,} bytes", given=list(shape)
        )
    return shape


def _size(shape: tuple[int, ...]) -> int:
    return 0 if 0 in shape else count_elements(shape)


def _from_bytes(
    tensor: onnx.TensorProto,
    dtype: DType,
    shape: tuple[int, ...],
    directory: Path | None,
    label: str,
    account: Account,
) -> Array:
    """Read a tensor stored as bytes, in the model or in another file."""
    if dtype.is_string:
        raise ModelError(f"{label} holds strings, which cannot be raw bytes")
    nbytes = -(-_size(shape) * dtype.bits // 8)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raw = read_external(tensor, nbytes, directory, label, account)
    else:
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    if len(raw) != nbytes:
        raise ModelError(
            f"{label} has an amount of raw data that does not fit its dims",
            expected=f"{nbytes} bytes for {dtype}{list(shape)}",
            given=f"{len(raw)} bytes",
        )
    return _decode(raw, dtype, shape)


def _decode(raw: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Decode little-endian bytes, with packed sub-byte elements, to elements."""
    if dtype.bits < 8:
        return _unpack(raw, dtype, _size(shape)).reshape(shape)
    if dtype.kind == "bool":
        # numpy treats a bool byte other than 0 and 1 as neither true nor false.
        return np.not_equal(raw, 0).reshape(shape)
    return raw.view(dtype.numpy).reshape(shape)


def _unpack(raw: Array, dtype: DType, count: int) -> Array:
    """Unpack elements of 6, 4 or 2 bits, the first in the lowest bits of a byte."""
    if 8 % dtype.bits:  # four elements of 6 bits lie across three bytes
        bits = np.unpackbits(raw, count=count * dtype.bits, bitorder="little")
        codes = np.packbits(bits.reshape(count, dtype.bits), axis=1, bitorder="little")
        return codes.reshape(-1).view(dtype.numpy)
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    mask = np.uint8((1 << dtype.bits) - 1)
    pieces: Array = (raw[:, None] >> shifts) & mask
    return pieces.reshape(-1)[:count].view(dtype.numpy)


def _from_field(
    tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], present: list[str], label: str
) -> Array:
    """Read a tensor stored as numbers or strings in the field for its element type."""
    field = _TYPED_FIELD.get(dtype.name, "int32_data")
    if present and present != [field]:
        raise ModelError(f"{label} has its data in the wrong field", expected=field, given=present)
    values: Any = getattr(tensor, field)
    size = _size(shape)
    per_value = 8 // dtype.bits if dtype.bits < 8 else 1
    expected = size * 2 if dtype.kind == "complex" else -(-size // per_value)
    if len(values) != expected:
        raise ModelError(
            f"{label} has an amount of data that does not fit its dims",
            expected=f"{expected} in {field} for {dtype}{list(shape)}",
            given=len(values),
        )
    if dtype.is_string:
        return _strings(values, label).reshape(shape)
    if field != "int32_data":
        return _numbers(values, dtype, field, label).reshape(shape)
    return _from_int32(np.array(values, np.int32), dtype, shape, label)


def _strings(values: Sequence[bytes], label: str) -> Array:
    texts = np.empty(len(values), object)
    try:
        texts[:] = [v.decode("utf-8") for v in values]
    except UnicodeDecodeError as e:
        raise ModelError(f"{label} holds a string that is not UTF-8", given=e.object[:40]) from None
    return texts


def _numbers(values: Any, dtype: DType, field: str, label: str) -> Array:
    if dtype.name == "u32":
        wide = np.array(values, np.uint64)
        _check_range(wide, 0, 2**32 - 1, dtype, field, label)
        return wide.astype(np.uint32)
    part = {"c64": np.float32, "c128": np.float64}.get(dtype.name)
    if part is not None:
        return np.array(values, part).view(dtype.numpy)
    return np.array(values, dtype.numpy)


def _from_int32(values: Array, dtype: DType, shape: tuple[int, ...], label: str) -> Array:
    """Decode int32_data: small integers as they are, the bits of all other types."""
    if dtype.name == "i32":
        return values.reshape(shape)
    if dtype.kind == "bool":
        return np.not_equal(values, 0).reshape(shape)
    bits = max(dtype.bits, 8)
    if dtype.bits >= 8 and dtype.is_integer:
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        _check_range(values, int(low), int(high), dtype, "int32_data", label)
        return values.astype(dtype.numpy).reshape(shape)
    # one element per number: 6-bit elements do not share a byte
    if 8 % dtype.bits and dtype.bits < 8:
        _check_range(values, 0, (1 << dtype.bits) - 1, dtype, "int32_data", label)
        return values.astype(np.uint8).view(dtype.numpy).reshape(shape)
    # Bit patterns; some writers treat them as signed, others as unsigned.
    _check_range(values, -(1 << (bits - 1)), (1 << bits) - 1, dtype, "int32_data", label)
    return _decode(values.astype(np.uint8 if bits == 8 else np.uint16).view(np.uint8), dtype, shape)


def _check_range(values: Array, low: int, high: int, dtype: DType, field: str, label: str) -> None:
    if values.size and (int(values.min()) < low or int(values.max()) > high):
        raise ModelError(
            f"{label} holds a number in {field} that {dtype} cannot",
            expected=f"{low}..{high}",
            given=f"{values.min()}..{values.max()}",
        )


def read_sparse(
    sparse: onnx.SparseTensorProto, directory: Path | None, account: Account | None = None
) -> Literal:
    """Read a sparse tensor as a dense one."""
    account = Account() if account is None else account
    label = f"sparse tensor {sparse.values.name[:200]!r}"
    values = read_tensor(sparse.values, directory, account).array
    indices = read_tensor(sparse.indices, directory, account).array
    shape = check_dims(sparse.dims, from_onnx(sparse.values.data_type), label)
    if values.ndim != 1:
        raise ModelError(
            f"the values of {label} must be a vector", expected="[n]", given=list(values.shape)
        )
    count = len(values)
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{label} has indices that do not fit its values",
            expected=f"i64[{count}] or i64[{count}, {len(shape)}]",
            given=f"{indices.dtype}{list(indices.shape)}",
        )
    flat = _flat_indices(indices, shape, label)
    if (flat[1:] <= flat[:-1]).any():
        raise ModelError(f"{label} has indices that are not sorted and unique")
    account.take_sparse(_size(shape) * values.itemsize, values.nbytes, label)
    fill = "" if values.dtype == object else 0
    dense = np.full(_size(shape), fill, values.dtype)
    dense[flat] = values
    return _frozen(dense.reshape(shape))


def _flat_indices(indices: Array, shape: tuple[int, ...], label: str) -> Array:
    """Return positions in the flattened tensor; raise an error if one is outside."""
    bounds = np.array([_size(shape)] if indices.ndim == 1 else shape, np.int64)
    columns = indices.reshape(len(indices), len(bounds))
    if (columns < 0).any() or (columns >= bounds).any():
        raise ModelError(
            f"{label} has an index outside its dims",
            expected=f"0 <= index < {bounds.tolist()}",
            given=f"{columns.min()}..{columns.max()}",
        )
    if indices.ndim == 1:
        return indices
    strides = [_size(shape[axis + 1 :]) for axis in range(len(shape))]
    flat: Array = columns @ np.array(strides, np.int64)
    return flat
