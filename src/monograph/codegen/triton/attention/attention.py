"""Attention in one pass over the keys (see `flash`); rotary embedding and cache updates.

Few rows and many keys (a decoding step) are split among programs by keys; a second kernel combines
the parts. Torch's attention is a candidate beside the generated kernels. Rotary embedding and cache
updates are map kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.attention.flash import AttentionSizes, Flash, FlashTiling, heads_of
from monograph.codegen.triton.emit.elements import BlockAxis, TritonElements
from monograph.codegen.triton.emit.tile import (
    ResultTile,
    accumulator,
    coordinates,
    each,
    register,
    write,
)
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.dot import BUSY, destination
from monograph.codegen.triton.module.kernel import (
    Call,
    Candidate,
    GpuContext,
    KernelWriter,
    TritonFault,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.module.library import LibraryCall
from monograph.ir import DType, Value
from monograph.ir.dtype import bf16, f16, f32, i64
from monograph.ops.attention import SINKS, Attention, CacheUpdate, Rope
from monograph.ops.scalar import Scalar
from monograph.program.index import Index, kept_counter
from monograph.program.memory.strided import Strided, strided


def attentions(context: GpuContext) -> list[Candidate]:
    """Return a library's attention, for plain cases.

    Not with a mask, and not if `causal` hides all keys from a query: torch's kernels disagree about
    fully masked queries.
    """
    anchor = context.anchor
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
        (x.tensor.static, f.strides, f.offset - storage[f.source].offset)
        for x, f in zip(anchor.inputs, views, strict=True)
    ]
    options = {
        "views": see,
        "shape": anchor.tensor.static,
        "causal": op.causal,
        "scale": op.scale,
        "gqa": anchor.inputs[0].tensor.static[1] != anchor.inputs[1].tensor.static[1],
    }
    attend = LibraryCall("attention", options)
    result, finish = destination(context)
    return (Call("attention", (*(f.source for f in views), result), attend), *finish)


@kernel_for(Attention, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.anchor
    h = heads_of(anchor.inputs)
    found = variants("flash", _configs(h.hint, anchor.dtype), partial(_flash, context, h))
    # Early enough for a fast search; never the default, which must not need a library.
    return [*found[:2], *attentions(context), *found[2:]]


def _configs(h: AttentionSizes, dtype: DType) -> list[FlashTiling]:
    wide = dtype.itemsize >= 4
    rows = [m for m in (64, 32, 16, 128) if m <= max(16, power(h.rows)) and not (wide and m > 64)]
    keys = [t for t in ((32, 16) if wide else (64, 32, 128)) if t <= max(16, power(h.keys))]
    found = []
    for m in rows:
        for t in keys or [16]:
            programs = h.batch * h.groups * -(-h.rows // m)
            splits = [s for s in (1, 2, 4, 8, 16, 32) if s == 1 or h.keys // s >= 2 * t]
            best = min(splits, key=lambda s: (abs(math.log2(max(programs * s, 1) / BUSY)), s))
            for split in dict.fromkeys((1 if programs >= BUSY // 4 else best, best, 1)):
                warps = 8 if m * t >= 128 * 128 else 4 if m * t >= 32 * 32 else 2
                found.append(FlashTiling(m, t, warps, 2, split))
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda c: _guess(h, c))


def _guess(h: AttentionSizes, c: FlashTiling) -> float:
    """Estimate the time, only to order the candidates."""
    programs = h.batch * h.groups * -(-h.rows // c.m) * c.split
    steps = -(-h.keys // (c.t * c.split))
    per = 0.5 + c.m * c.t * (h.size + h.width) * 2 / 4e6
    return -(-programs // BUSY) * (1 + steps * per) + (2 if c.split > 1 else 0)


def _flash(context: GpuContext, h: AttentionSizes, c: FlashTiling) -> tuple[Work, ...]:
    if c.split == 1:
        return (_over(context, c, None).launch(),)
    count = h.batch * h.groups * h.rows * c.split
    parts = TritonScratch(count * (h.width + 2) * 4, f32)
    return (_over(context, c, parts).launch(), _join(context, h, c, parts))


def _over(context: GpuContext, c: FlashTiling, parts: TritonScratch | None) -> Flash:
    anchor = context.anchor
    assert isinstance(anchor.op, Attention)
    return Flash(context, anchor.op, anchor.inputs, c, parts)


def _join(context: GpuContext, h: AttentionSizes, c: FlashTiling, parts: TritonScratch) -> Launch:
    """Combine the results of programs for their shares of the keys: one program per row."""
    kernel = _over(context, c, parts)
    k, w, t = kernel.k, kernel.w, kernel.t
    pointer = k.pointer(parts)
    count = h.batch * h.groups * h.rows
    row = k.program_id()
    split = power(c.split)
    part = w.let(f"tl.arange(0, {split})", "pp")
    mask = w.let(f"{part} < {c.split}", "m") if split != c.split else None
    k.wait()
    rest = count * c.split * h.width
    where = w.let(f"{part} * {count} + {row}")
    masked = f", mask={mask}, other=float('-inf')" if mask else ""
    top = w.let(f"tl.load({pointer} + {rest} + {where}{masked})", "top")
    none = f", mask={mask}, other=0" if mask else ""
    total = w.let(f"tl.load({pointer} + {rest + count * c.split} + {where}{none})", "total")
    most = w.let(f"tl.max({top}, 0)", "most")
    head = w.let(
        f"(({row} // {h.rows}) % {h.groups}) * {h.repeats} + ({row} % {h.rows}) // {h.queries}", "h"
    )
    sink = kernel.sink(head, "True") if SINKS in kernel.given else None
    if sink:
        most = w.let(f"tl.maximum({most}, {sink})", "most")
    safe = w.let(f'tl.where({most} == float("-inf"), 0, {most})')
    share = kernel.exp(w.let(f"{top} - {safe}"))
    weight = w.let(f"tl.sum({share} * {total}, 0)")
    if sink:
        weight = w.let(f"{weight} + {kernel.exp(w.let(f'{sink} - {safe}'))}")
    across = w.let(f"tl.arange(0, {kernel.width})", "e")
    beyond = w.let(f"{across} < {h.width}", "m") if kernel.width != h.width else None
    masks = [
        m for m in (f"{mask}[:, None]" if mask else "", f"{beyond}[None, :]" if beyond else "") if m
    ]
    inside = f", mask={' & '.join(masks)}, other=0" if masks else ""
    found = w.let(
        f"tl.load({pointer} + {where}[:, None] * {h.width} + {across}[None, :]{inside})", "x"
    )
    result = w.let(f"tl.sum({found} * {share}[:, None], 0) / {kernel.divisor(weight)}")
    k.trigger()
    t.axis(0, w.let(f"{row} // {h.groups * h.rows}"))
    t.axis(1, head)
    t.axis(2, w.let(f"{row} % {h.queries}"))
    t.axis(3, across, beyond)
    t.finish(result)
    return k.launch((count,), 4 if kernel.width * c.split >= 2048 else 1)


@kernel_for(CacheUpdate, Rope, readable=any_view)
def rope_candidates(context: GpuContext) -> list[Candidate]:
    if isinstance(context.anchor.op, Rope):
        return each(context, _turned)
    if context.program.in_place(context.step):
        return variants("rows", (256, 512, 128, 1024), partial(_rows, context))
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
    anchor = k.context.anchor
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
    signed = register(w, f"tl.where({second}, {s.reg}, -{s.reg})", wide)
    made = scalars.add(scalars.mul(own, c), scalars.mul(partner, signed))
    if turned:
        made = register(w, f"tl.where({turned}, {made.reg}, {own.reg})", wide)
    return scalars.cast(made, x.dtype)


def _updated(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the rows of the update at their positions, and x elsewhere."""
    anchor = k.context.anchor
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
    anchor = context.anchor
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
