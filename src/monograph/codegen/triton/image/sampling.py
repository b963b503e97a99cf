"""Images read at positions that are data: grid sampling, deformable convolution, RoI pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.common import types
from monograph.codegen.common.registry import any_view, has_elements
from monograph.codegen.common.scalar_functions import combined, neighbours, number
from monograph.codegen.triton.emit.scalar import TritonScalars, register_type
from monograph.codegen.triton.emit.tile import ResultTile, coordinates, each, read, register
from monograph.codegen.triton.emit.writer import Writer, literal
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonFault,
    kernel_for,
)
from monograph.ir import Value
from monograph.ir.dtype import f64, i64
from monograph.ops.conv import DeformConv
from monograph.ops.image import LINEAR, MIRROR, REFLECT, ZEROS, GridSample
from monograph.ops.roi import AVERAGE, MAX_SAMPLES, MaxRoiPool, RoiAlign
from monograph.ops.scalar import Scalar

Taps = list[tuple[str, Scalar]]
"""The elements of one axis that a position reads, with their weights."""


@kernel_for(GridSample, DeformConv, when=has_elements, readable=any_view)
def sample_candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _sampled if isinstance(context.anchor.op, GridSample) else _deformed)


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
    anchor = k.context.anchor
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
    anchor = k.context.anchor
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


@kernel_for(MaxRoiPool, RoiAlign, when=has_elements, readable=any_view)
def roi_candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _aligned if isinstance(context.anchor.op, RoiAlign) else _largest)


def _image(k: KernelWriter, index: Scalar, t: ResultTile, count: int, mask: str | None) -> str:
    """Return the number of a box's image; an invalid one is reported and replaced by 0."""
    w, found = k.w, str(t.elements.scalars.cast(index, i64).reg)
    wrong = w.let(f"({found} < 0) | ({found} >= {count})", "m")
    reported = w.let(f"{wrong} & {mask}" if mask else wrong, "m")
    k.report(TritonFault("a region of no image", f"0..{count - 1}"), reported, found)
    return w.let(f"tl.where({wrong}, 0, {found})", "n")


class _Axis:
    """The samples of the bins along an axis: their number, and the neighbours of each."""

    def __init__(
        self, k: KernelWriter, t: ResultTile, op: RoiAlign, bin_: str, ends: tuple[Scalar, Scalar],
        bins: int, size: int, mask: str | None,
    ) -> None:  # fmt: skip
        s, w = t.elements.scalars, k.w
        self.s, self.w, self.size = s, w, size
        start, end = ends
        length = s.sub(end, start)
        if not op.half_pixel:
            length = s.max(length, number(s, 1.0))
        step = s.div(length, number(s, bins))
        # Not finite, or too large to be meant.
        far = f"({step.reg} > {float(MAX_SAMPLES)}) | ({step.reg} < -1.7e308)"
        wrong = w.let(f"{far} | ({step.reg} != {step.reg})", "m")
        reported = w.let(f"{wrong} & {mask}" if mask else wrong, "m")
        fault = TritonFault("a region is not of this image", str(size))
        k.report(fault, reported, f"tl.where({wrong}, 0, 0)")
        tame = w.let(f"tl.where({wrong}, 0.0, {step.reg})")
        self.start, self.step, self.bin = start, register(w, tame, f64), bin_
        if op.ratio:
            self.samples = str(op.ratio)
        else:
            self.samples = w.let(f"tl.maximum(tl.ceil({tame}), 0.0).to(tl.int32)", "n")

    def at(self, sample: str) -> tuple[list[str], list[Scalar]]:
        """Return the two neighbours of a sample, with their weights."""
        s, w = self.s, self.w
        part = s.div(
            s.add(whole(w, sample), number(s, 0.5)),
            whole(w, f"tl.maximum({self.samples} + {self.bin} * 0, 1)"),
        )
        at = s.add(self.start, s.mul(s.add(whole(w, self.bin), part), self.step))
        inside = w.let(f"({at.reg} >= -1) & ({at.reg} <= {self.size})", "m")
        held = s.min(s.max(at, number(s, 0)), number(s, self.size - 1))
        low = s.floor(held)
        fraction = s.sub(held, low)
        first = w.let(f"{low.reg}.to(tl.int32)", "n")
        second = w.let(f"tl.minimum({first} + 1, {self.size - 1})", "n")
        weights = [
            register(w, f"tl.where({inside}, {x.reg}, 0.0)", f64)
            for x in (s.sub(number(s, 1), fraction), fraction)
        ]
        return [first, second], weights


def _aligned(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.anchor
    op, (x, rois, batch), w, e = anchor.op, anchor.inputs, k.w, t.elements
    assert isinstance(op, RoiAlign)
    s = e.scalars
    r, c, i, j = (t.point[t.counter(d)].text for d in range(4))
    image = _image(k, read(e, batch, [r], mask), t, x.tensor.static[0], mask)
    shift = number(s, 0.5 if op.half_pixel else 0.0)

    def corner(which: int) -> Scalar:
        found = s.cast(read(e, rois, [r, str(which)], mask), f64)
        return s.sub(s.mul(found, number(s, op.scale)), shift)

    rows, columns = x.tensor.static[2:]
    down = _Axis(k, t, op, i, (corner(1), corner(3)), op.sizes[0], rows, mask)
    across = _Axis(k, t, op, j, (corner(0), corner(2)), op.sizes[1], columns, mask)
    average = op.mode == AVERAGE
    w.line(f"total = {literal(0.0 if average else -math.inf, 'double')} + ({r}) * 0")
    w.line(f"row = ({r}) * 0")
    w.line(f"column = ({r}) * 0")
    masked = f" & {mask}" if mask else ""
    w.line(f"left = (row < {down.samples}) & (column < {across.samples}){masked}")
    with w.block("while tl.max(left.to(tl.int32), 0) > 0"):
        ys, wy = down.at("row")
        xs, wx = across.at("column")
        for a in range(2):
            for b in range(2):
                found = s.cast(read(e, x, [image, c, ys[a], xs[b]], "left"), f64)
                part = s.mul(s.mul(found, wy[a]), wx[b]).reg
                more = f"total + {part}" if average else f"tl.maximum(total, {part})"
                w.assign("total", f"tl.where(left, {more}, total)")
        w.assign("column", "column + 1")
        ended = w.let(f"column >= {across.samples}", "m")
        w.assign("row", f"tl.where({ended}, row + 1, row)")
        w.assign("column", f"tl.where({ended}, 0, column)")
        w.assign("left", f"left & (row < {down.samples})")
    count = f"(({down.samples}) * ({across.samples}))"
    if average:
        if op.ratio:
            made = f"total / {op.ratio * op.ratio}.0"
        else:
            made = f"total / tl.maximum({count}, 1).to(tl.float64)"
    else:
        made = "total" if op.ratio else f"tl.where({count} > 0, total, 0.0)"
    return s.encoded(s.cast(register(w, made, f64), anchor.dtype))


def _largest(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the maximum of a bin whose edges are whole elements; an empty one gives 0."""
    anchor = k.context.anchor
    op, (x, rois), w, e = anchor.op, anchor.inputs, k.w, t.elements
    assert isinstance(op, MaxRoiPool)
    s = e.scalars
    r, c, i, j = (t.point[t.counter(d)].text for d in range(4))
    image = _image(k, read(e, rois, [r, "0"], mask), t, x.tensor.static[0], mask)

    def corner(which: int) -> Scalar:
        scaled = s.mul(s.cast(read(e, rois, [r, str(which)], mask), f64), number(s, op.scale))
        size = s.floor(s.add(s.abs(scaled), number(s, 0.5)))
        return register(w, f"tl.where({scaled.reg} < 0, -{size.reg}, {size.reg})", f64)

    def bounds(first: int, last: int, bin_: str, bins: int, size: int) -> tuple[str, str]:
        start, end = corner(first), corner(last)
        length = s.max(s.add(s.sub(end, start), number(s, 1)), number(s, 1))
        step = s.div(length, number(s, bins))
        low = s.add(s.floor(s.mul(whole(w, bin_), step)), start)
        high = s.add(s.ceil(s.mul(whole(w, f"{bin_} + 1"), step)), start)
        return (_clipped(k, low, size), _clipped(k, high, size))

    top, bottom = bounds(2, 4, i, op.sizes[0], x.tensor.static[2])
    left, right = bounds(1, 3, j, op.sizes[1], x.tensor.static[3])
    dtype = x.dtype
    kind = types.register(dtype)
    w.line(f"best = tl.zeros_like({r}).to({register_type(dtype)}) + {literal(-math.inf, kind)}")
    w.line(f"row = {top}")
    w.line(f"column = {left}")
    w.line(f"inside = ({top} < {bottom}) & ({left} < {right})" + (f" & {mask}" if mask else ""))
    some = w.name("some")
    w.line(f"{some} = inside")
    best = register(w, "best", dtype)
    with w.block("while tl.max(inside.to(tl.int32), 0) > 0"):
        found = read(e, x, [image, c, "row", "column"], "inside")
        w.assign("best", f"tl.where(inside, {s.max(best, found).reg}, best)")
        w.assign("column", "column + 1")
        ended = w.let(f"column >= {right}", "m")
        w.assign("row", f"tl.where({ended}, row + 1, row)")
        w.assign("column", f"tl.where({ended}, {left}, column)")
        w.assign("inside", f"inside & (row < {bottom})")
    zero = literal(0, kind)
    return s.encoded(Scalar(w.set(kind, f"tl.where({some}, best, {zero})"), dtype))


def _clipped(k: KernelWriter, x: Scalar, size: int) -> str:
    """Return a position as a whole number from 0 to a size; NaN is 0."""
    held = f"tl.where({x.reg} > 0, tl.where({x.reg} < {size}, {x.reg}, {float(size)}), 0.0)"
    return k.w.let(f"({held}).to(tl.int32)", "n")
