"""Random weights of decoders in the formats that decoders are published in.

A matrix is drawn as codes with scales (and zero points), never as real numbers that are then
quantised: what a format stands for is then known exactly, and a copy with plain weights says the
same. Each matrix has a generator of its own, keyed by its name, so that two files of one seed hold
the same weights whatever their form.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

SPREAD = {"int4": 2.3, "int8": 40.0, "fp8": 1.0, "fp4": 1.5}
"""The standard deviation of the codes: their range is used, little of it saturates."""


@dataclass(frozen=True)
class Format:
    """How the matrices of a decoder are stored.

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


def generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def draw(seed: int, name: str, shape: tuple[int, int], deviation: float, form: Format) -> Matrix:
    """A matrix [N, K] whose numbers have about this standard deviation."""
    rng = generator(seed, name)
    rows, size = shape
    data = rng.standard_normal(shape, np.float32)
    if not form.quantised:
        data *= deviation
        return Matrix(data.astype(np.float16) if form.kind == "f16" else data, kind=form.kind)
    spread = SPREAD[form.kind]
    blocks = -(-size // form.block) if form.block else 1
    scales = (rng.uniform(0.7, 1.3, (rows, blocks)) * (deviation / spread)).astype(
        np.float16 if form.activations == "f16" else np.float32
    )
    data *= spread
    zeros = None
    if form.kind == "fp8":
        codes = data.astype(ml_dtypes.float8_e4m3fn)
    elif form.kind == "fp4":
        codes = data.astype(ml_dtypes.float4_e2m1fn)
    else:
        bits = 4 if form.kind == "int4" else 8
        if form.zero_points:
            low = 2 ** (bits - 1) - 2 ** (bits - 3)
            zeros = rng.integers(low, low + 2 ** (bits - 2), (rows, blocks), np.uint8)
            data += np.repeat(zeros, form.block, 1)[:, :size]
            codes = np.clip(np.rint(data), 0, 2**bits - 1).astype(np.uint8)
        else:
            codes = np.clip(np.rint(data), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype(np.int8)
    return Matrix(codes, scales, zeros, form.kind)


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
    codes = matrix.codes
    if matrix.zeros is None:
        codes = (codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
    blocks = -(-matrix.inputs // block)
    codes = np.pad(codes, ((0, 0), (0, blocks * block - matrix.inputs)))
    packed = packed_bits(codes, bits).reshape(matrix.outputs, blocks, -1)
    zeros = None if matrix.zeros is None else packed_bits(matrix.zeros, bits)
    return packed, _some(matrix.scales), zeros
