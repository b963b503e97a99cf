"""NonZero: blocks count their elements, and write them after those of earlier blocks."""

from __future__ import annotations

import math

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.indexed_load import coordinates, read, register, write
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    TritonScratch,
    Work,
    kernel_for,
    single,
)
from monograph.ir import Item, Value
from monograph.ir.dtype import i32, i64
from monograph.ops.sort import NonZero
from monograph.program.dynamic.bounded import Counted, is_counted

BLOCK = 1024


def serves(anchor: Value) -> bool:
    return is_counted(anchor, NonZero) and anchor.inputs[0].tensor.size < 1 << 31


@kernel_for(Counted, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return single("blocks", lambda: _kernels(context))


def _kernels(context: GpuContext) -> tuple[Work, ...]:
    anchor = context.step.region.anchor
    assert anchor is not None
    parts = max(-(-anchor.inputs[0].tensor.size // BLOCK), 1)
    counts = TritonScratch(4 * parts, i32)
    return _counted(context, counts, parts), _written(context, counts, parts)


def _found(k: KernelWriter) -> tuple[str, str, list[str]]:
    """Return the numbers of a block's elements, their mask, and their coordinates."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    x, w = anchor.inputs[0], k.w
    shape = x.tensor.static
    number = w.let(f"{k.program_id()} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
    mask = w.let(f"{number} < {math.prod(shape)}", "m")
    at = coordinates(w, number, shape)
    k.wait()
    if not x.tensor.size:
        return number, mask, at
    value = read(k.elements(), x, at, mask)
    return number, w.let(f"({value.reg} != 0) & {mask}", "m"), at


def _counted(context: GpuContext, counts: TritonScratch, parts: int) -> Launch:
    k = context.kernel()
    _, found, _ = _found(k)
    k.trigger()
    total = k.w.let(f"tl.sum(({found}).to(tl.int32), 0)", "n")
    k.w.line(f"tl.store({k.pointer(counts)} + {k.program_id()}, {total})")
    return k.launch((parts,))


def _written(context: GpuContext, counts: TritonScratch, parts: int) -> Launch:
    """Write coordinates after those of earlier blocks; zeros after the last ones."""
    anchor = context.step.region.anchor
    assert anchor is not None
    k = context.kernel()
    w, e = k.w, k.elements()
    number, found, at = _found(k)
    for name in ("before", "total"):
        w.line(f"{name} = tl.full((), 0, tl.int32)")
    with w.block(f"for start in range(0, {parts}, {BLOCK})"):
        part = w.let(f"start + tl.arange(0, {BLOCK})", "i")
        each = w.let(f"tl.load({k.pointer(counts)} + {part}, mask={part} < {parts}, other=0)", "n")
        earlier = f"tl.where({part} < {k.program_id()}, {each}, 0)"
        w.assign("before", f"before + tl.sum({earlier}, 0)")
        w.assign("total", f"total + tl.sum({each}, 0)")
    ones = w.let(f"({found}).to(tl.int32)", "n")
    place = w.let(f"before + tl.cumsum({ones}, 0) - {ones}", "n")
    k.trigger()
    size = anchor.inputs[0].tensor.size
    for output in context.step.region.outputs:
        assert isinstance(output.op, Item)
        if output.op.index:
            write(e, output, [], register(w, "total.to(tl.int64)", i64), None)
            continue
        rest = w.let(f"({number} >= total) & ({number} < {size})", "m")
        for axis, text in enumerate(at):
            own = register(w, f"({text}).to(tl.int64)", i64)
            write(e, output, [str(axis), place], own, found)
            zero = register(w, f"({number} * 0).to(tl.int64)", i64)
            write(e, output, [str(axis), number], zero, rest)
    return k.launch((parts,))
