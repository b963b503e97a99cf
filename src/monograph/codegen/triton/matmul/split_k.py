"""Split-K in one kernel: the last program adds up the parts of the others.

Every program of a tile stores its part and increments a counter. The program that finds all others
counted reads all parts in order, its own too, so that the result does not depend on which one was
last. It resets the counter for the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.triton.module.kernel import KernelWriter, TritonScratch
from monograph.ir import DType
from monograph.ir.dtype import i32


@dataclass(frozen=True)
class Parts:
    """The division of a result: tiles, each the sum of some parts."""

    split: int
    tiles: int
    size: int
    """The elements of a part, of all tiles together."""
    dtype: DType
    single: bool = False
    """True if a tile is one element: then all its parts are read at once."""


Place = Callable[[str], str]
"""Returns the addresses of a tile's elements of a part, from the number of the part."""


def join_parts(
    k: KernelWriter,
    parts: Parts,
    tile: str,
    place: Place,
    mask: str | None,
    finish: Callable[[str], None],
) -> None:
    """Store `acc` as the part of a program (its third index); the last program finishes.

    tile: the number of the program's tile.
    """
    w = k.w
    memory = k.pointer(TritonScratch(parts.split * parts.size * parts.dtype.itemsize, parts.dtype))
    counts = k.pointer(TritonScratch(parts.tiles * i32.itemsize, i32, zeroed=True))
    own = w.let(place(k.program_id(2)), "i")
    w.line(f"tl.store({memory} + {own}, acc{f', mask={mask}' if mask else ''})")
    # This program's stores come before its count, and that before the last one's loads.
    w.line("tl.debug_barrier()")
    count = w.let(f"{counts} + {tile}", "c")
    before = w.name("before")
    w.line(f'{before} = tl.atomic_add({count}, 1, sem="acq_rel")')
    with w.block(f"if {before} == {parts.split - 1}"):
        w.line(f"tl.store({count}, 0)")
        # Bypasses the nearest cache: others have written there.
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
