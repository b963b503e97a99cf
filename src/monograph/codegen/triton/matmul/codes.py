"""Weights of few bits, in the form that products of few rows read: codes, scales, zero points.

A column's codes are contiguous, divided into units that share a scale, in words of 32 bits that
hold eight codes of 4 bits or four of 8. Code i of word j of a unit with w words is that of k = w i
+ j, so that words and their factors are both read in long pieces, by the same threads. Signed codes
of 4 bits are stored with 8 added.

For two products at once (see `int4_f16x2`) a word has two halves of four codes: code i of the first
is that of k = 2 (w i + j), code i of the second its neighbour, so that their factors are read in
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.module.kernel import TritonPacked
from monograph.ir import Array, Constant, DType, Value, known
from monograph.ir.dtype import f16, f32, i4, i32, u4, u8
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose

UNIT = 128
"""The most codes of a unit."""
LEAST_UNIT = 16


@dataclass(frozen=True, eq=False)
class Paired:
    """Weights of 4 bits for two products at once."""

    words: TritonPacked
    """[n, units, lanes]."""
    shared: TritonPacked
    """[n, groups]: scales, f16; or with them, in the upper halves, the second addends."""
    zero: float | None
    """The zero point of all groups, if there is only one."""
    reach: int


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """The weights of a product of [m, k] with [k, n], before packing."""

    source: Value
    """A Dequantize of constants, [n, k] if `by_column`."""
    by_column: bool
    n: int
    k: int
    group: int
    """The elements of a column that share a scale; k if a column has one."""

    @property
    def dtype(self) -> DType:
        return self.source.inputs[0].dtype

    @property
    def nibbles(self) -> bool:
        """True if codes are integers of 4 bits."""
        return self.dtype in (i4, u4)

    @property
    def together(self) -> int:
        """Codes in a word."""
        return 32 // self.dtype.bits

    @property
    def lanes(self) -> int:
        """Words of a unit."""
        return self.unit // self.together

    @property
    def unit(self) -> int:
        return UNIT if self.group >= self.k else min(self.group, UNIT)

    @property
    def units(self) -> int:
        """The units of a column; the last may be padded."""
        return -(-self.k // self.unit)

    @property
    def groups(self) -> int:
        return -(-self.k // self.group)

    def pack(self) -> tuple[TritonPacked, TritonPacked, TritonPacked | None]:
        """Pack words [n, units, lanes], scales [n, groups] and zero points alike."""
        scales = TritonPacked(np.ascontiguousarray(self._parameter(1)), self.source.inputs[1].dtype)
        raised = 8 if self.dtype == i4 else 0
        zeros = None
        if len(self.source.inputs) > 2:
            given = self.source.inputs[2].dtype
            kind = u8 if self.nibbles and not given.is_float else f32 if given.is_float else given
            data = self._parameter(2).astype(np.float32) + raised
            zeros = TritonPacked(np.ascontiguousarray(data.astype(kind.numpy)), kind)
        return TritonPacked(_words(self._bits(), self.unit, self.together), i32), scales, zeros

    def _bits(self) -> Array:
        """Return codes [n, k] as whole bytes, padded at the end."""
        bits: Array = self._column_major(self._data(0)).view(np.uint8)
        if self.dtype.bits == 4:
            # In two's complement, flipping the sign bit adds 8.
            bits = (bits & 15) ^ (8 if self.dtype == i4 else 0)
        padding = self.units * self.unit - self.k
        return np.pad(bits, ((0, 0), (0, padding))) if padding else bits

    @property
    def pairs(self) -> bool:
        """True if two products can be computed at once: scales fit f16, zero points are
        integers.
        """
        if not self.nibbles:
            return False
        scales, zeros = self._parameter(1), self._zeros()
        with np.errstate(over="ignore"):
            exact = np.array_equal(scales.astype(np.float16).astype(scales.dtype), scales)
        return exact and bool(np.all((zeros == np.rint(zeros)) & (zeros >= 0) & (zeros < 512)))

    def _zeros(self) -> Array:
        """Return zero points [n, groups] of codes that are never negative."""
        raised = 8 if self.dtype == i4 else 0
        if len(self.source.inputs) > 2:
            return self._parameter(2).astype(np.float32) + np.float32(raised)
        return np.full((1, 1), raised, np.float32)

    def pack_pairs(self, chained: int) -> Paired:
        """Pack for two products at once; `chained` products are added before they are widened."""
        zeros, scales = self._zeros(), self._parameter(1).astype(np.float16)
        # At least `chained` times the largest possible |q - z|, as a power of two.
        reach = 1 << int(chained * max(zeros.max(), 15 - zeros.min()) - 1).bit_length()
        words = TritonPacked(_words_of_pairs(self._bits(), self.unit), i32)
        if zeros.min() == zeros.max():
            given = TritonPacked(np.ascontiguousarray(scales), f16)
            return Paired(words, given, float(zeros.min()), reach)
        second = (-(zeros + 64) / reach).astype(np.float16).view(np.uint16)
        both = scales.view(np.uint16).astype(np.uint32) | second.astype(np.uint32) << np.uint32(16)
        return Paired(
            words, TritonPacked(np.ascontiguousarray(both).view(np.int32), i32), None, reach
        )

    def _data(self, index: int) -> Array:
        data = known(self.source.inputs[index])
        assert data is not None
        return data

    def _column_major(self, data: Array) -> Array:
        return data if self.by_column else data.swapaxes(0, 1)

    def _parameter(self, index: int) -> Array:
        """Return a scale or zero point for every column and group."""
        data = self._data(index)
        if data.ndim < 2:
            data = np.broadcast_to(data.reshape(-1, 1), (self.n, 1))
            return np.broadcast_to(data, (self.n, self.groups))
        return self._column_major(data)


def _words(codes: Array, unit: int, together: int) -> Array:
    """Pack the codes of columns as words."""
    n, k = codes.shape
    parts = codes.reshape(n, k // unit, together, unit // together)
    words = np.zeros((n, k // unit, unit // together), np.uint32)
    for i in range(together):
        words |= parts[:, :, i].astype(np.uint32) << np.uint32(32 // together * i)
    return words.view(np.int32)


def _words_of_pairs(codes: Array, unit: int) -> Array:
    """Pack 4-bit codes of columns as words of four pairs."""
    n, k = codes.shape
    parts = codes.reshape(n, k // unit, 4, unit // 8, 2)
    words = np.zeros((n, k // unit, unit // 8), np.uint32)
    for i in range(4):
        for p in range(2):
            words |= parts[:, :, i, :, p].astype(np.uint32) << np.uint32(16 * p + 4 * i)
    return words.view(np.int32)


def codes_of(weights: Value) -> WeightCodes | None:
    """Return the codes that weights [k, n] are decoded from; None if this form cannot hold them."""
    by_column = False
    if isinstance(weights.op, Transpose) and weights.tensor.rank == 2:
        weights, by_column = weights.inputs[0], True
    op = weights.op
    if not isinstance(op, Dequantize) or weights.tensor.rank != 2:
        return None
    if not all(isinstance(v.op, Constant) for v in weights.inputs):
        return None
    codes = weights.inputs[0].dtype
    if codes.bits not in (4, 8):
        return None
    along = 1 if by_column else 0
    k, n = weights.tensor.static[along], weights.tensor.static[1 - along]
    group = k
    if op.block and op.axis == along:
        group = op.block
    elif op.axis is not None and (op.block or op.axis == along):
        return None
    fits = group >= k or (group & (group - 1) == 0 and group >= LEAST_UNIT)
    return WeightCodes(weights, by_column, n, k, min(group, k)) if fits else None
