"""Reductions to the largest or smallest of all elements ignore the order of the elements."""

from __future__ import annotations

import math
from dataclasses import replace

from monograph.ir import Value
from monograph.ops.reduce import ReduceMax, ReduceMin
from monograph.ops.shape import Reshape, Transpose
from monograph.rewrite import Reject, rewrite


# Either -0.0 or 0.0 may be returned as the largest, so the bits may differ.
@rewrite(ReduceMax, exact=False)
def max_of_rearranged(value: Value) -> Value | Reject:
    """max(transpose(x)) -> max(x), along all axes"""
    return _unarranged(value)


@rewrite(ReduceMin, exact=False)
def min_of_rearranged(value: Value) -> Value | Reject:
    """min(transpose(x)) -> min(x), along all axes"""
    return _unarranged(value)


def _unarranged(value: Value) -> Value | Reject:
    """Return the reduction of the source of a chain of views."""
    op, x = value.op, value.inputs[0]
    assert isinstance(op, (ReduceMax, ReduceMin))
    if not value.tensor.is_static or math.prod(value.tensor.static) != 1:
        return Reject("not all elements are reduced to one", 1, value.type)
    if any(d != 1 for i, d in enumerate(x.tensor.dims) if i not in op.axes):
        return Reject("the reduction is not along all axes", x.tensor.rank, op.axes)
    source, turned = x, False
    while isinstance(source.op, (Reshape, Transpose)):
        turned = turned or isinstance(source.op, Transpose)
        source = source.inputs[0]
    if not turned:
        return Reject("the elements are not rearranged", "transpose", x.op.name)
    made = replace(op, axes=tuple(range(source.tensor.rank)), keep=False)(source)
    return made if value.tensor.rank == 0 else Reshape(value.tensor.static)(made)
