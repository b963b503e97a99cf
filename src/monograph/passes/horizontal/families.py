"""Families: congruent values that are computed together as one stacked value.

A family is a tuple of values, each of which is a slice of one larger value. When the users of
its members agree (the same op, their other operands constant, common to all, or of a family
themselves) the users can be computed on the stacked value at once, and are a family in turn. The
passes that batch towers and hoist work above slices differ only in the families they start from.
`lift` carries a family forward to the users that agree.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from monograph.ir import Array, Constant, Graph, Op, TensorType, Value, constant, known
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Where
from monograph.ops.linear import Dot
from monograph.ops.pool import Pool
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST
from monograph.passes.base import joined_origins, users_of


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


Role: TypeAlias = tuple[str, object, object]


class Lifter:
    """Grows families through a graph until no more users agree.

    Every value joins at most one family, so the work is linear in the graph. Members of one
    family never depend on each other, and that carries over to the users: so computing them
    together can make no cycle.
    """

    def __init__(self, graph: Graph, allowed: Callable[[Op], bool] = lambda op: True) -> None:
        self.allowed = allowed
        self.users = users_of(graph)
        self.place: dict[Value, tuple[Family, int]] = {}
        self.queue: deque[Family] = deque()
        self.reasons: list[tuple[Value, str]] = []
        self.given: set[Value] = set()
        self.lifted = 0

    def add(self, family: Family, *, given: bool = False) -> None:
        """Takes a family up; one that is `given` is read from its stack but not replaced."""
        for index, value in enumerate(family.members):
            self.place[value] = (family, index)
        if given:
            self.given.update(family.members)
        self.queue.append(family)

    def run(self) -> None:
        while self.queue:
            self._extend(self.queue.popleft())

    def replacements(self) -> dict[Value, Value]:
        """Every member, as the slice of its family that it has become."""
        places = self.place.items()
        return {v: f.member_value(i) for v, (f, i) in places if v not in self.given}

    def origins(self, graph: Graph) -> dict[Value, str]:
        """The nodes behind every stacked value: those of its members."""
        found: dict[Value, str] = {}
        for value, (family, _) in self.place.items():
            if value not in self.given and family.stacked not in found:
                found[family.stacked] = joined_origins(graph, family.members)
        return found

    def _extend(self, family: Family) -> None:
        """Lifts the users that members of a family have in common."""
        alike: dict[tuple[object, ...], dict[int, Value]] = defaultdict(dict)
        for index, member in enumerate(family.members):
            count: dict[tuple[object, ...], int] = defaultdict(int)
            for user in self.users[member]:
                if user in self.place or not self._may_lift(user):
                    continue
                roles = tuple(self._role(v, family, index) for v in user.inputs)
                key = (user.op.digest, *roles)
                count[key] += 1
                alike[(*key, count[key])][index] = user
        for group in alike.values():
            indices = sorted(group)
            if len(indices) < 2:
                continue
            if indices[-1] - indices[0] + 1 != len(indices):
                self.reasons.append((group[indices[0]], "the members that agree do not adjoin"))
                continue
            self._lift(family, indices[0], [group[i] for i in indices])

    def _may_lift(self, user: Value) -> bool:
        static = isinstance(user.type, TensorType) and user.type.is_static
        return static and self.allowed(user.op)

    def _role(self, value: Value, family: Family, index: int) -> Role:
        """Return the role of an operand in a member's user; equal roles can be lifted together."""
        if value in self.place:
            other, at = self.place[value]
            return ("family", id(other), at - index)
        if isinstance(value.op, Constant):
            return ("constant", mask_axis(value.tensor, family.stacking), None)
        return ("shared", value.digest, None)

    def _lift(self, family: Family, first: int, users: list[Value]) -> None:
        """Makes a family of users whose operands have equal roles."""
        result = users[0].tensor
        if len({mask_axis(u.tensor, family.stacking) for u in users}) > 1:
            self.reasons.append((users[0], "the results have different types"))
            return
        operands = [
            self._operand(tuple(u.inputs[i] for u in users)) for i in range(len(users[0].inputs))
        ]
        stacking = family.part(first, first + len(users)).stacking
        reason = _fits(stacking, users, operands)
        made = reason or stacking.lift(users[0].op, operands, result)
        if isinstance(made, str):
            self.reasons.append((users[0], made))
            return
        lifted = Family(tuple(users), *made)
        if any(lifted.member_value(i).type != u.type for i, u in enumerate(users)):
            self.reasons.append((users[0], "the stacked op gives results of another shape"))
            return
        self.lifted += 1
        self.add(lifted)

    def _operand(self, values: tuple[Value, ...]) -> Operand:
        if values[0] in self.place:
            family, first = self.place[values[0]]
            part = family.part(first, first + len(values))
            return Stacked(part.stacked, values[0].tensor, part.stacking)
        if all(v is values[0] for v in values):
            return Shared(values[0])
        return PerMember(values)


def _fits(stacking: Stacking, users: list[Value], operands: list[Operand]) -> str:
    """Why operands along an axis do not lie as the slices do; "" where they do.

    A slice of width 1 would be broadcast against a wider operand: its result is no slice.
    """
    if not isinstance(stacking, AlongAxis):
        return ""
    for operand in operands:
        if isinstance(operand, Stacked) and operand.stacking != stacking:
            return "another operand is sliced differently"
    if not is_elementwise(users[0].op):
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
