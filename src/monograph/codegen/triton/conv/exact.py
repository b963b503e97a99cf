"""Transposed convolutions whose weights may not be finite: only existing products are computed.

A product of tiles also multiplies weights by the zeros between the elements of the image. That is 0
only for finite weights; for unknown weights each result is summed separately.
"""

from __future__ import annotations

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.map_kernel import each
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator
from monograph.codegen.triton.image.windows import WindowReader, dynamic, split_tap, window
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter
from monograph.ops.scalar import Scalar


def candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _summed)


def _summed(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the sum of each result, over the channels of its group and its taps in the image."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    g, w, s = window(anchor), k.w, t.elements.scalars
    rank, wide = len(t.shape), accumulator(anchor.dtype)
    texts = [t.point[t.counter(d)].text for d in range(rank)]
    spatial = range(1, rank - 1) if g.last else range(2, rank)
    result = texts[-1] if g.last else texts[1]
    reader = WindowReader(
        k, t, anchor.inputs[0], g, tuple(texts[d] for d in spatial), texts[0], mask
    )
    first = w.let(f"({result}) // {g.columns} * {g.channels}", "c")
    column = w.let(f"({result}) % {g.columns}", "n")
    w.line(f"acc = tl.zeros_like({result}).to({register_type(wide)})")

    with w.block(f"for j in range(0, {g.depth})"):
        channel = w.let(f"{first} + j // {g.taps}", "c")
        taps = split_tap(k, g, w.let(f"j % {g.taps}", "tap"))
        x, inside = reader.under(taps, channel, mask)
        y = dynamic(t, anchor.inputs[1], [channel, column, *taps], inside)
        a = s.cast(s.decoded(x, anchor.inputs[0].dtype), wide).reg
        b = s.cast(s.decoded(y, anchor.inputs[1].dtype), wide).reg
        w.line(f"acc += tl.where({inside}, {a} * {b}, 0)" if inside else f"acc += {a} * {b}")
    total = Scalar(Reg("acc", types.register(wide)), wide)
    return s.encoded(s.cast(total, anchor.dtype))
