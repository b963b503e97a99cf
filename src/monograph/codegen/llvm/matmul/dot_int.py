"""Matrix products of bytes with signed bytes, and their epilogue.

The tiles are those of any dot; `int8_dot` multiplies bytes. Weights that are known only in a run
are packed at its start, by all threads.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.dot import DotKernel, masked_load
from monograph.codegen.llvm.matmul.int8_dot import of_bytes, packed_panels, products
from monograph.codegen.llvm.matmul.open_columns import dot
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    share,
    synchronise,
)
from monograph.ir import Array, Value, known
from monograph.ir.sizes import is_one
from monograph.program.memory.strided import strided

FEW_ROWS = 4
"""With fewer rows, weights that are known only in a run are not packed."""


def serves(value: Value) -> bool:
    """Return True for a dot of bytes with signed bytes; constant ones must be one matrix."""
    weights = value.inputs[1]
    return of_bytes(value) and (known(weights) is None or len(weights.tensor.dims) == 2)


def dot_int(context: KernelContext) -> Kernel:
    """Generate a kernel for a dot of bytes and its epilogue."""
    anchor = context.anchor
    x = strided(anchor.inputs[0], context.program.places.storage)
    assert x is not None
    few = known(anchor.inputs[1]) is None and anchor.tensor.static[-2] < FEW_ROWS
    if not is_one(x.strides[-1]) or 0 in anchor.inputs[0].tensor.static or few:
        # Bytes that are not contiguous cannot be loaded in groups; few rows do not repay packing.
        return dot(context)
    return _Bytes(context).emit()


class _Bytes(DotKernel):
    def _choose_tile(self) -> RegisterTile:
        p, context = self.problem, self.context
        self.products = products(context.features, self.anchor.inputs[0].dtype)
        self.steps = self.products.steps(p.depth)
        depth = self.steps * self.products.parts
        return self.products.tile(p.rows, self.vectors, depth, context.threads)

    def _choose_chunk(self) -> int:
        return 0

    def _pack(self, weights: Array) -> Array:
        """Pack as [panel][initial accumulators; then steps along the depth]."""
        return np.concatenate(packed_panels(self.products, weights[np.newaxis], self.panels))

    @property
    def _matrix_bytes(self) -> int:
        """Return the bytes of a packed matrix: initial accumulators, then steps."""
        return self.vectors * (self.lanes * 4 + self.steps * self.products.line)

    def _request_weights(self) -> int:
        if self.constant is not None:
            return super()._request_weights()
        self.matrices = math.prod(self.anchor.inputs[1].tensor.static[:-2])
        self.barrier = self.context.argument(Sync())
        return self.context.argument(LlvmScratch(self.matrices * self._matrix_bytes))

    def _prepare(self) -> None:
        """Pack weights that are known only in a run, in the form of `_pack`."""
        if self.constant is not None:
            return
        b, threads = self.b, self.context.threads
        self.products.bind(b)
        for panel, _ in self._panel_runs():

            def unit(u: Int, _: list[Reg], panel: Run = panel) -> None:
                # A panel with unused lanes needs a literal index.
                i = b.mod(u, panel.count) if panel.count > 1 else 0
                self._pack_panel(b.div(u, panel.count), panel, i)

            b.loop(*share(b, self.matrices * panel.count, threads), 1, unit)
        synchronise(b, self.barrier, threads)

    def _pack_panel(self, matrix: Int, panel: Run, i: Int) -> None:
        b, own, weights = self.b, self.products, self.w
        assert weights is not None
        first = b.add(b.mul(i, panel.size), panel.start)
        own_batch = self.anchor.inputs[1].tensor.static[:-2]
        at = b.position(b.coordinates(matrix, own_batch), weights.strides[:-2], weights.offset)
        source = b.offset(self.pointers[weights.source], b.add(at, b.mul(first, self.lanes)))
        before = b.mul(first, self.lanes * 4 + self.steps * own.line)
        before = b.add(b.mul(matrix, self._matrix_bytes), before)
        to = b.offset(b.arguments[f"p{self.packed}"], before)
        steps = b.offset(to, panel.size * self.lanes * 4)
        valid = [self._valid(b.add(first, v)) for v in range(panel.size)]
        zero = b.number(0, "i32", self.lanes)

        def step(there: int, k: Int, carried: list[Reg]) -> list[Reg]:
            row = b.offset(source, b.mul(k, own.step * weights.strides[-2]))
            place = b.offset(steps, b.mul(k, panel.size * own.line))
            sums = list(carried)
            for v in range(panel.size):
                columns = b.offset(row, v * self.lanes)
                rows = [
                    self._weights(b.offset(columns, d * weights.strides[-2]), valid[v])
                    for d in range(there)
                ]
                for r in rows if own.moved else ():
                    sums[v] = own.a.op("add", sums[v], r)
                words = own.packed_words([*rows, *[zero] * (own.step - there)])
                for part, word in enumerate(words):
                    at = v * own.line + part * self.lanes * 4
                    b.store(word, b.offset(place, at), 4)
            return sums

        whole, rest = divmod(self.problem.depth, own.step)
        sums = b.loop(0, whole, 1, partial(step, own.step), [zero] * panel.size)
        sums = step(rest, whole, sums) if rest else sums
        for v, total in enumerate(sums):
            start = own.a.op("mul", total, -own.moved) if own.moved else zero
            b.store(start, b.offset(to, v * self.lanes * 4), 4)

    def _weights(self, place: Reg, valid: int) -> Reg:
        """Load the weights of a row for a vector of columns, as i32."""
        b = self.b
        if valid == self.lanes:
            bytes_ = b.load(vector(self.lanes, "i8"), place, 1)
        else:
            bytes_ = masked_load(b, "i8", place, self.lanes, valid)
        return self.products.a.convert("sext", bytes_, "i32")

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        b, p, own = self.b, self.problem, self.products
        own.bind(b)
        m0 = self._first_row(run, j)
        x = b.offset(self.pointers[self.x.source], self._x_offset(g, m0))
        first = b.add(b.mul(i, panel.size), panel.start)
        start_bytes = self.lanes * 4
        column_bytes = start_bytes + self.steps * own.line
        at = b.add(self._matrix_offset(g, self._matrix_bytes), b.mul(first, column_bytes))
        w = b.offset(b.arguments[f"p{self.packed}"], at)
        kind = vector(self.lanes, "i32")
        start = [b.load(kind, b.offset(w, v * start_bytes), 4) for v in range(panel.size)]
        w = b.offset(w, panel.size * start_bytes)

        def multiply(valid: int, k: Int, carried: list[Reg]) -> list[Reg]:
            *sums, wk = carried
            at = b.offset(x, b.mul(k, own.step))
            rows = [b.offset(at, r * self.x.strides[-2]) for r in range(run.size)]
            sums = own.multiply(sums, rows, valid, wk, panel.size)
            return [*sums, b.offset(wk, panel.size * own.line)]

        whole, rest = divmod(p.depth, own.step)
        carried = b.loop(0, whole, 1, partial(multiply, own.step), [*start * run.size, w])
        if rest:
            carried = multiply(rest, whole, carried)
        self._finish(g, m0, first, run, panel, carried[:-1])
