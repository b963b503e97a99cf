"""Linear algebra: the dot product that every dense layer is made of, and the determinant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    Array,
    DType,
    Narrowing,
    Op,
    TensorType,
    Type,
    Value,
    broadcast,
    dtype,
    from_numpy,
    sample,
)
from monograph.ir.dtype import COMPLEX, FLOAT
from monograph.ir.traits import MOST_DEGREE, SUMS_MANY, known_product
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    layer_bound,
    layer_operations,
    narrow,
    widen,
)

EXACT_BITS = 53
"""A double holds every integer of this many bits."""


@dataclass(frozen=True)
class Dot(Op):
    """The matrix product of the last two dimensions; dimensions before them broadcast.

    `out` is the element type of the result: None for that of the operands. Integers are summed
    without loss and then wrap into it, so that i8 and u8 operands may give i32.

    `left_bits` is a permission, which the reference does not use: a target may round the left
    operand to integers of so many bits, with a scale for each block along the sums. 0 gives none.
    """

    out: DType | None = None
    left_bits: int = 0

    narrowing = Narrowing.LAYER
    contracts = linear = True
    samples = (
        sample("f32[4, 3]", "f32[3, 5]"),
        sample("f32[2, 1, 4, 3]", "f32[5, 3, 2]"),
        sample("f16[3, 4]", "f16[4, 2]"),
        sample("f32[2, 0]", "f32[0, 3]"),
        sample("i8[3, 4]", "u8[4, 2]", out=dtype("i32")),
        sample("i64[2, 3]", "i64[3, 2]"),
    )

    def canonical(self, *types: Type) -> Op:
        same = bool(types) and isinstance(types[0], TensorType) and types[0].dtype == self.out
        return replace(self, out=None) if same else self

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        for t in (x, y):
            check_kinds(as_tensor(t).dtype, (*NUMERIC, COMPLEX))
            if t.shape is not None and len(t.shape) < 2:
                raise InferError("a dot product is of matrices", expected="rank >= 2", given=t)
        if x.dtype != y.dtype and (self.out is None or x.dtype.kind == FLOAT):
            raise InferError(
                "operands have different element types", expected=x.dtype, given=y.dtype
            )
        result = TensorType(self.out or x.dtype, None)
        if x.shape is None or y.shape is None:
            return result
        inner = x.shape[-1], y.shape[-2]
        if inner[0] != inner[1] and all(isinstance(d, int) for d in inner):
            raise InferError(
                "the sizes to be summed over differ",
                expected=f"{inner[0]}, the last size of {x}",
                given=f"{inner[1]}, the last but one of {y}",
            )
        batch = broadcast(x.shape[:-2], y.shape[:-2]) or ()
        return result.with_shape((*batch, x.shape[-2], y.shape[-1]))

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of the left operand, where the right one is a single matrix."""
        x, y = types
        return axis if index == 0 and axis < x.rank - 1 and y.rank == 2 else None

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of rows of the left operand, columns of the right one, or of matrices."""
        rank = types[index].rank
        summed = rank - 1 if index == 0 else rank - 2
        return None if axis == summed else axis + max(t.rank for t in types) - rank

    def reference(self, x: Array, y: Array) -> Array:
        if x.shape[-1] != y.shape[-2]:
            raise ExecutionError(
                "the sizes to be summed over differ", expected=x.shape, given=y.shape
            )
        out = self.out or from_numpy(x.dtype)
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        check_allocation((*batch, x.shape[-2], y.shape[-1]), np.float64)
        if from_numpy(x.dtype).is_integer:
            return narrow(_integer_product(x, y), out)
        return narrow(np.matmul(widen(x), widen(y)), out)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return layer_bound(value, given[0], -2)

    def accumulation_length(self, *types: TensorType) -> int:
        return max(known_product(types[0].dims[-1:]), known_product(types[1].dims[-2:-1]))

    def permitted_rounding(self) -> float:
        return 2.0**-self.left_bits if self.left_bits else 0.0

    def operations(self, value: Value) -> float:
        if not value.tensor.is_static:
            return 0.0
        return layer_operations(value, value.inputs[0].tensor.static[-1])


def _integer_product(x: Array, y: Array) -> Array:
    """Return the product of integer matrices: in doubles where they hold every sum exactly."""
    bits = from_numpy(x.dtype).bits + from_numpy(y.dtype).bits + x.shape[-1].bit_length()
    if bits <= EXACT_BITS:
        exact: Array = np.matmul(x.astype(np.float64), y.astype(np.float64))
        return exact.astype(np.int64)
    # Products of 64 bits wrap alike, signed or not.
    wrapping: Array = np.matmul(x.astype(np.int64), y.astype(np.int64))
    return wrapping


@dataclass(frozen=True)
class Det(Op):
    """The determinant of the square matrices in the last two dimensions."""

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = True
    costly = True
    samples = (sample("f32[3, 3]"), sample("f32[2, 4, 2, 2]"), sample("f32[0, 0]"))

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, (FLOAT,))
        if x.rank < 2:
            raise InferError("a determinant is of matrices", expected="rank >= 2", given=x)
        rows, columns = x.dims[-2:]
        if rows != columns and isinstance(rows, int) and isinstance(columns, int):
            raise InferError("a determinant is of square matrices", given=x)
        return x.with_shape(x.dims[:-2])

    def reference(self, x: Array) -> Array:
        if x.shape[-1] != x.shape[-2]:
            raise ExecutionError("a determinant is of square matrices", given=x.shape)
        return narrow(np.linalg.det(widen(x)), from_numpy(x.dtype))

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[0] * MOST_DEGREE

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[0].dims[-1:])
