"""Scatters: each element of the result finds its updates.

Few updates are scanned in order by every element that they might be for. For many updates that only
replace, the last one of each position is recorded first: the largest of their numbers, in whatever
order they arrive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.tile import ResultTile, coordinates, each, joined, read, tile
from monograph.codegen.triton.indexing.index_kernels import checked_index
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonFault,
    TritonScratch,
    Work,
    kernel_for,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Value
from monograph.ir.dtype import boolean, i32, i64
from monograph.ops.pool import MaxUnpool
from monograph.ops.scalar import Scalar
from monograph.ops.scatter import ScatterElements, ScatterNd

FEW = 64
"""The most updates that every element may scan."""
BLOCK = 256


def serves(anchor: Value) -> bool:
    """Return True if the operands' shapes are valid; otherwise the reference raises the error."""
    op = anchor.op
    if isinstance(op, MaxUnpool):
        x, indices = (v.tensor.static for v in anchor.inputs)
        return x == indices
    if not isinstance(op, (ScatterElements, ScatterNd)):
        return False
    x, indices, updates = (v.tensor.static for v in anchor.inputs)
    if isinstance(op, ScatterNd):
        return updates == (*indices[:-1], *x[indices[-1] :])
    fits = (b <= a for k, (a, b) in enumerate(zip(x, indices, strict=True)) if k != op.axis)
    return indices == updates and all(fits)


@kernel_for(MaxUnpool, ScatterElements, ScatterNd, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    """Return a scan of the updates, and for replacements also records of the last ones."""
    anchor = context.anchor
    scans = [] if isinstance(anchor.op, MaxUnpool) else _scans(context)
    if isinstance(anchor.op, (ScatterElements, ScatterNd)) and anchor.op.reduction != "none":
        return scans
    if not anchor.tensor.static:
        return scans
    recorded = [Candidate("last", partial(_last, context))]
    if not anchor.inputs[1].tensor.size:
        return scans or recorded
    few = bool(scans) and _through(anchor) <= FEW
    return [*scans, *recorded] if few else [*recorded, *scans]


def _scans(context: GpuContext) -> list[Candidate]:
    """Return scans, after a check of the indices: not every element should check every index."""
    return [
        Candidate(c.name, lambda c=c: (*_verified(context), *c.make()))  # type: ignore[misc]
        for c in each(context, _scanned)
    ]


def _verified(context: GpuContext) -> tuple[Work, ...]:
    """Reports indices that are out of range."""
    anchor = context.anchor
    (x, indices, _), op = anchor.inputs, anchor.op
    shape, sizes = indices.tensor.static, x.tensor.static
    lead, limits = shape[:-1], sizes[: shape[-1]]
    if isinstance(op, ScatterElements):
        lead, limits = shape, sizes[op.axis : op.axis + 1]
    count = math.prod(lead)
    if not count or not limits:
        return ()
    k = context.kernel()
    e = k.elements()
    number, mask = _flat(k, count)
    k.wait()
    at = coordinates(k.w, number, lead)
    for i, size in enumerate(limits):
        _index(k, e, indices, at if isinstance(op, ScatterElements) else [*at, str(i)], size, mask)
    k.trigger()
    return (k.launch((-(-count // BLOCK),)),)


def _through(anchor: Value) -> int:
    """Return the number of updates that a scan reads for each element."""
    indices = anchor.inputs[1].tensor.static
    if isinstance(anchor.op, ScatterElements):
        return indices[anchor.op.axis]
    return math.prod(indices[:-1])


def _index(
    k: KernelWriter, e: TritonElements, indices: Value, at: list[str], size: int, mask: str | None
) -> str:
    """An index counted from the front; one out of range is reported."""
    wide = e.scalars.cast(read(e, indices, at, mask), i64).reg
    return checked_index(k, str(wide), size, mask)


def _from_front(
    k: KernelWriter, e: TritonElements, indices: Value, at: list[str], size: int, mask: str | None
) -> str:
    """Return an index counted from the front; one out of range matches no element."""
    wide = e.scalars.cast(read(e, indices, at, mask), i64).reg
    return k.w.let(f"tl.where({wide} < 0, {wide} + {size}, {wide})", "n")


def _scanned(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the element of x, with all its updates applied in order."""
    anchor = k.context.anchor
    x, e, w = anchor.inputs[0], t.elements, k.w
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    mask = mask if texts else None
    start = read(e, x, texts, mask)
    zeros = f"tl.zeros_like({texts[0]})" if texts else "tl.full((), 0, tl.int32)"
    w.line(f"made = tl.where({zeros} == 0, {start.reg}, {start.reg})")
    made = Scalar(Reg("made", start.reg.type), x.dtype)
    with w.block(f"for number in range({_through(anchor)})"):
        mine, update = _update_for(k, e, anchor, texts, mask)
        result = _joined(e, anchor, made, update)
        w.assign("made", f"tl.where({mine}, {result.reg}, made)")
    return e.scalars.encoded(made)


def _update_for(
    k: KernelWriter, e: TritonElements, anchor: Value, texts: list[str], mask: str | None
) -> tuple[str, Scalar]:
    """Return whether an update is for an element, and its value."""
    op, (x, indices, updates), w = anchor.op, anchor.inputs, k.w
    sizes, shape = x.tensor.static, indices.tensor.static
    masks = [mask] if mask else []
    number = w.let(f"number + ({texts[0]}) * 0", "n") if texts else "number"
    if isinstance(op, ScatterElements):
        a = op.axis
        at = [*texts[:a], number, *texts[a + 1 :]]
        short = [d for d in range(len(sizes)) if d != a and shape[d] < sizes[d]]
        inside = " & ".join([*masks, *(f"({texts[d]} < {shape[d]})" for d in short)])
        inside_name = w.let(inside, "m") if inside else None
        index = _from_front(k, e, indices, at, sizes[a], inside_name)
        mine = w.let(f"({texts[a]} == {index})" + (f" & {inside_name}" if inside_name else ""), "m")
        return mine, read(e, updates, at, mine)
    *count, depth = shape
    own = coordinates(w, number, count)
    found = [_from_front(k, e, indices, [*own, str(i)], sizes[i], None) for i in range(depth)]
    same = [f"({texts[i]} == {n})" for i, n in enumerate(found)]
    mine = w.let(" & ".join([*masks, *same]) or "tl.full((), 1, tl.int1)", "m")
    return mine, read(e, updates, [*own, *texts[depth:]], mine)


def _joined(e: TritonElements, anchor: Value, old: Scalar, new: Scalar) -> Scalar:
    s, how = e.scalars, anchor.op.reduction  # type: ignore[attr-defined]
    if how == "none":
        return new
    if old.dtype == boolean:
        return s.or_(old, new) if how in ("add", "max") else s.and_(old, new)
    joins = {"add": s.add, "mul": s.mul, "min": s.min, "max": s.max}
    return joins[how](old, new)


@dataclass(frozen=True)
class _LastUpdates:
    """For each updated position: 1 + the number of the last update, or 0."""

    shape: tuple[int, ...]
    updates: int
    memory: TritonScratch

    @staticmethod
    def of(anchor: Value) -> _LastUpdates:
        indices = anchor.inputs[1].tensor.static
        shape, count = anchor.inputs[0].tensor.static, math.prod(indices)
        if isinstance(anchor.op, MaxUnpool):
            shape = tuple(max(int(d), 0) for d in anchor.op.pooled_shape(shape))
        elif isinstance(anchor.op, ScatterNd):
            shape, count = shape[: indices[-1]], math.prod(indices[:-1])
        return _LastUpdates(shape, count, TritonScratch(max(4 * math.prod(shape), 4), i32))


def _last(context: GpuContext) -> tuple[Work, ...]:
    last = _LastUpdates.of(context.anchor)
    return (
        _clear_kernel(context, last),
        _record_kernel(context, last),
        _result_kernel(context, last),
    )


def _flat(k: KernelWriter, size: int) -> tuple[str, str]:
    number = k.w.let(f"{k.program_id()} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
    return number, k.w.let(f"{number} < {size}", "m")


def _clear_kernel(context: GpuContext, last: _LastUpdates) -> Launch:
    k = context.kernel()
    size = math.prod(last.shape)
    number, mask = _flat(k, size)
    k.wait()
    k.trigger()
    k.w.line(f"tl.store({k.pointer(last.memory)} + {number}, 0, mask={mask})")
    return k.launch((-(-size // BLOCK),))


def _record_kernel(context: GpuContext, last: _LastUpdates) -> Launch:
    """Record every update at its position; the largest number stays."""
    anchor = context.anchor
    k = context.kernel()
    e, w, op, indices = k.elements(), k.w, anchor.op, anchor.inputs[1]
    number, mask = _flat(k, last.updates)
    k.wait()
    shape, sizes = indices.tensor.static, last.shape
    if isinstance(op, ScatterNd):
        own = coordinates(w, number, shape[:-1])
        found = [_index(k, e, indices, [*own, str(i)], sizes[i], mask) for i in range(len(sizes))]
        place = joined(w, found, sizes)
    elif isinstance(op, ScatterElements):
        at = coordinates(w, number, shape)
        index = _index(k, e, indices, at, sizes[op.axis], mask)
        place = joined(w, [*at[: op.axis], index, *at[op.axis + 1 :]], sizes)
    else:
        at = coordinates(w, number, shape)
        wide = e.scalars.cast(read(e, indices, at, mask), i64).reg
        place = _unpooled(k, str(wide), math.prod(sizes), mask)
    where = w.let(f"{k.pointer(last.memory)} + {place} + {number} * 0", "pp")
    w.line(f"tl.atomic_max({where}, {number} + 1, mask={mask})")
    k.trigger()
    return k.launch((-(-last.updates // BLOCK),))


def _unpooled(k: KernelWriter, index: str, size: int, mask: str) -> str:
    """Return an index that a pool computed: it is never negative."""
    wrong = k.w.let(f"({index} < 0) | ({index} >= {size})", "m")
    k.report(TritonFault("index out of range", f"0..{size - 1}"), f"({wrong} & {mask})", index)
    return k.w.let(f"tl.where({wrong}, 0, {index})", "n")


def _result_kernel(context: GpuContext, last: _LastUpdates) -> Launch:
    """Return each element: its last update, or x."""
    anchor = context.anchor
    k = context.kernel()
    t = tile(k)
    e, w, op = t.elements, k.w, anchor.op
    size = math.prod(t.shape)
    flat, mask = _flat(k, size)
    t.batch(flat, range(len(t.shape)), mask)
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    k.wait()
    depth = len(last.shape)
    inside = mask
    if isinstance(op, MaxUnpool):
        cut = [d for d in range(depth) if last.shape[d] < t.shape[d]]
        inside = w.let(" & ".join([mask, *(f"({texts[d]} < {last.shape[d]})" for d in cut)]), "m")
    at = joined(w, texts[:depth], last.shape)
    pointer = w.let(f"{k.pointer(last.memory)} + {at} + {flat} * 0", "pp")
    note = w.let(f"tl.load({pointer}, mask={inside}, other=0)", "n")
    fresh = w.let(f"{note} > 0", "m")
    source = anchor.inputs[0] if isinstance(op, MaxUnpool) else anchor.inputs[2]
    shape = source.tensor.static
    number = w.let(f"tl.maximum({note} - 1, 0)", "n")
    own = coordinates(w, number, shape[: len(shape) - len(t.shape) + depth])
    update = read(e, source, [*own, *texts[depth:]], fresh)
    if isinstance(op, MaxUnpool):
        old = e.scalars.constant(0, anchor.dtype)
    else:
        old = read(e, anchor.inputs[0], texts, w.let(f"{mask} & ({note} == 0)", "m"))
    kind = types.register(anchor.dtype)
    chosen = Scalar(w.set(kind, f"tl.where({fresh}, {update.reg}, {old.reg})"), anchor.dtype)
    k.trigger()
    t.finish_scalar(chosen)
    return k.launch((-(-size // BLOCK),))
