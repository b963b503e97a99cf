"""Products with constant weights of 4 or 8 bits, which stay so in memory.

Weights are packed in blocks along the depth. A block starts with a vector of scales and one of
shifts for each vector of columns; its codes follow, two of 4 bits to a byte. A code becomes a float
by being put into the low bits of a large one, and a weight by one multiply-add more; rows share it.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.llvm import dot_quant_int
from monograph.codegen.llvm.builder import Int, Reg, vector
from monograph.codegen.llvm.dot_codes import Codes, Decoded, read_codes
from monograph.codegen.llvm.kernel import Kernel, KernelContext
from monograph.codegen.llvm.tiles import Run, Tile
from monograph.ir import Array, Value

LOW, HIGH = 0x4B000000, 0x49000000
"""2^23 and 2^19 as f32: codes in bits 0 to 3 of one, and in bits 4 to 7 of the other, count 1."""
LOW_BASE, HIGH_BASE = 2.0**23, 2.0**19
FLOAT = 4


def dot_quant(context: KernelContext) -> Kernel:
    """A kernel for a dot with coded weights and what follows it."""
    anchor = context.step.region.anchor
    assert anchor is not None
    found = read_codes(anchor.inputs[1])
    if found is None:
        return Decoded(context).emit()
    if dot_quant_int.serves(context, found):
        return dot_quant_int.Rounded(context, found).emit()
    return _Coded(context, found).emit()


class _Coded(Decoded):
    def __init__(self, context: KernelContext, codes: Codes) -> None:
        self.codes = codes
        super().__init__(context)

    def _known(self, w: Value) -> Array | None:
        return self.codes.codes

    def _choose_tile(self) -> Tile:
        """Few rows have wide tiles; many share the work of decoding."""
        rows = self.problem.rows
        if self.context.features.registers < 32:
            return Tile(min(rows, 6), min(self.vectors, 1))
        wide = 4 if rows <= 2 else 2
        wide = min(wide, max(self.vectors // self.context.threads, 1))
        return Tile(min(rows, 8), wide)

    def _choose_chunk(self) -> int:
        return 0

    def _pack(self, weights: Array) -> Array:
        """[panel][block][scales, shifts, codes], columns padded with zeros."""
        depth, columns = weights.shape
        c, wide = self.codes, self.vectors * self.lanes
        codes, scale, shift = (
            np.zeros((len(a), wide), kind)
            for a, kind in ((c.codes, np.uint8), (c.scale, np.float32), (c.shift, np.float32))
        )
        for whole, part in ((codes, c.codes), (scale, c.scale), (shift, c.shift)):
            whole[:, :columns] = part
        made: list[Array] = []
        for run in self.panels:
            for i in range(run.count):
                start = (run.start + i * run.size) * self.lanes
                place = slice(start, start + run.size * self.lanes)
                for number, k in enumerate(range(0, depth, c.block)):
                    some = codes[k : k + c.block, place]
                    if c.pairs:
                        some = some[0::2] | some[1::2] << 4
                    made += [scale[number, place], shift[number, place], some]
        return np.concatenate([np.ascontiguousarray(m).reshape(-1).view(np.uint8) for m in made])

    def _bytes(self, depth: int, vectors: int) -> int:
        """The size of a block of so many codes to a column."""
        per = depth // 2 if self.codes.pairs else depth
        return vectors * self.lanes * (2 * FLOAT + per)

    def _column_bytes(self) -> int:
        """What a vector of columns takes in all."""
        whole, rest = divmod(self.problem.depth, self.codes.block)
        return whole * self._bytes(self.codes.block, 1) + (self._bytes(rest, 1) if rest else 0)

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        """One tile of accumulators: block by block, then the epilogue."""
        b, p, block = self.b, self.problem, self.codes.block
        m0 = b.add(b.mul(j, run.size), run.start)
        x = b.offset(self.pointers[self.x.source], b.mul(self._x_offset(g, m0), self.x_size))
        first = b.add(b.mul(i, panel.size), panel.start)
        w = b.offset(b.arguments[f"p{self.packed}"], b.mul(first, self._column_bytes()))
        zero = b.number(0, "float", self.lanes)
        count = run.size * panel.size
        stride = self.x.strides[-1] * self.x_size

        def one(k: Int, carried: list[Reg]) -> list[Reg]:
            *sums, xk, wk = carried
            sums = self._block(sums, xk, wk, run.size, panel.size, block)
            return [
                *sums,
                b.offset(xk, block * stride),
                b.offset(wk, self._bytes(block, panel.size)),
            ]

        *sums, x, w = b.loop(0, p.depth // block, 1, one, [*[zero] * count, x, w])
        if p.depth % block:
            sums = self._block(sums, x, w, run.size, panel.size, p.depth % block)
        self._finish(g, m0, first, run, panel, sums)

    def _block(
        self, sums: list[Reg], x: Reg, w: Reg, rows: int, vectors: int, depth: int
    ) -> list[Reg]:
        """Adds the products of one block."""
        b, wide = self.b, vector(self.lanes, "float")
        size = self.lanes * FLOAT
        scales = [b.load(wide, b.offset(w, v * size), FLOAT) for v in range(vectors)]
        shifts = [b.load(wide, b.offset(w, (vectors + v) * size), FLOAT) for v in range(vectors)]
        codes = b.offset(w, 2 * vectors * size)
        together = 2 if self.codes.pairs else 1

        def some(k: Int, carried: list[Reg]) -> list[Reg]:
            made = list(carried)
            row = b.offset(codes, b.mul(k, vectors * self.lanes))
            loaded = [self._loaded(row, v) for v in range(vectors)]
            for u in range(together):
                at = b.add(b.mul(k, together), u)
                columns = [self._weight(loaded[v], scales[v], shifts[v], u) for v in range(vectors)]
                start = b.offset(x, b.mul(at, self.x.strides[-1] * self.x_size))
                for r in range(rows):
                    factor = self._factor(start, r, 0)
                    for v, column in enumerate(columns):
                        n = r * vectors + v
                        made[n] = b.intrinsic("fmuladd", factor, column, made[n])
            return made

        return b.loop(0, depth // together, 1, some, sums)

    def _loaded(self, row: Reg, v: int) -> Reg:
        """The codes of a vector of columns, in 32 bits each."""
        kind = vector(self.lanes, "i8")
        bytes_ = self.b.load(kind, self.b.offset(row, v * self.lanes), 1)
        return self.epilogue.elements.scalars.a.convert("zext", bytes_, "i32")

    def _weight(self, codes: Reg, scale: Reg, shift: Reg, half: int) -> Reg:
        """A vector of weights, from the codes in one half of their bytes or in all of them."""
        a = self.epilogue.elements.scalars.a
        base, bits = (HIGH_BASE, HIGH) if half else (LOW_BASE, LOW)
        if self.codes.pairs:
            codes = a.op("and", codes, 0xF0 if half else 0x0F)
        number = a.sub(a.floats(a.op("or", codes, bits)), base)
        return self.b.intrinsic("fmuladd", number, scale, shift)
