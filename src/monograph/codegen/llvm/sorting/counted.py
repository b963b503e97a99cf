"""Results whose size the data decide: unique elements or slices, and indices of nonzero elements.

Unique: one thread sorts, single elements by their bytes and slices by merging, then makes one pass
in order. NonZero: elements are counted
first, then each thread writes after those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import is_wide
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
from monograph.codegen.llvm.sorting.counting import Counting, ordered
from monograph.ir.sizes import is_open
from monograph.ops.sort import NonZero, Unique
from monograph.program.dynamic.bounded import Counted, is_counted
from monograph.program.index import strides_of

VALUES, FIRST, INVERSE, COUNTS = range(4)
ORDER, OTHER, FIRSTS, GROUPS, SIZES, NUMBERS, BUCKETS = range(7)
"""Integer lists of the kernel, each as long as the number of items; the last has one for a byte."""
BYTE = 256
LEAST_RADIX = 256
"""The least number of items that are sorted byte by byte: each byte has its own costs."""


@kernel_for(Counted, when=partial(is_counted, kind=Unique))
def unique(context: KernelContext) -> Kernel:
    """Generate a kernel for the unique items of a tensor, their positions and counts."""
    return _Unique(context).emit()


class _Unique(Counting):
    def __init__(self, context: KernelContext) -> None:
        super().__init__(context)
        assert isinstance(self.anchor.op, Counted)
        assert isinstance(self.anchor.op.of, Unique)
        self.op = self.anchor.op.of
        self.x = self.anchor.inputs[0]
        shape = self.x.tensor.static
        axis = self.op.axis
        self.count = self.x.tensor.size if axis is None else shape[axis]
        self.rest = () if axis is None else tuple(d for i, d in enumerate(shape) if i != axis)
        self.width = math.prod(self.rest)

    def emit(self) -> Kernel:
        self.lists = [
            self.context.argument(LlvmScratch(max(8 * self.count, 64))) for _ in range(NUMBERS + 1)
        ]
        self.lists.append(self.context.argument(LlvmScratch(8 * BYTE)))
        self.begin()
        self.b.on_thread(0, self._all)
        return self.context.finish(self.b)

    # Lists of integers

    def _get(self, which: int, i: Int, base: Reg | None = None) -> Reg:
        start = base or self.b.arguments[f"p{self.lists[which]}"]
        return self.b.load("i64", self.b.offset(start, self.b.mul(i, 8)), 8)

    def _put(self, which: int, i: Int, x: Int, base: Reg | None = None) -> None:
        start = base or self.b.arguments[f"p{self.lists[which]}"]
        self.b.store(self.b.i64(x), self.b.offset(start, self.b.mul(i, 8)), 8)

    # Items

    def _index(self, item: Int, column: Int) -> list[Int]:
        """Return the index of an element of an item in x."""
        b = self.b
        if self.op.axis is None:
            return b.coordinates(item, self.x.tensor.static)
        others = b.coordinates(column, self.rest)
        return [*others[: self.op.axis], item, *others[self.op.axis :]]

    def _compare(self, one: Reg, other: Reg) -> tuple[Reg, Reg]:
        """Return whether an item precedes another, and whether they are equal; all NaN are."""
        b, a = self.b, self.scalars.a

        def column(k: Int, found: list[Reg]) -> list[Reg]:
            before, same = found
            x, y = (self.load(self.x, self._index(i, k)) for i in (one, other))
            p, q = ordered(a, x), ordered(a, y)
            less = a.op("and", same, b.compare("ult", p, q))
            match = b.compare("eq", p, q)
            return [a.op("or", before, less), a.op("and", same, match)]

        before, equal = b.loop(0, self.width, 1, column, [Reg("false", "i1"), Reg("true", "i1")])
        return before, equal

    def _all(self) -> None:
        b = self.b
        b.loop(0, self.count, 1, lambda i, _: self._put(ORDER, i, i))
        single = self.rest == () and not is_open(self.count) and self.count >= LEAST_RADIX
        order = self._sort_bytes() if single else self._sort()
        groups = self._group(order)
        self._number(groups)
        self._give(groups)

    def _sort(self) -> Reg:
        """Merge runs of growing length; return the sorted list. Equal items keep their order."""
        b = self.b
        source, target = (b.arguments[f"p{self.lists[k]}"] for k in (ORDER, OTHER))
        width = 1
        while width < self.count:
            self._merge_runs(source, target, width)
            source, target = target, source
            width *= 2
        return source

    def _sort_bytes(self) -> Reg:
        """Sort single elements by each byte in turn, the lowest first; return the sorted list."""
        source, target = (self.b.arguments[f"p{self.lists[k]}"] for k in (ORDER, OTHER))
        for number in range(8 if is_wide(self.x.dtype) else 4):
            self._sort_by(number, source, target)
            source, target = target, source
        return source

    def _sort_by(self, number: int, source: Reg, target: Reg) -> None:
        """Write a list sorted by a byte, in which equal items keep their order."""
        b, a = self.b, self.scalars.a

        def count(i: Int, _: list[Reg]) -> None:
            bucket = self._byte(i, number)
            self._put(BUCKETS, bucket, b.add(self._get(BUCKETS, bucket), 1))

        def start(i: Int, total: list[Reg]) -> list[Reg]:
            size = self._get(BUCKETS, i)
            self._put(BUCKETS, i, total[0])
            return [a.op("add", total[0], size)]

        def place(k: Int, _: list[Reg]) -> None:
            item = self._get(ORDER, k, source)
            bucket = self._byte(item, number)
            at = self._get(BUCKETS, bucket)
            self._put(ORDER, at, item, target)
            self._put(BUCKETS, bucket, b.add(at, 1))

        def distribute() -> None:
            b.loop(0, BYTE, 1, start, [Reg("0", "i64")])
            b.loop(0, self.count, 1, place)

        def copy() -> None:
            b.loop(
                0,
                self.count,
                1,
                lambda k, _: self._put(ORDER, k, self._get(ORDER, k, source), target),
            )

        b.loop(0, BYTE, 1, lambda i, _: self._put(BUCKETS, i, 0))
        b.loop(0, self.count, 1, count)
        # Small numbers have the same high bytes.
        equal = a.compare("eq", self._get(BUCKETS, self._byte(0, number)), self.count)
        different = a.op("xor", equal, 1)
        b.when(equal, copy)
        b.when(different, distribute)

    def _byte(self, item: Int, number: int) -> Reg:
        """Return a byte of an item as an ordered number."""
        a = self.scalars.a
        key = ordered(a, self.load(self.x, self._index(item, 0)))
        shifted = a.op("lshr", key, 8 * number) if number else key
        return a.op("and", a.convert("zext", shifted, "i64"), BYTE - 1)

    def _merge_runs(self, source: Reg, target: Reg, width: int) -> None:
        b, count = self.b, self.count

        def pair(start: Int, _: list[Reg]) -> None:
            middle = b.minimum(b.add(start, width), count)
            end = b.minimum(b.add(start, 2 * width), count)

            def one(k: Int, heads: list[Reg]) -> list[Reg]:
                return self._pick(source, target, k, heads, b.i64(middle), b.i64(end))

            b.loop(start, end, 1, one, [b.i64(start), b.i64(middle)])

        b.loop(0, count, 2 * width, pair)

    def _pick(
        self, source: Reg, target: Reg, k: Int, heads: list[Reg], middle: Reg, end: Reg
    ) -> list[Reg]:
        """Take the next item of two runs: from the second only if it precedes the first's."""
        b, a = self.b, self.scalars.a
        i, j = heads
        left, right = b.compare("slt", i, middle), b.compare("slt", j, end)
        both = a.op("and", left, right)

        def compared() -> Reg:
            x, y = self._get(ORDER, i, source), self._get(ORDER, j, source)
            return self._compare(y, x)[0]

        second = a.unless(both, a.compare("eq", left, 0), compared)
        at = a.select(second, j, i)
        self._put(ORDER, k, self._get(ORDER, at, source), target)
        step = a.convert("zext", second, "i64")
        return [a.op("add", i, a.op("sub", Reg("1", "i64"), step)), a.op("add", j, step)]

    def _group(self, order: Reg) -> Reg:
        """Number the runs of equal items; return their count."""
        b, a = self.b, self.scalars.a

        def one(k: Int, groups: list[Reg]) -> list[Reg]:
            item = self._get(ORDER, k, order)
            first = b.compare("eq", b.i64(k), Reg("0", "i64"))

            def differs() -> Reg:
                before = self._get(ORDER, b.sub(k, 1), order)
                return a.compare("eq", self._compare(before, item)[1], 0)

            new = a.unless(a.compare("eq", first, 0), Reg("true", "i1"), differs)

            def begin() -> Reg:
                self._put(FIRSTS, groups[0], item)
                self._put(SIZES, groups[0], 0)
                return b.set("i64", f"add i64 {groups[0]}, 1")

            count = a.unless(new, groups[0], begin)
            group = b.i64(b.sub(count, 1))
            self._put(GROUPS, item, group)
            self._put(SIZES, group, b.add(self._get(SIZES, group), 1))
            return [count]

        return b.i64(b.loop(0, self.count, 1, one, [Reg("0", "i64")])[0])

    def _number(self, groups: Reg) -> None:
        """Compute the number of each group in the results: in order, or by first occurrence."""
        b, a = self.b, self.scalars.a
        if self.op.sorted:
            b.loop(0, groups, 1, lambda g, _: self._put(NUMBERS, g, g))
            return

        def one(i: Int, following: list[Reg]) -> list[Reg]:
            group = self._get(GROUPS, i)
            first = b.compare("eq", self._get(FIRSTS, group), b.i64(i))

            def take() -> Reg:
                self._put(NUMBERS, group, following[0])
                return b.set("i64", f"add i64 {following[0]}, 1")

            return [a.unless(first, following[0], take)]

        b.loop(0, self.count, 1, one, [Reg("0", "i64")])

    def _give(self, groups: Reg) -> None:
        b = self.b

        def group(g: Int, _: list[Reg]) -> None:
            number, first = self._get(NUMBERS, g), self._get(FIRSTS, g)
            self.give(FIRST, [number], first)
            self.give(COUNTS, [number], self._get(SIZES, g))
            b.loop(0, self.width, 1, self._mover(first, number))

        def item(i: Int, _: list[Reg]) -> None:
            self.give(INVERSE, [i], self._get(NUMBERS, self._get(GROUPS, i)))

        b.loop(0, groups, 1, group)
        b.loop(0, self.count, 1, item)
        self.give(COUNTS + 1, [], groups)
        self._clear(groups)

    def _mover(self, item: Reg, number: Reg) -> Callable[[Int, list[Reg]], None]:
        def column(k: Int, _: list[Reg]) -> None:
            where = self._index(item, k)
            to = [number] if self.op.axis is None else self._index(number, k)
            self.move(self.x, where, VALUES, to)

        return column

    def _clear(self, groups: Reg) -> None:
        """Zero the elements beyond the count."""
        b, axis = self.b, self.op.axis

        def behind(i: Int, _: list[Reg]) -> None:
            for result in (FIRST, COUNTS):
                self.give(result, [i], Reg("0", "i64"))

        b.loop(groups, self.count, 1, behind)
        self.clear(VALUES, groups, axis or 0, shared=False)


@kernel_for(Counted, when=partial(is_counted, kind=NonZero))
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
            x = self.load(self.x, self.b.coordinates(i, self.shape))
        return a.compare("une" if self.x.dtype.is_float else "ne", x.reg, 0)

    def _write(self, i: Int, at: Reg) -> None:
        for axis, where in enumerate(self.b.coordinates(i, self.shape)):
            self.give(0, [axis, at], self.b.i64(where))
