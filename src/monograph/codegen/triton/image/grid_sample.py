"""Grid sampling and deformable convolution: images read at positions that are data, in f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.common.registry import any_view
from monograph.codegen.common.sampling import combined, neighbours, number
from monograph.codegen.triton.emit.indexed_load import coordinates, read, register
from monograph.codegen.triton.emit.map_kernel import each
from monograph.codegen.triton.emit.scalar import TritonScalars
from monograph.codegen.triton.emit.tile import ResultTile
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter, kernel_for
from monograph.ir import Value
from monograph.ir.dtype import f64
from monograph.ops.deform import DeformConv
from monograph.ops.image import GridSample
from monograph.ops.interpolate import LINEAR, MIRROR, REFLECT, ZEROS
from monograph.ops.scalar import Scalar

Taps = list[tuple[str, Scalar]]
"""The elements of one axis that a position reads, with their weights."""


def serves(anchor: Value) -> bool:
    if not isinstance(anchor.op, (GridSample, DeformConv)):
        return False
    return 0 not in anchor.inputs[0].tensor.static


@kernel_for(GridSample, DeformConv, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    return each(context, _sampled if isinstance(anchor.op, GridSample) else _deformed)


def whole(w: Writer, text: str) -> Scalar:
    """Integers as f64."""
    return register(w, f"({text}).to(tl.float64)", f64)


def taps(s: TritonScalars, place: Scalar, size: int, mode: str, outside: str) -> Taps:
    """Return the elements that a position on an axis reads, with their weights."""
    near = neighbours(s, place, size, mode, outside)
    whole = [(s.w.let(f"{at.reg}.to(tl.int64)", "n"), weight) for at, weight in near]
    return [(_within(s.w, at, size, outside), weight) for at, weight in whole]


def _within(w: Writer, at: str, size: int, outside: str) -> str:
    """Map a position outside of an axis back into it."""
    if outside not in (REFLECT, MIRROR) or (outside == MIRROR and size == 1):
        return w.let(f"tl.minimum(tl.maximum({at}, 0), {size - 1})", "n")
    period = 2 * size if outside == REFLECT else 2 * size - 2
    rest = w.let(f"({at} % {period} + {period}) % {period}", "n")
    turned = period - 1 if outside == REFLECT else period
    return w.let(f"tl.where({rest} < {size}, {rest}, {turned} - {rest})", "n")


def weighted(
    t: ResultTile, value: Value, lead: Sequence[str], axes: Sequence[Taps], mask: str | None
) -> Scalar:
    """The sum over all combinations of taps."""
    s = t.elements.scalars
    return combined(
        s, axes, lambda places: s.cast(read(t.elements, value, [*lead, *places], mask), f64)
    )


def _sampled(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, (x, grid), s = anchor.op, anchor.inputs, t.elements.scalars
    assert isinstance(op, GridSample)
    n, c, *place = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    sizes = x.tensor.static[2:]
    turned = MIRROR if op.align_corners and op.outside == REFLECT else op.outside
    axes = []
    for i, size in enumerate(sizes):
        g = s.cast(read(t.elements, grid, [n, *place, str(len(sizes) - 1 - i)], mask), f64)
        g = s.add(g, number(s, 1))
        if op.align_corners:
            at = s.mul(s.div(g, number(s, 2)), number(s, size - 1))
        else:
            at = s.div(s.sub(s.mul(g, number(s, size)), number(s, 1)), number(s, 2))
        axes.append(taps(s, at, size, op.mode, turned))
    return s.encoded(s.cast(weighted(t, x, [n, c], axes, mask), anchor.dtype))


def _deformed(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Compute each result separately: a loop over the channels and taps of its windows."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, (x, weights, offset, *scales), w = anchor.op, anchor.inputs, k.w
    assert isinstance(op, DeformConv)
    s, e = t.elements.scalars, t.elements
    n, o, *place = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    kernel, channels = weights.tensor.static[2:], x.tensor.static[1]
    terms, own = math.prod(kernel), channels // op.groups
    w.line(f"total = tl.zeros_like({n}).to(tl.float64)")
    total = register(w, "total", f64)
    group = w.let(f"({o}) // {max(t.shape[1] // op.groups, 1)}", "n")
    with w.block(f"for number in range({own * terms})"):
        channel = w.let(f"number // {terms}", "n")
        tap = w.let(f"number % {terms}", "n")
        at_kernel = coordinates(w, tap, kernel)
        c = w.let(f"{group} * {own} + {channel}", "n")
        entry = w.let(f"({c} // {channels // op.offset_groups}) * {terms} + {tap}", "n")
        axes = []
        for axis, step in enumerate(at_kernel):
            moved = read(e, offset, [n, f"({entry} * {len(kernel)} + {axis})", *place], mask)
            start = (
                f"({place[axis]}) * {op.strides[axis]} - {op.pads_begin[axis]}"
                f" + ({step}) * {op.dilations[axis]}"
            )
            at = s.add(s.cast(moved, f64), whole(w, start))
            axes.append(taps(s, at, x.tensor.static[2 + axis], LINEAR, ZEROS))
        found = weighted(t, x, [n, c], axes, mask)
        for scale in scales:
            found = s.mul(found, s.cast(read(e, scale, [n, entry, *place], mask), f64))
        spread = [w.let(f"{i} + ({o}) * 0", "n") for i in (channel, *at_kernel)]
        weight = s.cast(read(e, weights, [o, *spread], mask), f64)
        w.assign("total", str(s.add(total, s.mul(found, weight)).reg))
    return s.encoded(s.cast(total, anchor.dtype))
