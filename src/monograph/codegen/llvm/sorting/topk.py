"""Top-k: a heap of the largest elements so far, and vectors that skip the rest.

Every element has a rank: one number made of its value and its index, so that no two are equal and
the larger rank comes first. A heap holds the k largest ranks with the smallest on top; most
elements are smaller than that, which one comparison shows for a whole vector.
"""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import is_wide
from monograph.codegen.llvm.emit.builder import Builder, Int
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
from monograph.ir import Item, Value
from monograph.ops.scalar import Scalar
from monograph.ops.sort import TopK
from monograph.program.index import strides_of


class Heap:
    """Distinct unsigned numbers of one type, contiguous from a pointer on."""

    def __init__(self, b: Builder, pointer: Reg, kind: str, nbytes: int) -> None:
        self.b = b
        self.pointer = pointer
        self.kind = kind
        self.nbytes = nbytes

    def load(self, i: Int) -> Reg:
        at = self.b.offset(self.pointer, self.b.mul(i, self.nbytes))
        return self.b.load(self.kind, at, self.nbytes)

    def store(self, i: Int, number: Reg) -> None:
        at = self.b.offset(self.pointer, self.b.mul(i, self.nbytes))
        self.b.store(number, at, self.nbytes)

    def order(self, count: Int) -> None:
        """Makes a heap of `count` numbers in any order."""
        half = self.b.div(count, 2)

        def sink(j: Int, _: list[Reg]) -> None:
            root = self.b.sub(self.b.sub(half, 1), j)
            self.sink(self.load(root), root, count)

        self.b.loop(0, half, 1, sink)

    def sort(self, count: int) -> None:
        """Puts a heap of `count` numbers in order, the largest first."""

        def move(j: Int, _: list[Reg]) -> None:
            last = self.b.sub(count - 1, j)
            number = self.load(last)
            self.store(last, self.load(0))
            self.sink(number, 0, last)

        self.b.loop(0, count - 1, 1, move)

    def sink(self, number: Reg, root: Int, count: Int) -> None:
        """Insert a number at a root, or below all smaller numbers there."""
        b = self.b
        before, look, choose, down, done = (
            b.block,
            *(b.new_label(stem) for stem in ("look", "choose", "down", "done")),
        )
        at, below = Reg(b.fresh("at"), "i64"), Reg(b.fresh("below"), "i64")
        b.jump(look)
        b.label(look)
        b.line(f"{at} = phi i64 [ {root}, %{before} ], [ {below}, %{down} ]")
        left = b.i64(b.add(b.mul(at, 2), 1))
        b.branch(b.compare("slt", left, b.i64(count)), choose, done)
        b.label(choose)
        # Without a right child the last number is the left one, and counts as both.
        right = b.i64(b.minimum(b.add(left, 1), b.sub(count, 1)))
        one, other = self.load(left), self.load(right)
        smaller = b.compare("ult", other, one)
        b.line(f"{below} = select i1 {smaller}, i64 {right}, i64 {left}")
        least = b.set(self.kind, f"select i1 {smaller}, {self.kind} {other}, {self.kind} {one}")
        b.branch(b.compare("ult", least, number), down, done)
        b.label(down)
        self.store(at, least)
        b.jump(look)
        b.label(done)
        self.store(at, number)


PLACE_BITS = 32
GROUP = 4
"""Vectors that are compared together."""
SPLIT_FROM = 2048
"""The elements per thread from which dividing a single row pays."""


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
        self.rest = tuple(d for i, d in enumerate(self.shape) if i != self.op.axis)
        self.rows = math.prod(self.rest)
        share_of_row = self.size // context.threads
        self.shared_rows = self.rows < context.threads and share_of_row >= max(
            SPLIT_FROM, self.op.k
        )

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
            rows = (0, self.rows) if self.shared_rows else share(b, self.rows, context.threads)
            b.loop(*rows, 1, self._row)
        return context.finish(b)

    @property
    def _heap_bytes(self) -> int:
        return -(-max(self.op.k, 1) * self.rank_bytes // 64) * 64

    def _row(self, row: Int, _: list[Reg]) -> None:
        b, threads = self.b, self.context.threads
        self.row = b.offset(
            self.pointers[self.x], b.mul(self._offset(row, self.x), self.x.dtype.itemsize)
        )
        if not self.shared_rows:
            self._select(0, self.size)
            b.loop(0, self.op.k, 1, lambda j, _: self._give(row, j, self.heap.load(j)))
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
        """Find the largest ranks of some elements of a row, in order, in this thread's heap."""
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
        self.heap.sort(k)

    @property
    def _step(self) -> int:
        return self.context.program.places.storage[self.x].strides[self.op.axis]

    def _skip_vectors(self, low: Int, high: Int, top: Reg) -> tuple[Int, Reg]:
        """Skip groups of vectors; return the end of the last whole one."""
        b, a = self.b, self.scalars.a
        lanes = self.context.features.lanes(64 if self.wide else 32)
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
        heaps = [
            Heap(b, b.offset(self.heaps, t * self._heap_bytes), self.rank, self.rank_bytes)
            for t in range(threads)
        ]

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
