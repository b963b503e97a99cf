"""The epilogue of a kernel: pointwise ops on its accumulators, then the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import KernelContext, pointers
from monograph.ops.elementwise import Abs, Add, Clip, Max, Min, Mul, Neg, Sub
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Element, counters
from monograph.program.fusion.op_classes import is_view
from monograph.program.index import Counter

LIGHT = (Abs, Add, Clip, Max, Min, Mul, Neg, Sub)
"""Ops of one or two instructions. A longer epilogue is emitted as a loop, for code size."""
SIDE_BY_SIDE = 4


class Epilogue:
    """Finishes elements of an anchor's result, a vector along the last dimension at a time."""

    def __init__(self, context: KernelContext, b: Builder) -> None:
        region = context.step.region
        assert region.anchor is not None
        self.b = b
        self.anchor = region.anchor
        self.outputs = region.outputs
        self.elements = LlvmElements(
            b,
            LlvmScalars(b, context.features),
            context.program.places.storage,
            pointers(b, context.arguments),
            frozenset(region.inputs),
        )
        self.at = counters(region.root.tensor.static)
        # The anchor's result is in registers, so resolution stops there.
        self.elements.given[self.anchor] = Scalar(Reg("", ""), self.anchor.dtype)
        self.order = self.elements.plan(self.outputs, self.at)
        computed = [r.element.value for r in self.order if r.operands]
        self.heavy = any(not is_view(v) and not isinstance(v.op, LIGHT) for v in computed)
        self.stack: Reg | None = None

    def reserve(self, vectors: int, lanes: int) -> None:
        """Reserve room for `store_rows`; the builder must be in the function's first block."""
        if self.heavy:
            kind = vector(lanes, "float")
            self.stack = self.b.set("ptr", f"alloca [{vectors} x {kind}], align 64")

    def store_rows(
        self, sums: Sequence[Reg], rows: int, store: Callable[[Int, int, Reg], None]
    ) -> None:
        """Call `store` with (row, number in the row, vector) for accumulators in equal rows.

        A long epilogue is a loop over the rows, through memory.
        """
        b, width = self.b, len(sums) // rows
        if self.stack is None or len(sums) <= SIDE_BY_SIDE:
            for k, total in enumerate(sums):
                store(k // width, k % width, total)
            return
        size = max(sums[0].lanes, 1) * 4
        for k, total in enumerate(sums):
            b.store(total, b.offset(self.stack, k * size), 4)

        # Enough vectors at a time to hide their latency.
        step = next(g for g in range(1, rows + 1) if rows % g == 0 and g * width >= SIDE_BY_SIDE)

        def some(r: Int, _: list[Reg]) -> None:
            assert self.stack is not None
            start = b.offset(self.stack, b.mul(r, width * size))
            for k in range(step * width):
                total = b.load(sums[0].type, b.offset(start, k * size), 4)
                store(b.add(r, k // width), k % width, total)

        b.loop(0, rows, step, some)

    def store(self, at: Sequence[Int], total: Reg, lanes: int) -> None:
        """Finishes and stores the first `lanes` lanes of a vector at an index."""
        for start, width in pieces(lanes):
            self._store(at, start, width, part(self.b, total, start, width))

    def _store(self, at: Sequence[Int], start: int, lanes: int, total: Reg) -> None:
        values: dict[Counter, Int] = {}
        for index, number in zip(self.at, at, strict=True):
            values |= dict.fromkeys(index.counters, number)
        lane = next(iter(self.at[-1].counters), None)
        point = Point(values)
        if lane is not None:
            values[lane] = self.b.add(at[-1], start)
            point = Point(values, lane, lanes) if lanes > 1 else Point(values)
        self.elements.given[self.anchor] = Scalar(total, self.anchor.dtype)
        made = self.elements.emit(self.order, point)
        for value in self.outputs:
            self.elements.store(value, self.at, made[Element(value, self.at)], point)


def pieces(lanes: int) -> list[tuple[int, int]]:
    """(start, width) of vectors whose widths are powers of two, covering so many lanes."""
    found = []
    start = 0
    while start < lanes:
        width = 1 << ((lanes - start).bit_length() - 1)
        found.append((start, width))
        start += width
    return found


def part(b: Builder, whole: Reg, start: int, lanes: int) -> Reg:
    """Some lanes of a vector; a scalar for one of them."""
    if lanes == whole.lanes or not whole.lanes:
        return whole
    if lanes == 1:
        return b.extract(whole, start)
    mask = ", ".join(f"i32 {start + k}" for k in range(lanes))
    kind = vector(lanes, whole.element)
    text = f"shufflevector {whole.type} {whole}, {whole.type} poison, <{lanes} x i32> <{mask}>"
    return b.set(kind, text)
