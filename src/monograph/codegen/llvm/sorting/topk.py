"""Top-k: a heap of the largest elements so far, and vectors that skip the rest.

Every element has a rank: one number made of its value and its index, so that no two are equal and
the larger rank comes first. A heap holds the k largest ranks with the smallest on top; most
elements are smaller than that, which one comparison shows for a whole vector.

Of many elements with many results a bound is known first: where the largest elements of k groups
reach it, k elements do. Elements below it are skipped from the start, and few have to be replaced.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import is_wide
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.map_kernel import bits_of
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    kernel_for,
    pointers,
    share,
    synchronise,
)
from monograph.codegen.llvm.sorting.counting import each_set_bit, ordered
from monograph.codegen.llvm.sorting.heap import Heap
from monograph.ir import Item, Value
from monograph.ir.sizes import is_open
from monograph.ops.scalar import Scalar
from monograph.ops.sort import TopK
from monograph.program.index import strides_of

PLACE_BITS = 32
GROUP = 4
"""Vectors that are compared together."""
SPLIT_FROM = 2048
"""The elements per thread from which dividing a single row pays."""
BOUNDED_FROM, BOUNDED_SHARE = 32, 8
"""A bound pays from so many results on, and from so many elements for each."""
GROUPS_OF_4 = 7
"""Groups whose largest elements give the bound, for four results."""


def serves(value: Value) -> bool:
    return isinstance(value.op, TopK) and value.inputs[0].tensor.size < 1 << PLACE_BITS


@kernel_for(TopK, when=serves)
def top_k(context: KernelContext) -> Kernel:
    """Generate a kernel for the largest or smallest elements of each row."""
    return _TopK(context).emit()


class _TopK:
    def __init__(self, context: KernelContext) -> None:
        assert isinstance(context.anchor.op, TopK)
        self.context = context
        self.op = context.anchor.op
        self.x = context.anchor.inputs[0]
        self.shape = self.x.tensor.static
        self.size = self.shape[self.op.axis]
        self.wide = is_wide(self.x.dtype)
        self.key = "i64" if self.wide else "i32"
        self.rank = "i128" if self.wide else "i64"
        self.rank_bytes = 16 if self.wide else 8
        lanes = context.features.lanes(64)
        # The work of ranking grows with the square of k, that of a heap sort with branches.
        self.ranked = lanes if not self.wide and lanes >= 4 and self.op.k <= 8 * lanes**2 else 0
        """The lanes of vectors that put the results in order; 0 for a heap sort."""
        self.rest = tuple(d for i, d in enumerate(self.shape) if i != self.op.axis)
        self.rows = math.prod(self.rest)
        share_of_row = self.size // context.threads
        self.shared_rows = self.rows < context.threads and share_of_row >= max(
            SPLIT_FROM, self.op.k
        )

        self.elements = share_of_row if self.shared_rows else self.size
        """The least number of elements that a thread looks at in one go."""

    @property
    def _is_bounded(self) -> bool:
        """Return True if a bound of the results is found before them."""
        k = self.op.k
        if self.wide or self._step != 1 or is_open(self.elements) or k < BOUNDED_FROM:
            return False
        return self.elements >= BOUNDED_SHARE * k

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        for value in (self.x, *region.outputs):
            context.argument(value)
        scratch = context.argument(LlvmScratch(context.threads * self._heap_bytes))
        self.sync = context.argument(Sync()) if self.shared_rows else -1
        b = self.b = context.builder()
        self.scalars = LlvmScalars(b, context.features)
        self.pointers = pointers(b, context.arguments)
        self.heaps = b.arguments[f"p{scratch}"]
        if self.op.k and self.rows:
            mine = b.offset(self.heaps, b.mul(b.arguments["tid"], self._heap_bytes))
            self.heap = Heap(b, mine, self.rank, self.rank_bytes)
            self.sorted = self._sorted(mine)
            rows = (0, self.rows) if self.shared_rows else share(b, self.rows, context.threads)
            b.loop(*rows, 1, self._row)
        return context.finish(b)

    @property
    def _numbers_bytes(self) -> int:
        return -(-max(self.op.k, 1) * self.rank_bytes // 64) * 64

    @property
    def _heap_bytes(self) -> int:
        """The memory of a thread: its heap, and the same numbers in order."""
        return (2 if self.ranked else 1) * self._numbers_bytes

    def _sorted(self, memory: Reg) -> Heap:
        """Return the numbers in order in a thread's memory."""
        at = self.b.offset(memory, self._numbers_bytes) if self.ranked else memory
        return Heap(self.b, at, self.rank, self.rank_bytes)

    def _row(self, row: Int, _: list[Reg]) -> None:
        b, threads = self.b, self.context.threads
        self.row = b.offset(
            self.pointers[self.x], b.mul(self._offset(row, self.x), self.x.dtype.itemsize)
        )
        if not self.shared_rows:
            self._select(0, self.size)
            b.loop(0, self.op.k, 1, lambda j, _: self._give(row, j, self.sorted.load(j)))
            return
        self._select(*share(b, self.size, threads))
        synchronise(b, self.sync, threads)
        b.on_thread(0, lambda: self._merge(row))
        if self.rows > 1:
            synchronise(b, self.sync, threads)

    def _offset(self, row: Int, value: Value) -> Int:
        """Return the offset of a row in a value, in elements."""
        b, place = self.b, self.context.program.places.storage[value]
        strides = [s for i, s in enumerate(place.strides) if i != self.op.axis]
        total: Int = place.offset
        for extent, whole, stride in zip(self.rest, strides_of(self.rest), strides, strict=True):
            total = b.add(total, b.mul(b.mod(b.div(row, whole), extent), stride))
        return total

    def _select(self, low: Int, high: Int) -> None:
        """Find the largest ranks of some elements of a row, in order, in this thread's memory."""
        if self._is_bounded:
            self._select_bounded(low, high)
        else:
            self._select_any(low, high)
        if self.ranked:
            self.heap.rank(self.op.k, self.sorted, self.ranked)
        else:
            self.heap.sort(self.op.k)

    def _select_any(self, low: Int, high: Int) -> None:
        """Find the largest ranks, from a heap of the first elements on."""
        b, k = self.b, self.op.k
        after = b.add(low, k)

        def fill(j: Int, _: list[Reg]) -> None:
            i = b.add(low, j)
            self.heap.store(j, self._rank(self._key(self._load(i)).reg, i))

        b.loop(0, k, 1, fill)
        self.heap.order(k)
        if k < self.size:
            top = self._top_key()
            if self._step == 1:
                after, top = self._skip_vectors(after, high, top)
            b.loop(after, high, 1, self._offer, [top])

    def _select_bounded(self, low: Int, high: Int) -> None:
        """Find the largest ranks among the elements that reach a bound.

        A state holds the number of ranks so far above the least key that is still looked at.
        """
        b, a = self.b, self.scalars.a
        state = a.convert("zext", self._bound(low), "i64")
        lanes = self._lanes
        width = GROUP * lanes

        def look(i: Int, carried: list[Reg]) -> list[Reg]:
            limit = b.splat(a.convert("trunc", carried[0], self.key), lanes)
            keys = [self._key(self._load(b.add(i, g * lanes), lanes)).reg for g in range(GROUP)]
            found = self._mask([b.compare("uge", key, limit) for key in keys], lanes)

            def visit() -> Reg:
                def one(bit: Reg, now: Reg) -> Reg:
                    return self._take(b.add(i, bit), [now])[0]

                return each_set_bit(a, found, ("state", carried[0]), one)

            return [a.unless(a.compare("ne", found, 0), carried[0], visit)]

        groups = b.set("i64", f"sdiv i64 {b.sub(high, low)}, {width}")
        end = b.add(low, b.mul(groups, width))
        b.loop(end, high, 1, self._take, b.loop(low, end, width, look, [state]))

    def _bound(self, low: Int) -> Reg:
        """Return the k-th largest of the largest keys of groups: at least k keys reach it."""
        b, a, lanes = self.b, self.scalars.a, self._lanes
        kind = vector(lanes, self.key)
        vectors = -(-GROUPS_OF_4 * self.op.k // (4 * lanes))
        depth = self.elements // (vectors * lanes)
        size = lanes * 4

        def group(v: Int, _: list[Reg]) -> None:
            start = b.add(low, b.mul(v, depth * lanes))

            def larger(p: Int, found: list[Reg]) -> list[Reg]:
                key = self._key(self._load(b.add(start, b.mul(p, lanes)), lanes)).reg
                return [a.select(b.compare("ugt", key, found[0]), key, found[0])]

            (most,) = b.loop(0, depth, 1, larger, [Reg("zeroinitializer", kind)])
            b.store(most, b.offset(self.heap.pointer, b.mul(v, size)), 4)

        b.loop(0, vectors, 1, group)

        def bit(j: Int, carried: list[Reg]) -> list[Reg]:
            one = a.convert("trunc", b.set("i64", f"lshr i64 {1 << 31}, {j}"), self.key)
            tried = a.op("or", carried[0], one)
            spread = b.splat(tried, lanes)

            def count(v: Int, counts: list[Reg]) -> list[Reg]:
                most = b.load(kind, b.offset(self.heap.pointer, b.mul(v, size)), 4)
                reaches = b.compare("uge", most, spread)
                return [a.op("sub", counts[0], a.convert("sext", reaches, self.key))]

            (counts,) = b.loop(0, vectors, 1, count, [Reg("zeroinitializer", kind)])
            total = b.call(f"llvm.vector.reduce.add.v{lanes}{self.key}", self.key, counts)
            return [a.select(a.compare("uge", total, self.op.k), tried, carried[0])]

        (bound,) = b.loop(0, 32, 1, bit, [Reg("0", self.key)])
        return bound

    def _take(self, i: Int, carried: list[Reg]) -> list[Reg]:
        """Add an element that reaches the limit, or replace the smallest if it is larger."""
        b, a, state = self.b, self.scalars.a, carried[0]
        key = self._key(self._load(i)).reg

        def take() -> Reg:
            count = a.op("lshr", state, 32)
            before, add, done = (b.new_label(s) for s in ("full", "add", "taken"))
            b.branch(a.compare("ult", count, self.op.k), add, before)
            b.label(add)
            self.heap.store(count, self._rank(key, i))
            more = a.op("add", state, 1 << 32)
            whole = a.compare("eq", a.op("add", count, 1), self.op.k)
            added = a.unless(whole, more, self._ordered)
            add_end = b.block
            b.jump(done)
            b.label(before)
            larger = b.compare("ugt", key, self._top_key())
            replaced = a.unless(larger, state, lambda: self._replaced(key, i))
            before_end = b.block
            b.jump(done)
            b.label(done)
            pair = f"[ {added}, %{add_end} ], [ {replaced}, %{before_end} ]"
            return b.set("i64", f"phi i64 {pair}")

        reaches = b.compare("uge", key, a.convert("trunc", state, self.key))
        return [a.unless(reaches, state, take)]

    def _ordered(self) -> Reg:
        """Make a heap of the ranks, of which there are enough now; return the state."""
        self.heap.order(self.op.k)
        return self._state()

    def _replaced(self, key: Reg, i: Int) -> Reg:
        """Replace the smallest rank; return the state."""
        self.heap.sink(self._rank(key, i), 0, self.op.k)
        return self._state()

    def _state(self) -> Reg:
        """Return the state of a whole heap: a key must be larger than that on top."""
        a = self.scalars.a
        top = self._top_key()
        # Of the largest key there is none beyond: equal ones are looked at, and left.
        most = a.compare("eq", top, -1)
        limit = a.select(most, top, a.op("add", top, 1))
        return a.op("or", a.convert("zext", limit, "i64"), self.op.k << 32)

    @property
    def _lanes(self) -> int:
        return self.context.features.lanes(64 if self.wide else 32)

    @property
    def _step(self) -> int:
        return self.context.program.places.storage[self.x].strides[self.op.axis]

    def _skip_vectors(self, low: Int, high: Int, top: Reg) -> tuple[Int, Reg]:
        """Skip groups of vectors; return the end of the last whole one."""
        b, a = self.b, self.scalars.a
        lanes = self._lanes
        width = GROUP * lanes

        def look(i: Int, carried: list[Reg]) -> list[Reg]:
            limit = b.splat(carried[0], lanes)
            keys = [self._key(self._load(b.add(i, g * lanes), lanes)).reg for g in range(GROUP)]
            larger = [b.compare("ugt", key, limit) for key in keys]
            found = self._mask(larger, lanes)
            some = a.compare("ne", found, 0)
            return [a.unless(some, carried[0], lambda: self._visit(i, found, carried[0]))]

        groups = b.set("i64", f"sdiv i64 {b.sub(high, low)}, {width}")
        end = b.add(low, b.mul(groups, width))
        return end, b.loop(low, end, width, look, [top])[0]

    def _mask(self, conditions: list[Reg], lanes: int) -> Reg:
        """Vectors of conditions as the bits of one number, the first lane lowest."""
        a = self.scalars.a
        whole = Reg("0", "i64")
        for g, condition in enumerate(conditions):
            bits = self.b.set(f"i{lanes}", f"bitcast {condition.type} {condition} to i{lanes}")
            whole = a.op("or", a.op("shl", a.convert("zext", bits, "i64"), g * lanes), whole)
        return whole

    def _visit(self, start: Int, mask: Reg, top: Reg) -> Reg:
        """Offer the elements of the set bits of a mask; at least one is set."""

        def one(bit: Reg, limit: Reg) -> Reg:
            return self._offer(self.b.add(start, bit), [limit])[0]

        return each_set_bit(self.scalars.a, mask, ("limit", top), one)

    def _offer(self, i: Int, carried: list[Reg]) -> list[Reg]:
        """Replace the smallest element if this one is larger."""
        key = self._key(self._load(i)).reg

        def replace() -> Reg:
            self.heap.sink(self._rank(key, i), 0, self.op.k)
            return self._top_key()

        larger = self.b.compare("ugt", key, carried[0])
        return [self.scalars.a.unless(larger, carried[0], replace)]

    def _top_key(self) -> Reg:
        """Return the value part of the smallest kept rank."""
        shifted = self.scalars.a.op("lshr", self.heap.load(0), 64 if self.wide else 32)
        return self.scalars.a.convert("trunc", shifted, self.key)

    def _load(self, i: Int, lanes: int = 0) -> Scalar:
        at = self.b.mul(i, self._step * self.x.dtype.itemsize)
        return self.scalars.load(self.x.dtype, self.b.offset(self.row, at), lanes)

    def _key(self, x: Scalar) -> Scalar:
        """Return an unsigned number in the order of the results, the first largest."""
        bits = ordered(self.scalars.a, x)
        return Scalar(bits if self.op.largest else self.scalars.a.op("xor", bits, -1), x.dtype)

    def _rank(self, key: Reg, i: Int) -> Reg:
        """Return a key with the index below it: of equal keys the first index is the largest."""
        a, b = self.scalars.a, self.b
        shifted = a.op("shl", a.convert("zext", key, self.rank), 64 if self.wide else 32)
        place = b.set("i64", f"sub i64 {(1 << PLACE_BITS) - 1}, {i}")
        return a.op("or", shifted, a.convert("zext", place, self.rank))

    def _merge(self, row: Int) -> None:
        """Merge the largest elements of all threads, in order."""
        b, a = self.b, self.scalars.a
        threads = self.context.threads
        heaps = [self._sorted(b.offset(self.heaps, t * self._heap_bytes)) for t in range(threads)]

        def pick(j: Int, at: list[Reg]) -> list[Reg]:
            best, owner = heaps[0].load(at[0]), Reg("0", "i64")
            for t in range(1, threads):
                head = heaps[t].load(at[t])
                larger = b.compare("ugt", head, best)
                best, owner = a.select(larger, head, best), a.select(larger, t, owner)
            self._give(row, j, best)
            taken = (a.compare("eq", owner, t) for t in range(threads))
            # No list is exhausted before k elements: each holds k.
            return [
                a.op("add", p, a.convert("zext", m, "i64")) for p, m in zip(at, taken, strict=True)
            ]

        b.loop(0, self.op.k, 1, pick, [Reg("0", "i64")] * threads)

    def _give(self, row: Int, j: Int, rank: Reg) -> None:
        """Store result number j of a row: the element, and its index."""
        b, a = self.b, self.scalars.a
        low = a.op("and", a.convert("trunc", rank, "i64"), (1 << PLACE_BITS) - 1)
        place = b.set("i64", f"sub i64 {(1 << PLACE_BITS) - 1}, {low}")
        for output in self.context.step.region.outputs:
            assert isinstance(output.op, Item)
            at = self._result(row, j, output)
            if output.op.index:
                b.store(place, at, 8)
                continue
            bits = bits_of(self.x.dtype)
            source = b.offset(self.row, b.mul(place, self._step * bits.itemsize))
            self.scalars.store(self.scalars.load(bits, source), at)

    def _result(self, row: Int, j: Int, output: Value) -> Reg:
        b, place = self.b, self.context.program.places.storage[output]
        at = b.add(self._offset(row, output), b.mul(j, place.strides[self.op.axis]))
        return b.offset(self.pointers[output], b.mul(at, output.dtype.itemsize))
