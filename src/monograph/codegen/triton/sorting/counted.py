"""Ops whose result has a count that data decide: Unique and NonZero.

Unique compares each item with all others. The first of equal items leads them, and its position is
the number of leaders before it. NonZero counts per block, and each block writes its elements after
those of earlier blocks.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.tile import coordinates, read, register, write
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    Work,
    kernel_for,
    single,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.sorting.topk import ordered
from monograph.ir import Item, Value
from monograph.ir.dtype import i32, i64
from monograph.ops.sort import NonZero, Unique
from monograph.program.dynamic.bounded import Counted, is_counted

OWN, ABREAST = 32, 64
"""Items of a program, and those that it compares them with at once."""
VALUES, FIRST, INVERSE, COUNTS, TOTAL = range(5)


def serves_unique(anchor: Value) -> bool:
    return is_counted(anchor, Unique) and anchor.inputs[0].tensor.size < 1 << 31


@kernel_for(Counted, when=serves_unique, readable=any_view)
def unique_candidates(context: GpuContext) -> list[Candidate]:
    return single("all pairs", lambda: _UniqueProblem(context).kernels())


class _UniqueProblem:
    def __init__(self, context: GpuContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Counted)
        assert isinstance(anchor.op.of, Unique)
        self.context, self.op, self.x = context, anchor.op.of, anchor.inputs[0]
        shape, axis = self.x.tensor.static, self.op.axis
        self.items = math.prod(shape) if axis is None else shape[axis]
        self.rest = () if axis is None else tuple(d for i, d in enumerate(shape) if i != axis)
        self.width = math.prod(self.rest)
        self.firsts = TritonScratch(max(self.items, 1) * 4, i32)
        self.counts = TritonScratch(max(self.items, 1) * 4, i32)
        self.grid = (max(-(-self.items // OWN), 1),)

    def kernels(self) -> tuple[Work, ...]:
        return self._matched(), self._placed()

    def _at(self, k: KernelWriter, item: str, column: str) -> list[str]:
        """The coordinates of an element of an item."""
        if self.op.axis is None:
            return coordinates(k.w, item, self.x.tensor.static)
        found = coordinates(k.w, column, self.rest)
        return [*found[: self.op.axis], item, *found[self.op.axis :]]

    def _begin(self) -> tuple[KernelWriter, TritonElements, str, str]:
        k = self.context.kernel()
        e = k.elements()
        item = k.w.let(f"{k.program_id()} * {OWN} + tl.arange(0, {OWN})", "i")
        inside = k.w.let(f"{item} < {self.items}", "m")
        k.wait()
        return k, e, item, inside

    def _compared(
        self, k: KernelWriter, e: TritonElements, item: str, inside: str
    ) -> tuple[str, str]:
        """Load other items (a block from `start` on), and their mask; set `same` and `below`.

        `same`: another item equals one's own; `below`: it precedes it. All NaN are equal.
        """
        w = k.w
        other = w.let(f"start + tl.arange(0, {ABREAST})", "i")
        mask = w.let(f"{other} < {self.items}", "m")
        for name, text in (("same", 1), ("below", 0)):
            w.line(f"{name} = tl.full(({OWN}, {ABREAST}), {text}, tl.int1)")
        with w.block(f"for column in range({self.width})"):
            keys = []
            for number, where, size in ((other, mask, ABREAST), (item, inside, OWN)):
                x = read(e, self.x, self._at(k, number, "column"), where)
                # A constant of one element is read as a scalar.
                keys.append(f"tl.broadcast_to({ordered(w, e, x)}, ({size},))")
            theirs, mine = keys
            lower = f"({theirs}[None, :] < {mine}[:, None])"
            w.assign("below", f"below | (same & {lower})")
            w.assign("same", f"same & ({theirs}[None, :] == {mine}[:, None])")
        w.assign("below", f"below & {mask}[None, :]")
        w.assign("same", f"same & {mask}[None, :]")
        return other, mask

    def _matched(self) -> Launch:
        """Find, for each item, the first that equals it, and the number of equal ones."""
        k, e, item, inside = self._begin()
        w = k.w
        w.line(f"first = tl.full(({OWN},), {self.items}, tl.int32)")
        w.line(f"count = tl.full(({OWN},), 0, tl.int32)")
        with w.block(f"for start in range(0, {self.items}, {ABREAST})"):
            other, _ = self._compared(k, e, item, inside)
            places = f"tl.where(same, {other}[None, :], {self.items})"
            w.assign("first", f"tl.minimum(first, tl.min({places}, 1))")
            w.assign("count", "count + tl.sum(same.to(tl.int32), 1)")
        k.trigger()
        for scratch, name in ((self.firsts, "first"), (self.counts, "count")):
            w.line(f"tl.store({k.pointer(scratch)} + {item}, {name}, mask={inside})")
        return k.launch(self.grid)

    def _placed(self) -> Launch:
        """Store everything at its position among the unique items; zeros after them."""
        k, e, item, inside = self._begin()
        w = k.w
        firsts = k.pointer(self.firsts)
        first = w.let(f"tl.load({firsts} + {item}, mask={inside}, other=0)", "n")
        w.line(f"place = tl.full(({OWN},), 0, tl.int32)")
        w.line("total = tl.full((), 0, tl.int32)")
        with w.block(f"for start in range(0, {self.items}, {ABREAST})"):
            other, mask = self._compared(k, e, item, inside)
            theirs = w.let(f"tl.load({firsts} + {other}, mask={mask}, other=-1)", "n")
            leads = w.let(f"{theirs} == {other}", "m")
            before = "below" if self.op.sorted else f"({other}[None, :] < {first}[:, None])"
            counted = f"({before} & {leads}[None, :]).to(tl.int32)"
            w.assign("place", f"place + tl.sum({counted}, 1)")
            w.assign("total", f"total + tl.sum({leads}.to(tl.int32), 0)")
        k.trigger()
        self._results(k, e, item, inside, first)
        return k.launch(self.grid)

    def _results(
        self, k: KernelWriter, e: TritonElements, item: str, inside: str, first: str
    ) -> None:
        w = k.w
        leads = w.let(f"{inside} & ({first} == {item})", "m")
        rest = w.let(f"{inside} & ({item} >= total)", "m")
        zero = register(w, f"({item} * 0).to(tl.int64)", i64)
        for output in self.context.step.region.outputs:
            assert isinstance(output.op, Item)
            which = output.op.index
            if which == TOTAL:
                write(e, output, [], register(w, "total.to(tl.int64)", i64), None)
            elif which == INVERSE:
                write(e, output, [item], register(w, "place.to(tl.int64)", i64), inside)
            elif which == VALUES:
                self._values(k, e, output, item, (leads, rest))
            else:
                pointer = k.pointer(self.counts)
                count = f"tl.load({pointer} + {item}, mask={inside}, other=0)"
                text = w.let(item if which == FIRST else count, "n")
                write(e, output, ["place"], register(w, f"{text}.to(tl.int64)", i64), leads)
                write(e, output, [item], zero, rest)

    def _values(
        self, k: KernelWriter, e: TritonElements, output: Value, item: str, masks: tuple[str, str]
    ) -> None:
        w, (leads, rest) = k.w, masks
        with w.block(f"for column in range({self.width})"):
            x = read(e, self.x, self._at(k, item, "column"), leads)
            zero = e.scalars.constant(0, output.dtype)
            if self.op.axis is None:
                to, behind = ["place"], [item]
            else:
                to, behind = self._at(k, "place", "column"), self._at(k, item, "column")
            write(e, output, to, x, leads)
            write(e, output, behind, zero, rest)


NONZERO_BLOCK = 1024


def serves_nonzero(anchor: Value) -> bool:
    return is_counted(anchor, NonZero) and anchor.inputs[0].tensor.size < 1 << 31


@kernel_for(Counted, when=serves_nonzero, readable=any_view)
def nonzero_candidates(context: GpuContext) -> list[Candidate]:
    return single("blocks", lambda: _nonzero_kernels(context))


def _nonzero_kernels(context: GpuContext) -> tuple[Work, ...]:
    parts = max(-(-context.anchor.inputs[0].tensor.size // NONZERO_BLOCK), 1)
    counts = TritonScratch(4 * parts, i32)
    return _count_kernel(context, counts, parts), _write_kernel(context, counts, parts)


def _nonzero_mask(k: KernelWriter) -> tuple[str, str, list[str]]:
    """Return the numbers of a block's elements, their mask, and their coordinates."""
    x, w = k.context.anchor.inputs[0], k.w
    shape = x.tensor.static
    number = w.let(f"{k.program_id()} * {NONZERO_BLOCK} + tl.arange(0, {NONZERO_BLOCK})", "i")
    mask = w.let(f"{number} < {math.prod(shape)}", "m")
    at = coordinates(w, number, shape)
    k.wait()
    if not x.tensor.size:
        return number, mask, at
    value = read(k.elements(), x, at, mask)
    return number, w.let(f"({value.reg} != 0) & {mask}", "m"), at


def _count_kernel(context: GpuContext, counts: TritonScratch, parts: int) -> Launch:
    k = context.kernel()
    _, found, _ = _nonzero_mask(k)
    k.trigger()
    total = k.w.let(f"tl.sum(({found}).to(tl.int32), 0)", "n")
    k.w.line(f"tl.store({k.pointer(counts)} + {k.program_id()}, {total})")
    return k.launch((parts,))


def _write_kernel(context: GpuContext, counts: TritonScratch, parts: int) -> Launch:
    """Write coordinates after those of earlier blocks; zeros after the last ones."""
    k = context.kernel()
    w, e = k.w, k.elements()
    number, found, at = _nonzero_mask(k)
    for name in ("before", "total"):
        w.line(f"{name} = tl.full((), 0, tl.int32)")
    with w.block(f"for start in range(0, {parts}, {NONZERO_BLOCK})"):
        part = w.let(f"start + tl.arange(0, {NONZERO_BLOCK})", "i")
        each = w.let(f"tl.load({k.pointer(counts)} + {part}, mask={part} < {parts}, other=0)", "n")
        earlier = f"tl.where({part} < {k.program_id()}, {each}, 0)"
        w.assign("before", f"before + tl.sum({earlier}, 0)")
        w.assign("total", f"total + tl.sum({each}, 0)")
    ones = w.let(f"({found}).to(tl.int32)", "n")
    place = w.let(f"before + tl.cumsum({ones}, 0) - {ones}", "n")
    k.trigger()
    size = context.anchor.inputs[0].tensor.size
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
