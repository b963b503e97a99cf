"""Constant padding as copies and fills of contiguous memory.

It serves bytes with any fill, and zeros around any numbers; `index_kernels` computes all other
padding element by element.
"""

from __future__ import annotations

import math
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.indexing.index_kernels import generated
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, share
from monograph.ir import Value
from monograph.ops.pad_tile import Pad
from monograph.program.index import strides_of
from monograph.program.memory.buffer_assignment import Storage


def serves(value: Value) -> bool:
    """Return True if elements are only added, and equal bytes fill them."""
    op = value.op
    if not isinstance(op, Pad) or op.mode != "constant" or 0 in value.inputs[0].tensor.dims:
        return False
    whole = min((*op.before, *op.after), default=0) >= 0
    return whole and (len(value.inputs) == 1 or value.dtype.itemsize == 1)


@kernel_for(Pad, when=serves, first=True)
def pad(context: KernelContext) -> Kernel:
    """Generate a kernel for padding and its epilogue."""
    anchor, region = context.anchor, context.step.region
    storage = context.program.places.storage
    last = _last(anchor)
    stretch = all(_runs_on(v, storage[v], last) for v in (anchor.inputs[0], region.root))
    if region.epilogue or not stretch:
        return generated(context)
    return _Stretches(context, anchor, last).emit()


def _last(value: Value) -> int:
    """Return the last padded axis; it and the inner ones are contiguous memory."""
    op = value.op
    assert isinstance(op, Pad)
    padded = [i for i, n in enumerate(zip(op.before, op.after, strict=True)) if any(n)]
    return padded[-1] if padded else 0


def _runs_on(value: Value, place: Storage, last: int) -> bool:
    """Return True if everything from an axis inwards is contiguous."""
    shape = value.tensor.static[last:]
    steps = zip(shape, place.strides[last:], strides_of(shape), strict=True)
    return all(d == 1 or a == b for d, a, b in steps)


class _Stretches:
    def __init__(self, context: KernelContext, anchor: Value, last: int) -> None:
        assert isinstance(anchor.op, Pad)
        self.context, self.anchor, self.op, self.last = context, anchor, anchor.op, last
        self.size = anchor.dtype.itemsize
        self.x = anchor.inputs[0]
        storage = context.program.places.storage
        self.source, self.target = storage[self.x], storage[context.step.region.root]

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        b = self.b = context.builder()
        self.given, self.made = (
            b.arguments[f"p{context.argument(v)}"] for v in (self.x, region.root)
        )
        self.fill = self._fill()
        shape = self.anchor.tensor.static
        if self.anchor.tensor.size:
            count = math.prod(shape[: self.last])
            b.loop(*share(b, count, context.threads), 1, self._stretch)
        return context.finish(b)

    def _fill(self) -> Reg:
        """Return the fill byte."""
        if len(self.anchor.inputs) == 1:
            return Reg("0", "i8")
        b, value = self.b, self.anchor.inputs[1]
        place = self.context.program.places.storage[value]
        pointer = b.arguments[f"p{self.context.argument(value)}"]
        return b.load("i8", b.offset(pointer, place.offset), 1)

    def _stretch(self, i: Int, _: list[Reg]) -> None:
        """Process one index of the axes before the last padded one."""
        b, op, last = self.b, self.op, self.last
        shape, given = self.anchor.tensor.static, self.x.tensor.static
        to: Int = self.target.offset
        at: Int = self.source.offset
        inside: Reg | None = None
        for axis, step in enumerate(strides_of(shape[:last])):
            index = b.mod(b.div(i, step), shape[axis])
            to = b.add(to, b.mul(index, self.target.strides[axis]))
            own = b.sub(index, op.before[axis])
            at = b.add(at, b.mul(own, self.source.strides[axis]))
            if op.before[axis] or op.after[axis]:
                within = b.compare("ult", b.i64(own), b.i64(given[axis]))
                inside = within if inside is None else b.set("i1", f"and i1 {inside}, {within}")
        inner = math.prod(shape[last + 1 :])
        start = b.offset(self.made, b.mul(to, self.size))
        parts = [n * inner * self.size for n in (op.before[last], given[last], op.after[last])]
        body = partial(self._row, start, at, parts)
        if inside is None:
            body()
        else:
            _either(b, inside, body, partial(self._filled, start, sum(parts)))

    def _row(self, start: Reg, at: Int, parts: list[int]) -> None:
        """Write a range that contains a part of x."""
        b, (before, own, after) = self.b, parts
        self._filled(start, before)
        given = b.offset(self.given, b.mul(at, self.size))
        no, count = Reg("false", "i1"), Reg(str(own), "i64")
        b.call("llvm.memcpy.p0.p0.i64", "void", b.offset(start, before), given, count, no)
        self._filled(b.offset(start, before + own), after)

    def _filled(self, start: Reg, count: int) -> None:
        if count:
            no, length = Reg("false", "i1"), Reg(str(count), "i64")
            self.b.call("llvm.memset.p0.i64", "void", start, self.fill, length, no)


def _either(b: Builder, condition: Reg, yes: partial[None], no: partial[None]) -> None:
    """Run one body if a condition holds, else the other."""
    then, other, done = b.new_label("then"), b.new_label("else"), b.new_label("done")
    b.branch(condition, then, other)
    for label, body in ((then, yes), (other, no)):
        b.label(label)
        body()
        b.jump(done)
    b.label(done)
