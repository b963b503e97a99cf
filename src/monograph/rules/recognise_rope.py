"""Recognises rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monograph.ir import Value, constant, known
from monograph.ops.attention import Rope
from monograph.ops.base import Binary, Unary
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Mul, Neg, Sub
from monograph.ops.index import Gather
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import Context, Reject, rewrite
from monograph.rules.recognise import reject_shared, uniform

MAX_DEPTH = 16
"""The deepest that angles are followed to prove that two halves are equal."""


@dataclass(frozen=True)
class AxisPart:
    """x[..., first::step] up to some index: a part of the last axis."""

    x: Value
    first: int
    count: int
    step: int


@rewrite(Add, exact=False)
def recognise_rope(value: Value, context: Context) -> Value | Reject:
    """x * cos + turned(x) * sin -> Rope(x, cos, sin), where turned(x) is (-x2, x1) of the halves
    or of the pairs of x = (x1, x2)"""
    if not all(isinstance(v.op, Mul) for v in value.inputs):
        return value
    for straight, across in (value.inputs, value.inputs[::-1]):
        for turned, sin in (across.inputs, across.inputs[::-1]):
            found = _turned(turned)
            if found is None or found[0] not in straight.inputs:
                continue
            x, interleaved = found
            cos = straight.inputs[1] if straight.inputs[0] is x else straight.inputs[0]
            angles = [_once(v, interleaved) for v in (cos, sin)]
            if (refused := reject_shared(value, (x, cos, sin), context)) is not None:
                return refused
            return _rope(x, angles[0], angles[1], interleaved, value)
    return value


@rewrite(Concat, exact=False)
def recognise_rope_of_halves(value: Value, context: Context) -> Value | Reject:
    """(x1 cos - x2 sin, x1 sin + x2 cos) -> Rope(x, cos, sin), where x = (x1, x2)"""
    assert isinstance(value.op, Concat)
    if len(value.inputs) != 2 or value.op.axis != value.tensor.rank - 1:
        return value
    return _parts(value, value.inputs[0], value.inputs[1], False, context)


@rewrite(Reshape, exact=False)
def recognise_rope_of_pairs(value: Value, context: Context) -> Value | Reject:
    """x1 cos - x2 sin and x1 sin + x2 cos, by turns -> Rope(x, cos, sin, interleaved)"""
    pair = _by_turns(value)
    return value if pair is None else _parts(value, pair[0], pair[1], True, context)


@rewrite(Concat, exact=True)
def extend_rope(value: Value, context: Context) -> Value | Reject:
    """(Rope(x[..., :r], cos, sin), x[..., r:]) -> Rope(x, cos, sin)"""
    assert isinstance(value.op, Concat)
    if len(value.inputs) != 2 or value.op.axis != value.tensor.rank - 1:
        return value
    rope, rest = value.inputs
    if not isinstance(rope.op, Rope):
        return value
    first, second = _part(rope.inputs[0]), _part(rest)
    if first is None or second is None or first.x is not second.x:
        return Reject("the second piece is not the rest of x")
    whole = AxisPart(first.x, first.count, value.tensor.static[-1] - first.count, 1)
    turned = rope.inputs[1].tensor.dims[-1]
    if (
        second != whole
        or first != AxisPart(first.x, 0, first.count, 1)
        or turned != first.count / 2
    ):
        return Reject("the second piece is not the rest of x", whole.first, second.first)
    if context.use_count(rope) > 1:
        return Reject("rope has another user", 1, context.use_count(rope))
    return rope.op(first.x, *rope.inputs[1:]) if first.x.type == value.type else value


def _turned(value: Value) -> tuple[Value, bool] | None:
    """Match (-x2, x1); return x and True for pairs, False for halves."""
    if isinstance(value.op, Concat) and len(value.inputs) == 2:
        if value.op.axis != value.tensor.rank - 1:
            return None
        negative, positive, interleaved = *value.inputs, False
    elif (pair := _by_turns(value)) is not None:
        negative, positive, interleaved = *pair, True
    else:
        return None
    second = _negated(negative)
    x = _whole(positive, second, interleaved) if second is not None else None
    return None if x is None else (x, interleaved)


def _negated(value: Value) -> Value | None:
    if isinstance(value.op, Neg):
        return value.inputs[0]
    if isinstance(value.op, Mul):
        for v, number in (value.inputs, value.inputs[::-1]):
            if uniform(number) == -1.0 and v.type == value.type:
                return v
    return None


def _by_turns(value: Value) -> tuple[Value, Value] | None:
    """Match a last axis that alternates between elements of a and of b; return a and b."""
    if not isinstance(value.op, Reshape) or not isinstance(value.inputs[0].op, Concat):
        return None
    joined = value.inputs[0]
    rank = joined.tensor.rank
    if len(joined.inputs) != 2 or joined.op != Concat(rank - 1):
        return None
    if any(v.op != Unsqueeze((rank - 1,)) for v in joined.inputs):
        return None
    a, b = (v.inputs[0] for v in joined.inputs)
    *before, size = a.tensor.dims
    return (a, b) if isinstance(size, int) and value.tensor.dims == (*before, 2 * size) else None


def _part(value: Value) -> AxisPart | None:
    """Return the part of the last axis that a slice takes; None if it slices another axis."""
    if not isinstance(value.op, Slice) or not value.inputs[0].tensor.is_static:
        return None
    x, op = value.inputs[0], value.op
    if op.steps[-1] < 1 or x.tensor.static[:-1] != value.tensor.static[:-1]:
        return None
    if any(s != 1 for s in op.steps[:-1]):
        return None
    return AxisPart(x, op.starts[-1], value.tensor.static[-1], op.steps[-1])


def _whole(first: Value, second: Value, interleaved: bool) -> Value | None:
    """Return the value of which two values are the halves, or the even and odd elements."""
    a, b = _part(first), _part(second)
    if a is None or b is None or a.x is not b.x:
        return None
    half = a.x.tensor.static[-1] // 2
    start, step = (1, 2) if interleaved else (half, 1)
    same = a == AxisPart(a.x, 0, half, step) and b == AxisPart(a.x, start, half, step)
    return a.x if same and 2 * half == a.x.tensor.static[-1] else None


def _parts(
    root: Value, first: Value, second: Value, interleaved: bool, context: Context
) -> Value | Reject:
    """Match rope from its two results, x1 cos - x2 sin and x1 sin + x2 cos."""
    if not isinstance(first.op, Sub) or not isinstance(second.op, Add):
        return root
    if not all(isinstance(v.op, Mul) for v in (*first.inputs, *second.inputs)):
        return root
    for x1, cos in _orders(first.inputs[0]):
        for x2, sin in _orders(first.inputs[1]):
            x = _whole(x1, x2, interleaved)
            if x is None:
                continue
            if {*second.inputs} != {_product(x1, sin, second), _product(x2, cos, second)}:
                return Reject("the two parts have different angles")
            refused = reject_shared(root, (x, cos, sin), context)
            return refused or _rope(x, cos, sin, interleaved, root)
    return root


def _orders(product: Value) -> tuple[tuple[Value, Value], ...]:
    a, b = product.inputs
    return (a, b), (b, a)


def _product(x: Value, y: Value, among: Value) -> Value | None:
    """Return the operand of `among` that is x * y."""
    return next((v for v in among.inputs if {*v.inputs} == {x, y}), None)


def _rope(
    x: Value, cos: Value | None, sin: Value | None, interleaved: bool, root: Value
) -> Value | Reject:
    if cos is None or sin is None:
        how = "pairs" if interleaved else "halves"
        return Reject(f"the angles of {how} are not seen to be the same", "equal angles")
    if x.tensor.rank != 4 or root.type != x.type:
        return Reject("x is not of rank 4", "rank 4", x.type)
    for heads in (1, 2):
        angles = [_placed(v, x, heads) for v in (cos, sin)]
        if angles[0] is None or angles[1] is None:
            continue
        if heads == 1:
            return Rope(interleaved)(x, angles[0], angles[1])
        swap = Transpose((0, 2, 1, 3))
        return swap(Rope(interleaved)(swap(x), angles[0], angles[1]))
    return Reject("the angles do not vary by position", x.type, cos.type)


def _placed(angles: Value, x: Value, heads: int) -> Value | None:
    """Return the angles as [B or 1, S, R / 2], for x with its heads on this axis."""
    rank = angles.tensor.rank
    if not 2 <= rank <= 4:
        return None
    dims = (1,) * (4 - rank) + angles.tensor.dims
    batch, places = x.tensor.dims[0], x.tensor.dims[3 - heads]
    if dims[0] not in (1, batch) or dims[heads] != 1 or dims[3 - heads] != places:
        return None
    if rank == 4:
        return Squeeze((heads,))(angles)
    # Below rank 4 the leading axes are missing; the rest starts with the heads or after them.
    if heads == 2:
        return (
            Squeeze((1,))(Unsqueeze((0,))(angles))
            if rank == 2
            else Unsqueeze((0,))(Squeeze((1,))(angles))
        )
    return Unsqueeze((0,))(angles) if rank == 2 else angles


def _once(angles: Value, pairs: bool, depth: int = 0) -> Value | None:
    """Return one copy of angles that occur twice along the last axis (halves or pairs)."""
    size = angles.tensor.dims[-1] if angles.tensor.rank else 1
    if not isinstance(size, int) or size % 2 or depth > MAX_DEPTH:
        return None
    op, last = angles.op, angles.tensor.rank - 1
    data = known(angles)
    if data is not None:
        a, b = (data[..., ::2], data[..., 1::2]) if pairs else np.split(data, 2, axis=-1)
        return constant(np.ascontiguousarray(a)) if np.array_equal(a, b) else None
    if pairs and (twice := _side_by_side(angles)) is not None:
        return twice
    if isinstance(op, Concat):
        same = len(angles.inputs) == 2 and angles.inputs[0] is angles.inputs[1]
        return angles.inputs[0] if same and op.axis == last and not pairs else None
    if isinstance(op, (Unary, Binary, Cast)):
        return _elementwise_once(angles, pairs, depth)
    return _view_once(angles, pairs, depth)


def _side_by_side(angles: Value) -> Value | None:
    """Return a, given a0, a0, a1, a1, ..."""
    pair = _by_turns(angles)
    if pair is not None:
        return pair[0] if pair[0] is pair[1] else None
    if not isinstance(angles.op, Reshape) or not isinstance(angles.inputs[0].op, Broadcast):
        return None
    wide = angles.inputs[0]
    rank = wide.tensor.rank
    inner = wide.inputs[0]
    if inner.op != Unsqueeze((rank - 1,)) or wide.tensor.dims != (*inner.tensor.dims[:-1], 2):
        return None
    a = inner.inputs[0]
    size = a.tensor.dims[-1]
    fits = isinstance(size, int) and angles.tensor.dims == (*a.tensor.dims[:-1], 2 * size)
    return a if fits else None


def _elementwise_once(angles: Value, pairs: bool, depth: int) -> Value | None:
    operands = []
    for v in angles.inputs:
        narrow = v.tensor.rank == 0 or v.tensor.dims[-1] == 1
        once = v if narrow else _once(v, pairs, depth + 1)
        if once is None:
            return None
        operands.append(once)
    return angles.op(*operands)


def _view_once(angles: Value, pairs: bool, depth: int) -> Value | None:
    """Apply the same view to half the angles, if the view leaves the last axis alone."""
    op = angles.op
    if not isinstance(op, (Unsqueeze, Squeeze, Transpose, Broadcast, Slice, Reshape, Gather)):
        return None
    x = angles.inputs[0]
    size = angles.tensor.dims[-1]
    if x.tensor.rank == 0 or x.tensor.dims[-1] != size or not isinstance(size, int):
        return None
    inner = x.tensor.rank - 1
    if isinstance(op, Unsqueeze) and angles.tensor.rank - 1 in op.axes:
        return None
    if isinstance(op, Transpose) and op.permutation[-1] != inner:
        return None
    if isinstance(op, Gather) and op.axis == inner:
        return None
    once = _once(x, pairs, depth + 1)
    if once is None:
        return None
    if isinstance(op, (Broadcast, Reshape)):
        return replace(op, shape=(*op.shape[:-1], size // 2))(once)
    if isinstance(op, Slice):
        whole = (op.starts[-1], op.stops[-1], op.steps[-1]) == (0, size, 1)
        return replace(op, stops=(*op.stops[:-1], size // 2))(once) if whole else None
    return op(once, *angles.inputs[1:])
