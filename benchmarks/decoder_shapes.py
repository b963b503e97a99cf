"""Shapes of published decoders, and small ones of each family for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder. `family` is llama, qwen2, gemma2 or gpt2.

    `window` is the local window of every other layer (0: none); `softcap` and `final_softcap` bound
    the scores and the logits.
    """

    family: str
    width: int
    layers: int
    heads: int
    groups: int
    head_size: int
    hidden: int
    vocab: int
    context: int = 4096
    theta: float = 10000.0
    epsilon: float = 1e-6
    window: int = 0
    softcap: float = 0.0
    final_softcap: float = 0.0

    @property
    def rotary(self) -> bool:
        return self.family != "gpt2"

    @property
    def bias(self) -> bool:
        """Tell whether queries, keys and values have a bias."""
        return self.family in ("qwen2", "gpt2")

    def layer_window(self, layer: int) -> int:
        return self.window if layer % 2 == 0 else 0

    @property
    def parameters(self) -> int:
        """Numbers of the matrices that each token reads: all but the table of embeddings."""
        each = self.heads * self.head_size
        attention = self.width * (2 * each + 2 * self.groups * self.head_size)
        products = 2 if self.family == "gpt2" else 3
        mlp = products * self.width * self.hidden
        return self.layers * (attention + mlp) + self.width * self.vocab


SHAPES = {
    "llama-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128256, theta=500000.0, epsilon=1e-5),
    "llama-100m": Shape("llama", 768, 12, 12, 4, 64, 2048, 32000, 2048),
    "smollm2-135m": Shape("llama", 576, 30, 9, 3, 64, 1536, 49152, 8192, 100000.0, 1e-5),
    "qwen2-0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151936, theta=1000000.0),
    "gemma2-2b": Shape(
        "gemma2", 2304, 26, 8, 4, 256, 9216, 256000, 8192, window=4096, softcap=50.0,
        final_softcap=30.0,
    ),
    "gemma2-small": Shape(
        "gemma2", 512, 6, 4, 2, 128, 2048, 16384, 2048, window=256, softcap=50.0,
        final_softcap=30.0,
    ),
    "gpt2": Shape("gpt2", 768, 12, 12, 12, 64, 3072, 50257, 1024, epsilon=1e-5),
    "tiny-llama": Shape("llama", 128, 2, 4, 2, 32, 256, 512, 512),
    "tiny-qwen2": Shape("qwen2", 128, 2, 4, 2, 32, 256, 512, 512),
    "tiny-gemma2": Shape(
        "gemma2", 128, 2, 4, 2, 32, 256, 512, 512, window=16, softcap=50.0, final_softcap=30.0
    ),
    "tiny-gpt2": Shape("gpt2", 128, 2, 4, 4, 32, 512, 512, 512, epsilon=1e-5),
}  # fmt: skip


def shape_of(name: str) -> Shape:
    if name not in SHAPES:
        raise ValueError(f"no shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]


FREE = ("width", "layers", "heads", "groups", "head_size", "hidden", "vocab", "context", "window")
"""Settings that may differ from those of a published shape."""


def changed(shape: Shape, **changes: int | None) -> Shape:
    """A shape with other sizes; heads share the width, unless their size is told."""
    given: dict[str, Any] = {name: size for name, size in changes.items() if size is not None}
    if "heads" in given and "groups" not in given:
        given["groups"] = given["heads"] * shape.groups // shape.heads or 1
    if {"width", "heads"} & set(given) and "head_size" not in given:
        width, heads = given.get("width", shape.width), given.get("heads", shape.heads)
        if heads < 1 or width % heads:
            raise ValueError(f"{heads} heads do not share a width of {width}; give head_size")
        given["head_size"] = width // heads
    made = replace(shape, **given)
    if small := [n for n in FREE if getattr(made, n) < (0 if n == "window" else 1)]:
        raise ValueError(f"{', '.join(small)}: at least 1")
    if made.heads % made.groups:
        raise ValueError(f"{made.groups} groups do not share {made.heads} heads")
    if made.rotary and made.head_size % 2:
        raise ValueError(f"positions turn pairs of numbers: no head_size of {made.head_size}")
    return made
