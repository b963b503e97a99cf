"""Sequences and optionals. Reference only.

At run time a sequence is a list, and an empty optional is None.

They exist for models that build lists of tensors; no compiled code serves them. The sizes of the
elements of one sequence may differ, so a symbol in an element type says nothing of two elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Op,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    generalise,
    sample,
    tensor,
)
from monograph.ir.dtype import INT, UINT, boolean, f32, i64
from monograph.ops.base import as_tensor, check_allocation, check_kinds, normalise_axis
from monograph.ops.subgraph import close, is_single


def _element(sequence: Type) -> Type:
    if not isinstance(sequence, SequenceType):
        raise InferError("a sequence is needed", given=sequence)
    return sequence.element


def _check_position(position: Type) -> None:
    check_kinds(as_tensor(position).dtype, (INT, UINT))
    if not is_single(position):
        raise InferError("a position in a sequence is one integer", given=position)


def _place(position: Array, low: int, high: int) -> int:
    """Return a position as an int within these bounds."""
    if position.size != 1:
        raise ExecutionError("a position is one integer", given=[*position.shape])
    place = int(position.reshape(())[()])
    if not low <= place <= high:
        raise ExecutionError(
            "a position is outside of the sequence",
            expected=f"{low}..{high}" if low <= high else "an element to be there",
            given=place,
        )
    return place


@dataclass(frozen=True)
class MakeSequence(Op):
    """The operands as a sequence; `element` is the type of the elements where there are none."""

    element: Type | None = None

    samples = (
        sample("f32[2]", "f32[3]"),
        sample("i64[2, 3]"),
        sample(element=TensorType(f32, None)),
    )

    def canonical(self, *types: Type) -> Op:
        return replace(self, element=None) if types else self

    def infer(self, *elements: Type) -> SequenceType:
        if not elements and self.element is None:
            raise InferError("an empty sequence needs the type of its elements")
        element = elements[0] if elements else self.element
        assert element is not None
        for t in elements:
            element = generalise(element, as_tensor(t))
        return SequenceType(element)

    def reference(self, *elements: Any) -> list[Any]:
        return list(elements)


def is_empty_sequence(value: Value) -> bool:
    """Return True if a value is known to be an empty sequence."""
    return isinstance(value.op, MakeSequence) and not value.inputs


@dataclass(frozen=True)
class SequenceAt(Op):
    """One element of a sequence; a negative position counts from the end."""

    samples = (sample("seq<f32[2, 3]>", 1), sample("seq<i64[2]>", [-2]))

    def infer(self, sequence: Type, position: TensorType) -> Type:
        _check_position(position)
        return close(_element(sequence), set())

    def reference(self, sequence: list[Any], position: Array) -> Any:
        return sequence[_place(position, -len(sequence), len(sequence) - 1)]


@dataclass(frozen=True)
class SequenceInsert(Op):
    """The sequence with x put before the element at a position; without one, at the end."""

    samples = (
        sample("seq<f32[2]>", "f32[2]"),
        sample("seq<f32[2]>", "f32[3]", 0),
        sample("seq<f32[2]>", "f32[2]", -1),
    )

    def infer(self, sequence: Type, x: Type, position: TensorType | None = None) -> SequenceType:
        if position is not None:
            _check_position(position)
        return SequenceType(generalise(_element(sequence), x))

    def reference(self, sequence: list[Any], x: Any, position: Array | None = None) -> list[Any]:
        count = len(sequence)
        place = count if position is None else _place(position, -count, count)
        result = list(sequence)
        result.insert(place, x)
        return result


@dataclass(frozen=True)
class SequenceErase(Op):
    """The sequence without the element at a position; without one, without the last."""

    samples = (sample("seq<f32[2]>"), sample("seq<f32[2]>", 0))

    def infer(self, sequence: Type, position: TensorType | None = None) -> SequenceType:
        if position is not None:
            _check_position(position)
        return SequenceType(_element(sequence))

    def reference(self, sequence: list[Any], position: Array | None = None) -> list[Any]:
        count = len(sequence)
        place = _place(np.array(-1) if position is None else position, -count, count - 1)
        result = list(sequence)
        del result[place]
        return result


@dataclass(frozen=True)
class SequenceLength(Op):
    """The number of elements of a sequence."""

    samples = (sample("seq<f32[2]>"),)

    def infer(self, sequence: Type) -> TensorType:
        _element(sequence)
        return tensor(i64)

    def reference(self, sequence: list[Any]) -> Array:
        return np.array(len(sequence), np.int64)


@dataclass(frozen=True)
class SplitToSequence(Op):
    """Pieces of x along an axis, as a sequence.

    Every piece but the last has the size that the second operand gives, or each piece the size
    that its entry gives. Without that operand every piece is one slice, and keeps its axis or not.
    """

    axis: int
    keep: bool = True

    samples = (
        sample("f32[5, 2]", axis=0),
        sample("f32[5, 2]", axis=1, keep=False),
        sample("f32[5, 2]", 2, axis=0),
        sample("f32[5, 2]", [1, 0, 4], axis=-2),
    )

    def canonical(self, *types: Type) -> Op:
        x = as_tensor(types[0])
        axis = self.axis if x.shape is None else normalise_axis(self.axis, x.rank)
        return replace(self, axis=axis, keep=self.keep or len(types) > 1)

    def infer(self, x: TensorType, sizes: TensorType | None = None) -> SequenceType:
        if sizes is not None:
            check_kinds(as_tensor(sizes).dtype, (INT, UINT))
            if sizes.shape is not None and len(sizes.shape) > 1:
                raise InferError("sizes of pieces are a scalar or a vector", given=sizes)
        if as_tensor(x).shape is None:
            return SequenceType(x)
        shape = list(x.dims)
        shape[self.axis] = 1 if sizes is None else UNKNOWN
        if not self.keep:
            del shape[self.axis]
        return SequenceType(x.with_shape(shape))

    def reference(self, x: Array, sizes: Array | None = None) -> list[Array]:
        if sizes is None:
            slices = np.moveaxis(x, self.axis, 0)
            return [np.expand_dims(s, self.axis) if self.keep else np.asarray(s) for s in slices]
        total = x.shape[self.axis]
        if sizes.ndim == 0:
            if sizes <= 0:
                raise ExecutionError("the size of a piece is not positive", given=int(sizes))
            bounds = [*range(0, total, int(sizes)), total]
        else:
            if (sizes < 0).any() or sizes.sum() != total:
                raise ExecutionError(
                    "sizes of pieces do not add up", expected=total, given=sizes.tolist()
                )
            bounds = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
        before = (slice(None),) * (self.axis % x.ndim)
        return [x[(*before, slice(a, b))] for a, b in pairwise(bounds)]


@dataclass(frozen=True)
class ConcatFromSequence(Op):
    """The elements of a sequence one after the other along an axis, or stacked along a new one."""

    axis: int
    new: bool = False

    samples = (
        sample("seq<f32[2, 3]>", axis=1),
        sample("seq<f32[2, 3]>", axis=-1, new=True),
    )

    def infer(self, sequence: Type) -> TensorType:
        element = as_tensor(_element(sequence))
        if element.shape is None:
            return element
        shape = [d if isinstance(d, int) else UNKNOWN for d in element.shape]
        if not shape and not self.new:
            raise InferError("scalars can only be stacked along a new axis", given=sequence)
        axis = normalise_axis(self.axis, len(shape) + self.new)
        if self.new:
            shape.insert(axis, UNKNOWN)
        else:
            shape[axis] = UNKNOWN
        return element.with_shape(shape)

    def reference(self, sequence: list[Array]) -> Array:
        if not sequence:
            raise ExecutionError("an empty sequence has nothing to concatenate")
        axis = normalise_axis(self.axis, sequence[0].ndim + self.new)
        shapes = {(x.ndim, x.shape if self.new else _without(x.shape, axis)) for x in sequence}
        if len(shapes) > 1:
            raise ExecutionError(
                "the elements of a sequence do not fit together",
                expected="equal shapes" if self.new else f"equal shapes but for axis {axis}",
                given=[[*x.shape] for x in sequence],
            )
        check_allocation((sum(x.size for x in sequence),), sequence[0].dtype)
        join = np.stack if self.new else np.concatenate
        return join(sequence, axis=axis)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


@dataclass(frozen=True)
class MakeOptional(Op):
    """An optional that has the operand, or, without one, nothing of type `element`."""

    element: Type | None = None

    samples = (sample("f32[2]"), sample(element=tensor(f32, 3)))

    def canonical(self, *types: Type) -> Op:
        return replace(self, element=None) if types else self

    def infer(self, x: Type | None = None) -> OptionalType:
        element = self.element if x is None else x
        if element is None:
            raise InferError("an empty optional needs the type that it could have")
        return OptionalType(element)

    def reference(self, x: Any = None) -> Any:
        return x


@dataclass(frozen=True)
class HasElement(Op):
    """True if an optional has a value."""

    samples = (sample("opt<f32[2]>"),)

    def infer(self, x: Type) -> TensorType:
        if not isinstance(x, OptionalType):
            raise InferError("an optional is needed", given=x)
        return tensor(boolean)

    def reference(self, x: Any) -> Array:
        return np.array(x is not None)


@dataclass(frozen=True)
class GetElement(Op):
    """The value of an optional that has one."""

    samples = (sample("opt<f32[2]>"), sample("opt<seq<f32[2]>>"))

    def infer(self, x: Type) -> Type:
        if not isinstance(x, OptionalType):
            raise InferError("an optional is needed", given=x)
        return x.element

    def reference(self, x: Any) -> Any:
        if x is None:
            raise ExecutionError("an empty optional has no element")
        return x
