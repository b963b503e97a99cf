"""Attention and rotary position embedding of the default domain, and updates of caches.

`monograph.generate` writes `CacheUpdate`, an op of Monograph's own domain, into decoding steps.

Later releases of ONNX clarified Attention: with a cache that the model keeps, the last query is
aligned with the last valid key. Opset 23 was corrected in place, so the installed ONNX decides its
meaning. ONNX defines newer kinds (LinearAttention, FlexAttention) by function bodies, which are
inlined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from monograph.frontend.onnx.convert.common import cast, scalar
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, required, size_of, size_value, times
from monograph.ir import Value, constant
from monograph.ir.dtype import BOOL, boolean
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops import shape as sh
from monograph.ops.attention import (
    LENGTHS,
    MASK,
    Attention,
    CacheUpdate,
    Rope,
    divides,
    usual_scale,
)
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad


def split_heads(n: Node, x: Value, heads: int) -> Value:
    """[B, S, heads * D] as [B, heads, S, D]."""
    size = x.tensor.dim(2)
    if heads <= 0 or (isinstance(size, int) and size % heads):
        n.fail("the hidden size is no multiple of the heads", expected=heads, given=x.type)
    each = size // heads if isinstance(size, int) else sh.INFER
    return sh.Transpose((0, 2, 1, 3))(sh.Reshape((sh.COPY, sh.COPY, heads, each))(x))


def merge_heads(x: Value) -> Value:
    """[B, H, S, D] as [B, S, H * D]."""
    heads, size = x.tensor.dim(1), x.tensor.dim(3)
    merged = heads * size if isinstance(heads, int) and isinstance(size, int) else sh.INFER
    return sh.Reshape((sh.COPY, sh.COPY, merged))(sh.Transpose((0, 2, 1, 3))(x))


def up_to(queries: Value, keys: Value, first: Value) -> Value:
    """bool[S, T]: query i sees the keys up to `first` + i; the arguments are scalars."""
    places = sh.Unsqueeze((1,))(ew.Add()(iota(queries), first))
    return ew.LessEqual()(sh.Unsqueeze((0,))(iota(keys)), places)


def both(mask: Value | None, visible: Value, like: Value) -> Value:
    """Combine a mask with the visible keys: other keys are hidden too."""
    if mask is None:
        return visible
    if mask.dtype == boolean:
        return ew.And()(mask, visible)
    return ew.Where()(visible, mask, constant(-math.inf, like.dtype))


def attend(
    q: Value, k: Value, v: Value, op: Attention, mask: Value | None = None, **others: Value | None
) -> Value:
    """Apply attention with the optional operands that are present; `others` in the op's order."""
    given = {MASK: mask, **others}
    extra = {name: value for name, value in given.items() if value is not None}
    return replace(op, extra=tuple(extra))(q, k, v, *extra.values())


def attention_as_published(n: Node) -> tuple[Value | None, ...]:
    """Convert Attention of opset 23 as of ONNX 1.21; `attention` converts it for later ones."""
    q, k, v = n.input(0), n.input(1), n.input(2)
    flat = q.tensor.rank == 3
    if flat:
        q = split_heads(n, q, n.attr_int("q_num_heads"))
        k, v = (split_heads(n, x, n.attr_int("kv_num_heads")) for x in (k, v))
    past_k, past_v, lengths = n.optional(4), n.optional(5), n.optional(6)
    same_length = q.tensor.dim(2) == k.tensor.dim(2)
    if (past_k is None) != (past_v is None):
        n.fail("a past of keys or of values is missing")
    if past_k is not None and past_v is not None:
        k, v = sh.Concat(2)(past_k, k), sh.Concat(2)(past_v, v)
    mask = padded(n.optional(3), k, lengths is not None)
    causal = n.attr_flag("is_causal")
    # The op aligns the last query with the last key; ONNX puts the first query after the past.
    plain = causal and same_length and lengths is None
    if causal and not plain:
        first = constant(0) if past_k is None else size_value(past_k, 2)
        mask = both(mask, up_to(size_value(q, 2), size_value(k, 2), first), q)
    op = Attention(n.attr_float("scale", 0.0) or None, plain, 0, n.attr_float("softcap", 0.0))
    # ONNX adds a mask of floats before the softcap, the op (as kernels do) after it.
    composed = op.softcap > 0 and mask is not None and mask.dtype != boolean
    if not composed:
        y = attend(q, k, v, op, mask, **{LENGTHS: lengths})
    if not composed and not n.wants(3):
        return merge_heads(y) if flat else y, k, v, None
    if plain:
        offset = ew.Sub()(size_value(k, 2), size_value(q, 2))
        mask = both(mask, up_to(size_value(q, 2), size_value(k, 2), offset), q)
    if lengths is not None:
        mask = both(mask, within(size_value(k, 2), lengths), q)
    steps = _score_steps(n, q, repeated(n, k, q), mask, op)
    if composed:
        y = Dot()(steps[3], repeated(n, v, q))
    mode = n.attr_int("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        n.fail("qk_matmul_output_mode must be 0, 1, 2 or 3", given=mode)
    return merge_heads(y) if flat else y, k, v, steps[mode]


def within(keys: Value, lengths: Value) -> Value:
    """bool[B, 1, 1, T]: the keys within the length of each batch row."""
    return ew.Less()(iota(keys), sh.Unsqueeze((1, 2, 3))(lengths))


def padded(mask: Value | None, k: Value, external: bool) -> Value | None:
    """Extend a mask that is shorter than the keys; the keys added are hidden."""
    if mask is None:
        return None
    given, keys = mask.tensor.dim(-1), k.tensor.dim(2)
    hidden = constant(False if mask.dtype.kind == BOOL else -math.inf, mask.dtype)
    before = (0,) * mask.tensor.rank
    if given in (keys, 1):
        return mask
    if isinstance(given, int) and isinstance(keys, int):
        return Pad(before, (*before[1:], keys - given))(mask, hidden)
    if not external:  # Only a cache that the model keeps itself is longer than its mask.
        return mask
    missing = sh.Unsqueeze((0,))(ew.Sub()(size_value(k, 2), size_value(mask, -1)))
    after = sh.Concat(0)(constant(np.array(before[1:], np.int64)), missing)
    return deferred(Pad, (mask, hidden), {"after": after}, before=before)


def repeated(n: Node, x: Value, q: Value) -> Value:
    """Repeat the heads of keys or values for the query heads that share them."""
    heads, groups = q.tensor.dim(1), x.tensor.dim(1)
    if not (isinstance(heads, int) and isinstance(groups, int)):
        n.undecided("the scores of attention need known numbers of heads", given=q.type)
    if not divides(groups, heads):
        n.fail(
            "the number of heads must be a multiple of the number of key heads",
            expected=groups,
            given=heads,
        )
    if heads == groups:
        return x
    each = sh.Broadcast((groups, heads // groups))(sh.Unsqueeze((1,))(iota(groups)))
    return Gather(1)(x, fold(sh.Reshape((heads,))(each)))


def _score_steps(n: Node, q: Value, k: Value, mask: Value | None, op: Attention) -> list[Value]:
    """Return the scores: of q and k, with the mask, with the softcap, and after the softmax."""
    size = q.tensor.dim(3)
    if not isinstance(size, int):
        n.undecided("the scores of attention need a known head size", given=q.type)
    scale = constant(usual_scale(size) if op.scale is None else op.scale, q.dtype)
    hidden = constant(-math.inf, q.dtype)
    plain = Dot()(ew.Mul()(q, scale), sh.Transpose((0, 1, 3, 2))(k))
    visible = mask
    masked = plain
    if mask is not None and mask.dtype != boolean:
        visible = ew.Less()(hidden, mask)
        masked = ew.Add()(plain, mask)
    elif mask is not None:
        masked = ew.Where()(mask, plain, hidden)
    capped = masked
    if op.softcap > 0:
        cap = constant(op.softcap, q.dtype)
        capped = ew.Mul()(ew.Tanh()(ew.Div()(masked, cap)), cap)
        # The softcap makes hidden scores finite, so they are hidden again.
        capped = ew.Where()(visible, capped, hidden) if visible is not None else capped
    return [plain, masked, capped, shares(capped)]


def shares(scores: Value) -> Value:
    """Return the softmax of scores over the keys; zero for a query that sees no key."""
    zero, one = constant(0, scores.dtype), constant(1, scores.dtype)
    top = rd.ReduceMax((3,), keep=True)(scores)
    # If all scores are -inf, the maximum is -inf and the difference would be NaN.
    top = ew.Where()(ew.IsInf(positive=False)(top), zero, top)
    weights = ew.Exp()(ew.Sub()(scores, top))
    total = rd.ReduceSum((3,), keep=True)(weights)
    return ew.Div()(weights, ew.Where()(ew.Equal()(total, zero), one, total))


@converter("RotaryEmbedding", since=23)
def rotary_embedding(n: Node) -> Value:
    x, cos, sin = n.input(0), n.input(1), n.input(2)
    positions = n.optional(3)
    flat = x.tensor.rank == 3
    if flat:
        x = split_heads(n, x, n.attr_int("num_heads", 0))
    if positions is not None:
        cos, sin = Gather(0)(cos, positions), Gather(0)(sin, positions)
    turned = n.attr_int("rotary_embedding_dim", 0)
    rule = "the caches hold angles for half of the dimensions that turn"
    angles = times(2, size_of(cos, -1))
    cos = required(cos, rule, [turned or size_of(x, 3)], [angles])
    y = Rope(n.attr_flag("interleaved"))(x, cos, sin)
    return merge_heads(y) if flat else y


OWN = "monograph"


@converter("CacheUpdate", domain=OWN)
def cache_update(n: Node) -> Value:
    """Convert the update of a cache: each row's update is written along `axis` at its own start."""
    return CacheUpdate(n.attr_int("axis"))(n.input(0), n.input(1), n.input(2))


@dataclass(frozen=True)
class _Reach:
    """The keys that a query may see, by position; `offset` is the position of the first query."""

    offset: Value
    causal: bool
    left: int
    right: int

    def mask(self, queries: Value, keys: Value) -> Value | None:
        """Return bool[..., S, T], or None if every key is visible."""
        place = ew.Add()(sh.Unsqueeze((1,))(iota(queries)), self.offset)
        key = sh.Unsqueeze((0,))(iota(keys))
        found: list[Value] = []
        if self.causal:
            found.append(ew.LessEqual()(key, place))
        if self.left >= 0:
            found.append(ew.LessEqual()(ew.Sub()(place, scalar(self.left, place)), key))
        if self.right >= 0:
            found.append(ew.LessEqual()(key, ew.Add()(place, scalar(self.right, place))))
        result: Value | None = None
        for condition in found:
            result = condition if result is None else ew.And()(result, condition)
        return result


def softcap_comes_first() -> bool:
    """Return True if the installed ONNX applies the softcap before a float mask (since 1.22)."""
    release = re.findall(r"\d+", onnx.__version__)
    return (int(release[0]), int(release[1])) >= (1, 22)


@converter("Attention", since=23)
def first_attention(n: Node) -> Value | Sequence[Value | None]:
    """Convert Attention of opset 23 as the installed ONNX defines it.

    A model does not say which text its author read. Before 1.22 a float mask was added before the
    softcap, and the scores of modes 1 and 2 were swapped.
    """
    return attention(n) if softcap_comes_first() else attention_as_published(n)


@converter("Attention", since=24)
def attention(n: Node) -> tuple[Value | None, ...]:
    q, k, v = n.input(0), n.input(1), n.input(2)
    flat = q.tensor.rank == 3
    if flat:
        q = split_heads(n, q, n.attr_int("q_num_heads"))
        k, v = (split_heads(n, x, n.attr_int("kv_num_heads")) for x in (k, v))
    past_k, past_v, lengths = n.optional(4), n.optional(5), n.optional(6)
    if (past_k is None) != (past_v is None):
        n.fail("a past of keys or of values is missing")
    aligned = lengths is not None or q.tensor.dim(2) == k.tensor.dim(2)
    offset = constant(0)
    if past_k is not None and past_v is not None:
        k, v = sh.Concat(2)(past_k, k), sh.Concat(2)(past_v, v)
        offset = size_value(past_k, 2)
    elif lengths is not None:
        offset = sh.Unsqueeze((1, 2, 3))(ew.Sub()(lengths, size_value(q, 2)))
    reach = _Reach(
        offset,
        n.attr_flag("is_causal"),
        n.attr_int("left_window_size", -1),
        n.attr_int("right_window_size", -1),
    )
    mask = padded(n.optional(3), k, lengths is not None)
    op = Attention(n.attr_float("scale", 0.0) or None, softcap=n.attr_float("softcap", 0.0))
    seen = reach.mask(size_value(q, 2), size_value(k, 2))
    hidden = mask if seen is None else both(mask, seen, q)
    if aligned and reach.causal:
        # The op itself aligns the last query with the last valid key.
        op = replace(op, causal=True, window=max(reach.left + 1, 0))
        y = attend(q, k, v, op, mask, **{LENGTHS: lengths})
    else:
        y = attend(q, k, v, op, hidden, **{LENGTHS: lengths})
    scores: Value | None = None
    if n.wants(3):
        if lengths is not None:
            hidden = both(hidden, within(size_value(k, 2), lengths), q)
        scores = _scores(n, q, repeated(n, k, q), hidden, op)
    return merge_heads(y) if flat else y, k, v, scores


def _scores(n: Node, q: Value, k: Value, mask: Value | None, op: Attention) -> Value:
    """Return the scores at the step that `qk_matmul_output_mode` selects."""
    mode = n.attr_int("qk_matmul_output_mode", 0)
    size = q.tensor.dim(3)
    if not 0 <= mode <= 3:
        n.fail("qk_matmul_output_mode must be 0, 1, 2 or 3", given=mode)
    if not isinstance(size, int):
        n.undecided("the scores of attention need a known head size", given=q.type)
    scale = usual_scale(size) if op.scale is None else op.scale
    scores = Dot()(ew.Mul()(q, scalar(scale, q)), sh.Transpose((0, 1, 3, 2))(k))
    if mode >= 1 and op.softcap > 0:
        cap = scalar(op.softcap, q)
        scores = ew.Mul()(ew.Tanh()(ew.Div()(scores, cap)), cap)
    if mode >= 2 and mask is not None:
        if mask.dtype == boolean:
            scores = ew.Where()(mask, scores, scalar(-math.inf, q))
        else:
            scores = ew.Add()(scores, mask)
    if mode < 3:
        return scores
    precise = cast(scores, n.attr_dtype("softmax_precision", q.dtype))
    return cast(shares(precise), q.dtype)
