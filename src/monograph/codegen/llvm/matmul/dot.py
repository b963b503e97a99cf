"""Matrix products: packed constant weights or plain operands, any batch, epilogue in registers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import index

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import register, storage
from monograph.codegen.llvm.emit.builder import Builder, Int, mangled
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.matmul.problem import DotProblem, shared_row_stride
from monograph.codegen.llvm.matmul.tiles import (
    BATCH,
    MAX_ROWS,
    PANELS,
    ROWS,
    RegisterTile,
    Run,
    choose_ahead,
    choose_share,
    choose_tile,
    fetch,
    row_width,
    split,
    streams,
)
from monograph.codegen.llvm.matmul.wide_rows import WideRows
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    LlvmScratch,
    pointers,
    share,
)
from monograph.ir import Array, DType, Value, known
from monograph.ir.dtype import f32, f64, i32, i64
from monograph.ir.sizes import divides, hint_of, is_one, is_open
from monograph.program.index import strides_of
from monograph.program.memory.strided import Strided, strided

UNROLL = 2
ACCUMULATORS = 24
"""Accumulators of 32 registers; measured: with more of them LLVM spills."""
WAYS, PAGE = 8, 4096
CHUNK = 512
"""The depth processed at a time if a panel of weights is too large for the caches."""
PANEL_BYTES = 128 << 10


class DotKernel:
    """Tiles of accumulators over panels of columns; subclasses define the form of the weights."""

    widens = True
    """True if rows of 16-bit floats may be converted before they are multiplied."""

    def __init__(self, context: KernelContext) -> None:
        self.context = context
        anchor = context.anchor
        self.anchor = anchor
        shape = anchor.tensor.static
        x, w = anchor.inputs
        columns = self._width(shape[-1])
        self.problem = DotProblem(shape[:-2], shape[-2], x.tensor.static[-1], columns)
        self.sum_dtype = sum_dtype(anchor)
        self.lanes = context.features.lanes(self.sum_dtype.bits)
        self.vectors = self._vectors()
        self.constant = self._known(w)
        storage = context.program.places.storage
        found = strided(x, storage)
        assert found is not None
        self.x = found
        self.outer: tuple[int, ...] | None = None
        """The extents of all rows, if the rows of a batch are multiplied together."""
        apart = shared_row_stride(self.problem, x, w, found.strides)
        if apart is not None:
            p, self.outer = self.problem, (*self.problem.batch, self.problem.rows)
            self.problem = DotProblem((), math.prod(self.outer), p.depth, p.columns)
            self.x = Strided(found.source, found.offset, (apart, found.strides[-1]))
        self.w = None if self.constant is not None else strided(w, storage)
        self.tile = self._choose_tile()
        self.panels = split(self.vectors, self.tile.vectors)
        self.chunk = self._choose_chunk()
        self.ahead = choose_ahead(
            hint_of(self.problem.rows), self.tile.rows, self._stored, self._streams
        )
        """The prefetch distance of weights in bytes; 0 for none."""

    def _width(self, size: int) -> int:
        """Return the number of columns: of the last vector, the unused lanes are literals."""
        return index(size)

    def _vectors(self) -> int:
        return -(-self.problem.columns // self.lanes)

    def _known(self, w: Value) -> Array | None:
        return known(w)

    def _choose_tile(self) -> RegisterTile:
        p, context = self.problem, self.context
        features, threads = context.features, context.threads
        if self._streams:
            return RegisterTile(1, row_width(self.vectors, self.lanes, features, threads))
        # Rows that are a page apart share one set of the nearest cache.
        apart = self.x.strides[-2] * self.anchor.inputs[0].dtype.itemsize
        rows = WAYS if hint_of(apart) and hint_of(apart) % PAGE == 0 else MAX_ROWS
        most = ACCUMULATORS * features.registers // 32
        return choose_tile(p.rows, self.vectors, p.depth, features, threads, most, rows)

    def _choose_chunk(self) -> int:
        """Return the depth processed at a time; 0 for all of it.

        Many rows use a panel of weights one after the other, so it should stay in cache.
        """
        p, depth = self.problem, hint_of(self.problem.depth)
        panel = depth * self.tile.vectors * self.lanes * self.anchor.inputs[1].dtype.itemsize
        many = hint_of(p.rows) > 4 * self.tile.rows
        return CHUNK if many and panel > PANEL_BYTES and depth > CHUNK else 0

    @property
    def _stored(self) -> int:
        """Return the bytes of packed weights; 0 if they are not packed."""
        p = self.problem
        size = p.depth * p.columns * self.w_size * math.prod(p.batch)
        return 0 if self.constant is None else size

    @property
    def _streams(self) -> bool:
        return streams(hint_of(self.problem.rows), self.anchor.inputs[1].dtype, self._stored)

    def _read(self) -> Sequence[Value]:
        """Return the inputs that the kernel reads besides packed weights."""
        region = self.context.step.region
        return region.inputs if self.constant is None else region.inputs_besides(1)

    def emit(self) -> Kernel:
        region = self.context.step.region
        self.context.add(*self._read(), *region.outputs)
        self.packed = self._request_weights()
        self.wide = self._widened_rows()
        if self.chunk:
            row = self.tile.vectors * self.lanes * self.sum_dtype.itemsize
            self.sums = self.context.argument(
                LlvmScratch(self.problem.rows * row * self.context.threads)
            )
        b = self.b = self.context.builder()
        self.pointers = pointers(b, self.context.arguments)
        self.epilogue = Epilogue(self.context, b)
        self._prepare()
        self._loops()
        return self.context.finish(b)

    def _widened_rows(self) -> WideRows | None:
        """Return the memory for rows in f32; None if products read them as they are."""
        depth, kind = self.problem.depth, self.anchor.inputs[0].dtype
        if not self.widens or is_open(depth) or kind.itemsize != 2 or not kind.is_float:
            return None
        if self._streams or self.tile.vectors == 1 or not is_one(self.x.strides[-1]):
            return None
        return WideRows(self.context, self.tile.rows, self.chunk or depth)

    def _request_weights(self) -> int:
        """Request packed weights; return the position of their pointer, or -1 for plain ones."""
        if self.constant is None:
            return -1
        return self.context.argument(LlvmPacked(self._pack(self.constant)))

    def _prepare(self) -> None:
        """Emit the work before the tiles; there is none for constant and for plain weights."""

    def _pack(self, weights: Array) -> Array:
        """[batch][panel][depth][lanes of the panel], columns padded with zeros."""
        batch = math.prod(weights.shape[:-2])
        depth, columns = weights.shape[-2:]
        wide = np.zeros((batch, depth, self.vectors * self.lanes), weights.dtype)
        wide[:, :, :columns] = weights.reshape(batch, depth, columns)
        pieces = []
        for g in range(batch):
            for run in self.panels:
                width = run.size * self.lanes
                for i in range(run.count):
                    start = run.start * self.lanes + i * width
                    pieces.append(wide[g, :, start : start + width].reshape(-1))
        return np.concatenate(pieces)

    def _loops(self) -> None:
        """Loop over batch, panels of columns and tiles of rows; threads divide one of them."""
        b, p, threads = self.b, self.problem, self.context.threads
        batch = math.prod(p.batch)
        rows = split(p.rows, self.tile.rows)
        over = choose_share(batch, self._panel_runs(), rows, threads)

        def one_batch(g: Int, _: list[Reg]) -> None:
            for panel, last in self._panel_runs():
                one_panel = partial(self._rows, rows, over, g, panel)
                if last:
                    # A panel with unused lanes needs a literal index.
                    self._on_last(over, partial(one_panel, 0, []))
                    continue
                span = share(b, panel.count, threads) if over == PANELS else (0, panel.count)
                b.loop(*span, 1, one_panel)

        b.loop(*(share(b, batch, threads) if over == BATCH else (0, batch)), 1, one_batch)

    def _panel_runs(self) -> list[tuple[Run, bool]]:
        """Return runs of panels; one with unused lanes comes last and alone."""
        runs = [(r, False) for r in self.panels]
        if self.problem.columns % self.lanes:
            whole, _ = runs.pop()
            if whole.count > 1:
                runs.append((Run(whole.start, whole.size, whole.count - 1), False))
            start = whole.start + (whole.count - 1) * whole.size
            runs.append((Run(start, whole.size, 1), True))
        return runs

    def _on_last(self, over: str, body: Callable[[], None]) -> None:
        """Run a body on one thread only, if the threads divide panels."""
        threads = self.context.threads
        if over != PANELS or threads == 1:
            body()
            return
        self.b.on_thread(threads - 1, body)

    def _rows(self, rows: list[Run], over: str, g: Int, panel: Run, i: Int, _: list[Reg]) -> None:
        """Multiply all rows with a panel: at once, or part by part of the depth."""
        threads = self.context.threads
        first = self.b.add(self.b.mul(i, panel.size), panel.start)

        def tiles(body: Callable[[Run, Int], None]) -> None:
            for run in rows:
                part = share(self.b, run.count, threads) if over == ROWS else (0, run.count)
                self.b.loop(*part, 1, lambda j, _, run=run: body(run, j))  # type: ignore[misc]

        if not self.chunk:
            tiles(lambda run, j: self._tile(g, panel, i, run, j, []))
            return
        whole = (self.problem.depth - 1) // self.chunk
        tiles(lambda run, j: self._clear(panel, run, j))

        def some(c: Int, _: list[Reg]) -> None:
            k = self.b.mul(c, self.chunk)

            def one(run: Run, j: Int) -> None:
                sums = self._part(g, panel, i, run, j, (k, self.chunk), self._kept(panel, run, j))
                for at, total in zip(self._kept_at(panel, run, j), sums, strict=True):
                    self.b.store(total, at, self.sum_dtype.itemsize)

            tiles(one)

        def last(run: Run, j: Int) -> None:
            k = whole * self.chunk
            depth = self.problem.depth - k
            sums = self._part(g, panel, i, run, j, (k, depth), self._kept(panel, run, j))
            self._finish(g, self._first_row(run, j), first, run, panel, sums)

        self.b.loop(0, whole, 1, some)
        tiles(last)

    def _first_row(self, run: Run, j: Int) -> Int:
        return self.b.add(self.b.mul(j, run.size), run.start)

    @property
    def _zero(self) -> Reg:
        return self.b.number(0, register(self.sum_dtype), self.lanes)

    # Accumulators between parts of the depth, in this thread's memory

    def _kept_at(self, panel: Run, run: Run, j: Int) -> list[Reg]:
        b, size = self.b, self.sum_dtype.itemsize * self.lanes
        row = self.tile.vectors * size
        own = b.mul(b.arguments["tid"], self.problem.rows * row)
        start = b.add(own, b.mul(self._first_row(run, j), row))
        base = b.offset(b.arguments[f"p{self.sums}"], start)
        return [
            b.offset(base, r * row + v * size) for r in range(run.size) for v in range(panel.size)
        ]

    def _kept(self, panel: Run, run: Run, j: Int) -> list[Reg]:
        size = self.sum_dtype.itemsize
        return [self.b.load(self._zero.type, at, size) for at in self._kept_at(panel, run, j)]

    def _clear(self, panel: Run, run: Run, j: Int) -> None:
        for at in self._kept_at(panel, run, j):
            self.b.store(self._zero, at, self.sum_dtype.itemsize)

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        """Compute one tile of accumulators: all of the depth, then the epilogue."""
        start = [self._zero] * (run.size * panel.size)
        sums = self._part(g, panel, i, run, j, (0, self.problem.depth), start)
        first = self.b.add(self.b.mul(i, panel.size), panel.start)
        self._finish(g, self._first_row(run, j), first, run, panel, sums)

    def _part(
        self, g: Int, panel: Run, i: Int, run: Run, j: Int, span: tuple[Int, int], start: list[Reg]
    ) -> list[Reg]:
        """Add the products of a part of the depth (its start and length) to a tile."""
        b = self.b
        k0, depth = span
        m0 = self._first_row(run, j)
        x = b.offset(self.pointers[self.x.source], b.mul(self._x_offset(g, m0), self.x_size))
        w, step = self._panel(g, panel, i)
        x = b.offset(x, b.mul(k0, self.x.strides[-1] * self.x_size))
        w = b.offset(w, b.mul(k0, step))
        first = b.add(b.mul(i, panel.size), panel.start)
        if self.wide is not None:
            scalars, kind = self.epilogue.elements.scalars, self.anchor.inputs[0].dtype
            x = self.wide.fill(b, scalars, (x, kind), self.x.strides[-2], run.size, depth)
        valid = [self._valid(b.add(first, v)) for v in range(panel.size)]
        unroll = UNROLL if divides(UNROLL, depth) else 1

        def multiply(unroll: int, k: Int, carried: list[Reg]) -> list[Reg]:
            *sums, xk, wk = carried
            if self.ahead:
                fetch(b, wk, self.ahead, unroll * step)
            for u in range(unroll):
                columns = [self._column(wk, u, v, step, valid[v]) for v in range(panel.size)]
                for r in range(run.size):
                    factor = self._factor(xk, r, u)
                    for v, column in enumerate(columns):
                        at = r * panel.size + v
                        sums[at] = self._multiply_add(factor, column, sums[at])
            x_step = unroll * (f32.itemsize if self.wide else self.x.strides[-1] * self.x_size)
            return [*sums, b.offset(xk, x_step), b.offset(wk, unroll * step)]

        carried, done = [*start, x, w], 0
        if is_open(depth) and unroll == 1:
            done = depth // UNROLL * UNROLL
            carried = b.loop(0, done, UNROLL, partial(multiply, UNROLL), carried)
        return b.loop(0, depth - done, unroll, partial(multiply, unroll), carried)[: len(start)]

    @property
    def x_size(self) -> int:
        return self.anchor.inputs[0].dtype.itemsize

    def _x_offset(self, g: Int, m: Int) -> Int:
        """Return the offset of row m of a batch in x, in elements."""
        b = self.b
        total: Int = b.add(self.x.offset, b.mul(m, self.x.strides[-2]))
        return b.add(total, self._batch_offset(g, self.anchor.inputs[0], self.x.strides))

    def _batch_offset(self, g: Int, operand: Value, strides: Sequence[int]) -> Int:
        """Return the offset of a batch in an operand; broadcast dimensions do not move it."""
        b, batch = self.b, self.problem.batch
        own = operand.tensor.static[:-2]
        total: Int = 0
        for axis, (extent, stride) in enumerate(zip(batch, strides_of(batch), strict=True)):
            at = axis - (len(batch) - len(own))
            if at < 0 or is_one(own[at]) or is_one(extent):
                continue
            index = b.mod(b.div(g, stride), extent)
            total = b.add(total, b.mul(index, strides[at]))
        return total

    def _matrix_offset(self, g: Int, size: int) -> Int:
        """Return the offset of a batch's matrix in packed weights; each has `size` bytes."""
        weights = self.anchor.inputs[1]
        strides = tuple(s * size for s in strides_of(weights.tensor.static[:-2]))
        return self._batch_offset(g, weights, (*strides, 0, 0))

    def _panel(self, g: Int, panel: Run, i: Int) -> tuple[Reg, int]:
        """Return the address of a panel of columns, and the bytes from one depth to the next."""
        b, p = self.b, self.problem
        if self.constant is not None:
            step = panel.size * self.lanes * self.w_size
            at = self._matrix_offset(g, p.depth * self.vectors * self.lanes * self.w_size)
            before = panel.start * self.lanes * p.depth * self.w_size
            at = b.add(b.add(at, before), b.mul(i, p.depth * step))
            return b.offset(b.arguments[f"p{self.packed}"], at), step
        assert self.w is not None
        n = b.mul(b.add(b.mul(i, panel.size), panel.start), self.lanes)
        at = b.add(self.w.offset, self._batch_offset(g, self.anchor.inputs[1], self.w.strides))
        at = b.mul(b.add(at, n), self.w_size)
        return b.offset(self.pointers[self.w.source], at), self.w.strides[-2] * self.w_size

    @property
    def w_size(self) -> int:
        return self.anchor.inputs[1].dtype.itemsize

    def _column(self, w: Reg, u: int, v: int, step: int, valid: int) -> Reg:
        """Load a vector of weights; in memory of the caller, no lane beyond the end."""
        at = self.b.offset(w, u * step + v * self.lanes * self.w_size)
        dtype = self.anchor.inputs[1].dtype
        if self.constant is not None or valid == self.lanes:
            return self._load(dtype, at, self.lanes)
        scalars = self.epilogue.elements.scalars
        loaded = scalars.decode(masked_load(self.b, storage(dtype), at, self.lanes, valid), dtype)
        return self._widened(loaded.reg, dtype)

    def _valid(self, v: Int) -> int:
        """Return the used lanes of a vector; only one at a literal index may have unused ones."""
        left = self.problem.columns - v * self.lanes if isinstance(v, int) else self.lanes
        return min(left, self.lanes)

    def _factor(self, x: Reg, r: int, u: int) -> Reg:
        """An element of x in every lane."""
        if self.wide is not None:
            place = self.b.offset(x, (r * self.wide.stride + u) * f32.itemsize)
            return self.b.splat(self._load(f32, place, 0), self.lanes)
        at = (r * self.x.strides[-2] + u * self.x.strides[-1]) * self.x_size
        one = self._load(self.anchor.inputs[0].dtype, self.b.offset(x, at), 0)
        return self.b.splat(one, self.lanes)

    def _load(self, dtype: DType, pointer: Reg, lanes: int) -> Reg:
        """Load elements of an operand in the type of the sums."""
        return self._widened(self.epilogue.elements.scalars.load(dtype, pointer, lanes).reg, dtype)

    def _widened(self, x: Reg, dtype: DType) -> Reg:
        if dtype.is_float:
            return x
        how = "sext" if dtype.is_signed else "zext"
        return self.epilogue.elements.scalars.a.convert(how, x, register(self.sum_dtype))

    def _multiply_add(self, x: Reg, y: Reg, total: Reg) -> Reg:
        if self.sum_dtype.is_float:
            return self.b.intrinsic("fmuladd", x, y, total)
        a = self.epilogue.elements.scalars.a
        return a.op("add", total, a.op("mul", x, y))

    def _finish(self, g: Int, m0: Int, v0: Int, run: Run, panel: Run, sums: list[Reg]) -> None:
        """The epilogue of every accumulator, and its store."""
        b, p = self.b, self.problem
        for r in range(run.size):
            row = self._row_place(g, b.add(m0, r))
            for v in range(panel.size):
                n = b.mul(b.add(v0, v), self.lanes)
                left = p.columns - n if isinstance(n, int) else self.lanes
                total = self._narrowed(sums[r * panel.size + v])
                self.epilogue.store([*row, n], total, min(left, self.lanes))

    def _row_place(self, g: Int, m: Int) -> list[Int]:
        """Return the index of a row in the result."""
        if self.outer is not None:
            return self.b.coordinates(m, self.outer)
        return [*self.b.coordinates(g, self.problem.batch), m]

    def _narrowed(self, total: Reg) -> Reg:
        """Convert a sum to the register form of the result: integers wrap."""
        if self.sum_dtype.is_float:
            return total
        a = self.epilogue.elements.scalars.a
        return a.convert("trunc", total, register(self.anchor.dtype))


def masked_load(b: Builder, element: str, pointer: Reg, lanes: int, valid: int) -> Reg:
    """Load the first lanes of a vector; nothing beyond them is read."""
    kind = vector(lanes, element)
    mask = ", ".join(f"i1 {'true' if k < valid else 'false'}" for k in range(lanes))
    name = f"llvm.masked.load.{mangled(kind)}.p0"
    held = Reg(f"<{mask}>", vector(lanes, "i1"))
    align = Reg(str(4 if element == "float" else 1), "i32")
    return b.call(name, kind, pointer, align, held, Reg("zeroinitializer", kind))


def sum_dtype(anchor: Value) -> DType:
    """Return the type of the sums: enough bits for integers, f32 for narrower floats."""
    if anchor.dtype.is_float:
        return f64 if anchor.dtype == f64 else f32
    return i64 if anchor.dtype.bits > 32 else i32
