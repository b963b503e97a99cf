"""Element types: their short names, widths, and numpy counterparts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from monograph.errors import InferError

FLOAT, INT, UINT, BOOL, COMPLEX, STRING = "float", "int", "uint", "bool", "complex", "string"


@dataclass(frozen=True)
class DType:
    """An element type. `bits` is its width in a packed tensor; numpy may store it wider."""

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (dtype, (self.name,))

    @property
    def is_float(self) -> bool:
        return self.kind == FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (INT, UINT)

    @property
    def is_signed(self) -> bool:
        return self.kind in (INT, FLOAT, COMPLEX)

    @property
    def is_string(self) -> bool:
        return self.kind == STRING

    @property
    def itemsize(self) -> int:
        """Bytes of one element as numpy stores it."""
        return self.numpy.itemsize

    @property
    def compute(self) -> np.dtype[Any]:
        """The type the reference computes in: wide enough that only the result is rounded."""
        if self.kind == FLOAT:
            return np.dtype(np.float64)
        if self.kind == COMPLEX:
            return np.dtype(np.complex128)
        if self.bits < 8:
            return np.dtype(np.int32)
        return self.numpy


def _make(name: str, kind: str, bits: int, scalar: Any) -> DType:
    return DType(name, kind, bits, np.dtype(scalar))


f64 = _make("f64", FLOAT, 64, np.float64)
f32 = _make("f32", FLOAT, 32, np.float32)
f16 = _make("f16", FLOAT, 16, np.float16)
bf16 = _make("bf16", FLOAT, 16, ml_dtypes.bfloat16)
f8e4m3fn = _make("f8e4m3fn", FLOAT, 8, ml_dtypes.float8_e4m3fn)
f8e4m3fnuz = _make("f8e4m3fnuz", FLOAT, 8, ml_dtypes.float8_e4m3fnuz)
f8e5m2 = _make("f8e5m2", FLOAT, 8, ml_dtypes.float8_e5m2)
f8e5m2fnuz = _make("f8e5m2fnuz", FLOAT, 8, ml_dtypes.float8_e5m2fnuz)
f8e8m0 = _make("f8e8m0", FLOAT, 8, ml_dtypes.float8_e8m0fnu)
f6e2m3 = _make("f6e2m3", FLOAT, 6, ml_dtypes.float6_e2m3fn)
f6e3m2 = _make("f6e3m2", FLOAT, 6, ml_dtypes.float6_e3m2fn)
f4e2m1 = _make("f4e2m1", FLOAT, 4, ml_dtypes.float4_e2m1fn)
i64 = _make("i64", INT, 64, np.int64)
i32 = _make("i32", INT, 32, np.int32)
i16 = _make("i16", INT, 16, np.int16)
i8 = _make("i8", INT, 8, np.int8)
i4 = _make("i4", INT, 4, ml_dtypes.int4)
i2 = _make("i2", INT, 2, ml_dtypes.int2)
u64 = _make("u64", UINT, 64, np.uint64)
u32 = _make("u32", UINT, 32, np.uint32)
u16 = _make("u16", UINT, 16, np.uint16)
u8 = _make("u8", UINT, 8, np.uint8)
u4 = _make("u4", UINT, 4, ml_dtypes.uint4)
u2 = _make("u2", UINT, 2, ml_dtypes.uint2)
boolean = _make("bool", BOOL, 8, np.bool_)
c64 = _make("c64", COMPLEX, 64, np.complex64)
c128 = _make("c128", COMPLEX, 128, np.complex128)
string = _make("str", STRING, 64, object)

ALL: tuple[DType, ...] = (
    (f64, f32, f16, bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0)
    + (f6e2m3, f6e3m2, f4e2m1)
    + (i64, i32, i16, i8, i4, i2, u64, u32, u16, u8, u4, u2)
    + (boolean, c64, c128, string)
)
_BY_NAME = {t.name: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in ALL}


def dtype(name: str) -> DType:
    """The element type of that short name."""
    if name not in _BY_NAME:
        raise InferError("unknown element type", expected=" ".join(_BY_NAME), given=name)
    return _BY_NAME[name]


def from_numpy(given: Any) -> DType:
    """The element type of a numpy dtype; any kind of numpy string counts as `str`."""
    as_numpy = np.dtype(given)
    if as_numpy.kind in "UST":
        return string
    if as_numpy not in _BY_NUMPY:
        raise InferError(
            "no element type corresponds to the numpy dtype",
            expected=" ".join(_BY_NAME),
            given=given,
        )
    return _BY_NUMPY[as_numpy]
