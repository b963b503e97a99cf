"""Epilogues that differ from member to member, computed together.

relu(a), sigmoid(b) of members a and b of one stack s: where(mask, relu(s), sigmoid(s)). Every kind
of epilogue is computed for all members, and a constant mask selects. The product that makes the
stack then runs the blend in its own kernel, where separate epilogues would need one kernel each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monograph.ir import Constant, Value, constant, known
from monograph.ir.sizes import hint_of, same_sizes
from monograph.ops.elementwise import Where
from monograph.passes.horizontal.stackings import (
    AlongAxis,
    Operand,
    PerMember,
    Shared,
    Stacked,
    Stacking,
    canonical_inputs,
    is_elementwise,
    mask_axis,
)
from monograph.rewrite import Work

MOST_STEPS = 32
FLOPS_EACH = 16.0
"""The operations of one elementwise step for each element: those of an exponential."""


@dataclass(frozen=True)
class MemberEpilogue:
    """Elementwise steps from a value to an end, through which all of its users go."""

    start: Value
    steps: tuple[Value, ...]
    stored: bool
    """True if the end is stored; else its readers compute it, whatever kernel the start has."""

    @property
    def end(self) -> Value:
        return self.steps[-1] if self.steps else self.start

    @cached_property
    def order(self) -> dict[Value, int]:
        return {v: i for i, v in enumerate((self.start, *self.steps))}

    def inputs(self, step: Value) -> tuple[Value, ...]:
        """The operands of a step, those of commutative ops in one order for all epilogues."""
        return canonical_inputs(step, lambda v: (self.order.get(v, len(self.order)),))

    def kind(self, stacking: Stacking) -> tuple[object, ...]:
        """The ops and their operands; equal for epilogues that differ only in constants."""

        def operand(v: Value) -> object:
            return self.order[v] if v in self.order else mask_axis(v.tensor, stacking)

        return tuple((v.op.digest, *map(operand, self.inputs(v))) for v in self.steps)


def epilogue_of(
    start: Value,
    users: Mapping[Value, Sequence[Value]],
    outputs: Container[Value],
    may_join: Callable[[Value], bool],
) -> MemberEpilogue:
    """The longest elementwise work after a value that has one end.

    Its operands are the value, its own steps and constants; no step is used elsewhere.
    """

    def up_to(steps: Sequence[Value]) -> MemberEpilogue:
        end = steps[-1] if steps else start
        read = all(is_elementwise(u.op) or u.op.reads_expressions for u in users[end])
        return MemberEpilogue(start, tuple(steps), end in outputs or not read)

    region, best = [start], up_to(())
    if not start.tensor.size:
        return best
    while len(region) <= MOST_STEPS:
        exits = [v for v in region if v in outputs or any(u not in region for u in users[v])]
        if len(exits) == 1 and exits[0] is region[-1]:
            best = up_to(region[1:])
        following = {u for v in region for u in users[v] if u not in region}
        steps = [u for u in following if may_join(u) and _continues(u, start, region)]
        if not steps:
            break
        region.append(min(steps, key=lambda u: (u.op.digest, u.digest)))
    return best


def _continues(user: Value, start: Value, region: Sequence[Value]) -> bool:
    shape, own = user.tensor.shape, start.tensor.shape
    if not is_elementwise(user.op) or shape is None or not same_sizes(shape, own or ()):
        return False
    return all(v in region or isinstance(v.op, Constant) for v in user.inputs)


def blend_work(epilogues: Sequence[MemberEpilogue], stacking: Stacking) -> Work:
    """The additional operations of a blend; the launches and bytes of separate epilogues."""
    kinds = {e.kind(stacking): len(e.steps) for e in epilogues}
    stored = [e for e in epilogues if e.steps and e.stored]
    size = hint_of(sum(e.start.tensor.size for e in epilogues))
    own = hint_of(sum(e.start.tensor.size * len(e.steps) for e in epilogues))
    flops = FLOPS_EACH * (sum(kinds.values()) * size - own)
    moved = 2.0 * hint_of(sum(e.start.tensor.nbytes for e in stored))
    return Work(len({e.kind(stacking) for e in stored}), flops, moved)


def blend(epilogues: Sequence[MemberEpilogue], stacked: Value, stacking: Stacking) -> Value | str:
    """The ends of epilogues as one stacked value, or the reason why they cannot be."""
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, epilogue in enumerate(epilogues):
        kinds[epilogue.kind(stacking)].append(index)
    result: Value | None = None
    for indices in kinds.values():
        own = _apply(epilogues, indices, stacked, stacking)
        if isinstance(own, str):
            return own
        if result is None:
            result = own
            continue
        flags = [constant(np.array(i in indices)) for i in range(len(epilogues))]
        mask = stacking.align(PerMember(tuple(flags)), epilogues[0].start.tensor.rank)
        if isinstance(mask, str):
            return mask
        result = Where()(mask, own, result)
    assert result is not None
    return result


def _apply(
    epilogues: Sequence[MemberEpilogue], indices: Sequence[int], stacked: Value, stacking: Stacking
) -> Value | str:
    """The steps of one kind on all members; other members take some constant of the first."""
    first = epilogues[indices[0]]
    made: dict[Value, Value] = {first.start: stacked}
    for at, step in enumerate(first.steps):
        operands: list[Operand] = []
        for number, v in enumerate(first.inputs(step)):
            if v in made:
                operands.append(Stacked(made[v], v.tensor, stacking))
                continue
            other = _any_element(v) if isinstance(stacking, AlongAxis) else v
            own = tuple(
                e.inputs(e.steps[at])[number] if i in indices else other
                for i, e in enumerate(epilogues)
            )
            operands.append(Shared(v) if all(w is v for w in own) else PerMember(own))
        lifted = stacking.lift(step.op, operands, step.tensor)
        if isinstance(lifted, str):
            return lifted
        made[step] = lifted[0]
    return made[first.end]


def _any_element(value: Value) -> Value:
    """One element of a constant: members of any width can take it."""
    data = known(value)
    assert data is not None
    return constant(data.reshape(-1)[0])
