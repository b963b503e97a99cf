"""Steps of decoding whose caches are no inputs but views of some, or made by other kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from monograph.ir import Array, Graph, Value, constant, unpack
from monograph.ops.composite import DecodeAttention
from monograph.ops.elementwise import Mul
from monograph.ops.shape import Broadcast, Reshape, Slice, Transpose
from tests.cpu.against import feeds_for
from tests.rules.checks import graph_of, value

B, H, G, T, D = 2, 4, 2, 20, 16
SHAPE = (B, G, T, D)

MADE: dict[str, tuple[tuple[int, ...], Callable[[Value], Value]]] = {
    "transpose": ((B, T, G, D), Transpose((0, 2, 1, 3))),
    "reshape": ((B * G, T, D), Reshape(SHAPE)),
    "slice": ((B, G, T + 9, D), Slice((0, 0, 3, 0), (B, G, T + 3, D), (1, 1, 1, 1))),
    "broadcast": ((1, G, T, D), Broadcast(SHAPE)),
    "slice of a transpose": (
        (T + 1, B, G, D),
        lambda x: Slice((0, 0, 1, 0), (B, G, T + 1, D), (1,) * 4)(Transpose((1, 2, 0, 3))(x)),
    ),
    "computed": (SHAPE, lambda x: Mul()(x, constant(np.float32(2)))),
}
"""The operands of each cache, and the function that makes it."""


def viewed(name: str) -> Graph:
    """A step whose caches are made in this way."""
    shape, made = MADE[name]
    q = value(f"f32[{B}, {H}, 1, {D}]", "q")
    k, v = (value(f"f32[{B}, {G}, 1, {D}]", n) for n in "kv")
    text = ", ".join(map(str, shape))
    caches = [made(value(f"f32[{text}]", n)) for n in ("past_k", "past_v")]
    starts, lengths = (value(f"i64[{B}]", n) for n in ("starts", "lengths"))
    return graph_of(*unpack(DecodeAttention(0.25)(q, k, v, *caches, starts, lengths)))


def donated_view() -> Graph:
    """A step whose new keys may take the memory of an input that the old ones lie across."""
    q, k, v = (value("f32[1, 3, 1, 16]", n) for n in "qkv")
    past, values = (value("f32[1, 3, 3, 16]", n) for n in ("past", "values"))
    starts, lengths = (value("i64[1]", n) for n in ("starts", "lengths"))
    old = Transpose((0, 2, 1, 3))(past)
    step = DecodeAttention(0.25)(q, k, v, old, values, starts, lengths)
    return replace(graph_of(*unpack(step)), donations=(("y1", "past"), ("y2", "values")))


def some(graph: Graph, starts: list[int]) -> dict[str, Array]:
    at = np.array(starts)
    return {**feeds_for(graph), "starts": at, "lengths": at + 1}
