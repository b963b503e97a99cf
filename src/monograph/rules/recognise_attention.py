"""Recognises attention: softmax(q kᵀ scale + mask) v, as exporters write it out.

Views may lie between the heads of queries, keys and values and the products that use them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from monograph.ir import Array, Dim, DType, Op, Value, constant, from_numpy, known
from monograph.ir.dtype import BOOL
from monograph.ops.attention import MASK, Attention
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, IsNan, Mul, Not, Tanh, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.shape import Broadcast, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import Context, Reject, rewrite
from monograph.rules.recognise import before_widening, reject_shared, uniform
from monograph.rules.recognise_softmax import Along, softmax_of

VIEWS = (Transpose, Reshape, Squeeze, Unsqueeze)
MAX_STEPS = 8
"""The longest chain of views and factors that is followed."""
HEADS = 1


def swapped(value: Value) -> Value:
    """Swap the last two axes of a value, with at most one transpose."""
    order = [*range(value.tensor.rank)]
    order[-2:] = order[-1], order[-2]
    if isinstance(value.op, Transpose):
        order = [value.op.permutation[i] for i in order]
        value = value.inputs[0]
    return value if order == sorted(order) else Transpose(tuple(order))(value)


def is_swap(value: Value) -> bool:
    """Return True if a value is a transpose that swaps the last two axes."""
    if not isinstance(value.op, Transpose) or value.tensor.rank < 2:
        return False
    *order, a, b = range(value.tensor.rank)
    return value.op.permutation == (*order, b, a)


def unscaled(value: Value) -> tuple[Value, float]:
    """Return a value without its constant factors, and their product."""
    scale = 1.0
    for _ in range(MAX_STEPS):
        if not isinstance(value.op, (Mul, Div)):
            break
        x, y = value.inputs
        if isinstance(value.op, Mul) and uniform(y) is None:
            x, y = y, x
        number = uniform(y)
        if not number or not math.isfinite(number) or x.type != value.type:
            break
        scale = scale / number if isinstance(value.op, Div) else scale * number
        value = x
    return value, scale


def unscaled_below(value: Value) -> tuple[Value, float]:
    """As `unscaled`, also if views stand between the value and the factors."""
    views: list[Op] = []
    inner = value
    while isinstance(inner.op, VIEWS) and len(views) < MAX_STEPS:
        views.append(inner.op)
        inner = inner.inputs[0]
    inner, scale = unscaled(inner)
    if scale == 1.0:
        return value, scale
    for view in reversed(views):
        inner = view(inner)
    return inner, scale


def without_repeats(k: Value, v: Value) -> tuple[Value, Value]:
    """Return keys and values before each of their heads was repeated for several query heads."""
    a, b = _before_repeat(k), _before_repeat(v)
    if a is None or b is None or a[1] != b[1]:
        return k, v
    return a[0], b[0]


def _before_repeat(value: Value) -> tuple[Value, int] | None:
    """Return a value before its heads were repeated one by one, and the number of repeats."""
    axis = HEADS
    transposes: list[Transpose] = []
    while isinstance(value.op, Transpose) and len(transposes) < MAX_STEPS:
        transposes.append(value.op)
        axis = value.op.permutation[axis]
        value = value.inputs[0]
    found = _repeated_by_gather(value, axis) or _repeated_by_broadcast(value, axis)
    if found is None:
        return None
    result, count = found
    for op in reversed(transposes):
        result = op(result)
    return result, count


def _repeated_by_gather(value: Value, axis: int) -> tuple[Value, int] | None:
    if not isinstance(value.op, Gather) or value.op.axis != axis:
        return None
    x, indices = value.inputs
    places, heads = known(indices), x.tensor.dims[axis]
    if places is None or places.ndim != 1 or not isinstance(heads, int) or not heads:
        return None
    count = places.size // heads
    same = np.array_equal(places, np.repeat(np.arange(heads), count))
    return (x, count) if same else None


def _repeated_by_broadcast(value: Value, axis: int) -> tuple[Value, int] | None:
    """Undo [.., G, ..] -> [.., G, 1, ..] -> [.., G, n, ..] -> [.., G n, ..]."""
    if not isinstance(value.op, Reshape):
        return None
    wide = value.inputs[0]
    if not isinstance(wide.op, Broadcast) or not isinstance(
        wide.inputs[0].op, (Unsqueeze, Reshape)
    ):
        return None
    x = wide.inputs[0].inputs[0]
    if x.tensor.rank != value.tensor.rank or wide.tensor.rank != x.tensor.rank + 1:
        return None
    before, after = x.tensor.dims[: axis + 1], x.tensor.dims[axis + 1 :]
    heads, count = x.tensor.dims[axis], wide.tensor.dims[axis + 1]
    if not isinstance(heads, int) or not isinstance(count, int):
        return None
    steps: tuple[tuple[Dim, ...], ...] = (
        wide.inputs[0].tensor.dims,
        wide.tensor.dims,
        value.tensor.dims,
    )
    expected = (
        (*before, 1, *after),
        (*before, count, *after),
        (*before[:-1], heads * count, *after),
    )
    return (x, count) if steps == expected else None


@dataclass(frozen=True)
class ScoreMatch:
    """softcap(q kᵀ scale) + mask."""

    dot: Value
    """q kᵀ"""
    scale: float = 1.0
    softcap: float = 0.0
    mask: Value | None = None
    given: tuple[Value, ...] = ()
    """The operands of the mask."""
    masked_nan: bool = True
    """True if a fully masked query gives NaN: nothing after the softmax replaces it."""


@rewrite(Dot, exact=False)
def recognise_attention(value: Value, context: Context) -> Value | Reject:
    """softmax(q kᵀ scale + mask) v -> Attention(q, k, v, mask)

    A fully masked query gives NaN, as the arithmetic does; 0 where NaNs are replaced by 0.
    """
    weights, v = value.inputs
    found = _weights(weights)
    if not isinstance(found, ScoreMatch):
        return found or value
    refused = reject_shared(value, {*found.dot.inputs, *found.given, v}, context)
    return refused or _attention(found, v)


@rewrite(Dot, exact=False)
def recognise_transposed_attention(value: Value, context: Context) -> Value | Reject:
    """vᵀ softmax(q kᵀ scale + mask)ᵀ -> Attention(q, k, v, mask)ᵀ"""
    v, weights = value.inputs
    found = _weights(weights.inputs[0]) if is_swap(weights) else None
    if not isinstance(found, ScoreMatch):
        return found or value
    refused = reject_shared(value, {*found.dot.inputs, *found.given, v}, context)
    made = refused or _attention(found, swapped(v))
    return made if isinstance(made, Reject) else swapped(made)


def _weights(weights: Value) -> ScoreMatch | Reject | None:
    """Return the scores whose softmax a value is."""
    plain = _without_nan(weights)
    if isinstance(plain.op, Cast) and plain.dtype.bits < plain.inputs[0].dtype.bits:
        plain = plain.inputs[0]
    inner = _without_nan(plain)
    x = _softmax_input(inner)
    if not isinstance(x, Value):
        return x
    found = _scores(x)
    if not isinstance(found, ScoreMatch):
        return found
    if found.dot.dtype != weights.dtype:
        return Reject("scores and weights differ in type", found.dot.dtype, weights.dtype)
    replaced = _without_nan(weights) is not weights or inner is not plain
    return replace(found, masked_nan=not replaced)


def _softmax_input(value: Value) -> Value | Reject | None:
    """Return the operand of a softmax over its last axis, before it was widened."""
    found = softmax_of(value)
    if not isinstance(found, Along):
        return found
    if found.axis != found.x.tensor.rank - 1:
        return Reject("the softmax is not over the last axis", found.x.tensor.rank - 1, found.axis)
    return before_widening(found.x)


def _without_nan(value: Value) -> Value:
    """Return the operand whose NaNs a value replaces by 0; the value itself if it replaces none."""
    if isinstance(value.op, Where):
        condition, zero, other = value.inputs
        if isinstance(condition.op, IsNan) and condition.inputs[0] is other and uniform(zero) == 0:
            return other
    return value


def _scores(x: Value) -> ScoreMatch | Reject | None:
    """Match a value as masked, capped and scaled products of queries and keys."""
    plain = _scaled(x)
    if plain is not None:
        return plain
    if isinstance(x.op, Add):
        for scores, mask in (x.inputs, x.inputs[::-1]):
            inner = _scores(scores) if isinstance(scores.op, Where) else _scaled(scores)
            if isinstance(inner, ScoreMatch):
                return _added(inner, mask, x)
            if inner is not None:
                return inner
    if isinstance(x.op, Where):
        condition, a, b = x.inputs
        for scores, fill, holds in ((a, b, True), (b, a, False)):
            found = _scaled(scores)
            if found is not None and x.tensor.dims != found.dot.tensor.dims:
                return Reject("the mask makes the scores larger", found.dot.type, x.type)
            if found is not None:
                return _filled(found, condition, holds, fill)
    return None


def _scaled(x: Value) -> ScoreMatch | None:
    """Match softcap tanh(q kᵀ scale / softcap), or q kᵀ scale."""
    value, scale = _product(x)
    if isinstance(value.op, Tanh) and scale > 0:
        inner, inner_scale = _product(value.inputs[0])
        if isinstance(inner.op, Dot):
            return ScoreMatch(inner, inner_scale * scale, scale)
    return ScoreMatch(value, scale) if isinstance(value.op, Dot) else None


def _product(x: Value) -> tuple[Value, float]:
    """Return a value without its constant factors, before or after a widening cast."""
    value, scale = unscaled(x)
    inner, inner_scale = unscaled(before_widening(value))
    return inner, inner_scale * scale


def _added(found: ScoreMatch, mask: Value, x: Value) -> ScoreMatch | Reject:
    """Match scores plus a mask."""
    if x.tensor.dims != found.dot.tensor.dims:
        return Reject("the mask makes the scores larger", found.dot.type, x.type)
    given = (*found.given, mask)
    if found.mask is None:
        return replace(found, mask=mask, given=given)
    if found.mask.dtype.kind != BOOL:
        return Reject("a mask is added to scores that were filled", -math.inf, "a finite number")
    return replace(found, mask=_where(found.mask, mask, -math.inf), given=given)


def _filled(found: ScoreMatch, condition: Value, holds: bool, fill: Value) -> ScoreMatch | Reject:
    """Match scores that are replaced by a very low number where a condition does not hold.

    -inf hides a key. The lowest number of a type does not hide it where every key has it: then all
    keys count alike, which a mask that is added expresses too.
    """
    number = uniform(fill)
    if number is None:
        return Reject("hidden scores are not one number", "a constant", fill.op.name)
    lowest = _lowest(fill.dtype)
    if number > lowest / 2:
        return Reject("hidden scores still count", f"at most {lowest / 2:g}", number)
    visible = condition if holds else _not(condition)
    given = (condition, fill)
    if number == -math.inf:
        return replace(found, mask=visible, given=given)
    zero = constant(0, fill.dtype)
    return replace(found, mask=_where(visible, zero, number), given=given)


def _lowest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).min)  # type: ignore[no-untyped-call]


def _not(condition: Value) -> Value:
    data = known(condition)
    return Not()(condition) if data is None else constant(~data)


def _where(visible: Value, mask: Value, hidden: float) -> Value:
    """Return a mask to add: `hidden` where a key is not visible."""
    low = constant(hidden, mask.dtype)
    where, data = known(visible), known(mask)
    if where is None or data is None:
        return Where()(visible, mask, low)
    return constant(np.where(where, data, np.asarray(hidden, data.dtype)))


def _attention(found: ScoreMatch, v: Value) -> Value | Reject:
    left, right = found.dot.inputs
    ranks = [left.tensor.rank, right.tensor.rank, v.tensor.rank]
    if ranks not in ([3] * 3, [4] * 3):
        return Reject("queries, keys and values are not of rank 4", [4, 4, 4], ranks)
    q, q_scale = unscaled_below(left)
    k, k_scale = unscaled_below(right)
    k = swapped(k)
    if ranks[0] == 4:
        k, v = without_repeats(k, v)
    else:
        q, k, v = (Unsqueeze((0,))(x) for x in (q, k, v))
    mask, causal = _causal(found.mask, found.dot)
    if (reason := _misfit(q, k, v, mask)) is not None:
        return reason
    scale = found.scale * q_scale * k_scale
    extra = () if mask is None else (MASK,)
    op = Attention(scale, causal, 0, found.softcap, extra, found.masked_nan)
    result = op(q, k, v) if mask is None else op(q, k, v, mask)
    return result if ranks[0] == 4 else Squeeze((0,))(result)


def _misfit(q: Value, k: Value, v: Value, mask: Value | None) -> Reject | None:
    """Return the reason why operands of dot products are not operands of attention."""
    (batch, heads, _, _), (_, groups, _, _) = q.tensor.dims, k.tensor.dims
    batches = [batch, k.tensor.dims[0], v.tensor.dims[0]]
    if len({*batches}) > 1:
        return Reject("batch sizes differ", batch, batches)
    if v.tensor.dims[1] != groups:
        return Reject("keys and values differ in their heads", groups, v.tensor.dims[1])
    sizes = isinstance(heads, int) and isinstance(groups, int)
    if heads != groups and not (sizes and groups and heads % groups == 0):  # type: ignore[operator]
        return Reject(
            "the number of heads is no multiple of the number of key heads", groups, heads
        )
    if mask is None:
        return None
    if mask.tensor.rank > 4:
        return Reject("the mask has too many dimensions", 4, mask.tensor.rank)
    if mask.dtype.kind != BOOL and mask.dtype != q.dtype:
        return Reject("the mask has another element type", q.dtype, mask.dtype)
    return None


def _causal(mask: Value | None, scores: Value) -> tuple[Value | None, bool]:
    """Return the mask and whether attention is causal; a constant mask can become causal."""
    if mask is None:
        return None, False
    inner = mask
    while isinstance(inner.op, (Broadcast, Unsqueeze)) and inner.inputs[0].tensor.rank >= 2:
        if inner.inputs[0].tensor.dims[-2:] != inner.tensor.dims[-2:]:
            break
        inner = inner.inputs[0]
    data, sizes = known(inner), scores.tensor.dims[-2:]
    if data is None or not all(isinstance(d, int) for d in sizes):
        return mask, False
    visible = _visible(data)
    if visible is None or any(d != 1 for d in data.shape[:-2]):
        return mask, False
    queries, keys = (d for d in sizes if isinstance(d, int))
    if visible.all():
        return None, False
    triangle = np.tri(queries, keys, keys - queries, dtype=np.bool_)
    whole = np.broadcast_to(visible.reshape(visible.shape[-2:]), (queries, keys))
    if keys >= queries and np.array_equal(whole, triangle):
        return None, True
    return mask, False


def _visible(mask: Array) -> Array | None:
    """Return the keys that a mask leaves visible; None if it does more than hide keys."""
    if mask.dtype == np.bool_:
        return mask
    shown = np.asarray(mask == 0)
    hidden = mask.astype(np.float64) <= _lowest(from_numpy(mask.dtype)) / 2
    return shown if bool((shown | hidden).all()) else None
