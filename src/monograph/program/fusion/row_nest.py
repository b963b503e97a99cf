"""The loops over the rows of an operand: counters across rows, and counters along them.

Some axes of the operand are kept and some are reduced; the elements along the reduced ones, for one
place along the kept ones, are a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monograph.ir import Value
from monograph.program.fusion.access import Indices, Resolved, counters
from monograph.program.fusion.loops import merge
from monograph.program.index import Counter, Index, flatten, strides_of
from monograph.program.memory.buffer_assignment import Storage


@dataclass(frozen=True)
class RowNest:
    """The index of the operand in as few counters as memory allows, and which of them reduce."""

    at: Indices
    kept: list[Counter]
    reduced: list[Counter]


def row_nest(
    shape: Sequence[int], axes: Sequence[int], positions: Callable[[Indices], list[Index]]
) -> RowNest:
    """The loops over an operand; `positions` says what an index of it reads and writes."""
    at = plain = counters(shape)
    if 0 not in shape:
        kept = [1 if d in axes else n for d, n in enumerate(shape)]
        # Kept and reduced dimensions are told apart by where the kept ones alone would lie.
        apart = flatten(
            [Index() if d in axes else i for d, i in enumerate(plain)], strides_of(kept)
        )
        at = merge(shape, plain, [apart, *positions(plain)])
    named = sorted({c for i in at for c in i.counters}, key=lambda c: (len(c.name), c.name))
    across = {c for d, i in enumerate(at) if d not in axes for c in i.counters}
    return RowNest(at, [c for c in named if c in across], [c for c in named if c not in across])


def result_index(operand: Value, result: Value, axes: Sequence[int], at: Indices) -> Indices:
    """Where the result of an element's row is, or the element of a result of the same shape."""
    if result.tensor.static == operand.tensor.static:
        return at
    if len(result.tensor.static) == len(at):
        return tuple(Index() if d in axes else i for d, i in enumerate(at))
    return tuple(i for d, i in enumerate(at) if d not in axes)


def positions_read(order: Sequence[Resolved], storage: Mapping[Value, Storage]) -> list[Index]:
    """Where in memory lies what an order of elements begins with."""
    return [
        flatten(r.element.at, storage[r.element.value].strides)
        for r in order
        if not r.operands and r.element.value in storage
    ]
