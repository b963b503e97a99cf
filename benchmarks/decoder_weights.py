"""Random weights of decoders in the formats that decoders are published in.

A matrix is drawn as codes with scales (and zero points), never as real numbers that are then
quantised: what a format stands for is then known exactly, and a copy with plain weights says the
same. Each matrix has generators of its own, keyed by its name and a span of its rows, so that two
files of one seed hold the same weights whatever their form and however many threads draw them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

SPREAD = {"int4": 2.3, "int8": 40.0, "fp8": 1.0, "fp4": 1.5}
"""The standard deviation of the codes: their range is used, little of it saturates."""
SPAN = 1 << 21
"""About so many numbers are drawn, changed or turned at a time: what a core's cache holds."""


@dataclass(frozen=True)
class Format:
    """The format of a decoder's matrices.

    `kind` is f32, f16, int4, int8, fp8 or fp4. `block` numbers along the input share a scale; 0
    gives each output one scale. Blocks of integers are written as MatMulNBits unless `qdq`; all
    else that is quantised is DequantizeLinear and MatMul. `activations` is what everything that is
    no matrix has. `head` and `embedding` are formats of their own: "" means `kind`, and plain
    numbers of the activations' type. `plain` writes the same numbers unquantised.
    """

    kind: str = "f32"
    block: int = 0
    zero_points: bool = False
    qdq: bool = False
    activations: str = "f32"
    head: str = ""
    embedding: str = ""
    accuracy: int = 0
    plain: bool = False

    @property
    def quantised(self) -> bool:
        return self.kind in SPREAD

    @property
    def nbits(self) -> bool:
        return self.kind in ("int4", "int8") and self.block > 0 and not self.qdq

    def of_head(self) -> Format:
        return replace(self, kind=self.head) if self.head else self


def preset(name: str, **changes: Any) -> Format:
    """A format by its name: f32, f16, int4, int4-128, int4-zp, int8, int8-nbits, fp8, fp4, ..."""
    found = PRESETS.get(name)
    if found is None:
        raise ValueError(f"no format {name!r}; there are {', '.join(sorted(PRESETS))}")
    return replace(found, **changes)


PRESETS = {
    "f32": Format(),
    "f16": Format("f16", activations="f16"),
    "int4": Format("int4", 32),
    "int4-128": Format("int4", 128),
    "int4-zp": Format("int4", 32, zero_points=True),
    "int4-128-zp": Format("int4", 128, zero_points=True),
    "int4-f16": Format("int4", 128, activations="f16", head="f16"),
    "int4-f16-zp": Format("int4", 128, True, activations="f16", head="f16"),
    "int4-32-f16": Format("int4", 32, activations="f16", head="f16"),
    "int4-32-f16-zp": Format("int4", 32, True, activations="f16", head="f16"),
    "int4-qdq": Format("int4", 32, qdq=True),
    "int8": Format("int8", qdq=True),
    "int8-nbits": Format("int8", 32),
    "int8-nbits-zp": Format("int8", 32, zero_points=True),
    "int8-f16": Format("int8", qdq=True, activations="f16"),
    "fp8": Format("fp8", qdq=True),
    "fp8-f16": Format("fp8", qdq=True, activations="f16"),
    "fp4": Format("fp4", 32, qdq=True),
    "fp4-f16": Format("fp4", 32, qdq=True, activations="f16"),
}


@dataclass(frozen=True)
class Matrix:
    """Weights [N, K]: real numbers, or codes with scales [N, blocks] and perhaps zero points."""

    codes: Array
    scales: Array | None = None
    zeros: Array | None = None
    kind: str = "f32"

    @property
    def outputs(self) -> int:
        return int(self.codes.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.codes.shape[1])

    def real(self) -> Array:
        """The numbers that the codes stand for, in f32."""
        if self.scales is None:
            return self.codes.astype(np.float32)
        each = -(-self.inputs // self.scales.shape[1])
        data = self.codes.astype(np.float32)
        if self.zeros is not None:
            data -= np.repeat(self.zeros, each, 1)[:, : self.inputs]
        data *= np.repeat(self.scales.astype(np.float32), each, 1)[:, : self.inputs]
        return data


def generator(seed: int, name: str, *more: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode()), *more])


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1)


def in_spans(rows: int, size: int, work: Callable[[int, int], None]) -> None:
    """Has all spans of rows worked on, on every core; the spans depend on the size alone."""
    step = max(1, SPAN // max(size, 1))
    ends = [(a, min(a + step, rows)) for a in range(0, rows, step)]
    list(_threads().map(lambda span: work(*span), ends))


def draw(seed: int, name: str, shape: tuple[int, int], deviation: float, form: Format) -> Matrix:
    """A matrix [N, K] whose numbers have about this standard deviation."""
    rows, size = shape
    blocks = -(-size // form.block) if form.block else 1
    codes = np.empty(shape, _code_type(form))
    if not form.quantised:

        def fill(begin: int, end: int) -> None:
            data = generator(seed, name, begin).standard_normal((end - begin, size), np.float32)
            data *= deviation
            codes[begin:end] = data

        in_spans(rows, size, fill)
        return Matrix(codes, kind=form.kind)
    spread = SPREAD[form.kind]
    scales = np.empty((rows, blocks), np.float16 if form.activations == "f16" else np.float32)
    zeros = np.empty((rows, blocks), np.uint8) if form.zero_points else None

    def fill_codes(begin: int, end: int) -> None:
        rng, part = generator(seed, name, begin), slice(begin, end)
        data = rng.standard_normal((end - begin, size), np.float32)
        scales[part] = rng.uniform(0.7, 1.3, (end - begin, blocks)) * (deviation / spread)
        data *= spread
        if form.kind in ("fp8", "fp4"):
            codes[part] = data.astype(codes.dtype)
            return
        bits = 4 if form.kind == "int4" else 8
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if zeros is not None:
            first = 2 ** (bits - 1) - 2 ** (bits - 3)
            zeros[part] = rng.integers(first, first + 2 ** (bits - 2), (end - begin, blocks))
            data += np.repeat(zeros[part], form.block, 1)[:, :size]
            low, high = 0, 2**bits - 1
        np.rint(data, data)
        np.clip(data, low, high, data)
        codes[part] = data

    in_spans(rows, size, fill_codes)
    return Matrix(codes, scales, zeros, form.kind)


def _code_type(form: Format) -> Any:
    """Return what the codes of a format are kept in."""
    if form.kind in ("int4", "int8"):
        return np.uint8 if form.zero_points else np.int8
    kinds = {"fp8": ml_dtypes.float8_e4m3fn, "fp4": ml_dtypes.float4_e2m1fn, "f16": np.float16}
    return kinds.get(form.kind, np.float32)


def turned(array: Array, dtype: Any) -> Array:
    """The transpose of a matrix, dense, in a type."""
    made = np.empty(array.shape[::-1], dtype)

    def turn(begin: int, end: int) -> None:
        # Dense first: columns far apart would share a few lines of the cache.
        made[begin:end] = np.ascontiguousarray(array[:, begin:end]).T

    in_spans(made.shape[0], made.shape[1] * 8, turn)
    return made


def joined(parts: list[Matrix]) -> Matrix:
    """Matrices over one input as one."""
    first = parts[0]
    scales = None if first.scales is None else np.concatenate([_some(p.scales) for p in parts])
    zeros = None if first.zeros is None else np.concatenate([_some(p.zeros) for p in parts])
    return Matrix(np.concatenate([p.codes for p in parts]), scales, zeros, first.kind)


def _some(array: Array | None) -> Array:
    if array is None:
        raise ValueError("matrices of one format are joined")
    return array


def packed_bits(codes: Array, bits: int) -> Array:
    """Codes of 4 or 8 bits along the last axis as bytes, low bits first; padded with zeros."""
    if bits == 8:
        return codes.astype(np.uint8)
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def for_nbits(matrix: Matrix, block: int) -> tuple[Array, Array, Array | None]:
    """B, scales and zero points as MatMulNBits takes them."""
    bits = 4 if matrix.kind == "int4" else 8
    blocks = -(-matrix.inputs // block)
    packed = np.empty((matrix.outputs, blocks * block * bits // 8), np.uint8)

    def pack(begin: int, end: int) -> None:
        codes = matrix.codes[begin:end]
        if matrix.zeros is None:  # the middle is what 0 is without a zero point
            codes = codes.view(np.uint8) + np.uint8(2 ** (bits - 1))
        if codes.shape[1] % block:
            codes = np.pad(codes, ((0, 0), (0, blocks * block - matrix.inputs)))
        packed[begin:end] = packed_bits(codes, bits)

    in_spans(matrix.outputs, matrix.inputs, pack)
    zeros = None if matrix.zeros is None else packed_bits(matrix.zeros, bits)
    return packed.reshape(matrix.outputs, blocks, -1), _some(matrix.scales), zeros
