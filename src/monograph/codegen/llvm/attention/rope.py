"""Rotary embedding: pairs of elements rotated by an angle, in vectors."""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.attention.attention import readable
from monograph.codegen.llvm.attention.mask import View
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.epilogue import Epilogue, pieces
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, pointers, share
from monograph.ops.attention import Rope


@kernel_for(Rope, readable=readable)
def rope(context: KernelContext) -> Kernel:
    """Generate a kernel for a rotary embedding and its epilogue."""
    return _Rope(context).emit()


class _Rope:
    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Rope)
        self.anchor, self.interleaved = anchor, anchor.op.interleaved
        self.shape = anchor.tensor.static
        self.pairs = anchor.inputs[1].tensor.static[-1]
        self.lanes = context.features.lanes(max(anchor.dtype.bits, 32))

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        for value in (*region.inputs, *region.outputs):
            context.argument(value)
        b = self.b = context.builder(len(context.arguments))
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
