"""Weights of few bits, in the form that products of few rows read: codes, scales, zero points.

A column's codes lie together, cut into units that share a scale, in words of 32 bits that hold
eight codes of 4 bits or four of 8. Code i of word j of a unit with w words is the one of
k = w i + j, so that words and what they are multiplied by are both read in long pieces, by the
same threads. Signed codes of 4 bits are kept as 8 more than they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.kernel import Packed
from monograph.ir import Array, Constant, DType, Value, known
from monograph.ir.dtype import f32, i4, i32, u4, u8
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose

UNIT = 128
"""The most codes of a unit."""
LEAST_UNIT = 16


@dataclass(frozen=True, eq=False)
class Codes:
    """The weights of a product of [m, k] with [k, n], not packed yet."""

    source: Value
    """A Dequantize of constants, [n, k] where `by_column`."""
    by_column: bool
    n: int
    k: int
    group: int
    """Elements of a column that share a scale; k where a column has one."""

    @property
    def dtype(self) -> DType:
        return self.source.inputs[0].dtype

    @property
    def nibbles(self) -> bool:
        """Whether codes are whole numbers of 4 bits."""
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
        """Units of a column; the last may have codes that stand for nothing."""
        return -(-self.k // self.unit)

    @property
    def groups(self) -> int:
        return -(-self.k // self.group)

    def pack(self) -> tuple[Packed, Packed, Packed | None]:
        """Words [n, units, lanes], scales [n, groups] and zero points alike."""
        codes = self._column_major(self._data(0))
        scales = Packed(np.ascontiguousarray(self._parameter(1)), self.source.inputs[1].dtype)
        raised = 8 if self.dtype == i4 else 0
        zeros = None
        if len(self.source.inputs) > 2:
            given = self.source.inputs[2].dtype
            kind = u8 if self.nibbles and not given.is_float else f32 if given.is_float else given
            data = self._parameter(2).astype(np.float32) + raised
            zeros = Packed(np.ascontiguousarray(data.astype(kind.numpy)), kind)
        bits: Array = codes.view(np.uint8)
        if self.dtype.bits == 4:
            # Less than 8 as two's complement becomes 8 more by turning the sign.
            bits = (bits & 15) ^ raised
        padding = self.units * self.unit - self.k
        whole = np.pad(bits, ((0, 0), (0, padding))) if padding else bits
        return Packed(_words(whole, self.unit, self.together), i32), scales, zeros

    def _data(self, index: int) -> Array:
        data = known(self.source.inputs[index])
        assert data is not None
        return data

    def _column_major(self, data: Array) -> Array:
        return data if self.by_column else data.swapaxes(0, 1)

    def _parameter(self, index: int) -> Array:
        """A scale or zero point for every column and group."""
        data = self._data(index)
        if data.ndim < 2:
            data = np.broadcast_to(data.reshape(-1, 1), (self.n, 1))
            return np.broadcast_to(data, (self.n, self.groups))
        return self._column_major(data)


def _words(codes: Array, unit: int, together: int) -> Array:
    """The codes of columns as words of so many."""
    n, k = codes.shape
    parts = codes.reshape(n, k // unit, together, unit // together)
    words = np.zeros((n, k // unit, unit // together), np.uint32)
    for i in range(together):
        words |= parts[:, :, i].astype(np.uint32) << np.uint32(32 // together * i)
    return words.view(np.int32)


def codes_of(weights: Value) -> Codes | None:
    """The codes that weights [k, n] are decoded from; None where this form does not hold them."""
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
    return Codes(weights, by_column, n, k, min(group, k)) if fits else None
