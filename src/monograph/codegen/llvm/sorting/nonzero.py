"""NonZero: elements are counted first, then each thread writes after those before it."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    kernel_for,
    share,
    synchronise,
)
from monograph.codegen.llvm.sorting.counting import Counting
from monograph.ir import Value
from monograph.ops.sort import NonZero
from monograph.program.dynamic.bounded import Counted, is_counted
from monograph.program.index import strides_of


def serves(value: Value) -> bool:
    return is_counted(value, NonZero)


@kernel_for(Counted, when=serves)
def nonzero(context: KernelContext) -> Kernel:
    """A kernel for the coordinates of all elements that are not zero."""
    return _NonZero(context).emit()


class _NonZero(Counting):
    def __init__(self, context: KernelContext) -> None:
        super().__init__(context)
        self.x = self.anchor.inputs[0]
        self.shape = self.x.tensor.static
        self.size = self.x.tensor.size
        place = context.program.places.storage[self.x]
        self.offset = place.offset
        self.dense = place.strides == strides_of(self.shape)
        self.lanes = context.features.lanes(max(self.x.dtype.bits, 32))

    def emit(self) -> Kernel:
        counts = self.context.argument(LlvmScratch(max(8 * self.threads, 64)))
        self.sync = self.context.argument(Sync())
        self.begin()
        b = self.b
        low, high = share(b, self.size, self.threads)
        found = self._walk(low, high, Reg("0", "i64"), None)
        own = b.arguments[f"p{counts}"]
        b.store(found, b.offset(own, b.mul(b.arguments["tid"], 8)), 8)
        synchronise(b, self.sync, self.threads)
        before = self._sum(own, b.arguments["tid"])
        self._walk(low, high, before, self._write)
        total = self._sum(own, self.threads)
        self.finish_count(total)
        self.clear(0, total, 1)
        return self.context.finish(b)

    def _sum(self, counts: Reg, stop: Int) -> Reg:
        """Return the sum of the counts of earlier threads."""
        b = self.b

        def one(t: Int, total: list[Reg]) -> list[Reg]:
            found = b.load("i64", b.offset(counts, b.mul(t, 8)), 8)
            return [b.set("i64", f"add i64 {total[0]}, {found}")]

        return b.i64(b.loop(0, stop, 1, one, [Reg("0", "i64")])[0])

    def _walk(
        self, low: Int, high: Int, start: Reg, visit: Callable[[Int, Reg], None] | None
    ) -> Reg:
        """Visit the elements that are not zero in order; return the number after the last."""
        return self.walk(low, high, start, self._holds, visit, self.lanes if self.dense else 0)

    def _holds(self, i: Int, lanes: int) -> Reg:
        a = self.scalars.a
        if self.dense:
            at = self.b.mul(self.b.add(i, self.offset), self.x.dtype.itemsize)
            pointer = self.b.offset(self.pointers[self.x], at)
            x = self.scalars.load(self.x.dtype, pointer, lanes)
        else:
            x = self.load(self.x, self._coordinates(i))
        return a.compare("une" if self.x.dtype.is_float else "ne", x.reg, 0)

    def _coordinates(self, i: Int) -> list[Int]:
        b = self.b
        steps = strides_of(self.shape)
        return [b.mod(b.div(i, s), d) for s, d in zip(steps, self.shape, strict=True)]

    def _write(self, i: Int, at: Reg) -> None:
        for axis, where in enumerate(self._coordinates(i)):
            self.give(0, [axis, at], self.b.i64(where))
