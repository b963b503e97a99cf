"""The loops over the rows of an operand: counters across rows, and counters along them.

Some axes of the operand are kept and some are reduced. A row is the elements along the reduced
axes, at one index of the kept ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monograph.ir import Value
from monograph.program.fusion.access import Indices, Resolved, counters
from monograph.program.fusion.region import merge
from monograph.program.index import Counter, Index, flatten, strides_of
from monograph.program.memory.buffer_assignment import Storage


@dataclass(frozen=True)
class RowNest:
    """The index of the operand in as few counters as possible, and those that reduce."""

    at: Indices
    kept: list[Counter]
    reduced: list[Counter]


def row_nest(
    shape: Sequence[int], axes: Sequence[int], positions: Callable[[Indices], list[Index]]
) -> RowNest:
    """Build the loops over an operand; `positions` maps an index to what it reads and writes."""
    at = plain = counters(shape)
    if 0 not in shape:
        kept = [1 if d in axes else n for d, n in enumerate(shape)]
        # A distinct address for kept dimensions alone prevents a merge of kept and reduced ones.
        apart = flatten(
            [Index() if d in axes else i for d, i in enumerate(plain)], strides_of(kept)
        )
        at = merge(shape, plain, [apart, *positions(plain)])
    named = sorted({c for i in at for c in i.counters}, key=lambda c: (len(c.name), c.name))
    across = {c for d, i in enumerate(at) if d not in axes for c in i.counters}
    return RowNest(at, [c for c in named if c in across], [c for c in named if c not in across])


def result_index(operand: Value, result: Value, axes: Sequence[int], at: Indices) -> Indices:
    """Return the index of the result of an element's row, or of the same element."""
    if result.tensor.static == operand.tensor.static:
        return at
    if len(result.tensor.static) == len(at):
        return tuple(Index() if d in axes else i for d, i in enumerate(at))
    return tuple(i for d, i in enumerate(at) if d not in axes)


def positions_read(order: Sequence[Resolved], storage: Mapping[Value, Storage]) -> list[Index]:
    """Return the positions in memory of the loads in an order of elements."""
    return [
        flatten(r.element.at, storage[r.element.value].strides)
        for r in order
        if not r.operands and r.element.value in storage
    ]
