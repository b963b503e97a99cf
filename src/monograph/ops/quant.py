"""Quantisation: real numbers as small integers (or 8- and 4-bit floats) with a scale.

Scale and zero point are given for the whole tensor (`axis` None), for each index along an axis
(vectors), or for each block of `block` elements along an axis (tensors of x's rank). One form for
all of them, so that a rule matches `Dequantize(to, axis, block)(x, scale, zero_point)` once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, DType, Narrowing, Op, TensorType, Type, Value, from_numpy, sample
from monograph.ir.dtype import f4e2m1, f8e4m3fn, f16, f32, f64, i4, i8, u4, u8
from monograph.ir.layout import LayoutPlan, Need, Order, plain
from monograph.ir.traits import NARROW_INTEGER_BITS
from monograph.ops.base import NUMERIC, as_tensor, check_kinds, narrow, normalise_axis, widen
from monograph.ops.cast import Cast
from monograph.ops.scalar import Scalar, ScalarBuilder


def spread(parameter: Array, shape: tuple[int, ...], axis: int | None, block: int) -> Array:
    """Return a scale or zero point, broadcastable against data of this shape."""
    if axis is None or parameter.ndim == 0:
        if parameter.size != 1:
            raise ExecutionError("one scale for all is needed", given=[*parameter.shape])
        return parameter.reshape(())
    if block == 0:
        if parameter.ndim != 1 or parameter.size not in (1, shape[axis]):
            raise ExecutionError(
                "one scale for each index is needed",
                expected=[shape[axis]],
                given=[*parameter.shape],
            )
        return parameter.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    expected = [-(-d // block) if i == axis else d for i, d in enumerate(shape)]
    if [*parameter.shape] != expected:
        raise ExecutionError(
            "one scale for each block is needed", expected=expected, given=[*parameter.shape]
        )
    repeated = np.repeat(parameter, min(block, shape[axis]), axis)
    return repeated[tuple(slice(d) for d in shape)]


def _check_parameter(x: TensorType, p: TensorType, axis: int | None, block: int) -> None:
    if x.shape is None or p.shape is None or not p.shape:
        return
    expected: list[object]
    if axis is None:
        expected = []
        fits = all(d == 1 or isinstance(d, str) for d in p.shape)
    elif block == 0:
        expected = [x.shape[axis]]
        fits = len(p.shape) == 1 and _agree(p.shape[0], x.shape[axis], 1)
    else:
        count = x.shape[axis]
        blocks = -(-count // block) if isinstance(count, int) else count
        expected = [blocks if i == axis else d for i, d in enumerate(x.shape)]
        fits = len(p.shape) == len(x.shape) and all(
            (i == axis and isinstance(count, str)) or _agree(d, e)
            for i, (d, e) in enumerate(zip(p.shape, expected, strict=True))
        )
    if not fits:
        raise InferError("a scale or zero point has the wrong shape", expected=expected, given=p)


def _agree(given: object, *accepted: object) -> bool:
    return isinstance(given, str) or any(given == a or isinstance(a, str) for a in accepted)


def _normal(x: Type, scale: Type, axis: int | None, block: int) -> tuple[int | None, int]:
    """Return the canonical axis and block: a scale of rank 0 needs neither."""
    if block < 0:
        raise InferError("a block has a positive size", given=block)
    x, scale = as_tensor(x), as_tensor(scale)
    if axis is None or (scale.shape is not None and not scale.shape):
        return None, 0
    return (axis, block) if x.shape is None else (normalise_axis(axis, x.rank), block)


def _in_order(
    value: Value, index: int, order: Order, axis: int | None, block: int
) -> LayoutPlan | None:
    if index:
        return None
    # Scales of blocks have the rank of x; of indices along an axis, they are vectors.
    own = tuple(Need(order if block else plain(v.tensor.rank)) for v in value.inputs[1:])
    moved = replace(value.op, axis=None if axis is None else order.index(axis))  # type: ignore[type-var]
    return LayoutPlan(moved, (Need(order), *own), order)


@dataclass(frozen=True)
class Dequantize(Op):
    """(x - zero_point) * scale, in the element type `to`.

    The zero point may be left out (it is then 0); it has the element type of x, or a float type
    where a format keeps it as a real number.
    """

    to: DType
    axis: int | None = None
    block: int = 0

    narrowing = Narrowing.CONVERSION
    wide_range = True
    samples = (
        sample("u8[2, 3]", "f32[] in 0.1..1", "u8[]", to=f32),
        sample("i8[2, 3]", "f32[3] in 0.1..1", "i8[3]", to=f32, axis=1),
        sample("i32[2, 3]", "f32[2] in 0.1..1", to=f32, axis=0),
        sample("u4[2, 7]", "f16[2, 3] in 0.1..1", "u4[2, 3]", to=f16, axis=1, block=3),
        sample("i4[4, 2]", "f32[2, 2] in 0.1..1", "f32[2, 2]", to=f32, axis=0, block=2),
        sample("f8e4m3fn[3]", "f32[] in 0.1..1", to=f32),
    )

    def canonical(self, *types: Type) -> Op:
        axis, block = _normal(types[0], types[1], self.axis, self.block)
        return replace(self, axis=axis, block=block)

    def infer(self, x: TensorType, scale: TensorType, *zero: TensorType) -> TensorType:
        check_kinds(self.to, ("float",))
        check_kinds(as_tensor(x).dtype, NUMERIC)
        check_kinds(as_tensor(scale).dtype, ("float",))
        for p in (scale, *zero):
            _check_parameter(x, p, self.axis, self.block)
        for z in zero[1:]:
            raise InferError("at most one zero point", given=z)
        if zero and zero[0].dtype != x.dtype and not zero[0].dtype.is_float:
            raise InferError(
                "the zero point has another element type", expected=x.dtype, given=zero[0]
            )
        return x.with_dtype(self.to)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        if self.block:
            return axis if axis != self.axis else None
        return axis if index == 0 else self.axis

    def reference(self, x: Array, scale: Array, *zero: Array) -> Array:
        # Differences of integers up to 32 bits are exact in f64.
        data = x.astype(np.float64)
        for z in zero:
            data = data - spread(z.astype(np.float64), x.shape, self.axis, self.block)
        return narrow(data * widen(spread(scale, x.shape, self.axis, self.block)), self.to)

    def scalar(self, b: ScalarBuilder, x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        wide = _wide(x.dtype, scale.dtype, self.to)
        data = b.cast(x, wide)
        for z in zero:
            data = b.sub(data, b.cast(z, wide))
        return b.cast(b.mul(data, b.cast(scale, wide)), self.to)

    def f32_reason(self, value: Value, to: DType) -> str | None:
        given = value.inputs[0].dtype
        return f"sums of {given} may exceed {to}" if given.bits > NARROW_INTEGER_BITS else None

    def bound(self, value: Value, given: Sequence[float]) -> float:
        """Return the width of the integer type, which no difference exceeds, times the scale."""
        kind = value.inputs[0].dtype
        if not kind.is_integer or given[1] == math.inf:
            return math.inf
        zero = given[2] if len(given) > 2 and value.inputs[2].dtype.is_float else 0.0
        return (2.0**kind.bits + zero) * given[1]

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return sum(given[:2])

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return _in_order(value, index, order, self.axis, self.block)


@dataclass(frozen=True)
class Quantize(Op):
    """round(x / scale) + zero_point, saturated to the element type `to`.

    The quotient is rounded to `precision` (the scale's element type by default) and then to a whole
    number, a half to the even one; to a float type it is cast instead, out of range to the largest
    number if `saturate` and as the type's own overflow rule otherwise. NaN becomes the zero point.
    """

    to: DType
    axis: int | None = None
    block: int = 0
    saturate: bool = True
    precision: DType | None = None

    narrowing = Narrowing.KEPT
    kept_reason = "it rounds to steps of its scale"
    samples = (
        sample("f32[2, 3]", "f32[] in 0.1..1", "u8[]", to=u8),
        sample("f32[2, 3]", "f32[3] in 0.1..1", to=i8, axis=1),
        sample([-300.0, 0.5, 1.5, 300.0], 1.0, np.int8(3), to=i8),
        sample("f32[2, 7]", "f32[2, 3] in 0.1..1", "u4[2, 3]", to=u4, axis=1, block=3),
        sample("f16[5]", "f16[] in 0.1..1", to=i4),
        sample([1e9, -1e9, 3.3], 1.0, to=f8e4m3fn),
        sample([1e9, -1e9, 3.3], 1.0, to=f8e4m3fn, saturate=False),
        sample("f32[5]", "f32[] in 0.1..1", to=f4e2m1),
    )

    def canonical(self, *types: Type) -> Op:
        axis, block = _normal(types[0], types[1], self.axis, self.block)
        precision = None if self.precision == as_tensor(types[1]).dtype else self.precision
        saturate = self.saturate or not self.to.is_float
        return replace(self, axis=axis, block=block, precision=precision, saturate=saturate)

    def infer(self, x: TensorType, scale: TensorType, *zero: TensorType) -> TensorType:
        check_kinds(self.to, NUMERIC)
        check_kinds(as_tensor(x).dtype, NUMERIC)
        check_kinds(as_tensor(scale).dtype, ("float",))
        for p in (scale, *zero):
            _check_parameter(x, p, self.axis, self.block)
        for z in zero[1:]:
            raise InferError("at most one zero point", given=z)
        if zero and zero[0].dtype != self.to:
            raise InferError(
                "the zero point has another element type", expected=self.to, given=zero[0]
            )
        return x.with_dtype(self.to)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        if self.block:
            return axis if axis != self.axis else None
        return axis if index == 0 else self.axis

    def reference(self, x: Array, scale: Array, *zero: Array) -> Array:
        precision = self.precision or from_numpy(scale.dtype)
        # The quotient in f64, then rounded: as if divided in the narrower type.
        divisor = widen(spread(scale, x.shape, self.axis, self.block))
        data = widen(narrow(x.astype(np.float64) / divisor, precision))
        if not self.to.is_float:
            data = np.nan_to_num(np.rint(data), nan=0.0)
        for z in zero:
            data = data + spread(z.astype(np.float64), x.shape, self.axis, self.block)
        if self.to.is_float:
            return Cast(self.to, self.saturate).reference(np.asarray(data))
        return narrow(_saturated(data, self.to), self.to)

    def scalar(self, b: ScalarBuilder, x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        wide = _wide(x.dtype, scale.dtype, self.to)
        data = b.div(b.cast(x, wide), b.cast(scale, wide))
        data = b.cast(b.cast(data, self.precision or scale.dtype), wide)
        if not self.to.is_float:
            data = b.round(data)
            data = b.select(b.is_nan(data), b.constant(0.0, wide), data)
        for z in zero:
            data = b.add(data, b.cast(z, wide))
        if self.to.is_float:
            return b.cast(data, self.to, self.saturate)
        lo, hi = integer_limits(self.to)
        data = b.min(b.max(data, b.constant(lo, wide)), b.constant(hi, wide))
        return b.cast(data, self.to)

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return _in_order(value, index, order, self.axis, self.block)


def _wide(*dtypes: DType) -> DType:
    """Return the float type to compute in: f32 where it holds every number of the types exactly."""
    fits = all(d.bits <= (32 if d.is_float else 16) for d in dtypes)
    return f32 if fits else f64


def integer_limits(to: DType) -> tuple[float, float]:
    """Return the range of an integer type."""
    if to.kind == "uint":
        return 0.0, 2.0**to.bits - 1
    return -(2.0 ** (to.bits - 1)), 2.0 ** (to.bits - 1) - 1


def _saturated(data: Array, to: DType) -> Array:
    """Whole numbers within the range of an integer type."""
    return np.clip(data, *integer_limits(to)).astype(np.int64)
