"""Map kernels: each element of a result is computed independently, in flat blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile, tile
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter, Launch

Body = Callable[[KernelWriter, ResultTile, str | None], str]
"""Writes the elements at a tile's point: an expression in register form."""
BLOCKS = ((256, 4), (128, 4), (512, 4), (1024, 8))


def each(context: GpuContext, body: Body) -> list[Candidate]:
    """Return kernels that compute the elements of an anchor's one result, and finish them."""
    return [
        Candidate(f"each {block} w{warps}", lambda b=block, w=warps: (_each(context, body, b, w),))  # type: ignore[misc]
        for block, warps in BLOCKS
    ]


def _each(context: GpuContext, body: Body, block: int, warps: int) -> Launch:
    k = context.kernel()
    t = tile(k)
    size = math.prod(t.shape)
    flat = k.w.let(f"{k.program_id()} * {block} + tl.arange(0, {block})", "i")
    mask = k.w.let(f"{flat} < {size}", "m") if size % block else None
    t.batch(flat, range(len(t.shape)), mask)
    t.elements.ground = BlockAxis(flat, mask)
    k.wait()
    result = body(k, t, mask)
    k.trigger()
    t.finish_stored(result)
    return k.launch((-(-size // block),), warps)
