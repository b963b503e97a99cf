"""Prefetch of weights in matrix products: its distance, and the width of panels.

The hardware prefetches sequential addresses, but not as far ahead as memory could serve. A software
prefetch brings data into the second-level cache early.
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
"""Weights of more bytes do not stay in a core's own caches."""
AHEAD_BYTES = 12 << 10
"""The prefetch distance if there is arithmetic to hide it."""
ROW_AHEAD_BYTES, ROW_BYTES = 4 << 10, 256
"""The prefetch distance for one row, and the bytes of a panel that it reads at a time: whole lines.
Measured: a tenth faster than without, less if panels are no power of two or at twice the distance.
"""


def streams(rows: int, dtype: DType, nbytes: int) -> bool:
    """Return True if one row only streams weights from far memory.

    Only plain floats: for weights that need a conversion this was slower.
    """
    return rows == 1 and dtype == f32 and nbytes > FAR_BYTES


def choose_ahead(rows: int, tile_rows: int, nbytes: int, streamed: bool) -> int:
    """Return the prefetch distance of weights in bytes; 0 for none.

    It pays if weights are read from far memory once or twice, and if there is arithmetic to hide
    it, or nothing but loads: two or three rows are loads that run ahead by themselves.
    """
    if streamed:
        return ROW_AHEAD_BYTES
    few = rows <= 4 * tile_rows
    return AHEAD_BYTES if nbytes > FAR_BYTES and tile_rows >= 4 and few else 0


def row_width(vectors: int, lanes: int, features: Features, threads: int) -> int:
    """Return the vectors of columns that one row processes at a time, for weights in far memory."""
    most = ROW_BYTES // (lanes * f32.itemsize)
    return even_width(vectors, min(most, features.registers // 2), threads)


def fetch(b: Builder, w: Reg, ahead: int, nbytes: int) -> None:
    """Prefetch `nbytes` of weights at a distance."""
    read, level, data = (Reg(str(k), "i32") for k in (0, 2, 1))
    for at in range(ahead, ahead + nbytes, LINE):
        b.call("llvm.prefetch.p0", "void", b.offset(w, at), read, level, data)
