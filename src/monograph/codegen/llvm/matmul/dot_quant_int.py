"""Products with constant weights of few bits and a left operand rounded to integers.

The left operand is first rounded to signed bytes, with a scale for each block of weights along the
depth. Threads divide that and wait for each other; if it is short, each rounds all of it. Then one
instruction multiplies four codes, and each block's sum is scaled once. Blocks with a number that is
not finite are NaN.

Weights are packed in blocks: scales (and shifts, unless one number is subtracted from all codes),
then codes of four depths in each lane; 4-bit codes share bytes with those of the next four depths.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Int, mangled
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.matmul.dot_codes import Decoded, QuantisedWeights
from monograph.codegen.llvm.matmul.tiles import LINE, RegisterTile, Run
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    share,
    synchronise,
)
from monograph.ir import Array, Value
from monograph.ir.dtype import f32
from monograph.ir.sizes import hint_of, is_one
from monograph.ops.linear import Dot
from monograph.program.memory.strided import strided

BYTE_BITS, MOST = 8, 127.0
FOUR, BOTH = 4, 8
"""Depths per instruction, and per vector of 4-bit codes."""
MAGIC, MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000
"""Added to a small float, it leaves the nearest integer in the low bits."""
LEAST = 2.0**-119
WORD = 4
SHORT = 4096
"""The most numbers that a thread rounds by itself rather than wait for others."""
MOST_BLOCK = 256
"""The longest block: a longer one would share a scale among too many numbers."""


def serves(context: KernelContext, codes: QuantisedWeights) -> bool:
    """Return True if a dot with coded weights permits integers on the left, and the machine too."""
    anchor = context.anchor
    assert isinstance(anchor.op, Dot)
    x = strided(anchor.inputs[0], context.program.places.storage)
    assert x is not None
    permitted = anchor.op.left_bits == BYTE_BITS and anchor.inputs[0].dtype == f32
    lanes = context.features.lanes(32)
    fits = codes.block % max(BOTH, lanes) == 0 and codes.block <= MOST_BLOCK
    plain = is_one(x.strides[-1]) and codes.depth % codes.block == 0
    integers = bool(context.features.dot_i8) and not codes.dtype.is_float
    return integers and permitted and fits and plain


class Rounded(Decoded):
    widens = False

    def __init__(self, context: KernelContext, codes: QuantisedWeights) -> None:
        self.codes = codes
        self.blocks = codes.depth // codes.block
        self.nibbles = bool(codes.codes.max(initial=0) < 16)
        # One whole number for all codes needs no shifts in memory.
        self.middle = codes.middle
        super().__init__(context)

    def _known(self, w: Value) -> Array | None:
        return self.codes.codes

    def _choose_tile(self) -> RegisterTile:
        """Return a tile with two sets of accumulators: of a block, and of all."""
        rows = hint_of(self.problem.rows)
        wide = 4 if rows <= 2 else 2
        if rows == 1 and self.context.features.registers >= 32:
            wide = 8  # sums of fewer vectors wait for each other
        wide = min(wide, max(self.vectors // self.context.threads, 1))
        return RegisterTile(min(rows, 5), wide)

    def _choose_chunk(self) -> int:
        return 0

    # Weights

    def _pack(self, weights: Array) -> Array:
        """[matrix][panel][block][scales, shifts, codes], columns padded with zeros."""
        return np.concatenate([self._pack_matrix(c) for c in self.codes.matrices()])

    def _pack_matrix(self, c: QuantisedWeights) -> Array:
        depth, columns = c.codes.shape
        wide = self.vectors * self.lanes
        codes = np.zeros((depth, wide), np.uint8)
        codes[:, :columns] = c.codes
        parts = [c.scale] if self.middle is not None else [c.scale, c.shift]
        factors = np.zeros((self.blocks, len(parts), wide), np.float32)
        for i, part in enumerate(parts):
            factors[:, i, :columns] = part
        # [block, steps, vector, lane, four]
        fours = codes.reshape(self.blocks, -1, FOUR, self.vectors, self.lanes)
        fours = fours.transpose(0, 1, 3, 4, 2)
        if self.nibbles:
            fours = fours[:, 0::2] | fours[:, 1::2] << 4
        made: list[Array] = []
        for run in self.panels:
            for i in range(run.count):
                start = run.start + i * run.size
                own = slice(start, start + run.size)
                place = slice(start * self.lanes, (start + run.size) * self.lanes)
                for k in range(self.blocks):
                    made += [factors[k, :, place], fours[k][:, own]]
        return np.concatenate([np.ascontiguousarray(m).reshape(-1).view(np.uint8) for m in made])

    @property
    def _line(self) -> int:
        """Bytes of a vector of columns: of scales, of shifts, of codes of a step."""
        return self.lanes * WORD

    @property
    def _factors(self) -> int:
        return 1 if self.middle is not None else 2

    @property
    def _steps(self) -> int:
        """Vectors of codes in a block."""
        return self.codes.block // (BOTH if self.nibbles else FOUR)

    # The left operand: [row][bytes; then for each block its scale and what it adds up to]

    def emit(self) -> Kernel:
        p = self.problem
        self.row_bytes = p.depth + self.blocks * 2 * WORD
        rows = math.prod(self.anchor.inputs[0].tensor.static[:-1])
        # Each thread's part is on its own cache lines.
        whole = -(-rows * self.row_bytes // LINE) * LINE
        self.own_bytes = whole if hint_of(rows) * p.depth <= SHORT else 0
        copies = self.context.threads if self.own_bytes else 1
        self.rounded = self.context.argument(LlvmScratch(whole * copies))
        if not self.own_bytes:
            self.sync = self.context.argument(Sync())
        return super().emit()

    @property
    def _left(self) -> Reg:
        """Return the address of the rounded left operand."""
        b = self.b
        own = b.mul(b.arguments["tid"], self.own_bytes)
        return b.offset(b.arguments[f"p{self.rounded}"], own)

    def _loops(self) -> None:
        """Round the left operand, divided among threads or each for itself, then run the tiles."""
        b, threads = self.b, self.context.threads
        self.a = LlvmArith(b)
        own = self.anchor.inputs[0].tensor.static
        rows = math.prod(own[:-1])
        if self.outer is not None:
            own = (rows, own[-1])
        units = rows * self.blocks
        span = (0, units) if self.own_bytes else share(b, units, threads)
        b.loop(*span, 1, partial(self._round, own))
        if not self.own_bytes:
            synchronise(b, self.sync, threads)
        super()._loops()

    def _round(self, shape: tuple[int, ...], unit: Int, _: list[Reg]) -> None:
        """Round one block of one row to bytes, a scale and a sum."""
        b, a, block, lanes = self.b, self.a, self.codes.block, self.lanes
        row, number = b.div(unit, self.blocks), b.mod(unit, self.blocks)
        at: Int = self.x.offset
        rest = row
        for extent, stride in zip(reversed(shape[:-1]), reversed(self.x.strides[:-1]), strict=True):
            at = b.add(at, b.mul(b.mod(rest, extent), stride))
            rest = b.div(rest, extent)
        start = b.mul(b.add(at, b.mul(number, block)), WORD)
        x = b.offset(self.pointers[self.x.source], start)
        given = [self._vector(x, k, lanes) for k in range(0, block, lanes)]
        zero = b.number(0, "float", lanes)
        largest, wrong = zero, zero
        for v in given:
            largest = b.intrinsic("maxnum", largest, a.abs(v))
            wrong = a.fma(v, 0.0, wrong)  # 0, or NaN if an element is not finite
        most = self._across("fmax", largest)
        scale = a.div(most, MOST)
        # Smaller ones would have a denormal scale.
        normal = a.compare("ogt", most, LEAST)
        inverse = b.splat(a.select(normal, a.div(MOST, most), 0.0), lanes)
        own = b.offset(self._left, b.mul(row, self.row_bytes))
        total = b.number(0, "i32", lanes)
        for k, v in enumerate(given):
            moved = a.bits(a.fma(v, inverse, MAGIC))
            whole = a.op("sub", moved, MAGIC_BITS)
            total = a.op("add", total, whole)
            place = b.offset(own, b.add(b.mul(number, block), k * lanes))
            b.store(a.convert("trunc", whole, "i8"), place, 1)
        sums = self._across("add", total)
        bad = b.extract(wrong, 0) if lanes == 1 else self._sum_of(wrong)
        words = b.offset(own, b.add(self.problem.depth, b.mul(number, 2 * WORD)))
        b.store(a.add(scale, bad), words, 1)
        b.store(self._moved(sums), b.offset(words, WORD), 1)

    def _vector(self, x: Reg, k: int, lanes: int) -> Reg:
        return self.b.load(vector(lanes, "float"), self.b.offset(x, k * WORD), WORD)

    def _across(self, how: str, x: Reg) -> Reg:
        return self.b.call(f"llvm.vector.reduce.{how}.{mangled(x.type)}", x.element, x)

    def _sum_of(self, x: Reg) -> Reg:
        zero = self.b.number(0, "float")
        name = f"llvm.vector.reduce.fadd.{mangled(x.type)}"
        return self.b.call(name, "float", zero, x, flags="reassoc")

    def _moved(self, sums: Reg) -> Reg:
        """Return the initial value of a block's integer sum; plain if shifts are in memory."""
        if self.middle is None:
            return self.a.convert("sitofp", sums, "float")
        return self.a.op("mul", sums, -self.middle)

    # Tiles

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        """Compute one tile of accumulators: block by block, then the epilogue."""
        b, size = self.b, panel.size
        m0 = self._first_row(run, j)
        first = b.add(b.mul(i, size), panel.start)
        block_bytes = (self._factors + self._steps) * self._line
        column_bytes = self.blocks * block_bytes
        own = self._matrix_offset(g, self.vectors * column_bytes)
        w = b.offset(b.arguments[f"p{self.packed}"], b.add(own, b.mul(first, column_bytes)))
        x = b.offset(self._left, b.mul(self._row(g, m0), self.row_bytes))
        zero = b.number(0, "float", self.lanes)

        def one(k: Int, carried: list[Reg]) -> list[Reg]:
            *sums, xk, words, wk = carried
            sums = self._block(sums, xk, words, wk, run.size, size)
            steps = (self.codes.block, 2 * WORD, size * block_bytes)
            moved = zip((xk, words, wk), steps, strict=True)
            return [*sums, *(b.offset(p, n) for p, n in moved)]

        start = [*[zero] * (run.size * size), x, b.offset(x, self.problem.depth), w]
        sums = b.loop(0, self.blocks, 1, one, start)[: run.size * size]
        self._finish(g, m0, first, run, panel, sums)

    def _row(self, g: Int, m: Int) -> Int:
        """The number of a row among all of the left operand."""
        own = self.anchor.inputs[0].tensor.static
        strides = [0] * len(own)
        step = own[-2]
        for axis in range(len(own) - 3, -1, -1):
            strides[axis] = step
            step *= own[axis]
        return self.b.add(m, self._batch_offset(g, self.anchor.inputs[0], strides))

    def _block(
        self, sums: list[Reg], x: Reg, words: Reg, w: Reg, rows: int, vectors: int
    ) -> list[Reg]:
        """Add the products of one block."""
        b, a = self.b, self.a
        kind, wide = vector(self.lanes, "i32"), vector(self.lanes, "float")
        codes = b.offset(w, self._factors * vectors * self._line)
        totals = []
        for r in range(rows):
            start = b.number(0, "i32", self.lanes)
            if self.middle is not None:
                at = b.offset(words, r * self.row_bytes + WORD)
                start = b.splat(b.load("i32", at, 1), self.lanes)
            totals += [start] * vectors
        for step in range(self._steps):
            place = b.offset(codes, step * vectors * self._line)
            loaded = [b.load(kind, b.offset(place, v * self._line), 1) for v in range(vectors)]
            for half in range(2 if self.nibbles else 1):
                columns = [self._columns(c, half) for c in loaded]
                depth = step * (BOTH if self.nibbles else FOUR) + half * FOUR
                for r in range(rows):
                    four = b.load("i32", b.offset(x, r * self.row_bytes + depth), 1)
                    factor = b.splat(four, self.lanes)
                    for v, column in enumerate(columns):
                        n = r * vectors + v
                        name = self.context.features.dot_i8
                        totals[n] = b.call(name, kind, totals[n], column, factor)
        made = list(sums)
        scales = [b.load(wide, b.offset(w, v * self._line), 1) for v in range(vectors)]
        for r in range(rows):
            own = b.offset(words, r * self.row_bytes)
            scale = b.splat(b.load("float", own, 1), self.lanes)
            for v in range(vectors):
                n = r * vectors + v
                total = a.convert("sitofp", totals[n], "float")
                if self.middle is None:
                    shift = b.load(wide, b.offset(w, (vectors + v) * self._line), 1)
                    plain = b.splat(b.load("float", b.offset(own, WORD), 1), self.lanes)
                    total = a.fma(total, scales[v], a.mul(plain, shift))
                    made[n] = a.fma(total, scale, made[n])
                else:
                    made[n] = a.fma(total, a.mul(scales[v], scale), made[n])
        return made

    def _columns(self, codes: Reg, half: int) -> Reg:
        """Codes of four depths, a byte each."""
        if not self.nibbles:
            return codes
        moved = self.a.op("lshr", codes, 4) if half else codes
        return self.a.op("and", moved, 0x0F0F0F0F)
