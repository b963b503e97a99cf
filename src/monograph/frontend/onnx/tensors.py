"""Tensors of a model file as constant data.

No statement of a tensor is trusted: its dims are checked before anything is allocated, and against
its data. Bytes in numpy's own format are used in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from monograph.errors import ModelError
from monograph.frontend.onnx.dtypes import from_onnx
from monograph.frontend.onnx.external import read_external
from monograph.frontend.onnx.memory_budget import Account
from monograph.ir import Array, DType, Literal
from monograph.ir.memory import MAX_RANK, MAX_TENSOR_BYTES, count_elements, machine_memory

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
