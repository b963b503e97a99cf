"""Stackings: how the members of a family lie in one value, and which ops keep that form.

Members lie along a new first axis (`NewAxis`) or side by side along an axis that they have
(`AlongAxis`). `lift` applies the op of each member once to the stacked operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from monograph.ir import Array, Op, TensorType, Value, constant, known
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Max, Min, Where
from monograph.ops.linear import Dot
from monograph.ops.pool import Pool
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST
from monograph.passes.horizontal.weights import stack_weights

ALONG_ONE = (Softmax, LogSoftmax)
NORMS = (LayerNorm, RmsNorm)


@dataclass(frozen=True)
class Stacked:
    """An operand that is itself a family: its stacked value."""

    value: Value
    member: TensorType
    stacking: Stacking


@dataclass(frozen=True)
class PerMember:
    """An operand that is a constant of each member's own."""

    values: tuple[Value, ...]

    def arrays(self) -> list[Array]:
        return [data for v in self.values if (data := known(v)) is not None]


@dataclass(frozen=True)
class Shared:
    """An operand that is the same value for every member."""

    value: Value


Operand: TypeAlias = Stacked | PerMember | Shared


def is_elementwise(op: Op) -> bool:
    return isinstance(op, (Unary, Binary, Where, Cast))


def is_row_op(op: Op) -> bool:
    """A reduction, softmax or norm: each result depends on the elements along some axes only."""
    return isinstance(op, (Reduction, *ALONG_ONE, *NORMS))


def row_axes(op: Op) -> tuple[int, ...]:
    """The axes that a reduction, softmax or norm works along."""
    if isinstance(op, ALONG_ONE):
        return (op.axis,)
    assert isinstance(op, (Reduction, *NORMS))
    return op.axes


def canonical_inputs(value: Value, rank: Callable[[Value], tuple[int, ...]]) -> tuple[Value, ...]:
    """The operands of a value, those of a commutative op in an order that a rank gives.

    Min and Max keep their order: it decides between zeros of different sign.
    """
    op = value.op
    if not isinstance(op, Binary) or not op.commutative or isinstance(op, (Min, Max)):
        return value.inputs
    return tuple(sorted(value.inputs, key=rank))


def slice_axis(value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """value[..., start:stop:step, ...] along one axis."""
    sizes = value.tensor.static
    if (start, stop, step) == (0, sizes[axis], 1):
        return value
    starts = tuple(start if i == axis else 0 for i in range(len(sizes)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(sizes))
    steps = tuple(step if i == axis else 1 for i in range(len(sizes)))
    return Slice(starts, stops, steps)(value)


def runs_of(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending indices as ranges [start, stop) of neighbours."""
    breaks = [i for i, (a, b) in enumerate(pairwise(indices), 1) if b != a + 1]
    spans = pairwise([0, *breaks, len(indices)])
    return [(indices[a], indices[b - 1] + 1) for a, b in spans]


def step_of(indices: Sequence[int]) -> int:
    """The distance between indices that are equally far apart; 0 for others."""
    steps = {b - a for a, b in pairwise(indices)}
    return steps.pop() if len(steps) == 1 else 0


@dataclass(frozen=True)
class NewAxis:
    """Members lie along a new first axis: member i is stacked[i]."""

    count: int

    def member(self, stacked: Value, index: int) -> Value:
        return Squeeze((0,))(slice_axis(stacked, 0, index, index + 1))

    def selects(self, indices: Sequence[int]) -> bool:
        """Return True if some members are a view of the stack."""
        return step_of(indices) > 0

    def select(self, stacked: Value, indices: Sequence[int]) -> tuple[Value, NewAxis]:
        """Some members, in ascending order, as a stack of their own."""
        own = NewAxis(len(indices))
        if self.selects(indices):
            step = step_of(indices)
            return slice_axis(stacked, 0, indices[0], indices[-1] + 1, step), own
        parts = [slice_axis(stacked, 0, a, b) for a, b in runs_of(indices)]
        return Concat(0)(*parts), own

    def align(self, operand: Operand, rank: int) -> Value:
        """An operand as part of a stacked op whose members have this rank."""
        if isinstance(operand, Shared):
            return operand.value
        if isinstance(operand, PerMember):
            return stack_weights(operand.values, rank)
        missing = rank - operand.member.rank
        axes = tuple(range(1, 1 + missing))
        return Unsqueeze(axes)(operand.value) if missing else operand.value

    def lift(
        self, op: Op, operands: list[Operand], result: TensorType
    ) -> tuple[Value, NewAxis] | str:
        """The op on stacked operands, or the reason why it cannot be."""
        made = self._lift(op, operands, result)
        return made if isinstance(made, str) else (made, self)

    def _lift(self, op: Op, operands: list[Operand], result: TensorType) -> Value | str:
        rank = result.rank
        if is_elementwise(op) or isinstance(op, Dot):
            return op(*(self.align(o, rank) for o in operands))
        if isinstance(op, Concat):
            return Concat(op.axis + 1)(*(self._repeated(o, rank) for o in operands))
        x = operands[0]
        if not isinstance(x, Stacked):
            return f"the first operand of {op.name} does not stack"
        if isinstance(op, NORMS):
            shifted = replace(op, axes=tuple(a + 1 for a in op.axes))
            return shifted(*(self.align(o, rank) for o in operands))
        if len(operands) != 1:
            return f"{op.name} has operands that do not stack"
        return self._lift_one(op, x, result)

    def _lift_one(self, op: Op, x: Stacked, result: TensorType) -> Value | str:
        """An op of one stacked operand."""
        if isinstance(op, ALONG_ONE):
            return replace(op, axis=op.axis + 1)(x.value)
        if isinstance(op, Reshape):
            return Reshape((self.count, *result.static))(x.value)
        if isinstance(op, Broadcast):
            return Broadcast((self.count, *result.static))(self.align(x, result.rank))
        if isinstance(op, Transpose):
            return Transpose((0, *(p + 1 for p in op.permutation)))(x.value)
        if isinstance(op, (Squeeze, Unsqueeze)):
            return replace(op, axes=tuple(a + 1 for a in op.axes))(x.value)
        if isinstance(op, Reduction):
            shifted = tuple(a + 1 for a in op.axes)
            return replace(op, axes=shifted)(x.value)
        if isinstance(op, Slice):
            full = (0, *op.starts), (self.count, *op.stops), (1, *op.steps)
            return Slice(*full)(x.value)
        return f"{op.name} is not an op that stacks"

    def _repeated(self, operand: Operand, rank: int) -> Value:
        """An operand with the stacking axis at full size, as a concat needs it."""
        aligned = self.align(operand, rank)
        if not isinstance(operand, Shared):
            return aligned
        return Broadcast((self.count, *aligned.tensor.static))(aligned)


@dataclass(frozen=True)
class AlongAxis:
    """Members lie side by side along an axis they have; `axis` counts from the last, as -1, -2."""

    axis: int
    widths: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.widths)

    def member(self, stacked: Value, index: int) -> Value:
        start = sum(self.widths[:index])
        axis = stacked.tensor.rank + self.axis
        return slice_axis(stacked, axis, start, start + self.widths[index])

    def selects(self, indices: Sequence[int]) -> bool:
        """Return True if some members are a view of the stack."""
        return len(runs_of(indices)) == 1

    def select(self, stacked: Value, indices: Sequence[int]) -> tuple[Value, AlongAxis]:
        """Some members, in ascending order, as a stack of their own."""
        axis = stacked.tensor.rank + self.axis
        starts = np.cumsum([0, *self.widths]).tolist()
        parts = [slice_axis(stacked, axis, starts[a], starts[b]) for a, b in runs_of(indices)]
        own = replace(self, widths=tuple(self.widths[i] for i in indices))
        return (parts[0] if len(parts) == 1 else Concat(axis)(*parts)), own

    def as_new_axis(self, stacked: Value) -> tuple[Value, NewAxis] | None:
        """The same members along a new first axis, by views; None where their widths differ."""
        if len(set(self.widths)) > 1:
            return None
        shape, axis = stacked.tensor.static, stacked.tensor.rank + self.axis
        apart = Reshape((*shape[:axis], self.count, self.widths[0], *shape[axis + 1 :]))(stacked)
        others = [i for i in range(len(shape) + 1) if i != axis]
        return Transpose((axis, *others))(apart), NewAxis(self.count)

    def lift(
        self, op: Op, operands: list[Operand], result: TensorType
    ) -> tuple[Value, AlongAxis] | str:
        """The op on stacked operands, or the reason why it cannot be."""
        if is_elementwise(op):
            return self._lift_aligned(op, operands)
        x = operands[0]
        if not isinstance(x, Stacked):
            return f"the first operand of {op.name} does not stack"
        axis = x.member.rank + self.axis
        if isinstance(op, (Conv, Pool)) and op.layout != CHANNELS_FIRST:
            return f"{op.name} has its channels last"
        if isinstance(op, Conv):
            return self._lift_conv(op, x, operands[1], result)
        if isinstance(op, Pool) and axis in (0, 1):
            return op(x.value), self
        if isinstance(op, Dot):
            return self._lift_rows(op, x, operands[1], axis)
        if isinstance(op, Reshape) and axis == 0 and result.static[:1] == x.member.static[:1]:
            whole = Reshape((sum(self.widths), *result.static[1:]))(x.value)
            return whole, replace(self, axis=-result.rank)
        if not is_row_op(op):
            return f"{op.name} is not an op that stacks along an axis"
        if axis in row_axes(op):
            kind = "reduction" if isinstance(op, Reduction) else op.name
            return f"the {kind} runs along the axis of the slices"
        if isinstance(op, Reduction):
            gone = 0 if op.keep else sum(a > axis for a in op.axes)
            return op(x.value), replace(self, axis=self.axis + gone)
        return self._lift_aligned(op, operands)

    def _lift_aligned(self, op: Op, operands: list[Operand]) -> tuple[Value, AlongAxis] | str:
        aligned = [self.align(o) for o in operands]
        for a in aligned:
            if isinstance(a, str):
                return a
        return op(*(a for a in aligned if isinstance(a, Value))), self

    def align(self, operand: Operand, rank: int = 0) -> Value | str:
        """An operand as part of a stacked op, or the reason why it cannot be."""
        if isinstance(operand, Stacked):
            return operand.value
        if isinstance(operand, Shared):
            shape = operand.value.tensor.static
            if len(shape) < -self.axis or shape[self.axis] == 1:
                return operand.value
            if known(operand.value) is None:
                return "an operand that all share spans the axis of the slices"
            operand = PerMember((operand.value,) * self.count)
        arrays = operand.arrays()
        if len(arrays) != self.count:
            return "codes do not lie side by side along an axis"
        most = max(-self.axis, *(data.ndim for data in arrays))
        wide = [data.reshape((1,) * (most - data.ndim) + data.shape) for data in arrays]
        common = np.broadcast_shapes(*(self._across(w.shape, 1) for w in wide))
        pieces = [
            np.broadcast_to(w, self._across(common, width))
            for w, width in zip(wide, self.widths, strict=True)
        ]
        return constant(np.concatenate(pieces, self.axis))

    def _across(self, shape: tuple[int, ...], width: int) -> tuple[int, ...]:
        """A shape with this width along the axis."""
        axis = len(shape) + self.axis
        return (*shape[:axis], width, *shape[axis + 1 :])

    def _lift_conv(
        self, op: Conv, x: Stacked, weights: Operand, result: TensorType
    ) -> tuple[Value, AlongAxis] | str:
        if self.axis == -x.member.rank and isinstance(weights, Shared):
            return op(x.value, weights.value), self
        if self.axis != 1 - x.member.rank or len(set(self.widths)) > 1:
            return "the convolutions do not stack along equal channels"
        if isinstance(weights, Shared):
            weights = PerMember((weights.value,) * self.count)
        if not isinstance(weights, PerMember) or len(weights.arrays()) != self.count:
            return "the weights of the convolutions are not constants of their own"
        grouped = replace(op, groups=op.groups * self.count)
        stacked = grouped(x.value, constant(np.concatenate(weights.arrays(), 0)))
        width = result.static[1]
        return stacked, replace(self, widths=(width,) * self.count)

    def _lift_rows(
        self, op: Dot, x: Stacked, weights: Operand, axis: int
    ) -> tuple[Value, AlongAxis] | str:
        """Rows of several members times one matrix."""
        if axis >= x.member.rank - 1:
            return "the dots sum along the axis of the slices"
        if not isinstance(weights, Shared) or weights.value.tensor.rank != 2:
            return "the dots do not share one matrix"
        return op(x.value, weights.value), self


Stacking: TypeAlias = NewAxis | AlongAxis


def column_stacking(layers: Sequence[Value]) -> AlongAxis:
    """Layers side by side: their columns, or the channels of convolutions."""
    axis = 1 - layers[0].tensor.rank if isinstance(layers[0].op, Conv) else -1
    return AlongAxis(axis, tuple(v.tensor.static[axis] for v in layers))


def fits(stacking: Stacking, users: list[Value], operands: list[Operand]) -> str:
    """Return why operands along an axis do not lie as the slices do; "" where they do.

    A slice of width 1 would be broadcast against a wider operand: its result is no slice.
    """
    for operand in operands:
        if isinstance(operand, Stacked) and operand.stacking != stacking:
            return "another operand is sliced differently"
        if isinstance(stacking, NewAxis) and isinstance(operand, PerMember):
            shapes = [v.tensor.dims for v in operand.values]
            if any(shape != shapes[0] for shape in shapes):
                return f"operands differ in shape (expected {shapes[0]}, given {shapes[-1]})"
    if not isinstance(stacking, AlongAxis) or not is_elementwise(users[0].op):
        return ""
    for index, width in enumerate(stacking.widths):
        shapes = [users[index].tensor.static]
        shapes += [o.values[index].tensor.static for o in operands if isinstance(o, PerMember)]
        sizes = [shape[stacking.axis] for shape in shapes if len(shape) >= -stacking.axis]
        if sizes[0] != width or any(d not in (1, width) for d in sizes):
            return f"an operand is wider than its slice (expected {width}, given {max(sizes)})"
    return ""


def mask_axis(type_: TensorType, stacking: Stacking) -> TensorType:
    """A type without the width along the slices' axis, in which members may differ."""
    if not isinstance(stacking, AlongAxis) or type_.shape is None:
        return type_
    axis = len(type_.shape) + stacking.axis
    if axis < 0:
        return type_
    return type_.with_shape("width" if i == axis else d for i, d in enumerate(type_.shape))
