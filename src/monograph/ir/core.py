"""The ops that the IR itself is made of: inputs, constants, items of tuples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir.dtype import DType
from monograph.ir.op import Op, Value, sample
from monograph.ir.traits import IntRange, Narrowing
from monograph.ir.types import Array, Literal, TupleType, Type


@dataclass(frozen=True)
class Input(Op):
    """A value that the caller of a graph supplies."""

    label: str
    of: Type

    pure = False

    def infer(self) -> Type:
        return self.of

    def reference(self) -> Array:
        raise ExecutionError(f"input {self.label!r} has no value")


@dataclass(frozen=True)
class Constant(Op):
    """Data that is part of the model."""

    value: Literal

    samples = (sample(value=Literal([[1.5, -0.0], [float("nan"), 2.0]])),)

    def infer(self) -> Type:
        return self.value.type

    def reference(self) -> Array:
        return self.value.array


@dataclass(frozen=True)
class Item(Op):
    """One result of a value that has several."""

    index: int

    narrowing = Narrowing.KEPT
    kept_reason = "it is a result of an op that stays in f32"
    keeps_small = True

    def infer(self, x: Type) -> Type:
        if not isinstance(x, TupleType):
            raise InferError("the operand must have several results", given=x)
        if not 0 <= self.index < len(x.items):
            raise InferError(
                "the value has no result of that index",
                expected=f"0..{len(x.items) - 1}",
                given=self.index,
            )
        return x.items[self.index]

    def reference(self, x: tuple[Any, ...]) -> Any:
        return x[self.index]

    def integer_range(
        self, value: Value, of: Callable[[Value], IntRange | None], item: int = 0
    ) -> IntRange | None:
        (made,) = value.inputs
        return made.op.integer_range(made, of, self.index)


STRUCTURE = (Input, Constant, Item)
"""Ops that hold a graph together and compute nothing."""


def constant(data: Any, dtype: DType | None = None) -> Value:
    """A constant from an array, a scalar, nested lists or a literal."""
    if isinstance(data, Literal):
        return Constant(data)()
    if dtype is None:
        return Constant(Literal(data))()
    return Constant(Literal(np.asarray(data).astype(dtype.numpy)))()


def known(value: Value | None) -> Array | None:
    """The data of a constant; None for any other value."""
    if value is not None and isinstance(value.op, Constant):
        return value.op.value.array
    return None


def is_finite(value: Value) -> bool:
    """Return True if the value is a constant without infinities and NaNs."""
    data = known(value)
    return data is not None and bool(np.isfinite(data.astype(np.float64)).all())


def unpack(value: Value) -> tuple[Value, ...]:
    """Every result of a value that has several."""
    if not isinstance(value.type, TupleType):
        raise InferError("the value must have several results", given=value.type)
    return tuple(Item(i)(value) for i in range(len(value.type.items)))
