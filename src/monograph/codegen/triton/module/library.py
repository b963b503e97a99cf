"""Calls of libraries as plain data: a name, and options that JSON can hold.

A process that finds its programs on disk makes the same calls from the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

View: TypeAlias = Sequence[Any]
"""The shape, the strides and the offset of an operand in the memory of its source."""


@dataclass(frozen=True, eq=False)
class LibraryCall:
    """A function of a library with all but the tensors."""

    name: str
    options: Mapping[str, Any]

    def __call__(self, *tensors: Any) -> None:
        FUNCTIONS[self.name](*tensors, **self.options)


def _viewed(t: Any, view: View) -> Any:
    shape, strides, offset = view
    return t.as_strided(shape, strides, t.storage_offset() + offset)


def _dense(t: Any, shape: Sequence[int]) -> Any:
    return t.view(-1)[: math.prod(shape)].view(shape)


def multiply(
    x: Any, y: Any, out: Any, *, left: View, right: View, shape: Sequence[int], tf32: bool
) -> None:
    """Multiply matrices into memory of ours."""
    import torch

    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        torch.matmul(_viewed(x, left), _viewed(y, right), out=_dense(out, shape))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept


def attend(
    *tensors: Any, views: Sequence[View], shape: Sequence[int], causal: bool, scale: Any, gqa: bool
) -> None:
    """Compute attention; its result is copied into memory of ours."""
    import torch

    *operands, out = tensors
    made = torch.nn.functional.scaled_dot_product_attention(
        *(_viewed(x, view) for view, x in zip(views, operands, strict=True)),
        is_causal=causal,
        scale=scale,
        enable_gqa=gqa,
    )
    _dense(out, shape).copy_(made)


def convolve(
    image: Any,
    weights: Any,
    out: Any,
    *,
    views: Sequence[View],
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    tf32: bool,
) -> None:
    """Convolve into memory of ours; through the library's own if it can only allocate."""
    import torch

    x, w, y = (_viewed(t, v) for t, v in zip((image, weights, out), views, strict=True))
    if y.is_cuda and torch.version.hip is None:
        torch.ops.aten.cudnn_convolution.out(
            x, w, padding, stride, dilation, groups, True, False, tf32, out=y
        )
        return
    function = torch.nn.functional.conv3d if len(stride) == 3 else torch.nn.functional.conv2d
    y.copy_(function(x, w, None, stride, padding, dilation, groups))


FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "matmul": multiply,
    "attention": attend,
    "conv": convolve,
}
"""The functions by name."""
