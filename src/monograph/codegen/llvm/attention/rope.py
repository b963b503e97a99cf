"""Rotary embedding and cache updates.

Rotary embedding rotates pairs of elements by an angle, in vectors. In a cache update each row of
the result comes from one operand or the other. If the result is in place over the cache, only the
new rows are written: the work does not grow with the cache.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.attention.attention import readable
from monograph.codegen.llvm.attention.mask import View
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue, pieces
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    kernel_for,
    pointers,
    report,
    share,
)
from monograph.ops.attention import CacheUpdate, Rope


@kernel_for(Rope, readable=readable)
def rope(context: KernelContext) -> Kernel:
    """Generate a kernel for a rotary embedding and its epilogue."""
    return _Rope(context).emit()


class _Rope:
    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.anchor
        assert isinstance(anchor.op, Rope)
        self.anchor, self.interleaved = anchor, anchor.op.interleaved
        self.shape = anchor.tensor.static
        self.pairs = anchor.inputs[1].tensor.static[-1]
        self.lanes = context.features.lanes(max(anchor.dtype.bits, 32))

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        b = self.b = context.builder()
        self.epilogue = Epilogue(context, b)
        storage, values = context.program.places.storage, pointers(b, context.arguments)
        self.x, self.cos, self.sin = (View.of(b, v, storage, values) for v in self.anchor.inputs)
        rows = math.prod(self.shape[:3])
        b.loop(*share(b, rows, context.threads), 1, self._row)
        return context.finish(b)

    def _row(self, i: Int, _: list[Reg]) -> None:
        """Compute one row of x: the rotated pairs, and the unchanged rest."""
        b = self.b
        heads, places, size = self.shape[1:]
        place = b.mod(i, places)
        head = b.mod(b.div(i, places), heads)
        batch = b.div(i, places * heads)
        at = [batch, head, place]
        x = self.x.offset(b, *at)
        # Along a dimension of 1 the stride is 0, so that angles of one batch serve all.
        cos, sin = (v.offset(b, batch, place) for v in (self.cos, self.sin))
        whole = self.pairs // self.lanes * self.lanes

        def some(p: Int, lanes: int) -> None:
            c, s = (
                self._load(v, b.offset(row, v.last(b, p)), lanes)
                for v, row in ((self.cos, cos), (self.sin, sin))
            )
            self._turn(at, x, p, lanes, c, s)

        b.loop(0, whole, self.lanes, lambda p, _: some(p, self.lanes))
        for start, lanes in pieces(self.pairs - whole):
            some(whole + start, lanes)
        rest = 2 * self.pairs

        def copied(d: Int, lanes: int) -> None:
            y = self._load(self.x, b.offset(x, self.x.last(b, d)), lanes)
            self.epilogue.store([*at, d], y, lanes)

        whole = rest + (size - rest) // self.lanes * self.lanes
        b.loop(rest, whole, self.lanes, lambda d, _: copied(d, self.lanes))
        for start, lanes in pieces(size - whole):
            copied(whole + start, lanes)

    def _load(self, view: View, pointer: Reg, lanes: int) -> Reg:
        scalars = self.epilogue.elements.scalars
        found: Reg = scalars.load(view.dtype, pointer, lanes if lanes > 1 else 0).reg
        return found

    def _turn(self, at: list[Int], x: Reg, p: Int, lanes: int, c: Reg, s: Reg) -> None:
        b, a = self.b, self.epilogue.elements.scalars.a
        if not self.interleaved:
            second = b.add(p, self.pairs)
            u, v = (self._load(self.x, b.offset(x, self.x.last(b, d)), lanes) for d in (p, second))
            low, high = a.sub(a.mul(u, c), a.mul(v, s)), a.fma(u, s, a.mul(v, c))
            self.epilogue.store([*at, p], low, lanes)
            self.epilogue.store([*at, second], high, lanes)
            return
        first = b.mul(p, 2)
        both = self._load(self.x, b.offset(x, self.x.last(b, first)), 2 * lanes)
        u, v = (self._lanes(both, both, [2 * k + o for k in range(lanes)]) for o in (0, 1))
        low, high = a.sub(a.mul(u, c), a.mul(v, s)), a.fma(u, s, a.mul(v, c))
        if lanes == 1:
            whole = Reg("poison", vector(2, low.type))
            together = b.insert(b.insert(whole, low, 0), high, 1)
        else:
            mixed = [k // 2 + (k % 2) * lanes for k in range(2 * lanes)]
            together = self._lanes(low, high, mixed)
        self.epilogue.store([*at, first], together, 2 * lanes)

    def _lanes(self, x: Reg, y: Reg, which: list[int]) -> Reg:
        if len(which) == 1:
            return self.b.extract(x, which[0])
        mask = ", ".join(f"i32 {k}" for k in which)
        text = f"shufflevector {x.type} {x}, {y.type} {y}, <{len(which)} x i32> <{mask}>"
        return self.b.set(vector(len(which), x.element), text)


@kernel_for(CacheUpdate, readable=readable)
def cache_update(context: KernelContext) -> Kernel:
    """Generate a kernel for a cache update and its epilogue."""
    return _Update(context).emit()


class _Update:
    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.anchor
        assert isinstance(anchor.op, CacheUpdate)
        self.anchor, self.op = anchor, anchor.op
        self.shape = anchor.tensor.static
        self.axis = anchor.op.axis
        self.update_shape = anchor.inputs[1].tensor.static
        self.count = self.update_shape[self.axis]
        self.lanes = context.features.lanes(max(anchor.dtype.bits, 32))
        # Along the axis, elements come from either operand, so they cannot form one vector.
        self.inner = 1 if self.axis == len(self.shape) - 1 else self.shape[-1]

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        size = self.shape[self.axis]
        fault = LlvmFault("rows are written out of bounds", f"0..{size - 1}")
        self.fault = context.argument(fault)
        b = self.b = context.builder()
        if 0 in self.shape:
            return context.finish(b)
        self.epilogue = Epilogue(context, b)
        storage, values = context.program.places.storage, pointers(b, context.arguments)
        self.x, self.update, self.starts = (
            View.of(b, v, storage, values) for v in self.anchor.inputs
        )
        self._check()
        if context.program.in_place(context.step):
            self._new_rows()
            return context.finish(b)
        rows = self.shape if self.inner == 1 and self.axis else self.shape[:-1]
        b.loop(*share(b, math.prod(rows), context.threads), 1, lambda i, _: self._row(i, rows))
        return context.finish(b)

    def _start(self, batch: Int) -> Reg:
        scalars = self.epilogue.elements.scalars
        found = scalars.load(self.starts.dtype, self.starts.offset(self.b, batch)).reg
        return scalars.a.convert("sext", found, "i64")

    def _check(self) -> None:
        """Report rows outside of the cache, once for each batch row."""
        b = self.b
        if self.op.circular or not self.count:
            return

        def one(batch: Int, _: list[Reg]) -> None:
            start = self._start(batch)
            last = self.shape[self.axis] - self.count
            low = b.compare("slt", start, Reg("0", "i64"))
            high = b.compare("sgt", start, Reg(str(last), "i64"))
            end = b.i64(b.add(start, self.count - 1))
            worst = b.set("i64", f"select i1 {low}, i64 {start}, i64 {end}")
            report(b, self.fault, b.set("i1", f"or i1 {low}, {high}"), worst)

        b.loop(0, self.shape[0], 1, one)

    def _new_rows(self) -> None:
        """Write the update over the cache; rows outside are skipped."""
        b, size = self.b, self.shape[self.axis]
        shape = self.update_shape
        rows = shape if self.inner == 1 and self.axis else shape[:-1]

        def row(i: Int, _: list[Reg]) -> None:
            at = b.coordinates(i, rows)
            place = b.add(self._start(at[0]), at[self.axis])
            if self.op.circular:
                place = self._wrapped(place, size)
            source = self.update.offset(b, *at)
            target = [place if k == self.axis else a for k, a in enumerate(at)]
            inside = b.compare("ult", b.i64(place), Reg(str(size), "i64"))
            b.when(inside, lambda: self._move(source, target, len(rows) < len(shape)))

        b.loop(*share(b, math.prod(rows), self.context.threads), 1, row)

    def _move(self, source: Reg, at: list[Int], vectors: bool) -> None:
        """Copy contiguous elements from a pointer to an index of the result."""
        b, scalars = self.b, self.epilogue.elements.scalars
        step = self.anchor.dtype.itemsize

        def some(d: Int, lanes: int) -> None:
            pointer = b.offset(source, b.mul(d, step))
            x = scalars.load(self.anchor.dtype, pointer, lanes if lanes > 1 else 0)
            self.epilogue.store([*at, d] if vectors else at, x.reg, lanes)

        whole = self.inner // self.lanes * self.lanes
        b.loop(0, whole, self.lanes, lambda d, _: some(d, self.lanes))
        for start, lanes in pieces(self.inner - whole):
            some(whole + start, lanes)

    def _row(self, i: Int, rows: tuple[int, ...]) -> None:
        b, size = self.b, self.shape[self.axis]
        at = b.coordinates(i, rows)
        place = b.sub(at[self.axis], self._start(at[0]))
        if self.op.circular:
            place = self._wrapped(place, size)
        new = b.compare("ult", b.i64(place), b.i64(self.count))
        chosen = b.set("i64", f"select i1 {new}, i64 {place}, i64 0")
        updated = [chosen if k == self.axis else a for k, a in enumerate(at)]
        old_at, new_at = self.x.offset(b, *at), self.update.offset(b, *updated)
        row = b.set("ptr", f"select i1 {new}, ptr {new_at}, ptr {old_at}")
        self._move(row, at, len(rows) < len(self.shape))

    def _wrapped(self, place: Int, size: int) -> Int:
        """Return a position modulo the size, not negative."""
        b = self.b
        rest = b.set("i64", f"srem i64 {b.i64(place)}, {size}")
        below = b.compare("slt", rest, Reg("0", "i64"))
        return b.set("i64", f"select i1 {below}, i64 {b.add(rest, size)}, i64 {rest}")
