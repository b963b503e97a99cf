"""Matrix products of bytes with constant signed weights, and their epilogue.

The tiles are those of any dot; `int8_dot` multiplies bytes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.dot import DotKernel, dot
from monograph.codegen.llvm.matmul.int8_dot import multiplies, packed_panels, products
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir import Array, Value
from monograph.program.memory.strided import strided


def serves(value: Value) -> bool:
    """Return True for a dot of bytes with one matrix of constant signed weights."""
    return multiplies(value) and len(value.inputs[1].tensor.dims) == 2


def dot_int(context: KernelContext) -> Kernel:
    """Generate a kernel for a dot of bytes and its epilogue."""
    anchor = context.anchor
    x = strided(anchor.inputs[0], context.program.places.storage)
    assert x is not None
    if x.strides[-1] != 1 or 0 in anchor.inputs[0].tensor.static:
        # Bytes that are not contiguous cannot be loaded in groups.
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

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, j: Int, _: list[Reg]) -> None:
        b, p, own = self.b, self.problem, self.products
        own.bind(b)
        m0 = self._first_row(run, j)
        x = b.offset(self.pointers[self.x.source], self._x_offset(g, m0))
        first = b.add(b.mul(i, panel.size), panel.start)
        start_bytes = self.lanes * 4
        column_bytes = start_bytes + self.steps * own.line
        w = b.offset(b.arguments[f"p{self.packed}"], b.mul(first, column_bytes))
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
