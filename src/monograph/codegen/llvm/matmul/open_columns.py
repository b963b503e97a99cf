"""Matrix products whose number of columns is known only at run time.

Whole vectors of columns are tiled as ever. The last columns are one vector with unused lanes: it
is loaded through a mask, and its results are stored in pieces of powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import storage
from monograph.codegen.llvm.emit.builder import Builder, Int, mangled
from monograph.codegen.llvm.matmul.dot import DotKernel
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run
from monograph.codegen.llvm.module.bounds_checks import READS_MARK, bytes_of
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext
from monograph.ir.sizes import is_open

MOST_TILE_ROWS = 6
"""The most rows of a tile: tiles of open columns have many forms."""


def dot(context: KernelContext) -> Kernel:
    """Generate a kernel for a dot and its epilogue."""
    kind = OpenColumns if is_open(context.anchor.tensor.static[-1]) else DotKernel
    return kind(context).emit()


class OpenColumns(DotKernel):
    """Tiles of whole vectors, and a last vector of which some lanes are used."""

    def _width(self, size: int) -> int:
        return size

    def _vectors(self) -> int:
        whole = self.problem.columns // self.lanes
        self.tail = Run(whole, 1, -(-self.problem.columns // self.lanes) - whole)
        self.used = self.problem.columns - whole * self.lanes
        """The used lanes of the last vector."""
        return whole

    def _choose_tile(self) -> RegisterTile:
        found = super()._choose_tile()
        return RegisterTile(min(found.rows, MOST_TILE_ROWS), found.vectors)

    def emit(self) -> Kernel:
        # A tile of the last vector stores its results through memory.
        self.room: Reg | None = None
        return super().emit()

    def _prepare(self) -> None:
        super()._prepare()
        kind = vector(self.lanes, self._zero.type.split(" x ")[-1].rstrip(">"))
        self.room = self.b.set("ptr", f"alloca [1 x {kind}], align 64")

    def _panel_runs(self) -> list[tuple[Run, bool]]:
        return [*((run, False) for run in self.panels), (self.tail, True)]

    def _on_last(self, over: str, body: Callable[[], None]) -> None:
        def once(_: Int, __: list[Reg]) -> None:
            body()

        def unless_whole() -> None:
            self.b.loop(0, self.tail.count, 1, once)

        super()._on_last(over, unless_whole)

    def _part(
        self, g: Int, panel: Run, i: Int, run: Run, j: Int, span: tuple[Int, int], start: list[Reg]
    ) -> list[Reg]:
        self.last = panel is self.tail
        return super()._part(g, panel, i, run, j, span, start)

    def _valid(self, v: Int) -> int:
        return self.used if self.last else self.lanes

    def _column(self, w: Reg, u: int, v: int, step: int, valid: int) -> Reg:
        if not is_open(valid):
            return super()._column(w, u, v, step, valid)
        dtype = self.anchor.inputs[1].dtype
        at = self.b.offset(w, u * step)
        scalars = self.epilogue.elements.scalars
        loaded = load_first(self.b, storage(dtype), at, self.lanes, valid)
        return self._widened(scalars.decode(loaded, dtype).reg, dtype)

    def _finish(self, g: Int, m0: Int, v0: Int, run: Run, panel: Run, sums: list[Reg]) -> None:
        b = self.b
        if panel is not self.tail:
            super()._finish(g, m0, v0, run, panel, sums)
            return
        assert self.room is not None
        n, size = self.tail.start * self.lanes, self.sum_dtype.itemsize
        for r, total in enumerate(sums):
            b.store(total, self.room, size)
            row = self._row_place(g, b.add(m0, r))
            width = self.lanes // 2
            while width:
                start = b.mul(b.div(self.used, 2 * width), 2 * width)
                count = b.mod(b.div(self.used, width), 2)
                piece = partial(self._piece, row, b.add(n, start), start, width)
                b.loop(0, count, 1, piece)
                width //= 2

    def _piece(self, row: list[Int], n: Int, start: Int, width: int, _: Int, __: list[Reg]) -> None:
        """Finish and store some lanes of the last vector."""
        assert self.room is not None
        element = self._zero.type.split(" x ")[-1].rstrip(">")
        kind = vector(width, element) if width > 1 else element
        size = self.sum_dtype.itemsize
        at = self.b.offset(self.room, self.b.mul(start, size))
        total = self._narrowed(self.b.load(kind, at, size))
        self.epilogue.store([*row, n], total, width)


def load_first(b: Builder, element: str, pointer: Reg, lanes: int, count: Int) -> Reg:
    """Load as many first lanes of a vector as a size says; nothing beyond them is read."""
    kind, width = vector(lanes, element), bytes_of(element)
    each = b.splat(b.set("i32", f"trunc i64 {b.i64(count)} to i32"), lanes)
    numbers = ", ".join(f"i32 {k}" for k in range(lanes))
    mask = b.set(vector(lanes, "i1"), f"icmp slt {each.type} <{numbers}>, {each}")
    nbytes = b.i64(b.mul(count, width))
    zeros = Reg("zeroinitializer", kind)
    name = f"llvm.masked.load.{mangled(kind)}.p0"
    found = b.call(name, kind, pointer, Reg(str(width), "i32"), mask, zeros)
    b.lines[-1] += f" {READS_MARK}{nbytes}"
    return found
