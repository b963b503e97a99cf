"""Compilers of the stages of a program: what a stage asks of its target, and the one of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph
from monograph.ir.sizes import SizeScope
from monograph.program.lowering import LoweringTarget
from monograph.program.program import Program
from monograph.runtime.cache.object_cache import DiskCache
from monograph.runtime.counts import RunCounters
from monograph.runtime.cpu.any_shape import AnyShape, compile_open_program
from monograph.runtime.cpu.executable import CpuExecutable, compile_lowered
from monograph.runtime.executable import Executable
from monograph.runtime.progress import Progress, silent
from monograph.runtime.shape_code import ShapeCode, Shapes

KEPT = 16
"""Specialisations of what waits that a stage keeps."""


@dataclass(frozen=True)
class Compiler:
    """Compiles each stage of a graph for the CPU."""

    features: Features
    threads: int
    cache: DiskCache | None = None
    winograd: bool = True
    optimise: Callable[[Graph], Graph] = lambda graph: graph
    """Optimises a graph of known shapes for the target."""
    kept: int = KEPT
    progress: Progress = silent
    rules: LoweringTarget = CpuTarget()  # noqa: RUF009
    """The rules that graphs are lowered by."""
    tally: RunCounters | None = None
    """The counters of all executables; None if each counts for itself."""
    checked: bool | None = None
    """Check every access to memory; None follows the environment."""

    def executable(self, program: Program) -> CpuExecutable:
        made = compile_lowered(
            program,
            self.features,
            self.threads,
            self.cache,
            self.winograd,
            self.progress,
            self.checked,
        )
        if self.tally is not None:
            self.tally.watch(made)
        return made

    def recording(self) -> bool:
        """Return False: only a GPU captures."""
        return False

    @property
    def opens(self) -> bool:
        """True if programs are compiled with open sizes."""
        return True

    def open_program(self, program: Program, scope: SizeScope, shapes: Shapes) -> AnyShape:
        """Compile a program with open sizes, which are found from these numbers."""
        made = compile_open_program(
            program,
            scope,
            shapes,
            self.features,
            self.threads,
            self.cache,
            self.winograd,
            self.progress,
            self.checked,
        )
        if self.tally is not None:
            made.counts = self.tally.of(made)
        return made


class Compiling(Protocol):
    """A compiler of stages for one target."""

    @property
    def kept(self) -> int:
        """The number of specialisations that a stage keeps."""

    @property
    def optimise(self) -> Callable[[Graph], Graph]:
        """Optimises a graph of known shapes for the target."""

    @property
    def rules(self) -> LoweringTarget:
        """The rules that graphs are lowered by."""

    @property
    def progress(self) -> Progress:
        """Told of each piece of work."""

    def recording(self) -> bool:
        """Return True if the caller captures a graph; a run cannot wait for the device then."""

    @property
    def tally(self) -> RunCounters | None:
        """The counters of all executables."""

    def executable(self, program: Program) -> Executable:
        """Compile a program."""

    @property
    def opens(self) -> bool:
        """True if programs are compiled with open sizes; else for each set of sizes."""

    def open_program(self, program: Program, scope: SizeScope, shapes: Shapes) -> ShapeCode:
        """Compile a program with open sizes, which are found from these numbers."""
