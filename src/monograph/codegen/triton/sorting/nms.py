"""Non-maximum suppression: the best boxes of each class that do not overlap a better one.

A program has the boxes of a class in an image. It takes the best remaining one, and in one pass
over all boxes removes those that overlap it and finds the next. A second kernel concatenates the
selections of all programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from monograph.codegen.common.registry import any_view
from monograph.codegen.common.scalar_functions import number
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.tile import read, register, write
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    kernel_for,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.sorting.topk import LOWEST, ordered
from monograph.ir import Item, Value
from monograph.ir.dtype import f64, i32, i64
from monograph.ops.roi import NonMaxSuppression
from monograph.ops.scalar import Scalar
from monograph.program.dynamic.bounded import Counted, is_counted

MOST_ABREAST = 2048
"""The most boxes that are compared together."""


@kernel_for(Counted, when=partial(is_counted, kind=NonMaxSuppression), readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    problem = _Problem(context)
    if not problem.pairs or not problem.limit:
        return [Candidate("none", lambda: (problem.joined(),))]
    return [
        Candidate(f"w{w}", lambda w=w: (problem.chosen(w), problem.joined()))  # type: ignore[misc]
        for w in (8, 4, 16)
    ]


@dataclass
class _Box:
    """Two corners and an area."""

    low: list[Scalar]
    high: list[Scalar]
    area: Scalar


class _Problem:
    def __init__(self, context: GpuContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Counted)
        assert isinstance(anchor.op.of, NonMaxSuppression)
        self.context, self.op = context, anchor.op.of
        self.boxes, self.scores = anchor.inputs
        self.images, self.classes, self.count = self.scores.tensor.static
        self.pairs = self.images * self.classes
        self.limit = max(min(self.op.limit, self.count), 0)
        self.abreast = min(MOST_ABREAST, max(32, power(self.count)))
        self.left = TritonScratch(max(self.pairs * self.count, 1) * 8, i64)
        self.places = TritonScratch(max(self.pairs * self.limit, 1) * 4, i32)
        self.counts = TritonScratch(max(self.pairs, 1) * 4, i32)

    def chosen(self, warps: int) -> Launch:
        """Generate the selected boxes of every image and class, the best first."""
        k = self.context.kernel()
        w, e = k.w, k.elements()
        pair = k.program_id()
        image = w.let(f"{pair} // {self.classes}", "n")
        k.wait()
        self._start(k)
        with w.block(f"for start in range(0, {self.count}, {self.abreast})"):
            self._keep(k, pair, self._scored(k, e, pair, image))
        self._best(k)
        w.line("count = tl.full((), 0, tl.int32)")
        with w.block(f"while (best > {LOWEST}) & (count < {self.limit})"):
            w.line(f"tl.store({k.pointer(self.places)} + {pair} * {self.limit} + count, place)")
            w.assign("count", "count + 1")
            spread = w.let(f"place + tl.zeros(({self.abreast},), tl.int32)", "n")
            taken = self._box(e, image, spread, None)
            self._start(k)
            w.line("tl.debug_barrier()")
            with w.block(f"for start in range(0, {self.count}, {self.abreast})"):
                value = self._left(k, pair)
                # Most boxes are soon removed, or were never candidates.
                with w.block(f"if tl.max({value}, 0) > {LOWEST}"):
                    self._keep(k, pair, self._spared(k, e, image, taken, value))
            self._best(k)
        k.trigger()
        w.line(f"tl.store({k.pointer(self.counts)} + {pair}, count)")
        return k.launch((self.pairs,), warps)

    def _start(self, k: KernelWriter) -> None:
        """Initialise the best box of each lane: none yet."""
        k.w.line(f"bests = tl.full(({self.abreast},), {LOWEST}, tl.int64)")
        k.w.line(f"places = tl.full(({self.abreast},), 0, tl.int32)")

    def _number(self, k: KernelWriter) -> tuple[str, str]:
        at = k.w.let(f"start + tl.arange(0, {self.abreast})", "i")
        return at, k.w.let(f"{at} < {self.count}", "m")

    def _scored(self, k: KernelWriter, e: TritonElements, pair: str, image: str) -> str:
        """Return scores as ordered numbers; the lowest for boxes that are no candidates."""
        w, (at, mask) = k.w, self._number(k)
        score = read(e, self.scores, [image, f"({pair} % {self.classes})", at], mask)
        value = w.let(f"({ordered(w, e, score)}).to(tl.int64)", "key")
        value = w.let(f"tl.where({score.reg} != {score.reg}, {LOWEST + 1}, {value})", "key")
        wanted = mask
        if self.op.score is not None:
            least = number(e.scalars, self.op.score)
            above = e.scalars.less(least, e.scalars.cast(score, f64))
            wanted = w.let(f"{mask} & {above.reg}", "m")
        return w.let(f"tl.where({wanted}, {value}, {LOWEST})", "key")

    def _keep(self, k: KernelWriter, pair: str, value: str) -> None:
        """Store the remaining boxes, and the best of them."""
        w, (at, mask) = k.w, self._number(k)
        where = w.let(f"{k.pointer(self.left)} + {pair} * {self.count} + {at}", "pp")
        w.line(f"tl.store({where}, {value}, mask={mask})")
        better = w.let(f"{value} > bests", "m")
        w.assign("places", f"tl.where({better}, {at}, places)")
        w.assign("bests", f"tl.where({better}, {value}, bests)")

    def _best(self, k: KernelWriter) -> None:
        """Return the best of all; of equal ones the first."""
        k.w.line("best = tl.max(bests, 0)")
        k.w.line(f"place = tl.min(tl.where(bests == best, places, {self.count}), 0)")

    def _left(self, k: KernelWriter, pair: str) -> str:
        w, (at, mask) = k.w, self._number(k)
        where = w.let(f"{k.pointer(self.left)} + {pair} * {self.count} + {at}", "pp")
        return w.let(f"tl.load({where}, mask={mask}, other={LOWEST})", "key")

    def _spared(
        self, k: KernelWriter, e: TritonElements, image: str, taken: _Box, value: str
    ) -> str:
        """Return the boxes that remain after those that overlap a selected one are removed."""
        w, (at, mask) = k.w, self._number(k)
        s = e.scalars
        box = self._box(e, image, at, mask)
        overlap = _overlap(k, e, taken, box)
        spared = s.less_equal(overlap, number(s, self.op.iou)).reg
        return w.let(f"tl.where({spared} & ({at} != place), {value}, {LOWEST})", "key")

    def _box(self, e: TritonElements, image: str, at: str, mask: str | None) -> _Box:
        s = e.scalars
        sides = [s.cast(read(e, self.boxes, [image, at, str(i)], mask), f64) for i in range(4)]
        first, second = sides[:2], sides[2:]
        pairs = list(zip(first, second, strict=True))
        if self.op.centre:
            halves = [s.div(b, number(s, 2)) for b in second]
            low = [s.sub(a, h) for a, h in zip(first, halves, strict=True)]
            high = [s.add(a, h) for a, h in zip(first, halves, strict=True)]
        else:
            low, high = [s.min(a, b) for a, b in pairs], [s.max(a, b) for a, b in pairs]
        area = s.mul(s.sub(high[0], low[0]), s.sub(high[1], low[1]))
        return _Box(low, high, area)

    def joined(self) -> Launch:
        """Generate the selected boxes, in the order of images and classes; zeros after them."""
        k = self.context.kernel()
        w, e = k.w, k.elements()
        pair = k.program_id()
        k.wait()
        for name in ("before", "total", "own"):
            w.line(f"{name} = tl.full((), 0, tl.int32)")
        if self.pairs * self.limit:
            self._sum_up(k, pair)
        k.trigger()
        for output in self.context.step.region.outputs:
            assert isinstance(output.op, Item)
            if output.op.index:
                write(e, output, [], register(w, "total.to(tl.int64)", i64), None)
            elif self.pairs * self.limit:
                self._write(k, e, output, pair)
        return k.launch((max(self.pairs, 1),))

    def _sum_up(self, k: KernelWriter, pair: str) -> None:
        """Compute the numbers of boxes selected before this class, in it, and in all."""
        w = k.w
        with w.block(f"for start in range(0, {self.pairs}, 128)"):
            other = w.let("start + tl.arange(0, 128)", "i")
            pointer = f"{k.pointer(self.counts)} + {other}"
            each = w.let(f"tl.load({pointer}, mask={other} < {self.pairs}, other=0)", "n")
            w.assign("before", f"before + tl.sum(tl.where({other} < {pair}, {each}, 0), 0)")
            w.assign("own", f"own + tl.sum(tl.where({other} == {pair}, {each}, 0), 0)")
            w.assign("total", f"total + tl.sum({each}, 0)")

    def _write(self, k: KernelWriter, e: TritonElements, output: Value, pair: str) -> None:
        w = k.w
        with w.block(f"for start in range(0, {self.limit}, 128)"):
            at = w.let("start + tl.arange(0, 128)", "i")
            slot = w.let(f"{pair} * {self.limit} + {at}", "i")
            mine = w.let(f"{at} < own", "m")
            place = w.let(f"tl.load({k.pointer(self.places)} + {slot}, mask={mine}, other=0)", "n")
            rest = w.let(f"({at} < {self.limit}) & ({slot} >= total)", "m")
            row = w.let(f"before + {at}", "i")
            columns = (f"{pair} // {self.classes}", f"{pair} % {self.classes}", place)
            for column, text in enumerate(columns):
                found = register(w, f"({text} + {at} * 0).to(tl.int64)", i64)
                write(e, output, [row, str(column)], found, mine)
                zero = register(w, f"({at} * 0).to(tl.int64)", i64)
                write(e, output, [slot, str(column)], zero, rest)


def _overlap(k: KernelWriter, e: TritonElements, one: _Box, other: _Box) -> Scalar:
    """The intersection of boxes over their union; 0 for boxes without an area."""
    s, zero = e.scalars, number(e.scalars, 0)
    sides = [
        s.max(s.sub(s.min(one.high[d], other.high[d]), s.max(one.low[d], other.low[d])), zero)
        for d in range(2)
    ]
    shared = s.mul(*sides)
    union = s.sub(s.add(one.area, other.area), shared)
    conditions = [s.less(zero, x).reg for x in (shared, one.area, other.area)]
    valid = k.w.let(" & ".join(map(str, conditions)), "m")
    safe = register(k.w, f"tl.where({valid}, {union.reg}, 1.0)", f64)
    return register(k.w, f"tl.where({valid}, {s.div(shared, safe).reg}, 0.0)", f64)
