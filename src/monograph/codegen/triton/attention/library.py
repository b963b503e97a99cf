"""Attention by torch's kernels, as candidates beside the generated ones."""

from __future__ import annotations

from typing import Any

from monograph.codegen.triton.matmul.library import destination, viewed
from monograph.codegen.triton.module.kernel import Call, Candidate, GpuContext, Work
from monograph.ir import Value
from monograph.ir.dtype import bf16, f16
from monograph.ops.attention import Attention
from monograph.program.memory.strided import Strided, strided


def attentions(context: GpuContext) -> list[Candidate]:
    """Return a library's attention, for plain cases.

    Not with a mask, and not if `causal` hides all keys from a query: torch's kernels disagree about
    fully masked queries.
    """
    anchor = context.step.region.anchor
    assert anchor is not None
    op, (q, k, v, *_) = anchor.op, anchor.inputs
    assert isinstance(op, Attention)
    square = q.tensor.static[2] == k.tensor.static[2]
    plain = not op.extra and not op.window and not op.softcap and (square or not op.causal)
    if not plain or anchor.dtype not in (f16, bf16) or q.tensor.static[3] != v.tensor.static[3]:
        return []
    found = [strided(x, context.program.places.storage) for x in (q, k, v)]
    views = [f for f in found if f is not None]
    if len(views) < 3:
        return []
    return [Candidate("library attention", lambda: _attention(context, anchor, views))]


def _attention(context: GpuContext, anchor: Value, views: list[Strided]) -> tuple[Work, ...]:
    op, storage = anchor.op, context.program.places.storage
    assert isinstance(op, Attention)
    see = [
        viewed(x.tensor.static, f.strides, f.offset - storage[f.source].offset)
        for x, f in zip(anchor.inputs, views, strict=True)
    ]
    shape, scale, causal = anchor.tensor.static, op.scale, op.causal
    shared = anchor.inputs[0].tensor.static[1] != anchor.inputs[1].tensor.static[1]

    def attend(q: Any, k: Any, v: Any, out: Any) -> None:
        import torch

        made = torch.nn.functional.scaled_dot_product_attention(
            *(view(x) for view, x in zip(see, (q, k, v), strict=True)),
            is_causal=causal,
            scale=scale,
            enable_gqa=shared,
        )
        out.view(-1)[: anchor.tensor.size].view(shape).copy_(made)

    result, finish = destination(context)
    return (Call("attention", (*(f.source for f in views), result), attend), *finish)
