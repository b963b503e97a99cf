"""Recognises attention: softmax(q kᵀ scale + mask) v, as exporters write it out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from monograph.ir import Array, Value, constant, known
from monograph.ir.dtype import BOOL
from monograph.ops.attention import MASK, Attention
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Div, IsNan, Mul, Not, Tanh, Where
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import Context, Reject, rewrite
from monograph.rules.recognise import kept_apart, uniform
from monograph.rules.recognise_heads import swapped, without_repeats
from monograph.rules.recognise_softmax import Along, softmax_of

VIEWS = (Transpose, Reshape, Squeeze, Unsqueeze)
MAX_VIEWS = 8


@dataclass(frozen=True)
class Scores:
    """softcap(q k scale) + mask, where k has its last two axes swapped."""

    dot: Value
    scale: float = 1.0
    softcap: float = 0.0
    mask: Value | None = None


@rewrite(Dot, exact=False)
def recognise_attention(value: Value, context: Context) -> Value | Reject:
    """softmax(q kᵀ scale + mask) v -> Attention(q, k, v, mask)

    A query that sees no key gives 0, where the arithmetic gives 0 / 0.
    """
    weights, v = value.inputs
    found = _weights(weights)
    if found is None:
        return value
    return found if isinstance(found, Reject) else _attention(value, found, v, context)


@rewrite(Dot, exact=False)
def recognise_transposed_attention(value: Value, context: Context) -> Value | Reject:
    """vᵀ softmax(q kᵀ scale + mask)ᵀ -> Attention(q, k, v, mask)ᵀ"""
    v, weights = value.inputs
    if not _is_swap(weights):
        return value
    found = _weights(weights.inputs[0])
    if found is None or isinstance(found, Reject):
        return found or value
    made = _attention(value, found, swapped(v), context, above=v)
    return made if isinstance(made, Reject) else swapped(made)


def _is_swap(value: Value) -> bool:
    """Whether a value is another with its last two axes swapped."""
    if not isinstance(value.op, Transpose):
        return False
    order = [*range(value.tensor.rank)]
    return value.tensor.rank >= 2 and value.op.permutation == (*order[:-2], order[-1], order[-2])


def _weights(weights: Value) -> Scores | Reject | None:
    """The scores whose softmax a value is."""
    x = _softmax_input(weights)
    if not isinstance(x, Value):
        return x
    found = _scores(x)
    if isinstance(found, Scores) and found.dot.dtype != weights.dtype:
        return Reject("scores and weights differ in type", found.dot.dtype, weights.dtype)
    return found


def _softmax_input(weights: Value) -> Value | Reject | None:
    """What a value is the softmax of over its last axis, casts around it left out."""
    value = _without_nan(weights)
    if isinstance(value.op, Cast) and value.inputs[0].dtype.is_float:
        value = _without_nan(value.inputs[0])
    found = softmax_of(value)
    if not isinstance(found, Along):
        return found
    if found.axis != found.x.tensor.rank - 1:
        return Reject("the softmax is not over the last axis", found.x.tensor.rank - 1, found.axis)
    x = found.x
    if isinstance(x.op, Cast) and x.inputs[0].dtype.is_float:
        x = x.inputs[0]
    return x


def _without_nan(value: Value) -> Value:
    """A value whose NaNs are replaced by 0, before that: what `Attention` gives by itself."""
    if isinstance(value.op, Where):
        condition, zero, other = value.inputs
        if isinstance(condition.op, IsNan) and condition.inputs[0] is other and uniform(zero) == 0:
            return other
    return value


def _scores(x: Value) -> Scores | Reject | None:
    """A value as masked, capped and scaled products of queries and keys."""
    plain = _scaled(x)
    if plain is not None:
        return plain
    if isinstance(x.op, Add):
        for scores, mask in (x.inputs, x.inputs[::-1]):
            found = _scaled(scores)
            if found is None and isinstance(scores.op, Where):
                found = _scores(scores)
                if isinstance(found, Reject):
                    return found
            if found is not None:
                return _added(found, mask, x)
    if isinstance(x.op, Where):
        condition, a, b = x.inputs
        for scores, fill, visible in ((a, b, condition), (b, a, Not()(condition))):
            found = _scaled(scores)
            if found is not None:
                return _filled(found, visible, fill, x)
    return None


def _scaled(x: Value) -> Scores | None:
    """softcap tanh(q k scale / softcap), or q k scale."""
    value, scale = _peel(x)
    if isinstance(value.op, Tanh) and scale > 0:
        inner, inner_scale = _peel(value.inputs[0])
        if isinstance(inner.op, Dot):
            return Scores(inner, inner_scale * scale, scale)
    return Scores(value, scale) if isinstance(value.op, Dot) else None


def _peel(value: Value) -> tuple[Value, float]:
    """A value without the numbers it is multiplied by, and their product."""
    scale = 1.0
    for _ in range(MAX_VIEWS):
        if isinstance(value.op, Div) and (number := uniform(value.inputs[1])):
            value, scale = value.inputs[0], scale / number
        elif isinstance(value.op, Mul) and (number := uniform(value.inputs[1])):
            value, scale = value.inputs[0], scale * number
        elif isinstance(value.op, Mul) and (number := uniform(value.inputs[0])):
            value, scale = value.inputs[1], scale * number
        else:
            break
    return value, scale


def _added(found: Scores, mask: Value, x: Value) -> Scores | Reject:
    """Scores with a mask that is added to them."""
    if x.type != found.dot.type:
        return Reject("the mask makes the scores larger", found.dot.type, x.type)
    if found.mask is None:
        return replace(found, mask=mask)
    if found.mask.dtype.kind != BOOL:
        return Reject("a mask that fills is not -inf, and another is added")
    hidden = constant(-math.inf, mask.dtype)
    return replace(found, mask=Where()(found.mask, mask, hidden))


def _filled(found: Scores, visible: Value, fill: Value, x: Value) -> Scores | Reject:
    """Scores that are replaced by a very low number where a condition does not hold.

    -inf hides a key. The lowest number of the type does not where it is everywhere: then all
    keys count alike, which a mask that is added says as well.
    """
    number = uniform(fill)
    if x.type != found.dot.type:
        return Reject("the mask makes the scores larger", found.dot.type, x.type)
    if number is None:
        return Reject("hidden scores are not one number", "a constant", fill.op.name)
    if number == -math.inf:
        return replace(found, mask=visible)
    lowest = float(ml_dtypes.finfo(x.dtype.numpy).min)  # type: ignore[no-untyped-call]
    if number > lowest / 2:
        return Reject("hidden scores still count", f"at most {lowest / 2:g}", number)
    zero, low = constant(0, x.dtype), constant(number, x.dtype)
    return replace(found, mask=Where()(visible, zero, low))


def _attention(
    root: Value, found: Scores, v: Value, context: Context, above: Value | None = None
) -> Value | Reject:
    """The op for scores and values; `above` is the operand of root that v comes from."""
    left, right = found.dot.inputs
    rank = root.tensor.rank
    if rank not in (3, 4) or {left.tensor.rank, right.tensor.rank, v.tensor.rank} != {rank}:
        given = [left.tensor.rank, right.tensor.rank, v.tensor.rank]
        return Reject("queries, keys and values are not of rank 3 or 4", [4, 4, 4], given)
    q, q_scale = _peel_below_views(left)
    k, k_scale = _peel_below_views(swapped(right))
    k, v = without_repeats(k, v)
    if rank == 3:
        q, k, v = (Unsqueeze((0,))(x) for x in (q, k, v))
    if (reason := _misfit(q, k, v)) is not None:
        return reason
    mask, causal = _causal(found.mask, found.dot)
    if mask is not None and (reason := _bad_mask(mask, q)) is not None:
        return reason
    if (refused := kept_apart(root, {left, right, above or v, mask, found.mask} | {*root.inputs[1:2]}
        if above is None else {left, right, above, mask, found.mask}, context)) is not None:
        return refused
    op = Attention(
        found.scale * q_scale * k_scale, causal, 0, found.softcap, () if mask is None else (MASK,)
    )
    result = op(q, k, v) if mask is None else op(q, k, v, mask)
    return Squeeze((0,))(result) if rank == 3 else result
