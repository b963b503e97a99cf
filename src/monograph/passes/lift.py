"""Carries families forward: users that agree are computed on the stacked value."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

from monograph.ir import Constant, Graph, Op, TensorType, Value
from monograph.passes.base import users_of
from monograph.passes.families import (
    AlongAxis,
    Family,
    Operand,
    PerMember,
    Shared,
    Stacked,
    Stacking,
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
        self.lifted = 0

    def add(self, family: Family) -> None:
        for index, value in enumerate(family.members):
            self.place[value] = (family, index)
        self.queue.append(family)

    def run(self) -> None:
        while self.queue:
            self._extend(self.queue.popleft())

    def replacements(self) -> dict[Value, Value]:
        """Every member, as the slice of its family that it has become."""
        return {v: f.member_value(i) for v, (f, i) in self.place.items()}

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
        try_lift = stacking.lift(users[0].op, operands, result)
        if isinstance(try_lift, str):
            self.reasons.append((users[0], try_lift))
            return
        stacked, after = try_lift
        self.lifted += 1
        self.add(Family(tuple(users), stacked, after))

    def _operand(self, values: tuple[Value, ...]) -> Operand:
        if values[0] in self.place:
            family, first = self.place[values[0]]
            part = family.part(first, first + len(values))
            return Stacked(part.stacked, values[0].tensor)
        if all(v is values[0] for v in values):
            return Shared(values[0])
        return PerMember(values)


def mask_axis(type_: TensorType, stacking: Stacking) -> TensorType:
    """A type without the width along the slices' axis, in which members may differ."""
    if not isinstance(stacking, AlongAxis) or type_.shape is None:
        return type_
    axis = len(type_.shape) + stacking.axis
    if axis < 0:
        return type_
    return type_.with_shape("width" if i == axis else d for i, d in enumerate(type_.shape))
