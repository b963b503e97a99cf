"""Small kernels: counting, table lookups, Col2Im."""

from __future__ import annotations

import numpy as np

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.indexed_load import joined, read, register, table
from monograph.codegen.triton.emit.map_kernel import Body, each
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator
from monograph.codegen.triton.emit.writer import literal
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonFault,
    kernel_for,
    single,
)
from monograph.ir import Value
from monograph.ops.ml import Lookup
from monograph.ops.pad_tile import Iota
from monograph.ops.scalar import Scalar
from monograph.ops.scatter import Col2Im
from monograph.program.legalise.lower_random import TakeTurn


def serves(anchor: Value) -> bool:
    op = anchor.op
    if isinstance(op, Lookup):
        return not (op.keys.dtype.is_string or op.values.dtype.is_string)
    return isinstance(op, (Col2Im, Iota, TakeTurn))


@kernel_for(Col2Im, Iota, Lookup, TakeTurn, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    if isinstance(anchor.op, TakeTurn):  # a single candidate: a measurement would advance the state
        return single("turn", each(context, _turn)[0].make)
    bodies: dict[type, Body] = {
        Col2Im: _laid_over,
        Iota: _counted,
        Lookup: _looked_up,
    }
    return each(context, bodies[type(anchor.op)])


def _counted(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    return str(t.elements.count(t.at[0], t.point).reg)


def _turn(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the number in an RNG state, which is advanced after every thread has read it."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    state = k.pointer(anchor.inputs[0])
    turn = k.w.let(f"tl.load({state})", "turn")
    k.w.line("tl.debug_barrier()")
    k.w.line(f"tl.store({state}, {turn} + 1)")
    return turn


def _looked_up(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the value under the last key that equals an element; a NaN equals a NaN."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, x, w, s = anchor.op, anchor.inputs[0], k.w, t.elements.scalars
    assert isinstance(op, Lookup)
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    mask = mask if texts else None
    given = read(t.elements, x, texts, mask)
    values = op.values.array if op.default is None else np.append(op.values.array, op.default.array)
    count = len(op.keys.array)
    w.line(f"place = {texts[0] if texts else 'tl.program_id(0)'} * 0 + {count}")
    if count:
        with w.block(f"for number in range({count})"):
            key = s.decoded(f"tl.load({table(k, op.keys.array)} + number)", x.dtype)
            same = f"({s.equal(given, key).reg})"
            if x.dtype.is_float:
                same += f" | (({given.reg} != {given.reg}) & ({key.reg} != {key.reg}))"
            w.assign("place", f"tl.where({same}, number, place)")
    if op.default is None:
        missing = w.let(f"(place == {count})" + (f" & {mask}" if mask else ""), "m")
        k.report(TritonFault("an element is not in the table"), missing, "place * 0")
        w.assign("place", f"tl.minimum(place, {max(count - 1, 0)})")
    found: Scalar = s.decoded(
        f"tl.load({table(k, values)} + place)" if len(values) else "place * 0", anchor.dtype
    )
    return s.encoded(found)


def _laid_over(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the sum of all block elements that cover a pixel."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
    op, x, w, e = anchor.op, anchor.inputs[0], k.w, t.elements
    assert isinstance(op, Col2Im)
    n, c, *pixel = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    counts, wide = op.block_counts(), accumulator(anchor.dtype)
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
        found = e.scalars.cast(read(e, x, [n, row, joined(w, numbers, counts)], inside), wide)
        own = register(w, f"tl.where({inside}, {found.reg}, {literal(0, found.reg.type)})", wide)
        w.assign("total", str(e.scalars.add(total, own).reg))
    return e.scalars.encoded(e.scalars.cast(total, anchor.dtype))
