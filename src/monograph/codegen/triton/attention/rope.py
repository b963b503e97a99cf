"""Rotary embedding and cache updates as map kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.elements import BlockAxis, TritonElements
from monograph.codegen.triton.emit.indexed_load import coordinates, write
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, each
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    TritonFault,
    kernel_for,
)
from monograph.ir import Value
from monograph.ir.dtype import i64
from monograph.ops.attention import CacheUpdate, Rope
from monograph.ops.scalar import Scalar
from monograph.program.index import Index, kept_counter


@kernel_for(CacheUpdate, Rope, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    if isinstance(anchor.op, Rope):
        return each(context, _turned)
    if context.program.in_place(context.step):
        return [
            Candidate(f"rows {block}", lambda b=block: (_rows(context, b),))  # type: ignore[misc]
            for block in (256, 512, 128, 1024)
        ]
    return each(context, _updated)


def element(e: TritonElements, value: Value, texts: Sequence[str], mask: str | None) -> Scalar:
    """Return an operand's element at indices that are expressions, in register form."""
    shape = value.tensor.static
    counters = [kept_counter(f"o{i}", d) for i, d in enumerate(shape)]
    nest = [(c, text) for c, text, d in zip(counters, texts, shape, strict=True) if d != 1]
    at = tuple(
        Index() if d == 1 else Index(0, ((c, 1),)) for c, d in zip(counters, shape, strict=True)
    )
    return e.element(value, at, {c: BlockAxis(text, mask, True) for c, text in nest})


def _turned(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.step.region.anchor
    assert anchor is not None
    assert isinstance(anchor.op, Rope)
    numbers = [t.point[t.counter(d)].text for d in range(4)]
    made = turn(t.elements, anchor.op, anchor.inputs, numbers, mask)
    return t.elements.scalars.encoded(made)


def turn(
    e: TritonElements, op: Rope, operands: Sequence[Value], numbers: Sequence[str], mask: str | None
) -> Scalar:
    """Rotate elements of x[B, H, S, D] by cos and sin."""
    (x, cos, sin), w = operands, e.w
    batch, head, place, number = numbers
    half, size = cos.tensor.static[2], x.tensor.static[3]
    if op.interleaved:
        pair = w.let(f"({number}) // 2", "pp")
        second = w.let(f"({number}) % 2 == 1", "m")
        other = w.let(f"tl.where({second}, {number} - 1, {number} + 1)", "n")
    else:
        second = w.let(f"{number} >= {half}", "m")
        pair = w.let(f"tl.where({second}, {number} - {half}, {number})", "pp")
        other = w.let(f"tl.where({second}, {number} - {half}, {number} + {half})", "n")
    turned = None
    if 2 * half < size:
        turned = w.let(f"{number} < {2 * half}", "m")
    inside = " & ".join(m for m in (mask, turned) if m) or None
    inside = w.let(inside, "m") if inside else None
    scalars, wide = e.scalars, accumulator(x.dtype)
    own = scalars.cast(element(e, x, numbers, mask), wide)
    partner = scalars.cast(element(e, x, [batch, head, place, other], inside), wide)
    c = scalars.cast(element(e, cos, [batch, place, pair], inside), wide)
    s = scalars.cast(element(e, sin, [batch, place, pair], inside), wide)
    kind = types.register(wide)
    signed = Scalar(Reg(w.let(f"tl.where({second}, {s.reg}, -{s.reg})"), kind), wide)
    made = scalars.add(scalars.mul(own, c), scalars.mul(partner, signed))
    if turned:
        made = Scalar(Reg(w.let(f"tl.where({turned}, {made.reg}, {own.reg})"), kind), wide)
    return scalars.cast(made, x.dtype)


def _updated(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the rows of the update at their positions, and x elsewhere."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, (x, update, starts), w = anchor.op, anchor.inputs, k.w
    assert isinstance(op, CacheUpdate)
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    size, rows = x.tensor.static[op.axis], update.tensor.static[op.axis]
    loaded = t.elements.scalars.cast(element(t.elements, starts, texts[:1], mask), i64)
    start = w.let(f"{loaded.reg}", "start")
    if op.circular:
        row = w.let(f"(({texts[op.axis]} - {start}) % {size} + {size}) % {size}", "row")
    else:
        row = w.let(f"{texts[op.axis]} - {start}", "row")
        wrong = w.let(f"({start} < 0) | ({start} + {rows} > {size})", "m")
        reported = w.let(f"{wrong} & {mask}" if mask else wrong, "m")
        if rows:
            fault = TritonFault("rows are written out of bounds", f"0..{size - rows}")
            k.report(fault, reported, start)
    own = t.elements.scalars.encoded(element(t.elements, x, texts, mask))
    if not rows:
        return own
    fresh = w.let(f"({row} >= 0) & ({row} < {rows})", "m")
    inside = w.let(f"{fresh} & {mask}" if mask else fresh, "m")
    moved = [*texts[: op.axis], row, *texts[op.axis + 1 :]]
    written = t.elements.scalars.encoded(element(t.elements, update, moved, inside))
    return w.let(f"tl.where({fresh}, {written}, {own})")


def _rows(context: GpuContext, block: int) -> Launch:
    """Write only the rows of an update: the result is in place over the cache."""
    anchor = context.step.region.anchor
    assert anchor is not None
    op, (x, update, starts) = anchor.op, anchor.inputs
    assert isinstance(op, CacheUpdate)
    k = context.kernel()
    e, w, shape = k.elements(), k.w, update.tensor.static
    count, size, rows = math.prod(shape), x.tensor.static[op.axis], shape[op.axis]
    flat = w.let(f"{k.program_id()} * {block} + tl.arange(0, {block})", "i")
    mask = w.let(f"{flat} < {count}", "m")
    numbers = coordinates(w, flat, shape)
    k.wait()
    start = w.let(f"{e.scalars.cast(element(e, starts, numbers[:1], mask), i64).reg}", "start")
    place = w.let(f"{start} + {numbers[op.axis]}", "row")
    if op.circular:
        place = w.let(f"({place} % {size} + {size}) % {size}", "row")
    else:
        wrong = w.let(f"(({start} < 0) | ({start} + {rows} > {size})) & {mask}", "m")
        k.report(TritonFault("rows are written out of bounds", f"0..{size - rows}"), wrong, start)
        mask = w.let(f"{mask} & ({place} >= 0) & ({place} < {size})", "m")
    written = element(e, update, numbers, mask)
    k.trigger()
    target = [*numbers[: op.axis], place, *numbers[op.axis + 1 :]]
    write(e, context.step.region.root, target, written, mask)
    return k.launch((-(-count // block),), 4)
