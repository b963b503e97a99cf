"""A step of decoding as one op: rotary positions, the caches' new rows, and attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import InferError
from monograph.ir import Array, Op, TensorType, TupleType, Value, sample
from monograph.ops.attention import LENGTHS, Attention, CacheUpdate, Rope

Q, K, V, KEYS, VALUES, STARTS, COUNTS, COS, SIN = range(9)
"""The operands, in order."""


@dataclass(frozen=True)
class DecodeAttention(Op):
    """(y, keys, values) for one new token of each sequence.

        keys   = cache_update(old keys, rope(k, cos, sin), starts)
        values = cache_update(old values, v, starts)
        y      = attention(rope(q, cos, sin), keys, values, lengths)

    q[B, H, 1, D], k[B, G, 1, D] and v[B, G, 1, E] are the token's, the caches [B, G, T, D] and
    [B, G, T, E]. The attention is causal; the scale, window and softcap are its own. Without cos
    and sin nothing is turned. Only the fusion of such steps makes this: three results of one
    launch.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    interleaved: bool = False

    costly = True
    updates: ClassVar[Mapping[int, int]] = {1: KEYS, 2: VALUES}
    """The results that are an operand but for what is written into it."""
    samples = (
        sample(
            "f32[2, 4, 1, 8]", "f32[2, 2, 1, 8]", "f32[2, 2, 1, 6]",
            "f32[2, 2, 20, 8]", "f32[2, 2, 20, 6]", [3, 17], [4, 18],
            "f32[2, 1, 4] in -1..1", "f32[2, 1, 4] in -1..1",
            scale=0.5,
        ),
        sample(
            "f16[1, 6, 1, 16]", "f16[1, 2, 1, 16]", "f16[1, 2, 1, 16]",
            "f16[1, 2, 40, 16]", "f16[1, 2, 40, 16]", [33], [34],
            "f16[1, 1, 4] in -1..1", "f16[1, 1, 4] in -1..1",
            scale=0.3, window=9, softcap=2.0, interleaved=True,
        ),
        sample(
            "f32[1, 3, 1, 4]", "f32[1, 1, 1, 4]", "f32[1, 1, 1, 4]",
            "f32[1, 1, 9, 4]", "f32[1, 1, 9, 4]", [0], [1],
            scale=1.0,
        ),
    )  # fmt: skip

    @property
    def attention(self) -> Attention:
        return Attention(self.scale, True, self.window, self.softcap, (LENGTHS,))

    def accumulation_length(self, *types: TensorType) -> int:
        """Return the terms of the attention to the caches and of the rotation before it."""
        q, _, _, keys, values, *_ = types
        return 2 + self.attention.accumulation_length(q, keys, values)

    def infer(self, *types: TensorType) -> TupleType:
        if len(types) not in (COS, SIN + 1):
            raise InferError("operands are missing", expected="7 or 9", given=len(types))
        q, k, v, keys, values, starts, lengths, *turns = types
        for x in (q, k, v):
            if x.rank != 4 or x.dims[2] != 1:
                raise InferError("a step has one query", expected="[B, H, 1, D]", given=x)
        if turns:
            rope = Rope(self.interleaved)
            q, k = rope.infer(q, *turns), rope.infer(k, *turns)
        keys = CacheUpdate(2).infer(keys, k, starts)
        values = CacheUpdate(2).infer(values, v, starts)
        return TupleType((self.attention.infer(q, keys, values, lengths), keys, values))

    def reference(self, *arrays: Array) -> tuple[Array, Array, Array]:
        q, k, v, keys, values, starts, lengths, *turns = arrays
        if turns:
            rope = Rope(self.interleaved)
            q, k = rope.reference(q, *turns), rope.reference(k, *turns)
        keys = CacheUpdate(2).reference(keys, k, starts)
        values = CacheUpdate(2).reference(values, v, starts)
        return self.attention.reference(q, keys, values, lengths), keys, values

    def parts(self, *operands: Value) -> tuple[Value, Value, Value]:
        """Return the same by the ops it is made of."""
        q, k, v, keys, values, starts, lengths, *turns = operands
        if turns:
            rope = Rope(self.interleaved)
            q, k = rope(q, *turns), rope(k, *turns)
        keys, values = CacheUpdate(2)(keys, k, starts), CacheUpdate(2)(values, v, starts)
        return self.attention(q, keys, values, lengths), keys, values
