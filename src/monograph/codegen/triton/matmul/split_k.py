"""Split sums in one kernel: the program that comes last adds up what the others have left.

Every program of a tile stores its part and counts. The one that finds all others counted reads
all parts in their order, its own too, so that the result does not depend on who was last. It
leaves the count at zero for the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.triton.module.kernel import KernelWriter, TritonScratch
from monograph.ir import DType
from monograph.ir.dtype import i32


@dataclass(frozen=True)
class Parts:
    """How a result is cut up: so many tiles, each the sum of some parts."""

    split: int
    tiles: int
    size: int
    """Elements of a part, of all tiles together."""
    dtype: DType
    single: bool = False
    """Whether a tile is one element: then all its parts are read at once."""


Place = Callable[[str], str]
"""Where a tile's elements of a part lie, from the number of the part."""


def join_parts(
    k: KernelWriter,
    parts: Parts,
    tile: str,
    place: Place,
    mask: str | None,
    finish: Callable[[str], None],
) -> None:
    """Stores `acc` as the part of a program (its third number), and lets the last one finish.

    tile: the number of the tile that the program works on.
    """
    w = k.w
    memory = k.pointer(TritonScratch(parts.split * parts.size * parts.dtype.itemsize, parts.dtype))
    counts = k.pointer(TritonScratch(parts.tiles * i32.itemsize, i32, zeroed=True))
    own = w.let(place(k.program_id(2)), "i")
    w.line(f"tl.store({memory} + {own}, acc{f', mask={mask}' if mask else ''})")
    # All of this program's stores come before its count, and that before the last one's loads.
    w.line("tl.debug_barrier()")
    count = w.let(f"{counts} + {tile}", "c")
    before = w.name("before")
    w.line(f'{before} = tl.atomic_add({count}, 1, sem="acq_rel")')
    with w.block(f"if {before} == {parts.split - 1}"):
        w.line(f"tl.store({count}, 0)")
        # Past the nearest cache: others have written there.
        options = (f", mask={mask}, other=0" if mask else "") + ', cache_modifier=".cg"'
        total = w.name("total")
        if parts.single:
            numbers = w.let(f"tl.arange(0, {1 << (parts.split - 1).bit_length()})", "r")
            options = f', mask={numbers} < {parts.split}, other=0, cache_modifier=".cg"'
            w.line(f"{total} = tl.sum(tl.load({memory} + {place(numbers)}{options}), 0)")
        else:
            for part in range(parts.split):
                text = f"tl.load({memory} + {place(str(part))}{options})"
                w.line(f"{total} = {total} + {text}" if part else f"{total} = {text}")
        finish(total)
