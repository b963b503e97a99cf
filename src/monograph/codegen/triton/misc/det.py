"""Determinants: elimination with the largest pivot of each column, in f64, a matrix a lane."""

from __future__ import annotations

import math

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.indexed_load import joined, read, register
from monograph.codegen.triton.emit.tile import ResultTile, each
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    kernel_for,
)
from monograph.ir.dtype import f64
from monograph.ops.linear import Det

PARALLEL = 1024
"""The most matrices of a program, which also sizes its scratch memory."""


@kernel_for(Det, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _eliminated)[:1]


def _eliminated(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.step.region.anchor
    assert anchor is not None
    x, w, e = anchor.inputs[0], k.w, t.elements
    size = x.tensor.static[-1]
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    room = -(-max(math.prod(t.shape), 1) // PARALLEL) * PARALLEL
    memory = k.pointer(TritonScratch(max(room * size * size, 1) * 8, f64))
    # A matrix is contiguous: lanes never read what another one wrote, and threads that distribute
    # lanes differently from access to access wait for each other.
    own = joined(w, texts, t.shape) if texts else w.let("tl.program_id(0) * 0", "n")
    mask = mask if texts else None
    inside = f", mask={mask}" if mask else ""

    def at(i: str, j: str) -> str:
        return f"{memory} + {own} * {size * size} + ({i}) * {size} + ({j})"

    def get(i: str, j: str) -> str:
        name = w.name("x")
        w.line(f"{name} = tl.load({at(i, j)}{inside}{', other=0.0' if mask else ''})")
        return name

    def put(i: str, j: str, text: str) -> None:
        w.line(f"tl.store({at(i, j)}, {text}{inside})")

    with w.block(f"for i in range({size})"), w.block(f"for j in range({size})"):
        spread = [w.let(f"{n} + {own} * 0", "n") for n in ("i", "j")]
        found = e.scalars.cast(read(e, x, [*texts, *spread], mask), f64)
        put("i", "j", str(found.reg))
    w.line("tl.debug_barrier()")
    w.line(f"product = tl.full((), 1.0, tl.float64) + {own} * 0")
    with w.block(f"for k in range({size})"):
        w.line(f"best = tl.abs({get('k', 'k')})")
        w.line(f"row = k + {own} * 0")
        with w.block(f"for i in range(k + 1, {size})"):
            w.line(f"other = tl.abs({get('i', 'k')})")
            w.line("row = tl.where(other > best, i, row)")
            w.line("best = tl.where(other > best, other, best)")
        with w.block(f"for j in range(k, {size})"):
            upper, lower = get("k", "j"), get("row", "j")
            w.line("tl.debug_barrier()")
            put("row", "j", upper)
            put("k", "j", lower)
        w.line("tl.debug_barrier()")
        pivot = get("k", "k")
        # A column of zeros makes the product zero; the rest only has to stay finite.
        w.line(f"inverse = tl.where({pivot} == 0, 0.0, 1.0 / {pivot})")
        with w.block(f"for i in range(k + 1, {size})"):
            w.line(f"factor = {get('i', 'k')} * inverse")
            with w.block(f"for j in range(k + 1, {size})"):
                put("i", "j", f"{get('i', 'j')} - factor * {get('k', 'j')}")
        w.line("tl.debug_barrier()")
        w.line(f"product = product * tl.where(row == k, {pivot}, -{pivot})")
    made = register(w, "product", f64)
    return e.scalars.encoded(e.scalars.cast(made, anchor.dtype))
