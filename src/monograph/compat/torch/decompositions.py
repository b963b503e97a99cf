"""Fused ops of torch that the exporter has no converter for, as functions of plain ops."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import gelu, layer_norm, linear, relu, scaled_dot_product_attention


def encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight: Any,
    norm_bias: Any,
    last_norm_weight: Any,
    last_norm_bias: Any,
    up_weight: Any,
    up_bias: Any,
    down_weight: Any,
    down_bias: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Return what `nn.TransformerEncoderLayer` computes for a batch without a mask."""
    if mask is not None:
        return NotImplemented

    def attend(x: Any) -> Any:
        qkv = linear(x, qkv_weight, qkv_bias)
        parts = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        mixed = scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        return linear(mixed, out_weight, out_bias)

    def feed_forward(x: Any) -> Any:
        wide = linear(x, up_weight, up_bias)
        return linear(gelu(wide) if use_gelu else relu(wide), down_weight, down_bias)

    def norm(x: Any) -> Any:
        return layer_norm(x, (width,), norm_weight, norm_bias, eps)

    def last_norm(x: Any) -> Any:
        return layer_norm(x, (width,), last_norm_weight, last_norm_bias, eps)

    if norm_first:
        x = x + attend(norm(x))
        return x + feed_forward(last_norm(x))
    x = norm(x + attend(x))
    return last_norm(x + feed_forward(x))
