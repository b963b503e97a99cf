"""Small kernels: counting numbers, and blocks laid over images."""

from __future__ import annotations

import numpy as np

from monograph.codegen.triton.each import Body, each
from monograph.codegen.triton.kernel import Candidate, GpuContext, KernelWriter
from monograph.codegen.triton.reading import joined, read, register
from monograph.codegen.triton.scalar import register_type
from monograph.codegen.triton.tile import Tile, accumulator
from monograph.ir import Value
from monograph.ops.extend import Iota
from monograph.ops.index import Col2Im


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, (Col2Im, Iota))


def readable(user: Value, index: int, operand: Value) -> bool:
    return True


def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    bodies: dict[type, Body] = {
        Col2Im: _laid_over,
        Iota: _counted,
    }
    return each(context, bodies[type(anchor.op)])


def _counted(k: KernelWriter, t: Tile, mask: str | None) -> str:
    return k.w.let(f"({t.point[t.counter(0)].text}).to(tl.int64)")


def _laid_over(k: KernelWriter, t: Tile, mask: str | None) -> str:
    """The sum of what each place of a block has for a pixel."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, x, w, e = anchor.op, anchor.inputs[0], k.w, t.elements
    assert isinstance(op, Col2Im)
    n, c, *pixel = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    counts, wide = op._counts(), accumulator(anchor.dtype)
    w.line(f"total = tl.zeros_like({n}).to({register_type(wide)})")
    total = register(w, "total", wide)
    for place in np.ndindex(*op.block):
        numbers, masks = [], [mask] if mask else []
        for d, at in enumerate(place):
            start = w.let(f"{pixel[d]} + {op.pads_begin[d] - at * op.dilations[d]}", "s")
            number = w.let(f"{start} // {op.strides[d]}", "n")
            masks.append(
                f"({start} >= 0) & ({start} % {op.strides[d]} == 0) & ({number} < {counts[d]})"
            )
            numbers.append(number)
        inside = w.let(" & ".join(f"({m})" for m in masks), "m")
        row = joined(w, [c, *map(str, place)], (x.tensor.static[1], *op.block))
        found = read(e, x, [n, row, joined(w, numbers, counts)], inside)
        w.assign("total", str(e.scalars.add(total, e.scalars.cast(found, wide)).reg))
    return e.scalars.encoded(e.scalars.cast(total, anchor.dtype))
