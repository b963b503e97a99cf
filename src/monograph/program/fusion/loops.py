"""Loop nests: merges dimensions of a shape into one loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.program.fusion.access import Indices
from monograph.program.index import Index, counter, unflatten


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
