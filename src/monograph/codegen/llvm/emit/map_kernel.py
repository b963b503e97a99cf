"""Map kernels: loop nests over elements that are computed independently of each other.

A nest merges dimensions that are contiguous in memory, divides work among threads, and runs its
last counter in vectors. Its body is fused pointwise work, or an anchor and its epilogue. Pointwise
work reads operands that are contiguous along another counter in square tiles, which are transposed
in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point, elements_of
from monograph.codegen.llvm.emit.few_columns import (
    SHORTEST,
    FewColumns,
    Loads,
    element_of,
    few_columns,
    store_rows,
)
from monograph.codegen.llvm.emit.turned_tiles import (
    LEAST_TILE,
    moved,
    run_tile,
    turned_loads,
    turned_tile,
)
from monograph.codegen.llvm.module.kernel import Argument, Kernel, KernelContext, share
from monograph.ir import DType, Value
from monograph.ir.dtype import u8, u16, u32, u64
from monograph.ir.sizes import divides, hint_of, is_one, is_open, proven
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import (
    Element,
    Indices,
    Resolved,
    counters,
    merge,
    positions_read,
)
from monograph.program.index import Counter, Index, flatten

UNROLL = 4
HEAVY = 6
"""The most ops of an expression that is unrolled: more would run out of registers."""
_BITS: dict[int, DType] = {1: u8, 2: u16, 4: u32, 8: u64}
SHORT = 4
"""The most vectors of a row whose rest is worth narrower vectors."""
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
        size = hint_of(inner.extent)
        by_rows = hint_of(count) >= 4 * self.threads or size < 2 * lanes * self.threads
        rows = share(self.b, count, self.threads) if by_rows else (0, count)
        size = inner.extent
        span = (0, size) if by_rows else share(self.b, size, self.threads, max(lanes, 1))

        def row(i: Int, _: list[Reg]) -> None:
            values = self._outer_values(outer, i)
            before(Point(values))
            self._inner(values, inner, span, body, lanes, unroll)

        self.b.loop(*rows, 1, row)

    def run_tiles(self, tile: Body, body: Body, lanes: int, across: Counter) -> None:
        """Run square tiles of the last counter and another; `tile` has the size as its lanes.

        Narrower tiles take the rest along both counters, and `body` what is left of these.
        """
        b, inner = self.b, self.counters[-1]
        outer = [c for c in self.counters[:-1] if c is not across]
        rows = math.prod(c.extent for c in outer)
        start, size = 0, lanes
        while not proven(across.extent, "<=", start) and size:
            count = (across.extent - start) // size

            def unit(
                u: Int, _: list[Reg], first: int = start, n: int = count, size: int = size
            ) -> None:
                values = self._outer_values(outer, b.div(u, n))
                values[across] = b.add(b.mul(b.mod(u, n), size), first)
                if size < LEAST_TILE:
                    self._inner(values, inner, (0, inner.extent), body, lanes, 1)
                else:
                    self._tiles(values, inner, across, size, tile, body)

            if is_open(count) or count:
                b.loop(*share(b, rows * count, self.threads), 1, unit)
            start += count * size
            size = size // 2 if size > LEAST_TILE else int(size > 1)

    def _tiles(
        self,
        values: dict[Counter, Int],
        inner: Counter,
        across: Counter,
        size: int,
        tile: Body,
        body: Body,
    ) -> None:
        """Run the tiles of all of the last counter, `size` places along the other."""
        b, start, width = self.b, 0, size
        while not proven(inner.extent, "<=", start) and width:
            stop = start + (inner.extent - start) // width * width

            def some(j: Int, _: list[Reg], width: int = width) -> None:
                for part in range(0, size, width):
                    place = {across: b.add(values[across], part), inner: j}
                    tile(Point(values | place, inner, width))

            def single(j: Int, _: list[Reg]) -> None:
                b.loop(
                    0,
                    size,
                    1,
                    lambda k, _: body(Point(values | {across: b.add(values[across], k), inner: j})),
                )

            b.loop(start, stop, width, some if width >= LEAST_TILE else single)
            start, width = stop, width // 2 if width > LEAST_TILE else int(width > 1)

    def _once(self, before: Body, body: Body) -> None:
        """Run the only point of an empty nest, on one thread."""

        def one() -> None:
            before(Point({}))
            body(Point({}))

        self.b.on_thread(0, one)

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
            step = min(width, lanes) if width > 1 else 0

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
        if type(start) is int and type(end) is int:
            return start + max(0, -(-(end - start) // width)) * width
        room = self.b.maximum(self.b.add(self.b.sub(end, start), width - 1), 0)
        return self.b.add(start, self.b.mul(self.b.div(room, width), width))


def _widths(extent: int, lanes: int, unroll: int) -> list[int]:
    """Return group sizes, largest first; size 1 takes the rest, behind narrower vectors if a row is
    short.
    """
    if lanes < 2 or hint_of(extent) < lanes:
        return [1]
    if is_open(extent):
        return [unroll * lanes, lanes, 1] if unroll > 1 else [lanes, 1]
    widths = [unroll * lanes] if unroll > 1 and extent >= unroll * lanes else []
    widths.append(lanes)
    if extent < SHORT * lanes:
        widths += [w for w in (lanes // 2, lanes // 4) if w >= LEAST_TILE and extent % lanes & w]
    return widths if extent % widths[-1] == 0 and len(widths) == 1 else [*widths, 1]


def _nothing(point: Point) -> None:
    """Do nothing before a row."""


def _name(c: Counter) -> tuple[int, str]:
    return len(c.name), c.name


class ElementMaker:
    """The computation of an anchor's elements at an index in terms of loop counters."""

    def __init__(self, elements: LlvmElements, at: Indices) -> None:
        self.e, self.b, self.at = elements, elements.b, at

    def positions(self) -> list[Index]:
        """Return the positions that it reads: loops merge dimensions contiguous in all of them."""
        return []

    def enter(self, point: Point) -> None:
        """Prepare a row: all counters but the innermost are known."""

    def element(self, point: Point) -> Scalar:
        """Return the anchor's element at a point, or as many as the point has lanes."""
        raise NotImplementedError


class Loaded(ElementMaker):
    """The elements of a value in memory, as those of a type."""

    def __init__(self, value: Value, dtype: DType, elements: LlvmElements, at: Indices) -> None:
        super().__init__(elements, at)
        self.value, self.dtype = value, dtype

    def positions(self) -> list[Index]:
        return [flatten(self.at, self.e.storage[self.value].strides)]

    def element(self, point: Point) -> Scalar:
        found = self.e.load(self.value, self.at, point)
        return found if found.dtype == self.dtype else Scalar(found.reg, self.dtype)


Build = Callable[[LlvmElements, Indices], ElementMaker]


def each_element(
    context: KernelContext, build: Build, extra: Sequence[Argument] = (), vectors: bool = True
) -> Kernel:
    """Generate a kernel that computes and finishes every element of the anchor.

    Pointers come in the order: inputs of the region, its outputs, `extra`.
    """
    region = context.step.region
    context.add(*region.inputs, *region.outputs, *extra)
    b = context.builder()
    emit_each(context, elements_of(context, b), build, vectors)
    return context.finish(b)


def emit_each(context: KernelContext, elements: LlvmElements, build: Build, vectors: bool) -> None:
    """Emit the loops that compute, finish and store every element of the anchor."""
    region, anchor = context.step.region, context.anchor
    shape = anchor.tensor.static
    if 0 in shape:
        return
    elements.given[anchor] = Scalar(None, anchor.dtype)
    plain = counters(shape)
    stored = _positions(context, elements.plan(region.outputs, plain), plain)
    at = merge(shape, plain, [*stored, *build(elements, plain).positions()])
    order = elements.plan(region.outputs, at)
    maker = build(elements, at)

    def body(point: Point) -> None:
        elements.given[anchor] = maker.element(point)
        made = elements.emit(order, point)
        for value in region.outputs:
            elements.store(value, at, made[Element(value, at)], point)

    lanes = _lanes(context) if vectors else 1
    LoopNest(elements.b, at, context.threads).run(body, lanes, 1, maker.enter)


def _lanes(context: KernelContext) -> int:
    region = context.step.region
    if not region.epilogue:
        return context.features.lanes(8 * context.anchor.dtype.itemsize)
    made = (v.dtype.bits for v in (context.anchor, *region.epilogue))
    return context.features.lanes(max(*made, 32))


def moved_dtype(context: KernelContext) -> DType:
    """Return the type that elements are moved as: bits if the anchor has no epilogue."""
    region = context.step.region
    return context.anchor.dtype if region.epilogue else bits_of(context.anchor.dtype)


def bits_of(dtype: DType) -> DType:
    """Return the unsigned integer type of the same size in memory."""
    return _BITS[dtype.itemsize]


def follows(position: Index, point: Point) -> bool:
    """Return True if adjacent lanes read adjacent elements."""
    assert point.lane is not None
    lane = point.lane
    return is_one(position.factor(lane)) and all(
        a == lane or lane not in Index(0, ((a, 1),)).counters for a, _ in position.terms
    )


def pointwise(context: KernelContext) -> Kernel:
    """A kernel that computes every element of a region's outputs, which share a shape."""
    region = context.step.region
    context.add(*region.inputs, *region.outputs)
    b = context.builder()
    shape = region.outputs[0].tensor.static
    if 0 in shape:
        return context.finish(b)
    elements = elements_of(context, b)
    widest = max(v.dtype.bits for v in (*region.inputs, *region.body))
    lanes = context.features.lanes(max(widest, 32))
    for least in (SHORTEST, lanes):
        at = _split_loops(context, elements, shape, least)
        order = elements.plan(region.outputs, at)
        nest = LoopNest(b, at, context.threads)
        few = few_columns(elements, order, region.outputs, at, nest.counters, lanes)
        if few is not None:
            break

    def body(point: Point, loaded: Loads | None = None) -> None:
        made = elements.emit(order, point, loaded)
        for value in region.outputs:
            elements.store(value, at, made[Element(value, at)], point)

    heavy = sum(bool(r.operands) for r in order) > HEAVY
    if few is not None:
        _few_columns(elements, order, region.outputs[0], at, nest, few, lanes)
        return context.finish(b)
    turned = {} if heavy else turned_loads(elements, order, nest.counters, lanes)
    if turned:
        across, loads = next(iter(turned.items()))
        nest.run_tiles(partial(run_tile, elements, across, loads, body), body, lanes, across)
    else:
        nest.run(body, lanes, 1 if heavy else UNROLL)
    return context.finish(b)


def _few_columns(
    elements: LlvmElements,
    order: Sequence[Resolved],
    value: Value,
    at: Indices,
    nest: LoopNest,
    few: FewColumns,
    lanes: int,
) -> None:
    """Run a nest whose last counter has few values: it is computed for many rows at once."""
    nest.counters = [c for c in nest.counters if c is not few.columns]
    rows = partial(store_rows, elements, value, at, few, element_of(elements, order, value, at))
    turned = turned_loads(elements, order, nest.counters, lanes)
    if not turned:
        nest.run(rows, lanes, 1)
        return
    across, loads = next(iter(turned.items()))

    def tile(point: Point) -> None:
        columns = [turned_tile(elements, across, loads, p) for p in few.points(point)]
        for k, loaded in enumerate(zip(*columns, strict=True)):
            rows(moved(elements.b, point, across, k, point.lane), loaded)

    nest.run_tiles(tile, rows, lanes, across)


def _split_loops(
    context: KernelContext, elements: LlvmElements, shape: Sequence[int], least: int
) -> Indices:
    """Return the index of each dimension in terms of loops.

    Where a view divides a counter, its parts become loops of their own, of the last counter only
    if they have at least `least` elements.
    """
    outputs, plain = context.step.region.outputs, counters(shape)
    positions = _positions(context, elements.plan(outputs, plain), plain)
    parts = [_parts(c, positions, least if c is plain[-1] else 1) for c in plain]
    sizes = [size for each in parts for size in each]
    split = _joined(parts, counters(sizes))
    positions = _positions(context, elements.plan(outputs, split), split)
    return _joined(parts, merge(sizes, counters(sizes), positions))


def _parts(index: Index, positions: Sequence[Index], least: int) -> tuple[int, ...]:
    """Return the sizes that the extent of a counter is divided into.

    Positions divide it by the last of them, which has at least `least` elements.
    """
    ((whole, _),) = index.terms or ((None, 0),)
    if not isinstance(whole, Counter):
        return (1,)
    for position in positions:
        for atom, _ in position.terms:
            if isinstance(atom, Counter) or atom.index.only != whole:
                continue
            fits = least <= hint_of(atom.by) and proven(atom.by, "<", whole.extent)
            if fits and divides(atom.by, whole.extent):
                return whole.extent // atom.by, atom.by
    return (whole.extent,)


def _joined(parts: Sequence[tuple[int, ...]], at: Indices) -> Indices:
    """Return the index of each dimension from those of its parts."""
    rest = iter(at)
    return tuple(
        next(rest) if len(sizes) == 1 else next(rest) * sizes[1] + next(rest) for sizes in parts
    )


def _positions(context: KernelContext, order: Sequence[Resolved], at: Indices) -> list[Index]:
    """Every position in memory that the loop reads or writes."""
    storage = context.program.places.storage
    written = [flatten(at, storage[v].strides) for v in context.step.region.outputs]
    return positions_read(order, storage) + written
