"""Products by cuBLAS or hipBLASLt, through torch, as candidates.

They write into our memory and keep nothing between runs, so they can be captured like any kernel.
The epilogue is a separate kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monograph.codegen.triton.emit.tile import finish_from
from monograph.codegen.triton.module.kernel import (
    Argument,
    Call,
    Candidate,
    GpuContext,
    TritonScratch,
    Work,
)
from monograph.ir import Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.program.index import strides_of
from monograph.program.memory.strided import Strided, strided

TYPES = (f16, bf16, f32)


def products(context: GpuContext) -> list[Candidate]:
    """Return a library's product, if strides describe the operands."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    storage = context.program.places.storage
    found = [strided(v, storage) for v in anchor.inputs]
    if any(f is None for f in found) or {v.dtype for v in (*anchor.inputs, anchor)} - set(TYPES):
        return []
    views = [f for f in found if f is not None]
    return [Candidate("library matmul", lambda: _product(context, anchor, views))]


def _product(context: GpuContext, anchor: Value, views: list[Strided]) -> tuple[Work, ...]:
    storage = context.program.places.storage
    left, right = (
        viewed(v.tensor.static, f.strides, f.offset - storage[f.source].offset)
        for v, f in zip(anchor.inputs, views, strict=True)
    )
    shape = anchor.tensor.static
    tf32 = context.tf32

    def multiply(x: Any, y: Any, out: Any) -> None:
        import torch

        kept = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            torch.matmul(left(x), right(y), out=out.view(-1)[: anchor.tensor.size].view(shape))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = kept

    sources: tuple[Argument, ...] = tuple(f.source for f in views)
    result, finish = destination(context)
    return (Call("matmul", (*sources, result), multiply), *finish)


def destination(context: GpuContext) -> tuple[Argument, tuple[Work, ...]]:
    """Return the contiguous memory for a library's result, and the epilogue."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    if region.root is anchor and len(region.outputs) == 1 and _dense(context, anchor):
        return anchor, ()
    result = TritonScratch(anchor.tensor.nbytes, anchor.dtype)
    return result, (finish_from(context, result),)


def _dense(context: GpuContext, value: Value) -> bool:
    return context.program.places.storage[value].strides == strides_of(value.tensor.static)


def viewed(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Callable[[Any], Any]:
    """Return a function that views an operand in the memory of its source."""
    return lambda t: t.as_strided(shape, strides, t.storage_offset() + offset)
