"""Tensors made larger, and made from a size: tiling, padding, counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import UNKNOWN, Array, Narrowing, Op, TensorType, Type, Value, sample
from monograph.ir.dtype import i64
from monograph.ir.layout import LayoutPlan, Need, Order, in_order
from monograph.ir.traits import Affine, IntRange, Known, RangeOf
from monograph.ops.base import ViewOp, as_tensor, check_allocation, same_dtype
from monograph.ops.shape import unknown_like, unknown_shape


@dataclass(frozen=True)
class Tile(ViewOp):
    """x repeated this often along each dimension."""

    repeats: tuple[int, ...]

    samples = (
        sample("f32[2, 3]", repeats=(2, 1)),
        sample("i64[2]", repeats=(0,)),
        sample("f32[]", repeats=()),
    )

    def infer(self, x: TensorType) -> TensorType:
        if len(self.repeats) != as_tensor(x).rank or min(self.repeats, default=0) < 0:
            raise InferError("one count for each dimension", expected=x, given=self.repeats)
        return x.with_shape(
            d if r == 1 else d * r if isinstance(d, int) else UNKNOWN if r else 0
            for d, r in zip(x.dims, self.repeats, strict=True)
        )

    def reference(self, x: Array) -> Array:
        check_allocation(tuple(d * r for d, r in zip(x.shape, self.repeats, strict=True)), x.dtype)
        return np.tile(x, self.repeats)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        return x.with_shape(unknown_shape(late["repeats"]) if x.shape is None else unknown_like(x))

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return in_order(value, order, repeats=tuple(self.repeats[d] for d in order))


PAD_MODES = ("constant", "edge", "reflect", "wrap")


@dataclass(frozen=True)
class Pad(Op):
    """x with elements added before and after it in each dimension; a negative count removes.

    What is added: the scalar in the second operand ("constant"; zero where it is not given), the
    outermost element ("edge"), the mirror image without it ("reflect"), the other end ("wrap").
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"

    narrowing = Narrowing.MOVE
    passes = True
    rounds = False
    samples = (
        sample("f32[2, 3]", before=(0, 1), after=(2, 0)),
        sample("f32[2, 3]", 1.5, before=(1, 1), after=(0, -1)),
        sample("f32[2, 4]", before=(1, 3), after=(0, 2), mode="reflect"),
        sample("i64[2, 3]", before=(1, 0), after=(0, 5), mode="edge"),
        sample("f32[2, 3]", before=(0, 4), after=(3, -1), mode="wrap"),
    )

    def infer(self, x: TensorType, value: TensorType | None = None) -> TensorType:
        if self.mode not in PAD_MODES:
            raise InferError("no such padding", expected=" ".join(PAD_MODES), given=self.mode)
        if not len(self.before) == len(self.after) == as_tensor(x).rank:
            raise InferError(
                "two counts for each dimension", expected=x, given=(self.before, self.after)
            )
        if value is not None:
            same_dtype(x, value)
            if self.mode != "constant" or (value.shape is not None and value.rank != 0):
                raise InferError("a scalar is needed, to pad with a constant", given=value)
        return x.with_shape(
            d + b + a if isinstance(d, int) else d if (b, a) == (0, 0) else UNKNOWN
            for d, b, a in zip(x.dims, self.before, self.after, strict=True)
        )

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if index == 0 and not self.before[axis] and not self.after[axis] else None

    def kept(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes that negative counts leave of a shape."""
        sizes = zip(given, self.before, self.after, strict=True)
        return tuple(max(d + min(b, 0) + min(a, 0), 0) for d, b, a in sizes)

    def fills(self, given: tuple[int, ...]) -> bool:
        """Return True if there are elements to repeat, or none are repeated."""
        return self.mode == "constant" or 0 not in self.kept(given)

    def reference(self, x: Array, value: Array | None = None) -> Array:
        shape = tuple(d + b + a for d, b, a in zip(x.shape, self.before, self.after, strict=True))
        if min(shape, default=0) < 0:
            raise ExecutionError("padding removes more than there is", given=shape)
        check_allocation(shape, x.dtype)
        # Removing comes first, so that what is added mirrors what is left.
        x = x[
            tuple(
                slice(max(-b, 0), max(d + min(a, 0), 0))
                for d, b, a in zip(x.shape, self.before, self.after, strict=True)
            )
        ]
        if self.mode != "constant":
            return self._repeated(x) if 0 not in shape else np.empty(shape, x.dtype)
        fill: Any = value if value is not None else "" if x.dtype == object else 0
        result: Array = np.full(shape, fill, x.dtype)
        room = tuple(
            slice(max(b, 0), max(b, 0) + d) for b, d in zip(self.before, x.shape, strict=True)
        )
        result[room] = x
        return result

    def _repeated(self, x: Array) -> Array:
        for axis, size in enumerate(x.shape):
            before, after = max(self.before[axis], 0), max(self.after[axis], 0)
            if before == after == 0:
                continue
            if size == 0:
                raise ExecutionError("an empty dimension has nothing to repeat", given=x.shape)
            places = np.arange(-before, size + after)
            if self.mode == "edge":
                places = np.clip(places, 0, size - 1)
            elif self.mode == "wrap":
                places %= size
            else:
                period = max(2 * (size - 1), 1)
                places %= period
                places = np.minimum(places, period - places) if size > 1 else places
            x = np.take(x, places, axis)
        return x

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return as_tensor(types[0]).with_shape(unknown_like(as_tensor(types[0])))

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return max(given)

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        return None  # the filling may lie outside the range of x

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        if index:
            return None
        before, after = (tuple(counts[d] for d in order) for counts in (self.before, self.after))
        needs = (Need(order), Need(()))[: len(value.inputs)]
        return LayoutPlan(Pad(before, after, self.mode), needs, order)


@dataclass(frozen=True)
class Iota(Op):
    """0, 1, 2, ... up to a size, as a vector of integers."""

    size: int

    level = True
    samples = (sample(size=5), sample(size=0))

    def infer(self) -> TensorType:
        return TensorType(i64, (self.size,))

    def reference(self) -> Array:
        check_allocation((self.size,), np.int64)
        return np.arange(self.size, dtype=np.int64)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return TensorType(i64, (UNKNOWN,))

    def affine(self, value: Value, given: Sequence[Known]) -> Known:
        return (Affine(None, 0.0, 0.0, float(max(self.size - 1, 0))),)
