"""The peers of `decode_gpu`: one step of a Llama in torch, written as compactly as its users do.

Weights are random numbers on the device, the caches of one fixed length are written at the
position, and attention sees the rows that count: what torch is fastest with. The head ends in an
argmax, as ours does. In 4 bits, by torch's own packed product in groups of 128 (bf16 activations,
which it wants), the head as in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.decode_gpu_plain import PlainStep
from benchmarks.decoder_shapes import Shape
from benchmarks.gpu_timing import captured

Run = Callable[[], Any]
GROUP, INNER = 128, 8
"""Numbers to a scale, and the tiles along them that torch packs together."""
PLAIN = "torch eager, op by op"
EAGER, COMPILED, REDUCED = "torch eager", "torch.compile in a graph", "torch.compile less overhead"
FOUR_BITS = "torch.compile int4 in a graph"


class Linear(torch.nn.Module):
    """x W, W [n, k] of random numbers."""

    def __init__(self, n: int, k: int, place: torch.device, kind: torch.dtype) -> None:
        super().__init__()
        weight = torch.randn(n, k, device=place, dtype=kind) * k**-0.5
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Linear4(torch.nn.Module):
    """The same in 4 bits."""

    def __init__(self, n: int, k: int, place: torch.device, kind: torch.dtype) -> None:
        super().__init__()
        codes = torch.randint(0, 256, (n, k // 2), device=place, dtype=torch.uint8)
        self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack(codes, INNER))
        scales = torch.rand(k // GROUP, n, 2, device=place, dtype=kind) * (k**-0.5 / 4)
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm(x, self.codes, GROUP, self.scales)


class Step(torch.nn.Module):
    """One token through a Llama: state lies in the module, the length is known to the compiler."""

    def __init__(
        self, s: Shape, maximum: int, place: torch.device, kind: torch.dtype, four_bits: bool
    ) -> None:
        super().__init__()
        self.s, self.length = s, 1
        linear: Any = Linear4 if four_bits else Linear
        queries, keys = s.heads * s.head_size, s.groups * s.head_size
        self.table = torch.randn(s.vocab, s.width, device=place, dtype=kind)
        self.layers = torch.nn.ModuleList()
        for _ in range(s.layers):
            layer = torch.nn.Module()
            layer.norms = torch.ones(2, s.width, device=place, dtype=kind)
            layer.qkv = linear(queries + 2 * keys, s.width, place, kind)
            layer.o = linear(s.width, queries, place, kind)
            layer.up = linear(2 * s.hidden, s.width, place, kind)
            layer.down = linear(s.width, s.hidden, place, kind)
            layer.register_buffer(
                "cache", torch.zeros(2, 1, s.groups, maximum, s.head_size, device=place, dtype=kind)
            )
            self.layers.append(layer)
        self.norm = torch.ones(s.width, device=place, dtype=kind)
        self.head = Linear(s.vocab, s.width, place, kind)
        steps = torch.arange(0, s.head_size, 2, device=place) / s.head_size
        angles = torch.outer(torch.arange(maximum, device=place), s.theta**-steps)
        self.cos, self.sin = angles.cos().to(kind), angles.sin().to(kind)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        s = self.s
        x = self.table[token]
        cos, sin = self.cos[position], self.sin[position]
        for layer in self.layers:
            y = layer.qkv(F.rms_norm(x, (s.width,), layer.norms[0], s.epsilon))
            heads = y.view(1, -1, 1, s.head_size)
            q, k, v = heads.split([s.heads, s.groups, s.groups], 1)
            keys, values = layer.cache[0], layer.cache[1]
            keys.index_copy_(2, position, _turned(k, cos, sin))
            values.index_copy_(2, position, v)
            y = F.scaled_dot_product_attention(
                _turned(q, cos, sin),
                keys[:, :, : self.length],
                values[:, :, : self.length],
                enable_gqa=True,
            )
            x = x + layer.o(y.reshape(1, -1))
            y = layer.up(F.rms_norm(x, (s.width,), layer.norms[1], s.epsilon))
            gate, up = y.chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return self.head(F.rms_norm(x, (s.width,), self.norm, s.epsilon)).argmax(-1)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def contenders(
    s: Shape, form: str, maximum: int, dry: bool
) -> Iterator[tuple[str, Callable[[], Callable[[int], Run]]]]:
    """Names, and what makes a step at a position for each; the quickest to make come first."""
    place = torch.device("cpu" if dry else "cuda")
    kept: dict[bool, Step] = {}

    def step(four_bits: bool) -> Step:
        if four_bits not in kept:
            half = torch.bfloat16 if four_bits else torch.float16
            kept[four_bits] = Step(s, maximum, place, torch.float32 if dry else half, four_bits)
        return kept[four_bits]

    def eager() -> Callable[[int], Run]:
        return lambda position: _called(step(False), step(False), position, place)

    def plain() -> Callable[[int], Run]:
        own = PlainStep(s, maximum, place, torch.float32 if dry else torch.float16)
        return lambda position: _called(own, own, position, place)

    def compiled(mode: str | None, four_bits: bool = False) -> Callable[[], Callable[[int], Run]]:
        def make() -> Callable[[int], Run]:
            own = step(four_bits)
            # Without a device only the form of it is tried: no C++ compiler is needed then.
            model = (
                torch.compile(own, backend="eager")
                if dry
                else torch.compile(own, mode=mode, dynamic=False)
            )

            def at(position: int) -> Run:
                run = _called(own, model, position, place)
                return run if dry or mode else _in_graph(run)

            return at

        return make

    yield EAGER, eager
    yield PLAIN, plain
    if form.startswith("int4") and not dry:
        yield FOUR_BITS, compiled(None, four_bits=True)
    yield COMPILED, compiled(None)
    if not form.startswith("int4"):
        yield REDUCED, compiled("reduce-overhead")


def _called(own: Step | PlainStep, model: Any, position: int, place: torch.device) -> Run:
    token = torch.zeros(1, dtype=torch.int64, device=place)
    at = torch.full((1,), position, dtype=torch.int64, device=place)

    def run() -> Any:
        own.length = position + 1
        with torch.no_grad():
            return model(token, at)

    for _ in range(3):
        run()
    return run


class Replayed:
    """A run in a graph, with what the graph reads: a graph itself keeps none of it."""

    def __init__(self, run: Run) -> None:
        self.run, self.graph = run, captured(run)

    def __call__(self) -> None:
        self.graph.replay()


def _in_graph(run: Run) -> Run:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    return Replayed(run)
