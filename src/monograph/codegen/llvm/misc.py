"""CPU kernels of single ops: determinants, counts of n-grams.

A determinant is eliminated with the largest pivot of each column, in f64. Each element of n-gram
counts has a column, and each column its grams, which are searched one by one.
"""

from __future__ import annotations

from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import ElementMaker, each_element
from monograph.codegen.llvm.indexing.gather import load_index
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    LlvmScratch,
    kernel_for,
)
from monograph.ir import Value
from monograph.ir.dtype import f32, f64
from monograph.ops.linear import Det
from monograph.ops.scalar import Scalar
from monograph.ops.text import Ngrams, gram_tables
from monograph.program.fusion.region import Indices
from monograph.program.index import Index, flatten


def serves(value: Value) -> bool:
    return isinstance(value.op, Ngrams) and not value.inputs[0].dtype.is_string


@kernel_for(Ngrams, when=serves)
def ngrams(context: KernelContext) -> Kernel:
    """Generate a kernel that counts grams, and its epilogue."""
    region, anchor = context.step.region, context.anchor
    assert isinstance(anchor.op, Ngrams)
    first = len(region.inputs) + len(region.outputs)
    tables = [LlvmPacked(array) for array in gram_tables(anchor.op)]
    return each_element(context, partial(_Counted, anchor, first), tables, vectors=False)


class _Counted(ElementMaker):
    """The weighted count of a column's grams in a row of tokens."""

    def __init__(self, anchor: Value, first: int, elements: LlvmElements, at: Indices) -> None:
        assert isinstance(anchor.op, Ngrams)
        super().__init__(elements, at)
        self.op, self.x = anchor.op, anchor.inputs[0]
        self.first = first
        self.length = self.x.tensor.static[-1]

    def positions(self) -> list[Index]:
        # Rows and columns are not merged into one loop.
        return list(self.at)

    def _entry(self, table: int, i: Int, kind: str = "i64") -> Reg:
        pointer = self.b.arguments[f"p{self.first + table}"]
        return self.b.load(kind, self.b.offset(pointer, self.b.mul(i, 8)), 8)

    def element(self, point: Point) -> Scalar:
        b, s = self.b, self.e.scalars
        place = self.e.storage[self.x]
        fixed = flatten((*self.at[:-1], Index()), place.strides, place.offset)
        self.extent = self.e.unproven_moved(self.x, fixed, [(self.length, place.strides[-1])])
        self.row = self.e.integer(fixed, point)
        column = self.e.integer(self.at[-1], point)

        def gram(g: Int, total: list[Reg]) -> list[Reg]:
            found = self._occurrences(self._entry(1, g), self._entry(2, g))
            if self.op.once:
                found = b.i64(b.minimum(found, 1))
            count = Scalar(b.set("double", f"sitofp i64 {found} to double"), f64)
            weight = Scalar(self._entry(3, g, "double"), f64)
            return [s.add(Scalar(total[0], f64), s.mul(weight, count)).reg]

        grams = self._entry(0, column), self._entry(0, b.add(column, 1))
        (total,) = b.loop(*grams, 1, gram, [b.number(0, "double")])
        return s.cast(Scalar(total, f64), f32)

    def _occurrences(self, length: Reg, tokens: Reg) -> Reg:
        """Return the number of occurrences of a gram, with any allowed skips between its tokens."""
        b = self.b
        alone = b.compare("eq", length, Reg("1", "i64"))
        steps = b.set("i64", f"select i1 {alone}, i64 2, i64 {self.op.skips + 2}")

        def at_step(step: Int, total: list[Reg]) -> list[Reg]:
            span = b.mul(b.sub(length, 1), step)
            match = partial(self._match, step, length, tokens)
            return b.loop(0, b.sub(self.length, span), 1, match, total)

        return b.i64(b.loop(1, steps, 1, at_step, [Reg("0", "i64")])[0])

    def _match(self, step: Int, length: Reg, tokens: Reg, at: Int, total: list[Reg]) -> list[Reg]:
        """Count a gram if it begins here."""
        b, a = self.b, self.e.scalars.a
        stride = self.e.storage[self.x].strides[-1]

        def token(k: Int, same: list[Reg]) -> list[Reg]:
            where = b.add(self.row, b.mul(b.add(at, b.mul(k, step)), stride))
            where = b.guarded(where, self.extent) if self.extent else where
            found = load_index(self.e, self.x, where)
            equal = b.compare("eq", found, self._entry(4, b.add(tokens, k)))
            return [a.op("and", same[0], equal)]

        (whole,) = b.loop(0, length, 1, token, [Reg("true", "i1")])
        return [a.op("add", total[0], a.convert("zext", whole, "i64"))]


_SIZE = 8


@kernel_for(Det)
def det(context: KernelContext) -> Kernel:
    """Generate a kernel for determinants and their epilogue."""
    region = context.step.region
    size = context.anchor.inputs[0].tensor.static[-1]
    scratch = LlvmScratch(context.threads * max(size * size, 8) * _SIZE)
    position = len(region.inputs) + len(region.outputs)
    build = partial(_Eliminated, context.anchor, position)
    return each_element(context, build, [scratch], vectors=False)


class _Eliminated(ElementMaker):
    """The product of the pivots of one matrix, eliminated in memory of the thread."""

    def __init__(self, anchor: Value, scratch: int, elements: LlvmElements, at: Indices) -> None:
        super().__init__(elements, at)
        self.a, self.x = elements.scalars.a, anchor.inputs[0]
        self.size = self.x.tensor.static[-1]
        self.scratch = scratch

    def positions(self) -> list[Index]:
        return [flatten(self.at, self.e.storage[self.x].strides[:-2])]

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
