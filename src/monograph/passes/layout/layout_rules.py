"""How each op works on a tensor whose dimensions are kept in another order.

An *order* says how a value is kept: dimension i of what is kept is dimension order[i] of the value.
A rule is given a value and the order of one of its operands, and gives a `LayoutPlan`: the op that
works on what is kept, the orders it needs its operands in, and the order its result comes in. An op
that has no rule takes its operands as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from monograph.ir import Op, TensorType, Value
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import BitCast, Cast
from monograph.ops.composite import LayerNorm, LogSoftmax, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Where
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.pool import Pool
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.reduce import ArgReduction, Cumulative, Reduction
from monograph.ops.resize import Resize
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.window import CHANNELS_FIRST, CHANNELS_LAST

Order: TypeAlias = tuple[int, ...]
ELEMENTWISE = (Unary, Binary, Where, Cast, BitCast)


@dataclass(frozen=True)
class Need:
    """An operand in this order, and then with dimensions of size 1 at these places."""

    order: Order
    new_axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayoutPlan:
    """How a value is computed: by an op (None: what its operand is kept as serves as it is)."""

    op: Op | None
    needs: tuple[Need, ...]
    order: Order


def plain(rank: int) -> Order:
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """The order [N, *S, C] of a value [N, C, *S]."""
    return (0, *range(2, rank), 1)


def inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def has_order(value: Value) -> bool:
    """Whether a value has dimensions that could be kept in another order."""
    return isinstance(value.type, TensorType) and value.type.shape is not None


def plain_need(value: Value) -> Need:
    return Need(plain(value.tensor.rank) if has_order(value) else ())


def plain_plan(value: Value) -> LayoutPlan:
    """The op as it is, on operands as they are."""
    return LayoutPlan(value.op, tuple(map(plain_need, value.inputs)), plain_need(value).order)


def layer_plan(value: Value) -> LayoutPlan | None:
    """A convolution with its channels last; None for any other value."""
    op = value.op
    if not isinstance(op, (Conv, ConvTranspose)) or op.layout != CHANNELS_FIRST:
        return None
    if not all(map(has_order, (value, *value.inputs))):
        return None
    order = channels_last(value.tensor.rank)
    return LayoutPlan(
        replace(op, layout=CHANNELS_LAST), (Need(order), Need(plain(len(order)))), order
    )


def is_pointwise(value: Value) -> bool:
    """Whether a value is a convolution that reads one place for each place of its result."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != CHANNELS_FIRST or op.auto:
        return False
    kernel = (value.inputs[1].tensor.shape or ())[2:]
    return all(k == 1 for k in (*kernel, *op.strides)) and not any((*op.pads_begin, *op.pads_end))


def follow(value: Value, index: int, order: Order) -> LayoutPlan | None:
    """A plan for a value whose operand `index` is kept in this order; None where there is none."""
    if not all(map(has_order, (value, *value.inputs))):
        return None
    for kinds, rule in _RULES:
        if isinstance(value.op, kinds):
            return rule(value, index, order)
    return None


def reach(value: Value, order: Order) -> LayoutPlan | None:
    """A plan for a value whose result comes in this order; None where there is none."""
    if not value.inputs or not all(map(has_order, (value, *value.inputs))):
        return None
    if isinstance(value.op, ELEMENTWISE):
        return LayoutPlan(value.op, tuple(aligned(v, order) for v in value.inputs), order)
    if isinstance(value.op, Broadcast):
        return _broadcast_to(value, order)
    before = _operand_order(value, order)
    plan = None if before is None else follow(value, 0, before)
    return plan if plan is not None and plan.order == order else None


def _operand_order(value: Value, order: Order) -> Order | None:
    """The order of the first operand from which `follow` may give a result in this order."""
    op = value.op
    x = value.inputs[0].tensor
    if isinstance(op, Transpose):
        return tuple(op.permutation[d] for d in order)
    if isinstance(op, Reshape):
        regrouped = _regroup(value.tensor, x, order)
        return None if regrouped is None else regrouped[1]
    if isinstance(op, Unsqueeze):
        return _without(order, op.axes)
    if isinstance(op, Squeeze) or (isinstance(op, Reduction) and not op.keep):
        return _with(order, op.axes)
    return order if x.rank == len(order) else None


def aligned(operand: Value, order: Order) -> Need:
    """How an operand must be kept to broadcast against a result in this order."""
    lead = len(order) - operand.tensor.rank
    own = tuple(d - lead for d in order if d >= lead)
    first = next((i for i, d in enumerate(order) if d >= lead), len(order))
    # Numpy puts missing dimensions in front; those that the order takes inside must be there.
    inside = (i - first for i, d in enumerate(order) if d < lead and i > first)
    return Need(own, tuple(inside))


def _widened(order: Order, rank: int) -> Order:
    """The order of what an operand broadcasts to: new dimensions come first."""
    lead = rank - len(order)
    return (*range(lead), *(d + lead for d in order))


def _without(order: Order, axes: tuple[int, ...]) -> Order:
    """The order of what is left when these dimensions go."""
    return tuple(d - sum(a < d for a in axes) for d in order if d not in axes)


def _with(order: Order, axes: tuple[int, ...]) -> Order:
    """An order with dimensions put in at these (ascending) axes, each after the one before it."""
    result = list(order)
    for a in axes:
        result = [d + (d >= a) for d in result]
        result.insert(result.index(a - 1) + 1 if a else 0, a)
    return tuple(result)


def _places(order: Order, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(a) for a in axes)


def _elementwise(value: Value, index: int, order: Order) -> LayoutPlan:
    whole = _widened(order, value.tensor.rank)
    return LayoutPlan(value.op, tuple(aligned(v, whole) for v in value.inputs), whole)


def _concat(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Concat)
    op = Concat(order.index(value.op.axis))
    return LayoutPlan(op, (Need(order),) * len(value.inputs), order)


def _slice(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Slice)
    fields = (value.op.starts, value.op.stops, value.op.steps)
    op = Slice(*(tuple(f[d] for d in order) for f in fields))
    return LayoutPlan(op, (Need(order),), order)


def _pad(value: Value, index: int, order: Order) -> LayoutPlan | None:
    op = value.op
    assert isinstance(op, Pad)
    if index:
        return None
    before, after = (tuple(counts[d] for d in order) for counts in (op.before, op.after))
    needs = (Need(order), Need(()))[: len(value.inputs)]
    return LayoutPlan(Pad(before, after, op.mode), needs, order)


def _tile(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Tile)
    return LayoutPlan(Tile(tuple(value.op.repeats[d] for d in order)), (Need(order),), order)


def _broadcast(value: Value, index: int, order: Order) -> LayoutPlan | None:
    return _broadcast_to(value, _widened(order, value.tensor.rank))


def _broadcast_to(value: Value, order: Order) -> LayoutPlan | None:
    if not value.tensor.is_static:
        return None
    shape = tuple(value.tensor.static[d] for d in order)
    return LayoutPlan(Broadcast(shape), (aligned(value.inputs[0], order),), order)


def _reduction(value: Value, index: int, order: Order) -> LayoutPlan:
    op = value.op
    assert isinstance(op, Reduction)
    after = order if op.keep else _without(order, op.axes)
    moved = replace(op, axes=_places(order, op.axes))  # type: ignore[type-var]
    return LayoutPlan(moved, (Need(order),), after)


def _choice(value: Value, index: int, order: Order) -> LayoutPlan:
    op = value.op
    assert isinstance(op, ArgReduction)
    after = order if op.keep else _without(order, (op.axis,))
    moved = replace(op, axis=order.index(op.axis))  # type: ignore[type-var]
    return LayoutPlan(moved, (Need(order),), after)


def _along_axis(value: Value, index: int, order: Order) -> LayoutPlan:
    op = value.op
    assert isinstance(op, (Cumulative, Softmax, LogSoftmax))
    return LayoutPlan(replace(op, axis=order.index(op.axis)), (Need(order),), order)  # type: ignore[type-var]


def _norm(value: Value, index: int, order: Order) -> LayoutPlan | None:
    op = value.op
    assert isinstance(op, (LayerNorm, RmsNorm))
    if index:
        return None
    needs = tuple(aligned(v, order) for v in value.inputs)
    return LayoutPlan(replace(op, axes=_places(order, op.axes)), needs, order)


def _resize(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Resize)
    return LayoutPlan(replace(value.op, axes=_places(order, value.op.axes)), (Need(order),), order)


def _pool(value: Value, index: int, order: Order) -> LayoutPlan | None:
    op = value.op
    assert isinstance(op, Pool)
    if op.layout != CHANNELS_FIRST or order != channels_last(len(order)):
        return None
    return LayoutPlan(replace(op, layout=CHANNELS_LAST), (Need(order),), order)


def _pointwise(value: Value, index: int, order: Order) -> LayoutPlan | None:
    """A 1x1 convolution, which does not care about the order of the spatial dimensions."""
    if index or not is_pointwise(value) or (order[0], order[-1]) != (0, 1):
        return None
    assert isinstance(value.op, Conv)
    op = replace(value.op, layout=CHANNELS_LAST)
    return LayoutPlan(op, (Need(order), Need(plain(len(order)))), order)


def _squeeze(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Squeeze)
    axes = value.op.axes
    return LayoutPlan(Squeeze(_places(order, axes)), (Need(order),), _without(order, axes))


def _unsqueeze(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Unsqueeze)
    after = _with(order, value.op.axes)
    return LayoutPlan(Unsqueeze(_places(after, value.op.axes)), (Need(order),), after)


def _transpose(value: Value, index: int, order: Order) -> LayoutPlan:
    assert isinstance(value.op, Transpose)
    back = inverse(value.op.permutation)
    return LayoutPlan(None, (Need(order),), tuple(back[d] for d in order))


def _gather(value: Value, index: int, order: Order) -> LayoutPlan | None:
    op = value.op
    assert isinstance(op, Gather)
    if index:
        return None
    count = value.inputs[1].tensor.rank
    after: list[int] = []
    for d in order:
        if d == op.axis:
            after.extend(range(d, d + count))
        else:
            after.append(d if d < op.axis else d + count - 1)
    return LayoutPlan(Gather(order.index(op.axis)), (Need(order), Need(plain(count))), tuple(after))


def _quantise(value: Value, index: int, order: Order) -> LayoutPlan | None:
    op = value.op
    assert isinstance(op, (Quantize, Dequantize))
    if index:
        return None
    # Scales of blocks have the rank of x; of indices along an axis, they are vectors.
    own = tuple(Need(order if op.block else plain(v.tensor.rank)) for v in value.inputs[1:])
    axis = None if op.axis is None else order.index(op.axis)
    return LayoutPlan(replace(op, axis=axis), (Need(order), *own), order)


def _reshape(value: Value, index: int, order: Order) -> LayoutPlan | None:
    regrouped = _regroup(value.inputs[0].tensor, value.tensor, order)
    if regrouped is None:
        return None
    need, after = regrouped
    shape = tuple(value.tensor.static[d] for d in after)
    return LayoutPlan(Reshape(shape), (Need(need),), after)


def _regroup(given: TensorType, result: TensorType, order: Order) -> tuple[Order, Order] | None:
    """The nearest order that a reshape can take, and the order of its result.

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
        if given.static[d] != 1:
            ranked[where[d]] = None
    sequence = list(ranked)
    for i in range(len(groups)):
        if i not in ranked:
            sequence.insert(sequence.index(i - 1) + 1 if i else 0, i)
    need = tuple(d for i in sequence for d in groups[i][0])
    if _sized(need, given) == _sized(order, given):
        need = order
    return need, tuple(d for i in sequence for d in groups[i][1])


def _groups(
    given: tuple[int, ...], result: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The least groups of dimensions of equal product, of two shapes of equal size."""
    groups = []
    i = j = 0
    while i < len(given) or j < len(result):
        start, begin = i, j
        i, j = min(i + 1, len(given)), min(j + 1, len(result))
        while (a := math.prod(given[start:i])) != (b := math.prod(result[begin:j])):
            if (a < b and i < len(given)) or j == len(result):
                i += 1
            else:
                j += 1
        groups.append((tuple(range(start, i)), tuple(range(begin, j))))
    return groups


def _sized(order: Order, type_: TensorType) -> Order:
    """The dimensions that have a size, in order: those of size 1 may stand anywhere."""
    return tuple(d for d in order if type_.dims[d] != 1)


def is_view(type_: TensorType, given: Order, wanted: Order) -> bool:
    """Whether two orders differ only in where dimensions of size 1 stand."""
    return _sized(given, type_) == _sized(wanted, type_)


_RULES: tuple[
    tuple[type | tuple[type, ...], Callable[[Value, int, Order], LayoutPlan | None]], ...
] = (
    (ELEMENTWISE, _elementwise),
    (Concat, _concat),
    (Slice, _slice),
    (Pad, _pad),
    (Tile, _tile),
    (Broadcast, _broadcast),
    (Reduction, _reduction),
    (ArgReduction, _choice),
    ((Cumulative, Softmax, LogSoftmax), _along_axis),
    ((LayerNorm, RmsNorm), _norm),
    (Resize, _resize),
    (Pool, _pool),
    (Conv, _pointwise),
    (Squeeze, _squeeze),
    (Unsqueeze, _unsqueeze),
    (Transpose, _transpose),
    (Gather, _gather),
    ((Quantize, Dequantize), _quantise),
    (Reshape, _reshape),
)
