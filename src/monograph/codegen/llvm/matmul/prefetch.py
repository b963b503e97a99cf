"""Weights that come from memory: how far ahead a matrix product asks for them, and in what width.

A core looks ahead by itself where it reads one address after the other, but not as far as memory
could serve it. What it is asked for early comes into the second-level cache.
"""

from __future__ import annotations

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.matmul.partition import even_width
from monograph.codegen.llvm.module.features import Features
from monograph.ir import DType
from monograph.ir.dtype import f32

LINE = 64
FAR_BYTES = 1 << 20
"""Weights of so many bytes do not stay in a core's own caches."""
AHEAD_BYTES = 12 << 10
"""Where there is arithmetic to hide it behind."""
ROW_AHEAD_BYTES, ROW_BYTES = 4 << 10, 256
"""For one row, and how many bytes of a panel it takes at a time: whole lines. Measured: a tenth
more than without, and less where panels are no power of two or the distance is twice as long."""


def streams(rows: int, dtype: DType, nbytes: int) -> bool:
    """Whether all there is to do is to read weights from far away, for one row.

    Only plain floats: with weights that have to be converted the same made it slower.
    """
    return rows == 1 and dtype == f32 and nbytes > FAR_BYTES


def choose_ahead(rows: int, tile_rows: int, nbytes: int, streamed: bool) -> int:
    """How many bytes ahead weights are fetched; 0 for not at all.

    That pays where they come from far away but once or twice, and where there is arithmetic to hide
    it behind, or nothing but them: two or three rows are loads that run ahead by themselves.
    """
    if streamed:
        return ROW_AHEAD_BYTES
    few = rows <= 4 * tile_rows
    return AHEAD_BYTES if nbytes > FAR_BYTES and tile_rows >= 4 and few else 0


def row_width(vectors: int, lanes: int, features: Features, threads: int) -> int:
    """How many vectors of columns one row takes at a time, where its weights come from far away."""
    most = ROW_BYTES // (lanes * f32.itemsize)
    return even_width(vectors, min(most, features.registers // 2), threads)


def fetch(b: Builder, w: Reg, ahead: int, nbytes: int) -> None:
    """Asks for so many bytes of weights that come later."""
    read, level, data = (Reg(str(k), "i32") for k in (0, 2, 1))
    for at in range(ahead, ahead + nbytes, LINE):
        b.call("llvm.prefetch.p0", "void", b.offset(w, at), read, level, data)
