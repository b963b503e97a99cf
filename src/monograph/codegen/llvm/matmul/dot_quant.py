"""Products with constant weights of 8 bits or less, which stay packed in memory.

Weights are packed in blocks along the depth. A block starts with a vector of scales for each vector
of columns, and one of zero points if these differ; its codes follow. For few rows a block is summed
before it is scaled; many rows share scaled weights.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.matmul import dot_quant_int
from monograph.codegen.llvm.matmul.dot_codes import (
    CodeFormat,
    Decoded,
    QuantisedWeights,
    read_codes,
)
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Array, Value

FLOAT = 4
FEW = 2
"""For this many rows or fewer, each block has its own sums: twice the accumulators."""
TOGETHER = 4
"""Bytes of a lane that one loop iteration processes."""


def dot_quant(context: KernelContext) -> Kernel:
    """Generate a kernel for a dot with coded weights and its epilogue."""
    found = read_codes(context.anchor.inputs[1])
    if found is None:
        return Decoded(context).emit()
    if dot_quant_int.serves(context, found):
        return dot_quant_int.Rounded(context, found).emit()
    return _Coded(context, found).emit()


class _Coded(Decoded):
    widens = False

    def __init__(self, context: KernelContext, codes: QuantisedWeights) -> None:
        self.codes = codes
        super().__init__(context)
        self.numbers = CodeFormat(codes, context.features, self.lanes)
        self.factors = 1 if self.numbers.middle is not None else 2

    def _known(self, w: Value) -> Array | None:
        return self.codes.codes

    def _choose_tile(self) -> RegisterTile:
        """Return a wide tile for few rows; many rows share the work of decoding."""
        rows = self.problem.rows
        few = rows <= FEW
        if self.context.features.registers < 32:
            return RegisterTile(min(rows, 6), min(self.vectors, 2 if few else 1))
        wide = min(4 if few else 2, max(self.vectors // self.context.threads, 1))
        return RegisterTile(min(rows, 8), wide)

    def _choose_chunk(self) -> int:
        return 0

    # Weights

    def _pack(self, weights: Array) -> Array:
        """[matrix][panel][block][scales, zeros, codes], columns padded with zeros."""
        return np.concatenate([self._pack_matrix(c) for c in self.codes.matrices()])

    def _pack_matrix(self, c: QuantisedWeights) -> Array:
        depth, columns = c.codes.shape
        n = self.numbers
        wide = self.vectors * self.lanes
        parts = [c.scale * n.gain] if self.factors == 1 else [c.scale * n.gain, c.zeros]
        factors = np.zeros((len(c.scale), len(parts), wide), np.float32)
        for i, part in enumerate(parts):
            factors[:, i, :columns] = part
        whole = depth // c.block
        spans = [(0, whole, c.block)] if whole else []
        if depth % c.block:
            spans.append((whole, 1, depth % c.block))
        blocks = []
        for first, count, size in spans:
            codes = np.zeros((count * size, wide), np.uint8)
            start = first * c.block
            codes[:, :columns] = c.codes[start : start + count * size]
            words = [n.pack(codes[i * size : (i + 1) * size]) for i in range(count)]
            blocks.append((factors[first : first + count], np.stack(words)))
        made = [
            self._panel_bytes(blocks, slice(at * self.lanes, (at + run.size) * self.lanes))
            for run in self.panels
            for at in range(run.start, run.start + run.size * run.count, run.size)
        ]
        return np.concatenate(made)

    def _panel_bytes(self, blocks: list[tuple[Array, Array]], place: slice) -> Array:
        """Return the bytes of some columns, block by block."""
        made = []
        for factors, words in blocks:
            count = len(factors)
            parts = (factors[:, :, place], words[:, :, place])
            flat = [np.ascontiguousarray(p).view(np.uint8).reshape(count, -1) for p in parts]
            made.append(np.concatenate(flat, 1).reshape(-1))
        return np.concatenate(made) if made else np.zeros(0, np.uint8)

    def _bytes(self, depth: int, vectors: int) -> int:
        """Return the size of a block of this depth."""
        n = self.numbers
        each = self.factors * FLOAT + n.words(depth) * n.lane_bytes
        return vectors * self.lanes * each

    def _column_bytes(self) -> int:
        """Return the bytes of a vector of columns."""
        whole, rest = divmod(self.problem.depth, self.codes.block)
        return whole * self._bytes(self.codes.block, 1) + (self._bytes(rest, 1) if rest else 0)

    # Tiles

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        """Compute one tile of accumulators: block by block, then the epilogue."""
        b, p, block = self.b, self.problem, self.codes.block
        self.a = LlvmArith(b)
        m0 = b.add(b.mul(j, run.size), run.start)
        x = b.offset(self.pointers[self.x.source], b.mul(self._x_offset(g, m0), self.x_size))
        first = b.add(b.mul(i, panel.size), panel.start)
        own = self._matrix_offset(g, self.vectors * self._column_bytes())
        w = b.offset(b.arguments[f"p{self.packed}"], b.add(own, b.mul(first, self._column_bytes())))
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
        """Add the products of one block."""
        b, a, n = self.b, self.a, self.numbers
        line = self.lanes * FLOAT
        kind = vector(self.lanes, "float")
        factors = [
            b.load(kind, b.offset(w, v * line), FLOAT) for v in range(vectors * self.factors)
        ]
        scales = factors[:vectors]
        zeros: list[Reg | None] = [*factors[vectors:]] or [None] * vectors
        codes = b.offset(w, vectors * self.factors * line)
        few = rows <= FEW
        step = vectors * self.lanes * n.lane_bytes
        group = 1 if n.small else TOGETHER

        def some(start: Int, count: int, carried: list[Reg]) -> list[Reg]:
            """Process `count` depths, from the word at `start`."""
            made = list(carried)
            for d in range(count):
                at = b.add(b.mul(start, n.depths), d)
                if d % n.depths == 0:
                    row = b.offset(codes, b.mul(b.add(start, d // n.depths), step))
                    places = [b.offset(row, v * self.lanes * n.lane_bytes) for v in range(vectors)]
                    words = [n.load(b, place) for place in places]
                columns = [
                    n.number(a, word, d % n.depths, z) for word, z in zip(words, zeros, strict=True)
                ]
                if not few:
                    columns = [a.mul(y, s) for y, s in zip(columns, scales, strict=True)]
                own = b.offset(x, b.mul(at, self.x.strides[-1] * self.x_size))
                for r in range(rows):
                    factor = self._factor(own, r, 0)
                    for v, column in enumerate(columns):
                        k = r * vectors + v
                        made[k] = a.fma(factor, column, made[k])
            return made

        start = [b.number(0, "float", self.lanes)] * len(sums) if few else sums
        each = group * n.depths
        turns = depth // each
        made = b.loop(0, turns, 1, lambda t, c: some(b.mul(t, group), each, c), start)
        if depth % each:
            made = some(turns * group, depth % each, made)
        if not few:
            return made
        return [
            a.fma(y, scales[k % vectors], s)
            for k, (y, s) in enumerate(zip(made, sums, strict=True))
        ]
