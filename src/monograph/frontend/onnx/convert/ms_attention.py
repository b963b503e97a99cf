"""Attention ops of the com.microsoft domain: projections, caches and several kinds of masks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from monograph.frontend.onnx.convert.attention import (
    attend,
    both,
    merge_heads,
    split_heads,
    up_to,
    within,
)
from monograph.frontend.onnx.convert.common import as_scalar, cast, zeros
from monograph.frontend.onnx.convert.ms_fused import default
from monograph.frontend.onnx.convert.quant import MICROSOFT
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, size_value
from monograph.ir import Value, constant, known
from monograph.ir.dtype import i64
from monograph.ops import elementwise as ew
from monograph.ops import reduce as rd
from monograph.ops import shape as sh
from monograph.ops.attention import LENGTHS, SINKS, Attention, CacheUpdate, Rope
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad

END = np.iinfo(np.int64).max
FILTER = "mask_filter_value"
"""The number that is added to the scores of padding."""
LOWEST_FILTER = -10000.0


def piece(x: Value, axis: int, start: int, stop: int) -> Value:
    """x from start to stop along one axis."""
    rank = x.tensor.rank
    starts, stops = [0] * rank, [END] * rank
    starts[axis], stops[axis] = start, stop
    return sh.Slice(tuple(starts), tuple(stops), (1,) * rank)(x)


def index(x: Value, axis: int, i: int) -> Value:
    """Return x at one index along an axis, without that axis."""
    return Gather(axis)(x, constant(i))


class AttentionOperands(NamedTuple):
    """Queries [B, H, S, D], keys and values [B, G, T, D]."""

    q: Value
    k: Value
    v: Value


def scale_of(n: Node) -> float | None:
    return n.attr_float("scale", 0.0) or None


def padded_end(x: Value, axis: int, count: Value) -> Value:
    """Pad x with zeros at the end of an axis; the count may be known at run time only."""
    rank = x.tensor.rank
    parts = [constant(np.zeros(1, np.int64))] * rank
    parts[axis % rank] = sh.Unsqueeze((0,))(count)
    before = (0,) * rank
    after = fold(sh.Concat(0)(*parts))
    if (known_after := known(after)) is not None and not known_after.any():
        return x
    return deferred(Pad, (x,), {"after": after}, before=before)


# GroupQueryAttention


def _grouped_heads(n: Node, heads: int, groups: int) -> AttentionOperands:
    """Return queries, keys and values, from three tensors or from one packed tensor."""
    q, k, v = n.input(0), n.optional(1), n.optional(2)
    if k is None or v is None:
        width = q.tensor.dim(2)
        if not isinstance(width, int) or width % (heads + 2 * groups):
            n.fail("packed queries, keys and values do not split", given=q.type)
        each = width // (heads + 2 * groups)
        bounds = (0, heads * each, (heads + groups) * each, width)
        q, k, v = (piece(q, 2, a, b) for a, b in itertools.pairwise(bounds))
    if k.tensor.rank != 3 or v.tensor.rank != 3:
        n.unsupported("keys and values that are no projections")
    return AttentionOperands(
        split_heads(n, q, heads), split_heads(n, k, groups), split_heads(n, v, groups)
    )


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(n: Node) -> tuple[Value | None, ...]:
    """Convert GroupQueryAttention: keep seqlens_k + 1 - S cache rows, then write S new ones.

    A cache is as long as its past or, if that is too short, as the whole sequence. A call whose
    total length is S is a first prompt: it starts at row 0, and seqlens_k only says how much of it
    is no padding.
    """
    if n.attr_flag("sliding_window_cache") or n.optional(12) is not None:
        n.unsupported("windowed or quantised key and value caches")
    if n.wants(3):
        n.unsupported("the output of scores")
    # Each of these attributes matters only together with others.
    n.permit("rotary_interleaved", "qk_norm_epsilon", "smooth_softmax")
    heads = n.attr_int("num_heads")
    q, k, v = _grouped_heads(n, heads, n.attr_int("kv_num_heads"))
    q_weight, k_weight = n.optional(14), n.optional(15)
    if q_weight is not None and k_weight is not None:
        epsilon = n.attr_float("qk_norm_epsilon", 1e-6)
        q = default(n, "RMSNormalization", q, q_weight, epsilon=epsilon)
        k = default(n, "RMSNormalization", k, k_weight, epsilon=epsilon)
    total = cast(as_scalar(n.input(6)), i64)
    size = size_value(q, 2)
    prompt = fold(ew.Equal()(total, size))
    lengths = _unless(prompt, size, ew.Add()(cast(n.input(5), i64), constant(1)))
    starts = ew.Sub()(lengths, size)
    past_k, past_v = n.optional(3), n.optional(4)
    first = past_k is None or past_v is None or past_k.tensor.dim(2) == 0
    if n.attr_flag("do_rotary"):
        q, k = _turned(n, q, k, starts, prompt)
    if past_k is not None and past_v is not None and not first:
        missing = ew.Max()(ew.Sub()(total, size_value(past_k, 2)), constant(0))
        k = CacheUpdate(2)(padded_end(past_k, 2, missing), k, starts)
        v = CacheUpdate(2)(padded_end(past_v, 2, missing), v, starts)
    bias = n.optional(10)
    if bias is not None:
        bias = padded_end(bias, -1, ew.Sub()(size_value(k, 2), size_value(bias, -1)))
    window = max(n.attr_int("local_window_size", -1), 0)
    causal = n.attr_flag("causal", True)
    op = Attention(scale_of(n), causal, window, n.attr_float("softcap", 0.0))
    known_lengths = None if first else lengths
    y = attend(q, k, v, op, bias, **{LENGTHS: known_lengths, SINKS: _sinks(n, heads, q)})
    return merge_heads(y), k, v, None


def _sinks(n: Node, heads: int, like: Value) -> Value | None:
    given = n.optional(11)
    if given is not None:
        return given
    smooth = n.attr_int("smooth_softmax", 0) > 0
    return zeros((heads,), like.dtype) if smooth else None


def _unless(prompt: Value, first: Value, other: Value) -> Value:
    """Return `first` for a first prompt, else `other`, which has the full shape."""
    decided = known(prompt)
    return other if decided is not None and not decided else ew.Where()(prompt, first, other)


def _turned(n: Node, q: Value, k: Value, starts: Value, prompt: Value) -> tuple[Value, Value]:
    """Apply rotary position embedding to queries and keys."""
    new = iota(size_value(q, 2))
    places = ew.Add()(sh.Unsqueeze((1,))(starts), new)
    given = n.optional(9)
    if given is not None:
        # Positions of a first prompt count up from its first position.
        first = Gather(0)(sh.Reshape((sh.INFER,))(given), constant(0))
        places = _unless(prompt, ew.Add()(first, new), given)
    cos, sin = (Gather(0)(n.input(i), places) for i in (7, 8))
    rope = Rope(n.attr_flag("rotary_interleaved"))
    return rope(q, cos, sin), rope(k, cos, sin)


# MultiHeadAttention


def _projected(n: Node, heads: int) -> AttentionOperands:
    """Return queries, keys and values of MultiHeadAttention, from any layout, biases added."""
    q, k, v, bias = n.input(0), n.optional(1), n.optional(2), n.optional(3)
    if q.tensor.rank == 5:
        return AttentionOperands(*(sh.Transpose((0, 2, 1, 3))(index(q, 3, i)) for i in range(3)))
    hidden = q.tensor.dim(2)
    biases: list[Value | None] = [None, None, None]
    if bias is not None:
        if not isinstance(hidden, int):
            n.undecided("a bias needs a known hidden size", given=q.type)
        bounds = (0, hidden, 2 * hidden, END)
        biases = [piece(bias, 0, a, b) for a, b in itertools.pairwise(bounds)]
    if k is None:
        n.fail("keys are missing", given=q.type)
    if k.tensor.rank == 5:
        k, v = (sh.Transpose((0, 2, 1, 3))(index(k, 3, i)) for i in range(2))
    elif v is None:
        n.fail("values are missing", given=k.type)
    parts = [
        x if b is None or x.tensor.rank == 4 else ew.Add()(x, b)
        for x, b in zip((q, k, v), biases, strict=True)
    ]
    return AttentionOperands(
        *(x if x.tensor.rank == 4 else split_heads(n, x, heads) for x in parts)
    )


def _counting(n: Node, given: Value, q: Value, k: Value) -> Value:
    """bool, broadcastable to the scores: True for keys that are not padding.

    A padding mask holds lengths, or ends and starts, or zeros at padding.
    """
    rank = given.tensor.rank
    if rank > 3:
        n.unsupported(f"an attention mask of rank {rank}")
    if rank > 1:
        counts = ew.Not()(ew.Equal()(given, constant(0, given.dtype)))
        return sh.Unsqueeze((1, 2) if rank == 2 else (1,))(counts)
    keys = size_value(k, 2)
    if _are_lengths(given, q):
        return within(keys, cast(given, i64))
    batch = q.tensor.dim(0)
    if not isinstance(batch, int) or given.tensor.dim(0) != 2 * batch:
        n.unsupported("cumulated sequence lengths as an attention mask")
    ends, starts = (cast(piece(given, 0, i * batch, (i + 1) * batch), i64) for i in range(2))
    return ew.And()(within(keys, ends), ew.Not()(within(keys, starts)))


def _are_lengths(given: Value, q: Value) -> bool:
    """Return True if a padding mask holds the number of valid keys of each batch row."""
    if given.tensor.rank != 1:
        return False
    count, batch = given.tensor.dim(0), q.tensor.dim(0)
    return count == batch or not (isinstance(count, int) and isinstance(batch, int))


def _attend(
    n: Node, heads: AttentionOperands, given: Value | None, bias: Value | None, past: Value | None
) -> Value:
    """Compute attention of MultiHeadAttention and Attention as ONNX Runtime does.

    A large negative number, not -inf, is added to the scores of padding: a query that sees only
    padding attends to it as if it were valid. Keys after a query are always hidden. A bias of -inf
    on all keys gives NaN.
    """
    q, k, v = heads
    op = Attention(scale_of(n), n.attr_flag("unidirectional"), masked_nan=True)
    reach: Value | None = None
    queries, keys = q.tensor.dim(2), k.tensor.dim(2)
    known_sizes = isinstance(queries, int) and isinstance(keys, int)
    if op.causal and past is None and known_sizes and queries > keys:  # type: ignore[operator]
        # The op would hide all keys from the first queries; here the first query is at key 0.
        op = replace(op, causal=False)
        reach = up_to(size_value(q, 2), size_value(k, 2), constant(0))
    if given is not None and bias is None and not op.causal and _are_lengths(given, q):
        lengths = cast(given, i64)
        lengths = ew.Where()(ew.Less()(constant(0), lengths), lengths, size_value(k, 2))
        return attend(q, k, v, op, reach, **{LENGTHS: lengths})
    mask = bias
    if given is not None:
        counts = _counting(n, given, q, k)
        seen = reach
        if op.causal:
            offset = ew.Sub()(size_value(k, 2), size_value(q, 2))
            seen = up_to(size_value(q, 2), size_value(k, 2), offset)
        mask = _padded_mask(n, counts, seen, bias)
    if reach is not None:
        mask = both(mask, reach, q)
    return attend(q, k, v, op, mask)


def _padded_mask(n: Node, counts: Value, reach: Value | None, bias: Value | None) -> Value:
    """Combine a padding mask and a bias.

    If a query sees only padding, the padding stays visible: adding one number to all scores of a
    query changes nothing.
    """
    seen = counts if reach is None else ew.And()(counts, reach)
    some = rd.ReduceMax((seen.tensor.rank - 1,), keep=True)(seen)
    shown = ew.Or()(counts, ew.Not()(some))
    if bias is None:
        return shown
    low = constant(n.attr_float(FILTER, LOWEST_FILTER), bias.dtype)
    return ew.Where()(shown, bias, ew.Add()(bias, low))


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(n: Node) -> tuple[Value | None, ...]:
    if n.optional(8) is not None or n.optional(9) is not None:
        n.unsupported("shared or indirect key and value caches")
    if n.wants(3):
        n.unsupported("the output of scores")
    n.permit(FILTER)
    q, k, v = _projected(n, n.attr_int("num_heads"))
    past_k, past_v = n.optional(6), n.optional(7)
    if past_k is not None and past_v is not None:
        k, v = sh.Concat(2)(past_k, k), sh.Concat(2)(past_v, v)
    y = _attend(n, AttentionOperands(q, k, v), n.optional(4), n.optional(5), past_k)
    return merge_heads(y), k, v, None


@converter("Attention", domain=MICROSOFT)
def packed_attention(n: Node) -> tuple[Value | None, ...]:
    """Convert Attention: project to queries, keys and values with one matrix, then attend."""
    x = Dot()(n.input(0), n.input(1))
    offset = n.optional(2)
    x = x if offset is None else ew.Add()(x, offset)
    return attend_packed(n, x, n.optional(3), n.optional(4), n.optional(5))


def attend_packed(
    n: Node, x: Value, mask: Value | None, past: Value | None, bias: Value | None
) -> tuple[Value | None, ...]:
    """Apply attention to queries, keys and values side by side in x; return the new cache too."""
    if n.attr_flag("do_rotary") or n.attr_flag("past_present_share_buffer"):
        n.unsupported(f"rotary embedding or shared caches inside {n.op_type}")
    n.permit("rotary_embedding_dim", FILTER)
    width = x.tensor.dim(2)
    sizes = n.attr_ints("qkv_hidden_sizes", None)
    if sizes is None:
        if not isinstance(width, int) or width % 3:
            n.fail("the projection must split into three equal parts", given=x.type)
        sizes = (width // 3,) * 3
    ends = tuple(np.cumsum((0, *sizes)).tolist())
    parts = (piece(x, 2, a, b) for a, b in itertools.pairwise(ends))
    q, k, v = (split_heads(n, p, n.attr_int("num_heads")) for p in parts)
    if past is not None:
        k, v = (sh.Concat(2)(index(past, 0, i), new) for i, new in enumerate((k, v)))
    y = _attend(n, AttentionOperands(q, k, v), mask, bias, past)
    if not n.wants(1):
        return merge_heads(y), None
    return merge_heads(y), sh.Concat(0)(sh.Unsqueeze((0,))(k), sh.Unsqueeze((0,))(v))


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(n: Node) -> Value:
    """Convert RotaryEmbedding; one position given is that of the first row."""
    x, positions = n.input(0), n.input(1)
    if n.attr_flag("is_packed_batching"):
        n.unsupported("packed batches")
    # The number of columns of the tables gives these.
    n.permit("rotary_embedding_dim", "num_heads")
    flat = x.tensor.rank == 3
    half = n.tensor(2).dim(1)
    if flat:
        heads = n.attr_int("num_heads", 0)
        width = x.tensor.dim(2)
        if not heads and isinstance(half, int) and isinstance(width, int) and half:
            heads = width // (2 * half)
        x = split_heads(n, x, heads)
    if positions.tensor.rank == 1:
        first = cast(as_scalar(positions), i64)
        positions = sh.Unsqueeze((0,))(ew.Add()(first, iota(size_value(x, 2))))
    cos, sin = (Gather(0)(n.input(i), positions) for i in (2, 3))
    y = Rope(n.attr_flag("interleaved"))(x, cos, sin)
    scale = n.attr_float("scale", 1.0)
    y = y if scale == 1.0 else ew.Mul()(y, constant(scale, y.dtype))
    return merge_heads(y) if flat else y
