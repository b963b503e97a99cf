"""Ops that stand for a small piece of arithmetic: kernels exist for them.

Imports never make them. Rules match the arithmetic, so it stays until the last graph stage, which
recognises it (see `monograph.rules.recognise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    Array,
    Narrowing,
    Op,
    TensorType,
    TupleType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.dtype import FLOAT
from monograph.ir.layout import LayoutPlan, Order, aligned, in_order, stored_axes
from monograph.ir.traits import known_product
from monograph.ir.types import broadcast
from monograph.ops.attention import LENGTHS, Attention, CacheUpdate, Rope
from monograph.ops.base import (
    Unary,
    as_tensor,
    check_kinds,
    narrow,
    normalise_axes,
    normalise_axis,
    same_dtype,
    widen,
)
from monograph.ops.elementwise import Erf, Sigmoid
from monograph.ops.scalar import Scalar, ScalarBuilder

SUMS_POWERS = "a softmax sums powers of e"
GELU_CUBE = 0.044715
"""The weight of x^3 in the tanh that stands for the error function in GELU."""


@dataclass(frozen=True)
class Silu(Unary):
    """x * sigmoid(x), elementwise; NaN at -inf, as that product is."""

    narrowing = Narrowing.ARITHMETIC
    never_larger = True
    samples = (sample("f32[4, 3]"), sample("f16[7]"), sample([-200.0, 200.0, float("inf")]))

    def compute(self, x: Array) -> Array:
        return np.asarray(x * Sigmoid().compute(x))

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.div(x, b.add(b.constant(1.0, x.dtype), b.exp(b.neg(x))))


@dataclass(frozen=True)
class Gelu(Unary):
    """x (1 + erf(x / sqrt(2))) / 2, elementwise; NaN at -inf, as that product is.

    With `approximate`, tanh(sqrt(2 / pi) (x + 0.044715 x^3)) stands for the error function.
    """

    approximate: bool = False

    narrowing = Narrowing.ARITHMETIC
    never_larger = True
    samples = (
        sample("f32[4, 3]"),
        sample("f16[7]", approximate=True),
        sample([-20.0, 20.0, float("inf")]),
    )

    def compute(self, x: Array) -> Array:
        if self.approximate:
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + GELU_CUBE * x**3))
        else:
            inner = Erf().compute(x * math.sqrt(0.5))
        return np.asarray(x * (0.5 * (1 + inner)))

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        if not self.approximate:
            return b.mul(x, b.normal(x))
        # x (1 + tanh(y)) / 2 is x / (1 + e^-2y), where nothing cancels; y is x times a polynomial
        # of x^2.
        first, cubic = (
            b.constant(-2 * math.sqrt(2 / math.pi) * c, x.dtype) for c in (1, GELU_CUBE)
        )
        power = b.exp(b.mul(x, b.fma(b.mul(x, x), cubic, first)))
        return b.div(x, b.add(b.constant(1.0, x.dtype), power))

    def error_scale(self, result: Array, *operands: Array) -> Array:
        """Add x / 2: the definition sums 1 and an error function of nearly -1, and scales that."""
        return np.asarray(np.abs(widen(result)) + np.abs(widen(operands[0])) / 2)


@dataclass(frozen=True)
class _Exponentials(Op, abstract=True):
    """The base of ops on the shares of e^x along an axis."""

    axis: int

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_POWERS
    reads_scores = reads_expressions = True

    def canonical(self, *types: Type) -> Op:
        return replace(self, axis=normalise_axis(self.axis, as_tensor(types[0]).rank))

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, (FLOAT,))
        normalise_axis(self.axis, x.rank)
        return x

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return axis if axis != self.axis else None

    def row_filling(self, axis: int) -> float | None:
        return -math.inf if axis == self.axis else None

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        return in_order(value, order, axis=order.index(self.axis))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product([types[0].dims[self.axis]])


@dataclass(frozen=True)
class Softmax(_Exponentials):
    """e^(x - max) / sum along an axis, rounded once; NaN along it where the largest is infinite."""

    within_one = level = same_signs = True
    samples = (
        sample("f32[4, 3]", axis=1),
        sample("f32[2, 5, 3]", axis=1),
        sample("f16[2, 64]", axis=-1),
        sample([[1000.0, 1001.0], [-1e30, 0.0]], axis=1),
    )

    def reference(self, x: Array) -> Array:
        shifted = _below_largest(x, self.axis)
        e = np.exp(shifted)
        return narrow(e / e.sum(self.axis, keepdims=True), from_numpy(x.dtype))


@dataclass(frozen=True)
class LogSoftmax(_Exponentials):
    """(x - max) - log(sum of e^(x - max)) along an axis, rounded once."""

    samples = (
        sample("f32[4, 3]", axis=1),
        sample("f32[2, 5, 3]", axis=0),
        sample([[1000.0, -1000.0]], axis=-1),
    )

    def reference(self, x: Array) -> Array:
        shifted = _below_largest(x, self.axis)
        total = np.exp(shifted).sum(self.axis, keepdims=True)
        return narrow(shifted - np.log(total), from_numpy(x.dtype))

    def error_scale(self, result: Array, *operands: Array) -> Array:
        """The logarithm of a sum is off by as much as the sum, relative to itself."""
        return np.asarray(np.abs(widen(result)) + math.sqrt(result.shape[self.axis]))


def _below_largest(x: Array, axis: int) -> Array:
    wide = widen(x)
    return np.asarray(wide - np.max(wide, axis, keepdims=True, initial=-np.inf))


@dataclass(frozen=True)
class _Norm(Op, abstract=True):
    """The base of normalisations: operands are x, then optionally a scale and a bias."""

    axes: tuple[int, ...]
    epsilon: float = 1e-5

    parameters: ClassVar[int]
    """The largest number of operands after x."""

    narrowing = Narrowing.KEPT
    kept_reason = "a norm sums squares"
    level = reads_expressions = True

    def canonical(self, *types: Type) -> Op:
        axes = normalise_axes(self.axes, as_tensor(types[0]).rank)
        return replace(self, axes=axes)

    def infer(self, x: TensorType, *given: TensorType) -> TensorType:
        check_kinds(same_dtype(x, *given), (FLOAT,))
        normalise_axes(self.axes, x.rank)
        if len(given) > self.parameters:
            raise InferError("too many operands", expected=self.parameters, given=len(given))
        for parameter in given:
            if broadcast(parameter.shape, x.shape) != x.shape:
                raise InferError("a scale or bias is larger than x", expected=x, given=parameter)
        return x

    def divided(self, x: Array, given: tuple[Array, ...]) -> Array:
        """x over its root mean square, and then with scale and bias."""
        square = np.mean(x * x, axis=self.axes, keepdims=True)
        y = x / np.sqrt(square + self.epsilon)
        if given:
            y = y * widen(given[0])
        return np.asarray(y + widen(given[1]) if len(given) > 1 else y)

    def bound(self, value: Value, given: Sequence[float]) -> float:
        """Return the bound of one element that holds all squares: sqrt(n), scaled and moved."""
        dims = [value.inputs[0].tensor.dims[a] for a in self.axes]
        if not all(isinstance(d, int) for d in dims):
            return math.inf
        root = math.sqrt(math.prod(int(d) for d in dims))
        scale, bias = [*given[1:], *(1.0, 0.0)[len(given) - 1 :]][:2]
        return root * scale + bias

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        if index:
            return None
        needs = tuple(aligned(v, order) for v in value.inputs)
        moved = replace(self, axes=stored_axes(order, self.axes))
        return LayoutPlan(moved, needs, order)

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product(types[0].dims[a] for a in self.axes)


@dataclass(frozen=True)
class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, rounded once.

    Mean and variance (of the population) are along `axes`. Scale and bias are optional operands
    that broadcast to x; a bias needs a scale.
    """

    parameters = 2
    samples = (
        sample("f32[4, 6]", axes=(1,)),
        sample("f32[2, 4, 6]", "f32[6]", axes=(-1,), epsilon=1e-6),
        sample("f16[2, 4, 6]", "f16[4, 6]", "f16[4, 6]", axes=(1, 2)),
        sample("f32[2, 4, 3]", "f32[4, 1]", "f32[1, 4, 1]", axes=(1,)),
    )

    def reference(self, x: Array, *given: Array) -> Array:
        wide = widen(x)
        centred = wide - np.mean(wide, axis=self.axes, keepdims=True)
        return narrow(self.divided(centred, given), from_numpy(x.dtype))


@dataclass(frozen=True)
class RmsNorm(_Norm):
    """x / sqrt(mean(x^2) + epsilon) * scale, rounded once; the mean is along `axes`.

    The scale is an optional operand that broadcasts to x.
    """

    same_signs = True
    parameters = 1
    samples = (
        sample("f32[4, 6]", axes=(1,)),
        sample("f32[2, 4, 6]", "f32[6]", axes=(-1,), epsilon=1e-6),
        sample("f16[2, 4, 6]", "f16[4, 6]", axes=(1, 2)),
    )

    def reference(self, x: Array, *given: Array) -> Array:
        return narrow(self.divided(widen(x), given), from_numpy(x.dtype))


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

    def operations(self, value: Value) -> float:
        """Return those of the attention to whole caches."""
        q, _, _, keys, values, *_ = value.inputs
        return self.attention.operations(self.attention(q, keys, values, value.inputs[COUNTS]))

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
