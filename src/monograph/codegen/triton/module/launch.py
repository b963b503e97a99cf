"""Launches and the memory of their arguments, as plain data: all that runs need of kernels.

A process that finds its programs on disk imports this module and no code generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monograph.codegen.common.element_types import storage
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16
from monograph.ir.sizes import divides

if TYPE_CHECKING:
    from monograph.codegen.triton.module.kernel import Argument
    from monograph.program.program import Step

ARENA, CONSTANTS, KEPT, PORT = "arena", "constants", "kept", "port"
UNROLLED = 1000
"""The most pieces of work that a loop of known length may become."""


@dataclass(frozen=True)
class Arch:
    """A GPU architecture, as Triton names it."""

    backend: str
    """cuda or hip."""
    name: str
    """sm_90, gfx942 ..."""
    warp: int = 32
    interpreted: bool = False
    """True if Triton's interpreter replaces the device."""

    @property
    def dependent_launch(self) -> bool:
        """True if a kernel may start before the one it depends on has ended."""
        return self.backend == "cuda" and int(self.name.removeprefix("sm_")) >= 90

    def __str__(self) -> str:
        return self.name


ARCHES = {
    "sm_80": Arch("cuda", "sm_80"),
    "sm_86": Arch("cuda", "sm_86"),
    "sm_89": Arch("cuda", "sm_89"),
    "sm_90": Arch("cuda", "sm_90"),
    "sm_100": Arch("cuda", "sm_100"),
    "sm_120": Arch("cuda", "sm_120"),
    "gfx942": Arch("hip", "gfx942", 64),
    "gfx1100": Arch("hip", "gfx1100"),
    "gfx1151": Arch("hip", "gfx1151"),
    "gfx1201": Arch("hip", "gfx1201"),
}
"""The architectures that code is generated for, by name."""


@dataclass(frozen=True)
class Launch:
    """One Triton kernel on a grid. Pointers of values are at the value's first element."""

    source: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    warps: int = 4
    stages: int = 2
    dependent: bool = False
    """True if the kernel itself waits for earlier ones (dependent launch)."""
    step: Step | None = None
    """The step of a sub-program that it belongs to."""
    bounds_checks: int = 0
    """The number of addresses that it checks because no proof covers them."""
    sizes: tuple[int, ...] = ()
    """The open sizes that it takes as numbers, after the pointers."""
    wide_sizes: tuple[bool, ...] = ()
    """True for each size that is passed in 64 bits."""
    multiples: tuple[bool, ...] = ()
    """True for each size that is a multiple of 16: part of the key of its code."""
    aligned: tuple[bool, ...] | None = None
    """True for each pointer to vectors of 16 bytes, if offsets at given sizes do not say so."""


@dataclass(frozen=True)
class BufferRef:
    """The location of an argument: a memory, and a byte offset."""

    memory: str
    offset: int
    dtype: DType
    port: str = ""
    """The input or output, for memory of the caller."""
    room: int = field(default=-1, compare=False)
    """The bytes of its buffer from there on, for checked runs; -1 if unknown."""
    below: int = field(default=0, compare=False)
    """The bytes of its buffer before there."""

    @property
    def aligned(self) -> bool:
        """True if vectors of 16 bytes may be read there."""
        return divides(16, self.offset)


def stored(dtype: DType) -> str:
    """The LLVM name of the type that pointers to elements have."""
    if dtype in (f16, bf16):
        return "half" if dtype == f16 else "bfloat"
    return storage(dtype)


def is_unrolled(count: int | None, body: int) -> bool:
    """Return True if a loop is recorded iteration by iteration: a known and small number of them.

    body: the pieces of work of an iteration.
    """
    return count is not None and count * body <= UNROLLED
