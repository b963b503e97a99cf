"""Attention and rotary embedding: canonical from import, because kernels exist for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, Dim, Narrowing, Op, TensorType, Type, Value, from_numpy, sample
from monograph.ir.dtype import BOOL, FLOAT, INT
from monograph.ir.sizes import hint_of, is_one, proven
from monograph.ir.traits import INDEX, LENGTH, Demand, Known, known_product
from monograph.ir.types import merge_dims
from monograph.ops.base import (
    as_tensor,
    check_kinds,
    narrow,
    normalise_axis,
    same_dtype,
    widen,
)

MASK, LENGTHS, SINKS = "mask", "lengths", "sinks"
MISFIT = "the mask does not broadcast to the scores"


@dataclass(frozen=True)
class Attention(Op):
    """softmax(q kᵀ scale) v for each head of q[B, H, S, D], k[B, G, T, D] and v[B, G, T, E].

    H is a multiple of G: each head of k and v serves H / G consecutive heads of q. `scale` is
    1 / sqrt(D) if None. With `softcap` c > 0 the scores become c tanh(scores / c) first.

    `extra` names operands that follow v, in this order where given:
    - "mask": a bool (a key takes part where it holds) or a float (added to the scores, after the
      softcap), broadcastable to [B, H, S, T];
    - "lengths": integers [B], the number of keys that count in each batch row, T without it; what
      lies beyond them may be anything, NaN too;
    - "sinks": floats [H], one score more for each head that takes part in the softmax only.

    `causal` places the last query at the last key that counts, so that query i sees the keys up
    to i + length - S; with `window` w > 0 only the last w of them. An infinity or NaN among the
    values of keys that count but that a query does not see may or may not reach it.

    A fully masked query has keys, and each of its scores is -inf: by the mask, by `causal`, by a
    length of 0, or because the products are -inf; a sink that is not -inf excludes it. Such a query
    gives 0 by default, and NaN with `masked_nan`, which is what the plain arithmetic of a softmax
    gives (-inf - -inf). Scores of a large negative number are no masked scores: where all keys have
    the same one, the result is the mean of the values. Without keys (T = 0) a query gives 0 in both
    modes, as an empty sum does.
    """

    scale: float | None = None
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    extra: tuple[str, ...] = ()
    masked_nan: bool = False

    narrowing = Narrowing.LAYER
    clipped_from = 3
    costly = rounds_between = True
    samples = (
        sample("f32[2, 2, 3, 4]", "f32[2, 2, 5, 4]", "f32[2, 2, 5, 6]"),
        sample("f32[1, 4, 3, 8]", "f32[1, 2, 3, 8]", "f32[1, 2, 3, 8]", causal=True),
        sample(
            "f32[2, 2, 3, 4]", "f32[2, 2, 5, 4]", "f32[2, 2, 5, 4]", "bool[3, 5]", extra=(MASK,)
        ),
        sample(
            "f32[2, 4, 1, 4]", "f32[2, 2, 5, 4]", "f32[2, 2, 5, 4]", "f32[2, 1, 1, 5]", [2, 5],
            scale=0.3, causal=True, window=3, softcap=2.0, extra=(MASK, LENGTHS),
        ),
        sample(
            "f16[1, 2, 2, 4]", "f16[1, 1, 4, 4]", "f16[1, 1, 4, 4]", "f16[2]",
            causal=True, extra=(SINKS,),
        ),
        sample("f32[1, 1, 2, 4]", "f32[1, 1, 3, 4]", "f32[1, 1, 3, 4]", [0], extra=(LENGTHS,)),
        sample(
            "f32[1, 1, 4, 4]", "f32[1, 1, 3, 4]", "f32[1, 1, 3, 4]", causal=True, masked_nan=True
        ),
        sample(
            "f32[1, 2, 2, 4]", "f32[1, 2, 3, 4]", "f32[1, 2, 3, 4]",
            [[True, False, True], [False, False, False]], extra=(MASK,), masked_nan=True,
        ),
        sample("f32[1, 1, 2, 4]", "f32[1, 1, 0, 4]", "f32[1, 1, 0, 4]", masked_nan=True),
    )  # fmt: skip

    def canonical(self, *types: Type) -> Op:
        size = as_tensor(types[0]).dims[-1] if types else None
        if self.scale is not None or not isinstance(size, int):
            return self
        return replace(self, scale=usual_scale(size))

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *extra: TensorType) -> TensorType:
        dtype = same_dtype(q, k, v)
        check_kinds(dtype, (FLOAT,))
        for x in (q, k, v):
            if x.rank != 4:
                raise InferError("queries, keys and values have rank 4", given=x)
        if self.window < 0 or (self.window and not self.causal):
            raise InferError("a window needs causal, and a positive size", given=self.window)
        (batch, heads, queries, size), (_, groups, keys, _) = q.dims, k.dims
        merge_dims(merge_dims(batch, k.dims[0]), v.dims[0])
        merge_dims(size, k.dims[3])
        merge_dims(keys, v.dims[2])
        merge_dims(groups, v.dims[1])
        if isinstance(heads, int) and isinstance(groups, int) and not divides(groups, heads):
            raise InferError("heads are no multiple of key heads", expected=groups, given=heads)
        if len(extra) != len(self.extra) or not _in_order(self.extra):
            raise InferError(
                "the operands after v are not those named", expected=self.extra, given=len(extra)
            )
        for name, t in zip(self.extra, extra, strict=True):
            self._check_extra(name, as_tensor(t), dtype, (batch, heads, queries, keys))
        return TensorType(dtype, (batch, heads, queries, v.dims[3]))

    def operations(self, value: Value) -> float:
        """Return those of both products, for the keys that the queries see."""
        q, k, v = (x.tensor for x in value.inputs[:3])
        if not (q.is_static and k.is_static and v.is_static):
            return 0.0
        batch, heads, queries, size = map(hint_of, q.static)
        pairs = self._pairs(queries, hint_of(k.static[2]))
        return 2.0 * batch * heads * pairs * (size + hint_of(v.static[3]))

    def _pairs(self, queries: int, keys: int) -> int:
        """Return how many pairs of a query and a key take part, where every length counts."""
        pairs = queries * keys
        if self.causal and keys >= queries:
            pairs -= queries * (queries - 1) // 2
        return min(pairs, queries * self.window) if self.window else pairs

    def _check_extra(
        self, name: str, t: TensorType, dtype: object, scores: tuple[Dim, Dim, Dim, Dim]
    ) -> None:
        if name == MASK:
            if t.dtype.kind != BOOL and t.dtype != dtype:
                raise InferError("a mask is bool or as q", expected=dtype, given=t)
            if t.rank > 4:
                raise InferError("a mask has at most rank 4", given=t)
            if not _fits(t.dims, scores):
                raise InferError(MISFIT, expected=[*scores], given=t)
            return
        if name == LENGTHS:
            check_kinds(t.dtype, (INT,))
        elif t.dtype != dtype:
            raise InferError("sinks have the element type of q", expected=dtype, given=t)
        if t.rank != 1:
            raise InferError(f"{name} are a vector", given=t)
        merge_dims(t.dims[0], scores[0] if name == LENGTHS else scores[1])

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the first axis, of queries, keys and values, of a mask with it and of lengths."""
        extra = self.extra[index - 3] if index >= 3 else ""
        whole = not extra or extra == LENGTHS or (extra == MASK and types[index].rank == 4)
        return 0 if axis == 0 and whole else None

    def reference(self, q: Array, k: Array, v: Array, *extra: Array) -> Array:
        given = dict(zip(self.extra, extra, strict=True))
        weights = self.weights(q, k, given)
        repeats = q.shape[1] // max(v.shape[1], 1)
        values = widen(v)
        if LENGTHS in given:
            counts = np.arange(v.shape[2]) < given[LENGTHS].astype(np.int64).reshape(-1, 1)
            values = np.where(counts[:, None, :, None], values, 0.0)
        return narrow(np.matmul(weights, values.repeat(repeats, 1)), from_numpy(q.dtype))

    def weights(self, q: Array, k: Array, given: dict[str, Array]) -> Array:
        """Return the weight of each key for each query, in f64."""
        if not divides(k.shape[1], q.shape[1]):
            raise ExecutionError(
                "heads are no multiple of key heads", expected=k.shape[1], given=q.shape[1]
            )
        scale = usual_scale(q.shape[-1]) if self.scale is None else self.scale
        keys = widen(k).repeat(q.shape[1] // max(k.shape[1], 1), 1)
        scores = np.matmul(widen(q) * scale, keys.swapaxes(2, 3))
        if self.softcap > 0:
            scores = self.softcap * np.tanh(scores / self.softcap)
        mask = given.get(MASK)
        if mask is not None and not _fits(mask.shape, scores.shape):
            raise ExecutionError(MISFIT, expected=[*scores.shape], given=[*mask.shape])
        if mask is not None and mask.dtype != np.bool_:
            scores = scores + widen(mask)
        visible = self.visible(q.shape[2], k.shape[2], given.get(LENGTHS))
        if mask is not None and mask.dtype == np.bool_:
            visible = visible & mask
        scores = np.where(visible, scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        sinks = given.get(SINKS)
        if sinks is not None:
            top = np.maximum(top, widen(sinks).reshape(1, -1, 1, 1))
        top = np.where(np.isneginf(top), 0.0, top)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(widen(sinks).reshape(1, -1, 1, 1) - top)
        if self.masked_nan:
            return np.asarray(weights / total)
        return np.asarray(weights / np.where(total == 0, 1.0, total))

    def visible(self, queries: int, keys: int, lengths: Array | None) -> Array:
        """Return the keys that each query sees without the mask, broadcastable to the scores."""
        length = np.array([keys]) if lengths is None else lengths
        length = length.astype(np.int64).reshape(-1, 1, 1, 1)
        key = np.arange(keys).reshape(1, 1, 1, -1)
        visible = key < length
        if not self.causal:
            return visible
        place = np.arange(queries).reshape(1, 1, -1, 1) + length - queries
        visible = visible & (key <= place)
        return visible & (key > place - self.window) if self.window else visible

    def bound(self, value: Value, given: Sequence[float]) -> float:
        return given[2]  # results are means of the values

    def degree(self, value: Value, given: Sequence[float]) -> float:
        return given[2]

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        if LENGTHS not in self.extra:
            return super().demands(value, given)
        size = value.inputs[1].tensor.dims[2]
        if not isinstance(size, int) or size < 1:
            return []
        operand = 3 + self.extra.index(LENGTHS)
        return [Demand(operand, LENGTH, 1, size, f"the length of {size} keys")]

    def accumulation_length(self, *types: TensorType) -> int:
        """Return the terms of a score (the head size) and of a weight and a result (the keys)."""
        keys = types[1].dims
        return known_product(keys[3:]) + 2 * known_product(keys[2:3])


def usual_scale(size: int) -> float:
    """1 / sqrt(size); 1 for heads without elements, whose scores are 0 by any scale."""
    return 1 / math.sqrt(max(size, 1))


def divides(groups: int, heads: int) -> bool:
    """Return True if heads of queries share the heads of keys evenly; none share none."""
    return heads % groups == 0 if groups else heads == 0


def _fits(mask: Sequence[Dim], scores: Sequence[Dim]) -> bool:
    """Return True if a mask broadcasts to scores without making them larger, as far as known."""
    pairs = zip(mask[::-1], scores[::-1], strict=False)
    return all(isinstance(a, str) or isinstance(b, str) or _fits_dim(a, b) for a, b in pairs)


def _fits_dim(mask: int, scores: int) -> bool:
    return proven(mask, "==", scores) or is_one(mask) or mask == scores


def _in_order(extra: tuple[str, ...]) -> bool:
    return extra == tuple(name for name in (MASK, LENGTHS, SINKS) if name in extra)


@dataclass(frozen=True)
class Rope(Op):
    """Rotates pairs of the first R elements of each vector of x[B, H, S, D].

    cos and sin are [B or 1, S, R / 2]: pair p at place s turns by the angle they give. A pair is
    elements p and p + R / 2, or 2p and 2p + 1 if `interleaved`; elements from R on stay.
    """

    interleaved: bool = False

    narrowing = Narrowing.LAYER
    samples = (
        sample("f32[2, 3, 4, 6]", "f32[2, 4, 3] in -1..1", "f32[2, 4, 3] in -1..1"),
        sample("f32[2, 3, 4, 8]", "f32[1, 4, 2] in -1..1", "f32[1, 4, 2] in -1..1"),
        sample(
            "f16[1, 1, 2, 4]", "f16[1, 2, 2] in -1..1", "f16[1, 2, 2] in -1..1", interleaved=True
        ),
    )

    def accumulation_length(self, *types: TensorType) -> int:
        """Return 2: one element of a pair by its cosine, the other by its sine."""
        return 2

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        check_kinds(same_dtype(x, cos, sin), (FLOAT,))
        for t, rank in ((x, 4), (cos, 3), (sin, 3)):
            if t.rank != rank:
                raise InferError(f"a tensor of rank {rank} is needed", given=t)
        for t in (cos, sin):
            if not _fits(t.dims[:1], x.dims[:1]):
                raise InferError("there are angles for other batch rows", expected=x, given=t)
            merge_dims(t.dims[1], x.dims[2])
            half, size = t.dims[2], x.dims[3]
            if isinstance(half, int) and isinstance(size, int) and 2 * half > size:
                raise InferError("more angles than pairs", expected=f"{size // 2}", given=t)
        merge_dims(cos.dims[2], sin.dims[2])
        return x

    def reference(self, x: Array, cos: Array, sin: Array) -> Array:
        turned = 2 * cos.shape[-1]
        data = widen(x).copy()
        first, second = (
            (slice(0, turned, 2), slice(1, turned, 2))
            if self.interleaved
            else (slice(0, turned // 2), slice(turned // 2, turned))
        )
        a, b = data[..., first].copy(), data[..., second].copy()
        c, s = widen(cos)[:, None], widen(sin)[:, None]
        data[..., first] = a * c - b * s
        data[..., second] = a * s + b * c
        return narrow(data, from_numpy(x.dtype))


@dataclass(frozen=True)
class CacheUpdate(Op):
    """x with rows of an update written over it: rows start, start + 1, ... along an axis.

    x and the update differ only along the axis; `starts` are integers [B], one for each index
    along the first dimension. With `circular` a row past the end is written at the beginning.
    """

    axis: int
    circular: bool = False

    narrowing = Narrowing.MOVE
    updates_first = True
    samples = (
        sample("f32[2, 3, 5, 4]", "f32[2, 3, 2, 4]", [0, 3], axis=2),
        sample("f32[2, 4]", "f32[2, 3]", [3, 1], axis=1, circular=True),
        sample("f16[1, 2, 3]", "f16[1, 0, 3]", [2], axis=-2),
    )

    def canonical(self, *types: Type) -> Op:
        return replace(self, axis=normalise_axis(self.axis, as_tensor(types[0]).rank))

    def infer(self, x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        same_dtype(x, update)
        check_kinds(as_tensor(starts).dtype, (INT,))
        if self.axis == 0:
            raise InferError("the first dimension is that of the starts", given=self.axis)
        if update.rank != x.rank or starts.rank != 1:
            raise InferError("an update has the rank of what it updates", expected=x, given=update)
        merge_dims(starts.dims[0], x.dims[0])
        for i, (a, b) in enumerate(zip(x.dims, update.dims, strict=True)):
            if i != self.axis:
                merge_dims(a, b)
            elif isinstance(a, int) and isinstance(b, int) and b > a:
                raise InferError("more rows than there are", expected=x, given=update)
        return x

    def reference(self, x: Array, update: Array, starts: Array) -> Array:
        rows, size = update.shape[self.axis], x.shape[self.axis]
        places = starts.astype(np.int64).reshape(-1, 1) + np.arange(rows)
        if self.circular:
            places = places % max(size, 1)
        if places.size and (places.min() < 0 or places.max() >= size):
            raise ExecutionError(
                "rows are written out of bounds",
                expected=f"0..{size - 1}",
                given=f"{places.min()}..{places.max()}",
            )
        result = x.copy()
        for row, place in enumerate(places):
            np.moveaxis(result[row], self.axis - 1, 0)[place] = np.moveaxis(
                update[row], self.axis - 1, 0
            )
        return result

    def passes_infinity(self, value: Value, operand: Value, alone: bool) -> bool:
        return False

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        size, rows = (v.tensor.dims[self.axis] for v in value.inputs[:2])
        if not isinstance(size, int) or not isinstance(rows, int):
            return []
        return [Demand(2, INDEX, 0, size - rows, f"the first of {rows} rows of {size}")]
