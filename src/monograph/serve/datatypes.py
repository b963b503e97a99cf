"""Tensors of the Open Inference Protocol: names of types, binary and JSON forms."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from monograph.ir import Array, DType, from_numpy
from monograph.ir.dtype import (
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    string,
    u8,
    u16,
    u32,
    u64,
)  # fmt: skip
from monograph.serve.failures import RequestError, invalid

BYTES = "BYTES"
DATATYPES: dict[str, DType] = {
    "BOOL": boolean,
    "UINT8": u8,
    "UINT16": u16,
    "UINT32": u32,
    "UINT64": u64,
    "INT8": i8,
    "INT16": i16,
    "INT32": i32,
    "INT64": i64,
    "FP16": f16,
    "BF16": bf16,
    "FP32": f32,
    "FP64": f64,
    BYTES: string,
}
"""The element types of the protocol."""
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_LABELS = {str(dtype.numpy): name for dtype, name in NAMES.items() if dtype is not string}
MAX_RANK = 32
MAX_ELEMENTS = 1 << 40
_LENGTH = struct.Struct("<I")


def type_named(datatype: object, tensor: str) -> DType:
    """Return the element type of that name."""
    found = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        listed = ", ".join(DATATYPES)
        raise invalid(f"input {tensor!r}: datatype must be one of {listed}, got {datatype!r}")
    return found


def datatype_of(array: Array) -> str:
    """Return the protocol's name of the type of an array."""
    return _LABELS.get(str(array.dtype)) or NAMES[from_numpy(array.dtype)]


def checked_shape(shape: object, tensor: str) -> tuple[int, ...]:
    """Return a shape of sizes that an array can have."""
    fits = (
        isinstance(shape, (list, tuple))
        and len(shape) <= MAX_RANK
        and all(type(d) is int and d >= 0 for d in shape)
    )
    if not fits or math.prod(d for d in shape if d) > MAX_ELEMENTS:  # type: ignore[attr-defined]
        given = repr(shape)[:80]
        raise invalid(f"input {tensor!r}: shape must be a list of sizes >= 0, got {given}")
    return tuple(shape)  # type: ignore[arg-type]


def from_bytes(raw: memoryview, dtype: DType, shape: tuple[int, ...], tensor: str) -> Array:
    """Return an array over the bytes of a tensor, which are copied only where they must be."""
    if dtype is string:
        return _texts_from_bytes(raw, shape, tensor)
    count = math.prod(shape)
    if count * dtype.itemsize != raw.nbytes:
        raise invalid(
            f"input {tensor!r}: {NAMES[dtype]}{list(shape)} must have {count * dtype.itemsize} "
            f"bytes, got {raw.nbytes}"
        )
    if dtype is boolean:  # other bytes than 0 and 1 are no truth values
        truth: Array = np.frombuffer(raw, np.uint8) != 0
        return truth.reshape(shape)
    found = np.frombuffer(raw, dtype.numpy).reshape(shape)
    return found if found.flags.aligned else found.copy()


def _texts_from_bytes(raw: memoryview, shape: tuple[int, ...], tensor: str) -> Array:
    """Return texts, each of which follows its length in four bytes."""
    found: list[str] = []
    at, count = 0, math.prod(shape)
    while at < raw.nbytes and len(found) <= count:
        if raw.nbytes - at < _LENGTH.size:
            break
        (size,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if raw.nbytes - at < size:
            raise invalid(f"input {tensor!r}: a text of {size} bytes is longer than the data")
        found.append(_text(bytes(raw[at : at + size]), tensor))
        at += size
    if at != raw.nbytes or len(found) != count:
        raise invalid(f"input {tensor!r}: BYTES{list(shape)} must hold {count} texts")
    return texts(found, shape)


def texts(found: Sequence[str], shape: tuple[int, ...]) -> Array:
    """Return texts as an array of objects."""
    made = np.empty(len(found), object)
    made[:] = found
    return made.reshape(shape)


def _text(raw: bytes, tensor: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise invalid(f"input {tensor!r}: BYTES must be UTF-8") from None


def texts_of(raw: Sequence[bytes], shape: tuple[int, ...], tensor: str) -> Array:
    """Return texts that are given as bytes one by one."""
    if len(raw) != math.prod(shape):
        raise invalid(
            f"input {tensor!r}: BYTES{list(shape)} must hold {math.prod(shape)} texts, "
            f"got {len(raw)}"
        )
    return texts([_text(r, tensor) for r in raw], shape)


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the bytes of a tensor; texts follow their lengths."""
    if array.dtype.kind in "OUST":
        parts = []
        for element in array.reshape(-1).tolist():
            data = element if isinstance(element, bytes) else str(element).encode()
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)
    if not array.flags.c_contiguous:
        return array.tobytes()
    # The buffer protocol has no bfloat16; the bytes are the same.
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def from_json(data: object, dtype: DType, shape: tuple[int, ...], tensor: str) -> Array:
    """Return an array of JSON numbers or texts, flat or nested as the shape says."""
    if not isinstance(data, list):
        raise invalid(f"input {tensor!r}: data must be a list, got {type(data).__name__}")
    if dtype is string:
        return _texts_from_json(data, shape, tensor)
    try:
        found = np.asarray(data)
    except (ValueError, OverflowError):
        raise invalid(f"input {tensor!r}: data must be numbers in even rows") from None
    count = math.prod(shape)
    if found.size != count:
        raise invalid(
            f"input {tensor!r}: shape {list(shape)} has {count} elements, data {found.size}"
        )
    kinds = "b" if dtype is boolean else "iuf" if dtype.is_float else "iu"
    if count and found.dtype.kind not in kinds:
        raise invalid(f"input {tensor!r}: data must be {NAMES[dtype]} numbers")
    with np.errstate(over="ignore"):
        made = found.reshape(shape).astype(dtype.numpy)
    if count and dtype.is_integer and not np.array_equal(made.reshape(-1), found.reshape(-1)):
        raise invalid(f"input {tensor!r}: a number is out of the range of {NAMES[dtype]}")
    return made


def _texts_from_json(data: list[Any], shape: tuple[int, ...], tensor: str) -> Array:
    flat: list[Any] = data
    while flat and all(isinstance(row, list) for row in flat):
        flat = [element for row in flat for element in row]
    if not all(isinstance(element, str) for element in flat):
        raise invalid(f"input {tensor!r}: data must be texts")
    if len(flat) != math.prod(shape):
        raise invalid(
            f"input {tensor!r}: shape {list(shape)} has {math.prod(shape)} elements, "
            f"data {len(flat)}"
        )
    return texts(flat, shape)


def to_json(array: Array, tensor: str) -> Any:
    """Return the elements of a tensor for JSON, flat; an error where JSON has no such number."""
    if array.dtype.kind in "OUST":
        return [e.decode() if isinstance(e, bytes) else str(e) for e in array.reshape(-1).tolist()]
    if array.dtype.itemsize < 4 and array.dtype.kind not in "biu":  # f16 and bf16
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise no_json(tensor)
    return np.ascontiguousarray(array.reshape(-1))


def no_json(tensor: str) -> RequestError:
    """Return the error of an output that JSON cannot express."""
    return invalid(
        f"output {tensor!r} has infinities or NaN, which JSON cannot express: "
        'request it with parameters {"binary_data": true}'
    )
