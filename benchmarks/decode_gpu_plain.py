"""One step of a Llama in torch, op by op, as models are published: a peer of `decode_gpu`.

Every projection is a product of its own, norms are computed in f32 from elementary ops, rotations
turn halves of heads, keys and values are repeated for the heads that share them. Nothing is fused
by hand; `decode_gpu_torch` has the compact form.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.decoder_shapes import Shape


class PlainStep(torch.nn.Module):
    """One token: state lies in the module, as many rows as `length` says count."""

    def __init__(self, s: Shape, maximum: int, place: torch.device, kind: torch.dtype) -> None:
        super().__init__()
        self.s, self.length, self.place, self.kind = s, 1, place, kind
        self.table = torch.randn(s.vocab, s.width, device=place, dtype=kind)
        self.layers = torch.nn.ModuleList(self._layer(maximum) for _ in range(s.layers))
        self.norm = torch.ones(s.width, device=place, dtype=kind)
        self.head = self._linear(s.width, s.vocab)
        steps = torch.arange(0, s.head_size, 2, device=place) / s.head_size
        self.frequencies = s.theta**-steps

    def _linear(self, inputs: int, outputs: int) -> torch.nn.Linear:
        return torch.nn.Linear(inputs, outputs, bias=False, device=self.place, dtype=self.kind)

    def _layer(self, maximum: int) -> torch.nn.Module:
        s, layer = self.s, torch.nn.Module()
        queries, keys = s.heads * s.head_size, s.groups * s.head_size
        layer.norms = torch.ones(2, s.width, device=self.place, dtype=self.kind)
        layer.q, layer.o = self._linear(s.width, queries), self._linear(queries, s.width)
        layer.k, layer.v = self._linear(s.width, keys), self._linear(s.width, keys)
        layer.gate, layer.up = self._linear(s.width, s.hidden), self._linear(s.width, s.hidden)
        layer.down = self._linear(s.hidden, s.width)
        shape = (2, 1, s.groups, maximum, s.head_size)
        layer.register_buffer("cache", torch.zeros(shape, device=self.place, dtype=self.kind))
        return layer

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        s = self.s
        x = self.table[token][None]
        angles = position[:, None].float() * self.frequencies[None]
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(self.kind), angles.sin().to(self.kind)
        for layer in self.layers:
            y = self._normed(x, layer.norms[0])
            q, k, v = (
                linear(y).view(1, 1, -1, s.head_size).transpose(1, 2)
                for linear in (layer.q, layer.k, layer.v)
            )
            q, k = q * cos + _rotated(q) * sin, k * cos + _rotated(k) * sin
            layer.cache[0].index_copy_(2, position, k)
            layer.cache[1].index_copy_(2, position, v)
            keys, values = (self._repeated(c[:, :, : self.length]) for c in layer.cache)
            y = F.scaled_dot_product_attention(q, keys, values)
            x = x + layer.o(y.transpose(1, 2).reshape(1, 1, -1))
            y = self._normed(x, layer.norms[1])
            x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
        return self.head(self._normed(x, self.norm)).argmax(-1)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        variance = wide.pow(2).mean(-1, keepdim=True)
        return weight * (wide * torch.rsqrt(variance + self.s.epsilon)).to(x.dtype)

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        batch, groups, length, size = x.shape
        times = self.s.heads // groups
        wide = x[:, :, None].expand(batch, groups, times, length, size)
        return wide.reshape(batch, groups * times, length, size)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)
