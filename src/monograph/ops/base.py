"""What the op families share: checks of types, and arithmetic wide enough to be an oracle."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from monograph.errors import InferError
from monograph.ir import Array, DType, Op, TensorType, Type, broadcast, from_numpy
from monograph.ir.dtype import BOOL, FLOAT, INT, UINT, boolean
from monograph.ir.memory import MAX_RANK, check_result

NUMERIC = (FLOAT, INT, UINT)
INTEGRAL = (INT, UINT, BOOL)


def as_tensor(given: Type) -> TensorType:
    """The type of an operand that must be a tensor."""
    if not isinstance(given, TensorType):
        raise InferError("a tensor is needed", given=given)
    return given


def check_kinds(dtype: DType, kinds: tuple[str, ...]) -> None:
    if dtype.kind not in kinds:
        raise InferError("element type not accepted", expected=" or ".join(kinds), given=dtype)


def same_dtype(*types: TensorType) -> DType:
    """The one element type of operands that must share it."""
    first = as_tensor(types[0]).dtype
    for t in types[1:]:
        if as_tensor(t).dtype != first:
            raise InferError("operands have different element types", expected=first, given=t.dtype)
    return first


def check_rank(rank: int) -> int:
    """A number of dimensions that a tensor can have: a file may state any length of a shape."""
    if rank > MAX_RANK:
        raise InferError(
            "a tensor has too many dimensions", expected=f"at most {MAX_RANK}", given=rank
        )
    return rank


def normalise_axis(axis: int, rank: int) -> int:
    if rank == 0:
        raise InferError("a scalar has no axis", given=axis)
    if not -rank <= axis < rank:
        raise InferError("axis out of range", expected=f"{-rank}..{rank - 1}", given=axis)
    return axis + rank if axis < 0 else axis


def normalise_axes(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Axes as ascending, non-negative, distinct numbers."""
    result = sorted(normalise_axis(a, rank) for a in axes)
    if len(set(result)) != len(result):
        raise InferError("an axis is named twice", given=list(axes))
    return tuple(result)


def widen(x: Array) -> Array:
    """An array in the type the reference computes in (see `DType.compute`)."""
    return x.astype(from_numpy(x.dtype).compute, copy=False)


def narrow(x: Any, like: DType) -> Array:
    """A computed result, rounded once to its element type."""
    return np.asarray(x).astype(like.numpy, copy=False)


def check_allocation(shape: tuple[int, ...], dtype: Any) -> None:
    """Refuses a result that the machine cannot hold, before numpy tries to allocate it."""
    check_result(shape, np.dtype(dtype).itemsize)


class Unary(Op, abstract=True):
    """An elementwise op of one operand; a subclass gives `kinds` and `compute`."""

    kinds: ClassVar[tuple[str, ...]] = (FLOAT,)

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, self.kinds)
        return x

    def reference(self, x: Array) -> Array:
        return narrow(self.compute(widen(x)), from_numpy(x.dtype))

    def compute(self, x: Array) -> Array:
        """The result in the wide type that the reference computes in."""
        raise NotImplementedError


class Predicate(Unary, abstract=True):
    """An elementwise op of one operand whose result is bool."""

    def infer(self, x: TensorType) -> TensorType:
        return super().infer(x).with_dtype(boolean)

    def reference(self, x: Array) -> Array:
        return np.asarray(self.compute(widen(x)), dtype=np.bool_)


class Binary(Op, abstract=True):
    """An elementwise op of two operands of one element type, broadcast as numpy does."""

    kinds: ClassVar[tuple[str, ...]] = NUMERIC
    commutative: ClassVar[bool] = False

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        dtype = same_dtype(x, y)
        check_kinds(dtype, self.kinds)
        return TensorType(dtype, broadcast(x.shape, y.shape))

    def reference(self, x: Array, y: Array) -> Array:
        return narrow(self.compute(widen(x), widen(y)), from_numpy(x.dtype))

    def compute(self, x: Array, y: Array) -> Array:
        """The result in the wide type that the reference computes in."""
        raise NotImplementedError


class Comparison(Binary, abstract=True):
    """An elementwise op of two operands whose result is bool."""

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return super().infer(x, y).with_dtype(boolean)

    def reference(self, x: Array, y: Array) -> Array:
        return np.asarray(self.compute(widen(x), widen(y)), dtype=np.bool_)
