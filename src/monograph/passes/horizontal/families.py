"""Families: congruent values that are computed together as one stacked value.

A family is a tuple of values, each of which is a slice of one larger value. When the users of
its members agree (the same op, their other operands constant, common to all, or of a family
themselves) the users can be computed on the stacked value at once, and are a family in turn. The
passes that batch towers and hoist work above slices differ only in the families they start from.

Where elementwise work differs from member to member, the stacked value can hold the results of
all kinds, selected by member: see `blends`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from monograph.ir import Constant, Graph, Op, TensorType, Value
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.passes.base import joined_origins, users_of
from monograph.passes.horizontal.blends import MemberEpilogue, blend, blend_work, epilogue_of
from monograph.passes.horizontal.stackings import (
    AlongAxis,
    NewAxis,
    Operand,
    PerMember,
    Shared,
    Stacked,
    Stacking,
    canonical_inputs,
    fits,
    is_row_op,
    mask_axis,
    row_axes,
)
from monograph.passes.horizontal.weights import are_codes, weights_kind
from monograph.rewrite import CostModel, Work


@dataclass(frozen=True, eq=False)
class Family:
    """Values that are slices of one stacked value, in order."""

    members: tuple[Value, ...]
    stacked: Value
    stacking: Stacking

    def member_value(self, index: int) -> Value:
        """Member `index`, as a slice of the stacked value."""
        return self.stacking.member(self.stacked, index)

    def select(self, indices: Sequence[int]) -> tuple[Value, Stacking]:
        """Some members as a stack of their own."""
        if len(indices) == len(self.members):
            return self.stacked, self.stacking
        return self.stacking.select(self.stacked, indices)


Role: TypeAlias = tuple[str, object, object]


class Lifter:
    """Grows families through a graph until no more users agree.

    Every value joins at most one family, so the work is linear in the graph. The operands of
    lifted users are families, constants and values common to all. If a lifted user reached
    another one of its family, that path would lead through such an operand, on which both
    depend: so lifting makes no cycle, provided the families given to `add` make none.

    With a cost model, members may be copied together for a layer, and elementwise work that
    differs from member to member may be blended.
    """

    def __init__(
        self,
        graph: Graph,
        allowed: Callable[[Op], bool] = lambda op: True,
        cost: CostModel | None = None,
    ) -> None:
        self.allowed = allowed
        self.cost = cost
        self.users = users_of(graph)
        self.outputs = frozenset(v for _, v in graph.outputs)
        self.place: dict[Value, tuple[Family, int]] = {}
        self.queue: deque[Family] = deque()
        self.reasons: list[tuple[Value, str]] = []
        self.given: set[Value] = set()
        self.joined: list[Value] = []
        """The members of families, in the order in which they joined."""
        self.number: dict[Family, int] = {}
        self.first: dict[Value, Family] = {}
        """The family that each member joined first: an epilogue of no steps has two."""

    def add(self, family: Family, *, given: bool = False) -> None:
        """Takes a family up; one that is `given` is read from its stack but not replaced."""
        for index, value in enumerate(family.members):
            self.place[value] = (family, index)
        self.number[family] = len(self.number)
        if given:
            self.given.update(family.members)
        else:
            self.joined += family.members
            for value in family.members:
                self.first.setdefault(value, family)
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

    def epilogue(self, value: Value) -> MemberEpilogue:
        """The elementwise work after a value, up to the one value that all of it leads to."""
        return epilogue_of(value, self.users, self.outputs, self._is_free)

    def _is_free(self, value: Value) -> bool:
        return value not in self.place and self._may_lift(value)

    def _extend(self, family: Family) -> None:
        """Lifts the users that members of a family have in common."""
        alike: dict[tuple[object, ...], dict[int, Value]] = defaultdict(dict)
        for index, member in enumerate(family.members):
            count: dict[tuple[object, ...], int] = defaultdict(int)
            for user in self.users[member]:
                if user in self.place or not self._may_lift(user):
                    continue
                roles = (self._role(v, family, index) for v in canonical_inputs(user, self._rank))
                key = (user.op.digest, _width(user, family, index), *roles)
                count[key] += 1
                alike[(*key, count[key])][index] = user
        whole = any(len(group) == len(family.members) for group in alike.values())
        if not whole and self._blend(family):
            return
        self._note_widths(alike)
        for group in alike.values():
            indices = sorted(group)
            if len(indices) < 2:
                continue
            users = [group[i] for i in indices]
            if self._selects(family, indices, users):
                self._lift(family, indices, users)

    def _blend(self, family: Family) -> bool:
        """Computes elementwise work that differs from member to member as one stacked value."""
        if self.cost is None or any(m in self.given for m in family.members):
            return False
        found = [self.epilogue(m) for m in family.members]
        stacking = family.stacking
        if len({e.kind(stacking) for e in found}) < 2:
            return False
        if len({mask_axis(e.end.tensor, stacking) for e in found}) > 1:
            return False
        work = blend_work(found, stacking)
        after = self.cost.seconds(Work(0, work.flops, 0))
        before = self.cost.seconds(Work(work.launches, 0, work.bytes))
        if not work.launches:
            return False
        if after >= before:
            self.reasons.append(
                (
                    found[0].end,
                    "computing every kind of epilogue for all members costs more than it saves"
                    f" (expected below {before * 1e6:.2f} us, given {after * 1e6:.2f} us)",
                )
            )
            return False
        made = blend(found, family.stacked, stacking)
        if isinstance(made, str):
            self.reasons.append((found[0].end, made))
            return False
        self.add(Family(tuple(e.end for e in found), made, stacking))
        return True

    def _selects(self, family: Family, indices: list[int], users: list[Value]) -> bool:
        """Return True if members are a view of the stack, or a copy of them saves more."""
        if family.stacking.selects(indices):
            return True
        reason = "the members that agree do not adjoin"
        if self.cost is not None and isinstance(users[0].op, (Dot, Conv)):
            moved = sum(family.members[i].tensor.nbytes for i in indices)
            before = self.cost.seconds(Work(len(indices), 0, moved))
            after = self.cost.seconds(Work(2, 0, 3 * moved))
            if after < before:
                return True
            reason += (
                ", and a copy of them costs more than it saves"
                f" (expected below {before * 1e6:.2f} us, given {after * 1e6:.2f} us)"
            )
        self.reasons.append((users[0], reason))
        return False

    def _note_widths(self, alike: dict[tuple[object, ...], dict[int, Value]]) -> None:
        """Says of users that differ only in the width of their slice why they stay apart."""
        single: dict[tuple[object, ...], list[Value]] = defaultdict(list)
        for (digest, width, *roles), group in alike.items():
            if width and len(group) == 1:
                single[digest, *roles].extend(group.values())
        for users in single.values():
            if len(users) > 1:
                reason = f"{users[0].op.name} works along slices of different widths"
                self.reasons.append((users[0], reason))

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
        if are_codes(value):
            return ("codes", weights_kind(value), None)
        return ("shared", value.digest, None)

    def _rank(self, value: Value) -> tuple[int, ...]:
        """Order the operands of commutative ops: families, then other values, then constants."""
        if value in self.place:
            family, at = self.place[value]
            return 0, self.number[family], at
        return (2,) if isinstance(value.op, Constant) else (1,)

    def _lift(self, family: Family, indices: list[int], users: list[Value]) -> None:
        """Makes a family of users whose operands have equal roles."""
        if len({mask_axis(u.tensor, family.stacking) for u in users}) > 1:
            self.reasons.append((users[0], "the results have different types"))
            return
        rows = [canonical_inputs(u, self._rank) for u in users]
        operands = [self._operand(column) for column in zip(*rows, strict=True)]
        stacking = next(o.stacking for o in operands if isinstance(o, Stacked))
        made = lift(stacking, users, operands)
        if isinstance(made, str):
            self.reasons.append((users[0], made))
            return
        lifted = Family(tuple(users), *made)
        if any(lifted.member_value(i).type != u.type for i, u in enumerate(users)):
            self.reasons.append((users[0], "the stacked op gives results of another shape"))
            return
        self.add(lifted)

    def _operand(self, values: tuple[Value, ...]) -> Operand:
        if values[0] in self.place:
            family = self.place[values[0]][0]
            stacked, stacking = family.select([self.place[v][1] for v in values])
            return Stacked(stacked, values[0].tensor, stacking)
        if all(v is values[0] for v in values):
            return Shared(values[0])
        return PerMember(values)


def lift(
    stacking: Stacking, users: list[Value], operands: list[Operand]
) -> tuple[Value, Stacking] | str:
    """The users' op on stacked operands, or the reason why it cannot be.

    Slices of one width along an axis become members along a new axis, by views, where that helps.
    """
    op, result = users[0].op, users[0].tensor
    made: tuple[Value, Stacking] | str
    made = fits(stacking, users, operands) or stacking.lift(op, operands, result)
    mixed = len({type(o.stacking) for o in operands if isinstance(o, Stacked)}) > 1
    if not isinstance(made, str) or not (mixed or isinstance(op, Dot) or is_row_op(op)):
        return made
    moved: list[Operand] = []
    for operand in operands:
        if isinstance(operand, Stacked) and isinstance(operand.stacking, AlongAxis):
            found = operand.stacking.as_new_axis(operand.value)
            if found is None:
                return made
            operand = Stacked(found[0], operand.member, found[1])
        moved.append(operand)
    axis = NewAxis(len(users))
    again = fits(axis, users, moved) or axis.lift(op, moved, result)
    return made if isinstance(again, str) else again


def _width(user: Value, family: Family, index: int) -> int:
    """The width of a member's slice where the user works along it; 0 where it does not count."""
    stacking, op = family.stacking, user.op
    if not isinstance(stacking, AlongAxis) or not (isinstance(op, Dot) or is_row_op(op)):
        return 0
    axis = family.members[index].tensor.rank + stacking.axis
    along = isinstance(op, Dot) or axis in row_axes(op)
    return stacking.widths[index] if along else 0
