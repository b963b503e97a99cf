"""Parts that decoders of both styles share."""

from __future__ import annotations

import numpy as np

from benchmarks.decoder_shapes import Shape
from benchmarks.decoder_writer import Writer

QUERY_GAIN = 3.0
"""Sharpens attention: an even mean over random values would be the same for every token."""
HEAD_GAIN = 4.0
"""Spreads the logits as a trained head does."""


def rotary_tables(w: Writer, s: Shape) -> tuple[str, str]:
    """Cosines and sines [context, head_size / 2]."""
    steps = np.arange(0, s.head_size, 2) / s.head_size
    angles = np.outer(np.arange(s.context), s.theta**-steps)
    tables = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    cos, sin = (w.tensor(name, t.astype(w.float_numpy)) for name, t in tables.items())
    return cos, sin


def gelu(w: Writer, x: str) -> str:
    """The tanh form."""
    return w.node("Gelu", x, approximate="tanh")


def mlp(w: Writer, s: Shape, name: str, x: str) -> str:
    """The layer's second half: gated by SiLU or GELU, or GPT-2's two products."""
    if s.family == "gpt2":
        y = w.linear(x, name, s.width, {"fc": s.hidden}, bias=True)
        y = gelu(w, y)
        return w.linear(y, name, s.hidden, {"proj": s.width}, bias=True)
    gate = w.linear(x, name, s.width, {"gate_proj": s.hidden})
    up = w.linear(x, name, s.width, {"up_proj": s.hidden})
    if s.family == "gemma2":
        gate = gelu(w, gate)
    else:
        gate = w.node("Mul", gate, w.node("Sigmoid", gate))
    return w.linear(w.node("Mul", gate, up), name, s.hidden, {"down_proj": s.width})
