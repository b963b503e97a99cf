"""Orders of dimensions: data types and helpers for the layout traits of ops.

An *order* says how a value is stored: dimension i of the stored tensor is dimension order[i] of the
value. A `LayoutPlan` is an op on stored tensors: the orders of its operands and of its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from monograph.ir.sizes import hint_of, is_one, proven
from monograph.ir.types import TensorType

if TYPE_CHECKING:
    from monograph.ir.op import Op, Value

Order: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Need:
    """The order that an operand must have, and the axes of size 1 to insert after that."""

    order: Order
    new_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayoutPlan:
    """An op on stored tensors; `op` is None where the stored operand is the result as it is."""

    op: Op | None
    needs: tuple[Need, ...]
    order: Order


def plain(rank: int) -> Order:
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Return the order [N, *S, C] of a value [N, C, *S]."""
    return (0, *range(2, rank), 1)


def inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def in_order(value: Value, order: Order, **attributes: Any) -> LayoutPlan:
    """Return the plan of an op whose operands and result all have one order.

    `attributes` replace those of the op that name axes.
    """
    op = replace(value.op, **attributes) if attributes else value.op  # type: ignore[type-var]
    return LayoutPlan(op, (Need(order),) * len(value.inputs), order)


def elementwise(value: Value, order: Order) -> LayoutPlan:
    """Return the plan of an op whose operands broadcast to a result in this order."""
    return LayoutPlan(value.op, tuple(aligned(v, order) for v in value.inputs), order)


def aligned(operand: Value, order: Order) -> Need:
    """Return the need of an operand that broadcasts against a result in this order."""
    lead = len(order) - operand.tensor.rank
    own = tuple(d - lead for d in order if d >= lead)
    first = next((i for i, d in enumerate(order) if d >= lead), len(order))
    # Numpy puts missing dimensions in front; those that the order takes inside must be there.
    inside = (i - first for i, d in enumerate(order) if d < lead and i > first)
    return Need(own, tuple(inside))


def widened(order: Order, rank: int) -> Order:
    """Return the order of the tensor that an operand broadcasts to: new dimensions come first."""
    lead = rank - len(order)
    return (*range(lead), *(d + lead for d in order))


def without(order: Order, axes: tuple[int, ...]) -> Order:
    """Return the order of the dimensions that remain when these axes are removed."""
    return tuple(d - sum(a < d for a in axes) for d in order if d not in axes)


def with_axes(order: Order, axes: tuple[int, ...]) -> Order:
    """Return an order with new (ascending) axes, each stored after the axis before it."""
    result = list(order)
    for a in axes:
        result = [d + (d >= a) for d in result]
        result.insert(result.index(a - 1) + 1 if a else 0, a)
    return tuple(result)


def stored_axes(order: Order, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of the stored tensor that hold these axes of the value."""
    return tuple(order.index(a) for a in axes)


def regroup(given: TensorType, result: TensorType, order: Order) -> tuple[Order, Order] | None:
    """Return the nearest order that a reshape can take, and the order of its result.

    A reshape maps groups of neighbouring dimensions onto groups. Groups can be in any order as long
    as each one stays together.
    """
    if not (given.is_static and result.is_static) or 0 in given.static:
        return None
    groups = _groups(given.static, result.static)
    where = {d: i for i, (ins, _) in enumerate(groups) for d in ins}
    # Groups in the order of their first dimension that has a size; the others stay with the one
    # before them.
    ranked: dict[int, None] = {}
    for d in order:
        if not is_one(given.static[d]):
            ranked[where[d]] = None
    sequence = list(ranked)
    for i in range(len(groups)):
        if i not in ranked:
            sequence.insert(sequence.index(i - 1) + 1 if i else 0, i)
    need = tuple(d for i in sequence for d in groups[i][0])
    if sized(need, given) == sized(order, given):
        need = order
    return need, tuple(d for i in sequence for d in groups[i][1])


def _groups(
    given: tuple[int, ...], result: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the smallest groups of dimensions of equal product, of two shapes of equal size."""
    groups = []
    i = j = 0
    while i < len(given) or j < len(result):
        start, begin = i, j
        i, j = min(i + 1, len(given)), min(j + 1, len(result))
        while i < len(given) or j < len(result):
            a, b = math.prod(given[start:i]), math.prod(result[begin:j])
            if proven(a, "==", b):
                break
            if (hint_of(a) < hint_of(b) and i < len(given)) or j == len(result):
                i += 1
            else:
                j += 1
        groups.append((tuple(range(start, i)), tuple(range(begin, j))))
    return groups


def sized(order: Order, type_: TensorType) -> Order:
    """Return the dimensions larger than 1, in order: those of size 1 may stand anywhere."""
    return tuple(d for d in order if not is_one(type_.dims[d]))


def same_memory(type_: TensorType, given: Order, wanted: Order) -> bool:
    """Return True if two orders differ only in the places of dimensions of size 1."""
    return sized(given, type_) == sized(wanted, type_)
