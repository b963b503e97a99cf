"""Loop nests over a shape: merged where memory is contiguous, divided among threads, vectorised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import Point
from monograph.codegen.llvm.module.kernel import share
from monograph.program.fusion.access import Indices
from monograph.program.index import Counter

Body: TypeAlias = Callable[[Point], None]


class LoopNest:
    """Runs a body at every point of some counters; the last counter runs in vectors."""

    def __init__(self, b: Builder, at: Indices, threads: int) -> None:
        self.b = b
        self.threads = threads
        found = dict.fromkeys(c for index in at for c in sorted(index.counters, key=_name))
        self.counters = sorted(found, key=_name)

    def run(self, body: Body, lanes: int, unroll: int = 1, enter: Body | None = None) -> None:
        """Runs `body` at every point, and `enter` before each row, with the outer counters."""
        before = enter or _nothing
        if not self.counters:
            self._once(before, body)
            return
        *outer, inner = self.counters
        count = math.prod(c.extent for c in outer)
        by_rows = count >= 4 * self.threads or inner.extent < 2 * lanes * self.threads
        rows = share(self.b, count, self.threads) if by_rows else (0, count)
        size = inner.extent
        span = (0, size) if by_rows else share(self.b, size, self.threads, max(lanes, 1))

        def row(i: Int, _: list[Reg]) -> None:
            values = self._outer_values(outer, i)
            before(Point(values))
            self._inner(values, inner, span, body, lanes, unroll)

        self.b.loop(*rows, 1, row)

    def _once(self, before: Body, body: Body) -> None:
        """Run the only point of an empty nest, on one thread."""

        def one() -> None:
            before(Point({}))
            body(Point({}))

        first = self.b.compare("eq", self.b.arguments["tid"], Reg("0", "i64"))
        self.b.when(first, one)

    def _outer_values(self, outer: Sequence[Counter], i: Int) -> dict[Counter, Int]:
        """Return the counters of the outer loops from the number of the row."""
        values: dict[Counter, Int] = {}
        for c in reversed(outer):
            values[c] = self.b.mod(i, c.extent) if c is not outer[0] else i
            i = self.b.div(i, c.extent)
        return values

    def _inner(
        self,
        values: dict[Counter, Int],
        inner: Counter,
        span: tuple[Int, Int],
        body: Body,
        lanes: int,
        unroll: int,
    ) -> None:
        """Run vectors as long as they fit, unrolled first, then single elements."""
        start, stop = span
        for width in _widths(inner.extent, lanes, unroll):
            vectors = max(width // max(lanes, 1), 1)
            step = lanes if width >= lanes > 0 else 0

            def some(i: Int, _: list[Reg], vectors: int = vectors, step: int = step) -> None:
                for k in range(vectors):
                    at = values | {inner: self.b.add(i, k * max(step, 1))}
                    body(Point(at, inner if step else None, step))

            # The last start at which a whole group still fits.
            end = self.b.sub(stop, width - 1)
            self.b.loop(start, end, width, some)
            start = self._after(start, end, width)

    def _after(self, start: Int, end: Int, width: int) -> Int:
        """Return the end of a loop over [start, end) in steps of width."""
        if isinstance(start, int) and isinstance(end, int):
            return start + max(0, -(-(end - start) // width)) * width
        room = self.b.maximum(self.b.add(self.b.sub(end, start), width - 1), 0)
        return self.b.add(start, self.b.mul(self.b.div(room, width), width))


def _widths(extent: int, lanes: int, unroll: int) -> list[int]:
    """Return group sizes, largest first; size 1 takes the rest."""
    if not lanes or extent < lanes:
        return [1]
    widths = [unroll * lanes] if unroll > 1 and extent >= unroll * lanes else []
    widths.append(lanes)
    return widths if extent % lanes == 0 and len(widths) == 1 else [*widths, 1]


def _nothing(point: Point) -> None:
    """Do nothing before a row."""


def _name(c: Counter) -> tuple[int, str]:
    return len(c.name), c.name
