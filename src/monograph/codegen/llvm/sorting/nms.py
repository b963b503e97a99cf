"""Non-maximum suppression: the best boxes of each class that do not overlap a better one.

Threads divide the classes of all images. For each class, the candidates go into a heap with the
best score on top, and are taken from it one by one until enough are selected.
"""

from __future__ import annotations

from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalar_functions import number
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
from monograph.codegen.llvm.sorting.heap import Heap
from monograph.ir.dtype import f64
from monograph.ir.sizes import is_one
from monograph.ops.roi import NonMaxSuppression
from monograph.ops.scalar import Scalar
from monograph.program.dynamic.bounded import Counted, is_counted

BOX = 5
"""Numbers stored per selected box: two corners and the area."""


@kernel_for(Counted, when=partial(is_counted, kind=NonMaxSuppression))
def suppress(context: KernelContext) -> Kernel:
    """Generate a kernel for non-maximum suppression."""
    return _Suppress(context).emit()


class _Suppress(Counting):
    def __init__(self, context: KernelContext) -> None:
        super().__init__(context)
        assert isinstance(self.anchor.op, Counted)
        assert isinstance(self.anchor.op.of, NonMaxSuppression)
        self.op = self.anchor.op.of
        self.boxes, self.scores = self.anchor.inputs
        self.images, self.classes, self.count = self.scores.tensor.static
        self.pairs = self.images * self.classes
        self.limit = max(min(self.op.limit, self.count), 0)
        self.wide = is_wide(self.scores.dtype)
        self.rank, self.rank_bytes = ("i128", 16) if self.wide else ("i64", 8)
        self.lanes = max(context.features.lanes(64), 1)
        self.room = -(-max(self.limit, 1) // self.lanes) * self.lanes

    def emit(self) -> Kernel:
        heap_bytes = -(-max(self.count * self.rank_bytes, 64) // 64) * 64
        kept_bytes = -(-self.room * BOX * 8 // 64) * 64
        want = self.context.argument
        heaps = want(LlvmScratch(self.threads * heap_bytes))
        kept = want(LlvmScratch(self.threads * kept_bytes))
        chosen = want(LlvmScratch(max(self.pairs * self.limit * 8, 64)))
        counts = want(LlvmScratch(max(self.pairs * 8, 64)))
        sync = want(Sync())
        self.begin()
        b, tid = self.b, self.b.arguments["tid"]
        self.chosen, self.counts = b.arguments[f"p{chosen}"], b.arguments[f"p{counts}"]
        own = b.offset(b.arguments[f"p{heaps}"], b.mul(tid, heap_bytes))
        self.heap = Heap(b, own, self.rank, self.rank_bytes)
        self.kept = b.offset(b.arguments[f"p{kept}"], b.mul(tid, kept_bytes))
        if self.limit:
            low, high = share(b, self.pairs, self.threads)
            b.loop(low, high, 1, self._pair)
        synchronise(b, sync, self.threads)
        self.b.on_thread(0, self._join)
        return self.context.finish(b)

    def _pair(self, pair: Int, _: list[Reg]) -> None:
        """Select among the boxes of one class of one image."""
        b = self.b
        image, class_ = b.div(pair, self.classes), b.mod(pair, self.classes)
        candidates = self._candidates(image, class_)
        nothing = self.scalars.literal(0.0, f64, self.lanes)
        b.loop(0, self.room, self.lanes, lambda j, _: self.scalars.store(nothing, self._kept(4, j)))
        self.heap.order(candidates)
        row = b.offset(self.chosen, b.mul(pair, self.limit * 8))
        found = self._take(image, candidates, row)
        b.store(found, b.offset(self.counts, b.mul(pair, 8)), 8)

    def _candidates(self, image: Int, class_: Int) -> Reg:
        """Push the boxes with a sufficient score onto the heap; return their number."""
        s = self.scalars
        step = self.context.program.places.storage[self.scores].strides[2]

        def holds(i: Int, lanes: int) -> Reg:
            if self.op.score is None:
                return Reg("true", "i1")
            score = self.load(self.scores, [image, class_, i], lanes)
            reg: Reg = s.less(number(s, self.op.score), s.cast(score, f64)).reg
            return reg

        def add(i: Int, at: Reg) -> None:
            self.heap.store(at, self._rank(self.load(self.scores, [image, class_, i]), i))

        lanes = self.lanes if is_one(step) and self.op.score is not None else 0
        return self.walk(0, self.count, Reg("0", "i64"), holds, add, lanes)

    def _rank(self, score: Scalar, i: Int) -> Reg:
        """Return a number that is smaller for a better box: the inverted score, then the index."""
        a, b = self.scalars.a, self.b
        bits = a.op("xor", ordered(a, score), -1)
        bits = a.select(a.compare("uno", score.reg, score.reg), -1, bits)
        shifted = a.op("shl", a.convert("zext", bits, self.rank), 64 if self.wide else 32)
        return a.op("or", shifted, a.convert("zext", b.i64(i), self.rank))

    def _take(self, image: Int, candidates: Reg, row: Reg) -> Reg:
        """Pop boxes from the heap, best first, until enough are selected; return their number."""
        b, a, zero = self.b, self.scalars.a, Reg("0", "i64")

        def continues(left: Reg, found: Reg) -> Reg:
            some = b.compare("sgt", left, zero)
            return a.op("and", some, b.compare("slt", found, Reg(str(self.limit), "i64")))

        def pop(left: Reg, found: Reg) -> list[Reg]:
            best = self.heap.load(0)
            fewer = b.i64(b.sub(left, 1))
            self.heap.sink(self.heap.load(fewer), 0, fewer)
            low = a.convert("trunc", best, "i64")
            i = low if self.wide else a.op("and", low, (1 << 32) - 1)
            return [fewer, self._offer(image, i, found, row)]

        return b.loop_while([("left", candidates), ("found", zero)], continues, pop)[1]

    def _offer(self, image: Int, i: Reg, found: Reg, row: Reg) -> Reg:
        """Select a box unless it overlaps a selected one; return the number of selected boxes."""
        b, a = self.b, self.scalars.a
        box = self._corners(image, i)
        hit = self._hits(box, found)

        def keep() -> Reg:
            for k, x in enumerate(box):
                b.store(x.reg, self._kept(k, found), 8)
            b.store(i, b.offset(row, b.mul(found, 8)), 8)
            return b.set("i64", f"add i64 {found}, 1")

        return a.unless(a.compare("eq", hit, 0), found, keep)

    def _kept(self, k: int, j: Int) -> Reg:
        """Return the address of a number of a selected box: each kind has its own list."""
        return self.b.offset(self.kept, self.b.mul(self.b.add(j, k * self.room), 8))

    def _hits(self, box: list[Scalar], found: Reg) -> Reg:
        """Return True if a box overlaps a selected one; compares vectors until one does.

        After the selected boxes there are boxes without area, which overlap nothing.
        """
        b, a, lanes = self.b, self.scalars.a, self.lanes
        spread = [self.scalars.splat(x, lanes) for x in box]

        def continues(j: Reg, hit: Reg) -> Reg:
            return a.op("and", b.compare("slt", j, found), a.op("xor", hit, 1))

        def look(j: Reg, hit: Reg) -> list[Reg]:
            other = [self.scalars.load(f64, self._kept(k, j), lanes) for k in range(BOX)]
            some = a.any(self._overlaps(other, spread))
            return [b.i64(b.add(j, lanes)), some]

        starts = [("j", Reg("0", "i64")), ("hit", Reg("false", "i1"))]
        return b.loop_while(starts, continues, look, "look")[1]

    def _corners(self, image: Int, i: Reg) -> list[Scalar]:
        """The lower corner, the higher one, and the area of a box."""
        s = self.scalars
        given = [s.cast(self.load(self.boxes, [image, i, k]), f64) for k in range(4)]
        if self.op.centre:
            half = [s.mul(x, number(s, 0.5)) for x in given[2:]]
            low = [s.sub(x, h) for x, h in zip(given[:2], half, strict=True)]
            high = [s.add(x, h) for x, h in zip(given[:2], half, strict=True)]
        else:
            low = [s.min(given[k], given[k + 2]) for k in range(2)]
            high = [s.max(given[k], given[k + 2]) for k in range(2)]
        sides = [s.sub(h, x) for x, h in zip(low, high, strict=True)]
        return [*low, *high, s.mul(*sides)]

    def _overlaps(self, one: list[Scalar], other: list[Scalar]) -> Reg:
        """Return True if the intersection over the union of two boxes exceeds the threshold."""
        s, zero = self.scalars, number(self.scalars, 0.0)
        sides = [s.sub(s.min(one[2 + k], other[2 + k]), s.max(one[k], other[k])) for k in range(2)]
        shared = s.mul(*(s.max(side, zero) for side in sides))
        valid = s.and_(s.less(zero, shared), s.and_(s.less(zero, one[4]), s.less(zero, other[4])))
        union = s.select(valid, s.sub(s.add(one[4], other[4]), shared), number(s, 1.0))
        ratio = s.select(valid, s.div(shared, union), zero)
        reg: Reg = s.not_(s.less_equal(ratio, number(s, self.op.iou))).reg
        return reg

    def _join(self) -> None:
        """Store the selected boxes of all classes, one after the other, and their number."""
        b = self.b

        def pair(p: Int, start: list[Reg]) -> list[Reg]:
            count = b.load("i64", b.offset(self.counts, b.mul(p, 8)), 8)
            row = b.offset(self.chosen, b.mul(p, self.limit * 8))
            numbers = (b.i64(b.div(p, self.classes)), b.i64(b.mod(p, self.classes)))
            b.loop(0, count, 1, partial(self._write, start[0], row, numbers))
            return [b.set("i64", f"add i64 {start[0]}, {count}")]

        zero = Reg("0", "i64")
        pairs = self.pairs if self.limit else 0
        total = b.i64(b.loop(0, pairs, 1, pair, [zero])[0])
        last = len(self.anchor.type.items) - 1  # type: ignore[union-attr]
        self.give(last, [], total)
        if 0 in self.results:
            most = self.results[0].tensor.static[0]

            def clear(i: Int, _: list[Reg]) -> None:
                for k in range(3):
                    self.give(0, [i, k], zero)

            b.loop(total, most, 1, clear)

    def _write(self, start: Reg, row: Reg, numbers: tuple[Reg, Reg], j: Int, _: list[Reg]) -> None:
        b = self.b
        at = b.add(start, j)
        place = b.load("i64", b.offset(row, b.mul(j, 8)), 8)
        for k, number_ in enumerate((*numbers, place)):
            self.give(0, [at, k], number_)
