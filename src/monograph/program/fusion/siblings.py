"""Reductions of the same rows, as one region: their kernel reads each element once."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.ir import Value
from monograph.ops.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum
from monograph.program.fusion.region import Region

KINDS = (ReduceMax, ReduceMin, ReduceProd, ReduceSum)
MOST = 4
"""The most reductions of one region: each has totals in registers."""


def siblings(region: Region) -> tuple[Value, ...]:
    """Return the reductions in a region besides its anchor."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, KINDS):
        return ()
    return tuple(v for v in region.body[: region.body.index(anchor)] if isinstance(v.op, KINDS))


def merge_reductions(regions: Sequence[Region]) -> list[Region]:
    """Join regions that reduce the same axes of the same value, where none waits for another."""
    made: list[Region | None] = []
    first: dict[object, int] = {}
    for region in regions:
        made.append(region)
        key = _rows(region)
        if key is None:
            continue
        at = first.get(key)
        before = None if at is None else made[at]
        if at is None or before is None or not _may_join(before, region, made[at:-1]):
            first[key] = len(made) - 1
            continue
        made[at], made[-1] = _joined(before, region), None
    return [region for region in made if region is not None]


def _rows(region: Region) -> object:
    """Return what regions share that read the same rows; None for other regions."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, KINDS) or siblings(region):
        return None
    # Sizes are not compared: a comparison of open ones would be a guard.
    return anchor.inputs[0], anchor.op.axes, anchor.op.keep, anchor.dtype


def _may_join(first: Region, second: Region, between: Sequence[Region | None]) -> bool:
    """Return True if the second region can run where the first does."""
    if len(siblings(first)) + 2 > MOST:
        return False
    read = set(second.inputs)
    return not any(read.intersection(r.outputs) for r in between if r is not None)


def _joined(first: Region, second: Region) -> Region:
    anchor, other = first.anchor, second.anchor
    assert anchor is not None
    assert other is not None
    inputs = dict.fromkeys((*first.inputs, *second.inputs))
    own, more = first.body.index(anchor), second.body.index(other)
    before = (*first.body[:own], *second.body[:more], other, anchor)
    body = dict.fromkeys((*before, *first.epilogue, *second.epilogue))
    return Region((*first.outputs, *second.outputs), tuple(inputs), tuple(body), anchor)
