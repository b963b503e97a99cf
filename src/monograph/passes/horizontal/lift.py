"""Carries families forward: users that agree are computed on the stacked value."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

from monograph.ir import Constant, Graph, Op, TensorType, Value
from monograph.passes.base import joined_origins, users_of
from monograph.passes.horizontal.families import (
    AlongAxis,
    Family,
    Operand,
    PerMember,
    Shared,
    Stacked,
    Stacking,
    is_elementwise,
)

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
        """What an operand is to a member's user; users with equal roles can be lifted together."""
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
