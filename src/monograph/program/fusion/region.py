"""Regions: the values that one kernel computes, and the loop nest over a shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monograph.ir import Op, Value
from monograph.program.fusion.access import Indices
from monograph.program.index import Index, counter, unflatten


@dataclass(frozen=True, eq=False)
class Region:
    """The work of one kernel.

    `body` holds all values computed inside, in order: views, pointwise values, the anchor. Only
    `outputs` are stored; `inputs` are read from memory. A region without an anchor is a loop over
    elements.
    """

    outputs: tuple[Value, ...]
    inputs: tuple[Value, ...]
    body: tuple[Value, ...]
    anchor: Value | None = None

    @property
    def kind(self) -> str:
        if self.anchor is None:
            return "pointwise"
        # A compiled form of an op has the name of that op.
        inner = getattr(self.anchor.op, "of", None)
        return inner.name if isinstance(inner, Op) else self.anchor.op.name

    @property
    def root(self) -> Value:
        """The last result, which names the region."""
        return self.outputs[-1]

    @property
    def epilogue(self) -> tuple[Value, ...]:
        """The values computed from the anchor's result before it is stored."""
        if self.anchor is None:
            return ()
        at = self.body.index(self.anchor)
        return self.body[at + 1 :]

    def inputs_besides(self, operand: int) -> tuple[Value, ...]:
        """Return the inputs without the one that is only this operand of the anchor.

        A kernel that packs constant weights no longer reads them from memory, unless its epilogue
        or another operand is the same constant.
        """
        assert self.anchor is not None
        others = [v for i, v in enumerate(self.anchor.inputs) if i != operand]
        read = {*others, *self.outputs}
        read.update(v for user in self.body if user is not self.anchor for v in user.inputs)
        only = self.anchor.inputs[operand]
        return tuple(v for v in self.inputs if v is not only or v in read)


def merge(shape: Sequence[int], at: Indices, positions: Sequence[Index]) -> Indices:
    """Return the index of each dimension in terms of fewer counters.

    Neighbouring dimensions become one loop if the outer factor is the inner factor times the inner
    extent in every position in memory.
    """
    groups: list[list[int]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if groups and _runs_on(shape, at, positions, groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    merged: list[Index] = [Index()] * len(shape)
    for number, group in enumerate(groups):
        sizes = [shape[a] for a in group]
        whole = counter(f"m{number}", math.prod(sizes))
        for axis, index in zip(group, unflatten(whole, sizes), strict=True):
            merged[axis] = index
    return tuple(merged)


def _runs_on(
    shape: Sequence[int], at: Indices, positions: Sequence[Index], outer: int, inner: int
) -> bool:
    (a, _), (b, _) = at[outer].terms[0], at[inner].terms[0]
    for position in positions:
        if not position.is_linear and position.counters & {a, b}:
            return False
        if position.factor(a) != position.factor(b) * shape[inner]:
            return False
    return True
