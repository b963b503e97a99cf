"""Determinants: elimination with the largest pivot of each column, in f64."""

from __future__ import annotations

from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import each_element
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, LlvmScratch, kernel_for
from monograph.ir import Value
from monograph.ir.dtype import f64
from monograph.ops.linear import Det
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Indices
from monograph.program.index import Index, flatten

_SIZE = 8


@kernel_for(Det)
def det(context: KernelContext) -> Kernel:
    """Generate a kernel for determinants and their epilogue."""
    region = context.step.region
    assert region.anchor is not None
    size = region.anchor.inputs[0].tensor.static[-1]
    scratch = LlvmScratch(context.threads * max(size * size, 8) * _SIZE)
    position = len(region.inputs) + len(region.outputs)
    build = partial(_Eliminated, region.anchor, position)
    return each_element(context, build, [scratch], vectors=False)


class _Eliminated:
    """The product of the pivots of one matrix, eliminated in memory of the thread."""

    def __init__(self, anchor: Value, scratch: int, elements: LlvmElements, at: Indices) -> None:
        self.e, self.b, self.a = elements, elements.b, elements.scalars.a
        self.x = anchor.inputs[0]
        self.size = self.x.tensor.static[-1]
        self.scratch = scratch
        self.at = at

    def positions(self) -> list[Index]:
        return [flatten(self.at, self.e.storage[self.x].strides[:-2])]

    def enter(self, point: Point) -> None:
        """Do nothing: rows need no preparation."""

    def element(self, point: Point) -> Scalar:
        b, n = self.b, self.size
        own = b.mul(b.arguments["tid"], max(n * n, 8) * _SIZE)
        self.work = b.offset(b.arguments[f"p{self.scratch}"], own)
        place = self.e.storage[self.x]
        first = flatten(self.at, place.strides[:-2], place.offset)
        moved = [(n, stride) for stride in place.strides[-2:]]
        self.extent = self.e.unproven_moved(self.x, first, moved)
        start = self.e.integer(first, point)

        def row(i: Int, _: list[Reg]) -> None:
            b.loop(0, n, 1, partial(self._copy, start, i))

        b.loop(0, n, 1, row)
        (product,) = b.loop(0, n, 1, self._column, [b.number(1, "double")])
        return self.e.scalars.cast(Scalar(product, f64), self.x.dtype)

    def _copy(self, start: Int, i: Int, j: Int, _: list[Reg]) -> None:
        b, strides = self.b, self.e.storage[self.x].strides
        at = b.add(b.add(start, b.mul(i, strides[-2])), b.mul(j, strides[-1]))
        at = b.guarded(at, self.extent) if self.extent else at
        pointer = b.offset(self.e.pointers[self.x], b.mul(at, self.x.dtype.itemsize))
        found = self.e.scalars.cast(self.e.scalars.load(self.x.dtype, pointer), f64)
        self._put(i, j, found.reg)

    def _at(self, i: Int, j: Int) -> Reg:
        b = self.b
        return b.offset(self.work, b.mul(b.add(b.mul(i, self.size), j), _SIZE))

    def _get(self, i: Int, j: Int) -> Reg:
        return self.b.load("double", self._at(i, j), _SIZE)

    def _put(self, i: Int, j: Int, x: Reg) -> None:
        self.b.store(x, self._at(i, j), _SIZE)

    def _column(self, k: Int, carried: list[Reg]) -> list[Reg]:
        """Perform one step of the elimination; return the product of the pivots so far."""
        b, a, n = self.b, self.a, self.size

        def larger(i: Int, best: list[Reg]) -> list[Reg]:
            size = a.abs(self._get(i, k))
            more = b.compare("ogt", size, best[0])
            return [a.select(more, size, best[0]), a.select(more, b.i64(i), best[1])]

        first = [a.abs(self._get(k, k)), b.i64(k)]
        _, row = b.loop(b.add(k, 1), n, 1, larger, first)

        def swap(j: Int, _: list[Reg]) -> None:
            upper, lower = self._get(k, j), self._get(row, j)
            self._put(k, j, lower)
            self._put(row, j, upper)

        b.loop(k, n, 1, swap)
        pivot = self._get(k, k)
        # A column of zeros makes the product zero; the rest only has to stay finite.
        empty = b.compare("oeq", pivot, b.number(0, "double"))
        inverse = a.select(empty, 0.0, a.div(1.0, pivot))

        def below(i: Int, _: list[Reg]) -> None:
            factor = a.neg(a.mul(self._get(i, k), inverse))

            def subtract(j: Int, _: list[Reg]) -> None:
                self._put(i, j, a.fma(factor, self._get(k, j), self._get(i, j)))

            b.loop(b.add(k, 1), n, 1, subtract)

        b.loop(b.add(k, 1), n, 1, below)
        product = a.mul(carried[0], pivot)
        same = b.compare("eq", row, b.i64(k))
        return [a.select(same, product, a.neg(product))]
