"""Products of small integers with constant weights: four at a time, where the machine can.

One instruction adds to each 32-bit lane the products of four unsigned bytes (of x, the same for
all lanes) and four signed ones (weights of a column). Signed x is moved up by 128 to be unsigned,
and the accumulators start with what that adds too much taken away.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.llvm.builder import Int, Reg, vector
from monograph.codegen.llvm.dot import DotKernel
from monograph.codegen.llvm.features import Features
from monograph.codegen.llvm.kernel import Kernel, KernelContext
from monograph.codegen.llvm.tiles import MAX_ROWS, Run, Tile, choose_tile
from monograph.ir import Array, Value, known
from monograph.ir.dtype import UINT, i8, i32, u8

TOGETHER = 4
MOVED = 128
ACCUMULATORS = 24


def serves(value: Value, features: Features) -> bool:
    """Whether a dot is one of bytes with constant signed weights, and the machine has the sum."""
    if not features.dot_i8 or value.dtype != i32:
        return False
    x, w = value.inputs
    plain = known(w) is not None and len(w.tensor.dims) == 2
    return plain and w.dtype == i8 and x.dtype in (i8, u8)


def dot_int(context: KernelContext) -> Kernel:
    """A kernel for a dot of bytes and what follows it."""
    return _Bytes(context).emit()


class _Bytes(DotKernel):
    def _choose_tile(self) -> Tile:
        p, context = self.problem, self.context
        depth = -(-p.depth // TOGETHER)
        features, threads = context.features, context.threads
        return choose_tile(p.rows, self.vectors, depth, features, threads, ACCUMULATORS, MAX_ROWS)

    def _choose_chunk(self) -> int:
        return 0

    @property
    def _groups(self) -> int:
        return -(-self.problem.depth // TOGETHER)

    def _pack(self, weights: Array) -> Array:
        """[panel][what accumulators start with; then groups of four along the depth]."""
        depth, columns = weights.shape
        wide = np.zeros((self._groups * TOGETHER, self.vectors * self.lanes), np.int8)
        wide[:depth, :columns] = weights
        moved = 0 if self.anchor.inputs[0].dtype.kind == UINT else MOVED
        start = (-moved * wide.astype(np.int64).sum(0)).astype(np.int32)
        made: list[Array] = []
        for run in self.panels:
            for i in range(run.count):
                at = (run.start + i * run.size) * self.lanes
                place = slice(at, at + run.size * self.lanes)
                grouped = wide[:, place].reshape(self._groups, TOGETHER, -1).transpose(0, 2, 1)
                made += [start[place], np.ascontiguousarray(grouped)]
        return np.concatenate([m.reshape(-1).view(np.uint8) for m in made])

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        b, p = self.b, self.problem
        m0 = self._first_row(run, j)
        x = b.offset(self.pointers[self.x.source], self._x_offset(g, m0))
        first = b.add(b.mul(i, panel.size), panel.start)
        line = self.lanes * TOGETHER
        size = panel.size * line
        w = b.offset(b.arguments[f"p{self.packed}"], b.mul(first, (1 + self._groups) * line))
        kind = vector(self.lanes, "i32")
        start = [b.load(kind, b.offset(w, v * line), 4) for v in range(panel.size)]
        w = b.offset(w, size)

        def multiply(k: Int, carried: list[Reg], valid: int = TOGETHER) -> list[Reg]:
            *sums, wk = carried
            columns = [b.load(kind, b.offset(wk, v * line), 4) for v in range(panel.size)]
            at = b.offset(x, b.mul(k, TOGETHER))
            for r in range(run.size):
                four = self._four(b.offset(at, r * self.x.strides[-2]), valid)
                factor = b.splat(four, self.lanes)
                for v, column in enumerate(columns):
                    n = r * panel.size + v
                    name = self.context.features.dot_i8
                    sums[n] = b.call(name, kind, sums[n], factor, column)
            return [*sums, b.offset(wk, size)]

        whole = p.depth // TOGETHER
        carried = b.loop(0, whole, 1, multiply, [*start * run.size, w])
        if p.depth % TOGETHER:
            carried = multiply(whole, carried, p.depth % TOGETHER)
        self._finish(g, m0, first, run, panel, carried[:-1])

    def _four(self, pointer: Reg, valid: int) -> Reg:
        """Four neighbouring bytes of x in one number, unsigned; no more are read than are there."""
        b, a = self.b, self.epilogue.elements.scalars.a
        if valid == TOGETHER:
            four = b.load("i32", pointer, 1)
        else:
            four = b.number(0, "i32")
            for k in range(valid):
                one = a.convert("zext", b.load("i8", b.offset(pointer, k), 1), "i32")
                four = a.op("or", a.op("shl", one, 8 * k), four)
        if self.anchor.inputs[0].dtype.kind == UINT:
            return four
        return a.op("xor", four, 0x80808080 - (1 << 32))
