"""Families: congruent values that are computed together as one stacked value.

A family is a tuple of values, each of which is a slice of one larger value. When the users of
its members agree (the same op, their other operands constant, common to all, or of a family
themselves) the users can be computed on the stacked value at once, and are a family in turn. The
passes that batch towers and hoist work above slices differ only in the families they start from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from monograph.ir import Array, Op, TensorType, Value, constant, known
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Where
from monograph.ops.linear import Dot
from monograph.ops.pool import Pool
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST


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


def slice_axis(value: Value, axis: int, start: int, stop: int) -> Value:
    """value[..., start:stop, ...] along one axis."""
    sizes = value.tensor.static
    starts = tuple(start if i == axis else 0 for i in range(len(sizes)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(sizes))
    if (start, stop) == (0, sizes[axis]):
        return value
    return Slice(starts, stops, (1,) * len(sizes))(value)


@dataclass(frozen=True)
class NewAxis:
    """Members lie along a new first axis: member i is stacked[i]."""

    count: int

    def member(self, stacked: Value, index: int) -> Value:
        return Squeeze((0,))(slice_axis(stacked, 0, index, index + 1))

    def part(self, stacked: Value, start: int, stop: int) -> tuple[Value, NewAxis]:
        """The members of a range, as a stack of their own."""
        return slice_axis(stacked, 0, start, stop), NewAxis(stop - start)

    def align(self, operand: Operand, rank: int) -> Value:
        """An operand as part of a stacked op whose members have this rank."""
        if isinstance(operand, Shared):
            return operand.value
        if isinstance(operand, PerMember):
            data = np.stack(operand.arrays())
            shape = (self.count, *(1,) * (rank - data.ndim + 1), *data.shape[1:])
            return constant(data.reshape(shape))
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
        if len(operands) != 1 or not isinstance(operands[0], Stacked):
            return f"{op.name} has operands that do not stack"
        x = operands[0]
        if isinstance(op, Reshape):
            return Reshape((self.count, *result.static))(x.value)
        if isinstance(op, Broadcast):
            return Broadcast((self.count, *result.static))(self.align(x, rank))
        if isinstance(op, Transpose):
            return Transpose((0, *(p + 1 for p in op.permutation)))(x.value)
        if isinstance(op, (Squeeze, Unsqueeze)):
            return replace(op, axes=tuple(a + 1 for a in op.axes))(x.value)
        if isinstance(op, Reduction):
            shifted = tuple(a + 1 for a in op.axes)
            return replace(op, axes=shifted)(x.value)  # type: ignore[type-var]
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

    def part(self, stacked: Value, start: int, stop: int) -> tuple[Value, AlongAxis]:
        """The members of a range, as a stack of their own."""
        first = sum(self.widths[:start])
        widths = self.widths[start:stop]
        axis = stacked.tensor.rank + self.axis
        return slice_axis(stacked, axis, first, first + sum(widths)), replace(self, widths=widths)

    def lift(
        self, op: Op, operands: list[Operand], result: TensorType
    ) -> tuple[Value, AlongAxis] | str:
        """The op on stacked operands, or the reason why it cannot be."""
        if is_elementwise(op):
            aligned = [self._align(o) for o in operands]
            reasons = [a for a in aligned if isinstance(a, str)]
            if reasons:
                return reasons[0]
            return op(*(a for a in aligned if isinstance(a, Value))), self
        x = operands[0]
        if not isinstance(x, Stacked):
            return f"the first operand of {op.name} does not stack"
        if isinstance(op, (Conv, Pool)) and op.layout != CHANNELS_FIRST:
            return f"{op.name} has its channels last"
        if isinstance(op, Conv):
            return self._lift_conv(op, x, operands[1], result)
        if isinstance(op, Pool) and self.axis == 1 - x.member.rank:
            return op(x.value), self
        if isinstance(op, Reduction):
            return self._lift_reduction(op, x)
        return f"{op.name} is not an op that stacks along an axis"

    def _align(self, operand: Operand) -> Value | str:
        if isinstance(operand, Stacked):
            return operand.value
        if isinstance(operand, Shared):
            shape = operand.value.tensor.static
            if len(shape) < -self.axis or shape[self.axis] == 1:
                return operand.value
            if known(operand.value) is None:
                return "an operand that all share spans the axis of the slices"
            operand = PerMember((operand.value,) * self.count)
        pieces = []
        for data, width in zip(operand.arrays(), self.widths, strict=True):
            whole = data.reshape((1,) * (-self.axis - data.ndim) + data.shape)
            axis = whole.ndim + self.axis
            widened = (*whole.shape[:axis], width, *whole.shape[axis + 1 :])
            pieces.append(np.broadcast_to(whole, widened))
        return constant(np.concatenate(pieces, self.axis))

    def _lift_conv(
        self, op: Conv, x: Stacked, weights: Operand, result: TensorType
    ) -> tuple[Value, AlongAxis] | str:
        if self.axis != 1 - x.member.rank or len(set(self.widths)) > 1:
            return "the convolutions do not stack along equal channels"
        if not isinstance(weights, PerMember):
            return "the weights of the convolutions are not constants of their own"
        grouped = replace(op, groups=op.groups * self.count)
        stacked = grouped(x.value, constant(np.concatenate(weights.arrays(), 0)))
        width = result.static[1]
        return stacked, replace(self, widths=(width,) * self.count)

    def _lift_reduction(self, op: Reduction, x: Stacked) -> tuple[Value, AlongAxis] | str:
        axis = x.member.rank + self.axis
        if axis in op.axes:
            return "the reduction runs along the axis of the slices"
        gone = 0 if op.keep else sum(a > axis for a in op.axes)
        return op(x.value), replace(self, axis=self.axis + gone)


Stacking: TypeAlias = NewAxis | AlongAxis


@dataclass(frozen=True, eq=False)
class Family:
    """Values that are slices of one stacked value, in order."""

    members: tuple[Value, ...]
    stacked: Value
    stacking: Stacking

    def member_value(self, index: int) -> Value:
        """Member `index`, as a slice of the stacked value."""
        return self.stacking.member(self.stacked, index)

    def part(self, start: int, stop: int) -> Family:
        """The family of a range of members."""
        if (start, stop) == (0, len(self.members)):
            return self
        stacked, stacking = self.stacking.part(self.stacked, start, stop)
        return Family(self.members[start:stop], stacked, stacking)
