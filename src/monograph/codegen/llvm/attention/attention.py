"""Attention: scores of a block of queries, their softmax, and the weighted sum of the values.

A thread computes a few queries of one head at a time. Their scores against all keys stay in its own
memory, small enough for the nearest caches. Keys are transposed once for each head, so that lanes
run over keys while scores are computed. For a few queries only, as in decoding, that does not pay,
and each score is a separate dot product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register
from monograph.codegen.llvm.attention.mask import ScoreMask, View
from monograph.codegen.llvm.emit.builder import Int, transposed
from monograph.codegen.llvm.emit.elements import Epilogue, part, pieces
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    kernel_for,
    pointers,
    share,
)
from monograph.codegen.llvm.rows.normalise import LOG2_E, power_below_one
from monograph.ir import Value
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import hint_of, is_one, is_open, proven
from monograph.ops.attention import Attention
from monograph.ops.scalar import Scalar
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import Element, counters, through_view

ROWS = 6
"""Queries per block: enough for every load to feed many multiply-adds."""
FEW = 4
"""For this many queries or fewer, each score is a separate dot product."""
LINE = 64


def serves(value: Value) -> bool:
    """Return True if a value is attention that this kernel computes."""
    # Heads without elements have scores too: 0.
    return isinstance(value.op, Attention) and 0 not in value.inputs[0].tensor.static[:3]


def readable(user: Value, index: int, operand: Value) -> bool:
    """Return True if strides describe an operand, with its last dimension contiguous."""
    shape = operand.tensor.static
    at = counters(shape)
    element = Element(operand, at)
    while is_view(element.value):
        element = through_view(element.value, element.at)
    if not all(i.is_linear for i in element.at):
        return False
    if not at or is_one(shape[-1]):
        return True
    if not element.at:  # A single number, broadcast.
        return False
    last = at[-1].terms[0][0]
    outer = all(i.factor(last) == 0 for i in element.at[:-1])
    return outer and is_one(element.at[-1].factor(last))


@kernel_for(Attention, when=serves, readable=readable)
def attention(context: KernelContext) -> Kernel:
    """Generate a kernel for attention and its epilogue."""
    return _Attention(context).emit()


@dataclass(frozen=True)
class _Block:
    """Some queries of a head, and the number of keys that they may see."""

    batch: Int
    head: Int
    first: Int
    rows: int
    keys: Int


class _Attention:
    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.anchor
        assert isinstance(anchor.op, Attention)
        self.anchor, self.op = anchor, anchor.op
        q, k, v = (x.tensor.static for x in anchor.inputs[:3])
        self.batch, self.heads, self.queries, self.depth = q
        self.groups, self.keys, self.width = k[1], k[2], v[3]
        self.dtype = f64 if anchor.dtype == f64 else f32
        self.element = register(self.dtype)
        self.size = self.dtype.itemsize
        self.lanes = context.features.lanes(self.dtype.bits)
        self.panel = 4 if context.features.registers >= 32 else 2
        # With one query, the heads that share keys are processed like queries.
        self.over_heads = is_one(self.queries)
        self.repeat = self.heads // self.groups
        self.rows = self.repeat if self.over_heads else self.queries
        self.few = hint_of(self.rows) <= FEW
        wide = self.panel * self.lanes
        self.row_length = -(-self.keys // wide) * wide

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        rows = ROWS if is_open(self.rows) else min(ROWS, self.rows)
        scores = self._lines(rows * self.row_length)
        turned = 0 if self.few else self._lines(self.depth * self.row_length)
        own = scores + turned
        position = context.argument(LlvmScratch(own * context.threads))
        b = self.b = context.builder()
        self.epilogue = Epilogue(context, b)
        self.scalars = self.epilogue.elements.scalars
        storage = context.program.places.storage
        values = pointers(b, context.arguments)
        self.operands = [View.of(b, v, storage, values) for v in self.anchor.inputs]
        mine = b.offset(b.arguments[f"p{position}"], b.mul(b.arguments["tid"], own))
        self.scores_at, self.turned_at = mine, b.offset(mine, scores)
        self.scores = ScoreMask(self.scalars, self.op, self.dtype, self.operands, self.over_heads)
        self._heads()
        return context.finish(b)

    def _lines(self, elements: int) -> int:
        return -(-elements * self.size // LINE) * LINE

    # Loops over heads and queries

    def _heads(self) -> None:
        b, threads = self.b, self.context.threads
        outer = self.batch * (self.groups if self.over_heads else self.heads)
        whole = hint_of(outer) >= threads

        def one(i: Int, _: list[Reg]) -> None:
            per = self.groups if self.over_heads else self.heads
            batch, head = b.div(i, per), b.mod(i, per)
            group = head if self.over_heads else b.div(head, self.repeat)
            head = b.mul(head, self.repeat) if self.over_heads else head
            length = self.scores.length(batch, self.keys)
            count = b.minimum(length, self.keys)
            key, value = (o.offset(b, batch, group) for o in self.operands[1:3])
            if not self.few:
                self._turn(key, count)
            for run in split(self.rows, ROWS):
                spread = (0, run.count) if whole else share(b, run.count, threads)
                body = partial(self._block, (batch, head), (key, value), length, run)
                b.loop(*spread, 1, body)

        b.loop(*(share(b, outer, threads) if whole else (0, outer)), 1, one)

    def _block(
        self,
        place: tuple[Int, Int],
        kv: tuple[Reg, Reg],
        length: Int,
        run: Run,
        j: Int,
        _: list[Reg],
    ) -> None:
        b = self.b
        batch, head = place
        first = b.add(b.mul(j, run.size), run.start)
        seen = b.minimum(length, self.keys)
        if self.op.causal and not self.over_heads:
            # The last query of the block sees the most keys.
            last = b.add(b.add(first, run.size), b.sub(length, self.queries))
            seen = b.maximum(b.minimum(seen, last), 0)
        seen = b.maximum(seen, 0)
        block = _Block(batch, head, first, run.size, seen)
        key, value = kv
        if self.few:
            self._dots(block, key)
        else:
            self._products(block)
        totals = self._softmax(block, length)
        self._weighted(block, value, totals)

    def _row(self, block: _Block, r: int) -> tuple[Int, Int]:
        """The head and the query of a row."""
        at = self.b.add(block.first, r)
        return (self.b.add(block.head, at), 0) if self.over_heads else (block.head, at)

    def _query(self, block: _Block, r: int) -> Reg:
        return self.operands[0].offset(self.b, block.batch, *self._row(block, r))

    # Scores

    def _turn(self, key: Reg, count: Int) -> None:
        """Transpose keys to [panel][depth][keys of the panel], in this thread's memory."""
        b, lanes, view = self.b, self.lanes, self.operands[1]
        whole_keys, whole_depth = self.keys // lanes * lanes, self.depth // lanes * lanes

        def square(t: Int, _: list[Reg]) -> None:
            for d in range(0, whole_depth, lanes):
                rows = [
                    self._load(view, b.offset(key, view.bytes(b, b.add(t, i), d)), lanes)
                    for i in range(lanes)
                ]
                for j, column in enumerate(transposed(b, rows)):
                    b.store(column, self._turned(d + j, t), self.size)
            each(t, b.add(t, lanes), whole_depth)

        def each(start: Int, stop: Int, depth: int) -> None:
            def one(t: Int, _: list[Reg]) -> None:
                def element(d: Int, _: list[Reg]) -> None:
                    x = self._load(view, b.offset(key, view.bytes(b, t, d)), 0)
                    b.store(x, self._turned(d, t), self.size)

                b.loop(depth, self.depth, 1, element)

            if depth < self.depth:
                b.loop(start, stop, 1, one)

        b.loop(0, b.minimum(count, whole_keys), lanes, square)
        if not proven(self.keys, "==", whole_keys):
            each(whole_keys, self.keys, 0)

    def _turned(self, d: Int, t: Int) -> Reg:
        """Return the address of a transposed key's element: each panel is contiguous."""
        b, wide = self.b, self.panel * self.lanes
        at = b.add(b.mul(b.div(t, wide), self.depth * wide), b.mod(t, wide))
        return b.offset(self.turned_at, b.mul(b.add(at, b.mul(d, wide)), self.size))

    def _load(self, view: View, pointer: Reg, lanes: int) -> Reg:
        found: Reg = self.scalars.load(view.dtype, pointer, lanes if lanes > 1 else 0).reg
        return found

    def _score(self, r: int, t: Int) -> Reg:
        at = self.b.add(t, r * self.row_length)
        return self.b.offset(self.scores_at, self.b.mul(at, self.size))

    def _products(self, block: _Block) -> None:
        """Compute scores of some queries against panels of transposed keys."""
        b, view = self.b, self.operands[0]
        wide = self.panel * self.lanes
        count = block.rows * self.panel
        queries = [self._query(block, r) for r in range(block.rows)]

        def panel(t: Int, _: list[Reg]) -> None:
            start = b.offset(self.turned_at, b.mul(t, self.depth * self.size))

            def multiply(d: Int, sums: list[Reg]) -> list[Reg]:
                row = b.offset(start, b.mul(d, wide * self.size))
                step = self.lanes * self.size
                keys = [
                    b.load(self._wide, b.offset(row, v * step), self.size)
                    for v in range(self.panel)
                ]
                made = []
                for r, query in enumerate(queries):
                    one = self._load(view, b.offset(query, view.last(b, d)), 0)
                    q = b.splat(one, self.lanes)
                    for v, key in enumerate(keys):
                        made.append(self._fma(q, key, sums[r * self.panel + v]))
                return made

            zero = b.number(0.0, self.element, self.lanes)
            sums = b.loop(0, self.depth, 1, multiply, [zero] * count)
            for i, total in enumerate(sums):
                r, v = divmod(i, self.panel)
                b.store(total, self._score(r, b.add(t, v * self.lanes)), self.size)

        b.loop(0, block.keys, wide, panel)

    def _fma(self, x: Reg, y: Reg, z: Reg) -> Reg:
        return self.scalars.a.fma(x, y, z)

    @property
    def _wide(self) -> str:
        return vector(self.lanes, self.element)

    def _dots(self, block: _Block, key: Reg) -> None:
        """Compute scores one by one: lanes run along the multiplied vectors."""
        b, (q, k) = self.b, self.operands[:2]
        queries = [self._query(block, r) for r in range(block.rows)]
        columns = _columns(self.depth, self.lanes)

        def one(t: Int, _: list[Reg]) -> None:
            row = b.offset(key, k.bytes(b, t, 0))
            keys = [self._load(k, b.offset(row, k.last(b, d)), n) for d, n in columns]
            for r, query in enumerate(queries):
                total: Reg | None = None
                rest: Reg | None = None
                for (d, n), x in zip(columns, keys, strict=True):
                    y = self._load(q, b.offset(query, q.last(b, d)), n)
                    if n == self.lanes:
                        total = (
                            self.scalars.a.mul(x, y) if total is None else self._fma(x, y, total)
                        )
                    else:
                        single = self._total(self.scalars.a.mul(x, y))
                        rest = single if rest is None else self.scalars.a.add(rest, single)
                if total is not None:
                    whole = self._total(total)
                    rest = whole if rest is None else self.scalars.a.add(rest, whole)
                nothing = b.number(0.0, self.element, 0)  # heads without elements
                b.store(nothing if rest is None else rest, self._score(r, t), self.size)

        b.loop(0, block.keys, 1, one)

    def _total(self, x: Reg) -> Reg:
        """The sum of all lanes."""
        while x.lanes:
            half = x.lanes // 2
            x = self.scalars.a.add(part(self.b, x, 0, half), part(self.b, x, half, half))
        return x

    # Weights

    def _softmax(self, block: _Block, length: Int) -> list[Reg]:
        """Turn scores into unnormalised weights; return the divisor of each row."""
        b, a, s = self.b, self.scalars.a, self.scalars
        rows = range(block.rows)
        places = [(block.batch, *self._row(block, r)) for r in rows]
        bounds = [self.scores.bounds(p[2], length, self.keys, self.queries) for p in places]
        lowest = b.number(-math.inf, self.element, self.lanes)

        def finish(t: Int, tops: list[Reg]) -> list[Reg]:
            made = []
            for r in rows:
                at = self._score(r, t)
                x = b.load(self._wide, at, self.size)
                x = self.scores.finished(x, places[r], t, bounds[r], self.keys)
                b.store(x, at, self.size)
                made.append(a.select(a.compare("ogt", x, tops[r]), x, tops[r]))
            return made

        tops = self._vectors(block.keys, finish, [lowest] * block.rows)
        singles = [self._top(t, self.scores.sink(places[r][1])) for r, t in enumerate(tops)]
        plain = [b.splat(x, self.lanes) for x in singles]

        def weigh(t: Int, sums: list[Reg]) -> list[Reg]:
            made = []
            for r in rows:
                at = self._score(r, t)
                x = b.load(self._wide, at, self.size)
                if self.dtype == f32:
                    e = power_below_one(a, a.mul(a.sub(x, plain[r]), LOG2_E))
                else:
                    e = s.exp(Scalar(a.sub(x, plain[r]), self.dtype)).reg
                b.store(e, at, self.size)
                made.append(a.add(sums[r], e))
            return made

        zero = b.number(0.0, self.element, self.lanes)
        sums = self._vectors(block.keys, weigh, [zero] * block.rows)
        return [self._divisor(self._total(x), singles[r], places[r][1]) for r, x in enumerate(sums)]

    def _vectors(self, keys: Int, body: object, carried: Sequence[Reg]) -> list[Reg]:
        """Loop over the vectors of scores that contain a key."""
        return self.b.loop(0, keys, self.lanes, body, carried)  # type: ignore[arg-type]

    def _top(self, tops: Reg, sink: Reg | None) -> Reg:
        """Return the largest score of a row; 0 if it has none."""
        a = self.scalars.a
        while tops.lanes:
            half = tops.lanes // 2
            x, y = part(self.b, tops, 0, half), part(self.b, tops, half, half)
            tops = a.select(a.compare("ogt", x, y), x, y)
        if sink is not None:
            tops = a.select(a.compare("ogt", sink, tops), sink, tops)
        return a.select(a.compare("oeq", tops, -math.inf), 0.0, tops)

    def _divisor(self, total: Reg, top: Reg, head: Int) -> Reg:
        """Return 1 / the sum of weights; for a fully masked query 1, or inf if it must give NaN."""
        a = self.scalars.a
        sink = self.scores.sink(head)
        if sink is not None:
            e = self.scalars.exp(Scalar(a.sub(sink, top), self.dtype))
            total = a.add(total, e.reg)
        if not (self.op.masked_nan and self.keys):
            total = a.select(a.compare("oeq", total, 0.0), 1.0, total)
        return a.div(1.0, total)

    # The result

    def _weighted(self, block: _Block, value: Reg, divisors: list[Reg]) -> None:
        columns = _columns(self.width, self.lanes)
        for start in range(0, len(columns), self.panel):
            self._columns(block, value, divisors, columns[start : start + self.panel])

    def _columns(
        self, block: _Block, value: Reg, divisors: list[Reg], columns: list[tuple[int, int]]
    ) -> None:
        """Sum some columns of the values with the weights of each row."""
        b, view = self.b, self.operands[2]
        kinds = [vector(n if n > 1 else 0, self.element) for _, n in columns]
        zeros = [b.number(0.0, self.element, n if n > 1 else 0) for _, n in columns]
        size = len(columns)
        count = block.rows * size
        # Few accumulators would wait for each other, so several keys are summed separately.
        apart = max(1, 8 // count)

        def add(t: Int, sums: list[Reg]) -> list[Reg]:
            row = b.offset(value, view.bytes(b, t, 0))
            loaded = [self._load(view, b.offset(row, view.last(b, e)), n) for e, n in columns]
            made = []
            for r in range(block.rows):
                weight = b.load(self.element, self._score(r, t), self.size)
                for c, x in enumerate(loaded):
                    made.append(self._fma(b.splat(weight, x.lanes), x, sums[r * size + c]))
            return made

        def several(t: Int, sums: list[Reg]) -> list[Reg]:
            made = []
            for k in range(apart):
                made += add(b.add(t, k), sums[k * count : (k + 1) * count])
            return made

        keys = block.keys
        whole = b.mul(b.div(keys, apart), apart)
        sums = b.loop(0, whole, apart, several, zeros * block.rows * apart)
        for k in range(1, apart):
            for i in range(count):
                sums[i] = self.scalars.a.add(sums[i], sums[k * count + i])
        sums = sums[:count]
        if apart > 1:
            sums = b.loop(whole, keys, 1, add, sums)
        assert all(x.type == kinds[i % size] for i, x in enumerate(sums))
        for r in range(block.rows):
            head, query = self._row(block, r)
            for c, (e, n) in enumerate(columns):
                x = sums[r * size + c]
                y = self.scalars.a.mul(x, b.splat(divisors[r], x.lanes))
                self.epilogue.store([block.batch, head, query, e], y, n)


def _columns(extent: int, lanes: int) -> list[tuple[int, int]]:
    """(start, width) of whole vectors, then of shorter ones."""
    whole = extent // lanes * lanes
    rest = [(whole + start, width) for start, width in pieces(extent - whole)]
    return [(start, lanes) for start in range(0, whole, lanes)] + rest
