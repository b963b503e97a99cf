"""Code for any shape: one compilation of a model whose open dimensions are run-time values.

A variant is valid for all sizes for which its guards hold (see `monograph.ir.sizes`). For each new
set of sizes its shape function computes the table of sizes that kernels read, the shapes of the
ports and the bytes of the arena. That takes no compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from monograph.codegen.llvm.module.barrier import SIZES
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import Features
from monograph.config import make_config
from monograph.errors import ExecutionError, UnsupportedError
from monograph.ir import Array, Graph, TensorType
from monograph.ir.lazy import lazy
from monograph.ir.memory import MAX_TENSOR_BYTES
from monograph.ir.size_expressions import SizeExpression, Symbol
from monograph.ir.size_texts import with_numbers
from monograph.ir.sizes import SizeScope, any_open, is_open
from monograph.runtime.cache.any_shape_artefact import AnyShapeArtefact
from monograph.runtime.cache.artefact import Artefact
from monograph.runtime.cache.object_cache import DiskCache
from monograph.runtime.counts import Counts
from monograph.runtime.cpu.launch import (
    Layout,
    NativeExecutable,
    NativeFaultText,
    NativePort,
    Workspace,
    aligned,
    reserved_bytes,
)
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.executable import ANY_SHAPE, CompiledArtefact, Feeds, Outputs
from monograph.runtime.progress import Progress, silent
from monograph.runtime.shape_code import ShapeCode, Shapes, check_port, shape_function

if TYPE_CHECKING:
    from monograph.program.program import Program


class AnyShapeExecutable(NativeExecutable):
    """Code for any shape, bound to one set of sizes.

    The executables of a variant share the memory of their runs, which grows to the largest.
    """

    def __init__(self, code: AnyShape, layout: Layout, sizes: Array) -> None:
        self._any_shape = code
        program = code.artefact.program
        super().__init__(layout, code.native, program.constants, program.weights, sizes)
        self.counts = code.counts
        self._free = code.workspaces
        self._sizes_at = sizes.ctypes.data
        self._block = code.block

    def _hold(self, constants: Array, weights: Mapping[str, Array]) -> None:
        """Take them from the variant: its workspaces, which point to them, outlive this."""
        self._constants, self._weights, self._addresses = self._any_shape.memory

    @property
    def tier(self) -> str:
        return ANY_SHAPE

    @property
    def shared_bytes(self) -> dict[str, int]:
        """The bytes of all constants: the executables of a variant share the small ones too."""
        return super().shared_bytes | {self._block: int(self._constants.nbytes)}

    @property
    def constant_bytes(self) -> int:
        return sum(self.shared_bytes.values())

    def _fault_text(self, number: int) -> NativeFaultText:
        """Return the text of a fault with the sizes of the run."""
        return (
            super()
            ._fault_text(number)
            .changed(lambda text: with_numbers(text, lambda place: int(self._sizes[place])))
        )

    def _run_parts(self, workspace: Workspace, bound: dict[int, Array], feeds: Feeds) -> Outputs:
        """Return nothing: all of the program is in its later parts."""
        return []

    def _take(self) -> Workspace:
        try:
            workspace = self._free.pop()
        except IndexError:
            self.counts.captures = len(self._functions)
            small = replace(self.layout, arena_bytes=0)
            workspace = Workspace(small, self._constants, self._addresses, self._sizes)
        if workspace.arena.size < self.layout.arena_bytes:
            workspace.grow(reserved_bytes(self.layout.arena_bytes))
        workspace.slots[SIZES] = self._sizes_at
        return workspace


class AnyShape(ShapeCode):
    """The code of a model for all sizes for which its guards hold."""

    def __init__(self, artefact: AnyShapeArtefact) -> None:
        self.artefact = artefact
        self.scope, self.shapes = artefact.scope, artefact.shapes
        self.layout = artefact.program.layout
        self.native = NativeCode(
            [bytes(o) for o in artefact.program.objects], self.layout.functions
        )
        self.counts = Counts()
        """The counters that its executables share."""
        self.workspaces: list[Workspace] = []
        """The memory of runs that have ended, of any of its shapes."""
        self.block = f"constants of variant {self.scope.number}"
        wanted: dict[SizeExpression, None] = {}
        ports = (*self.layout.inputs, *self.layout.outputs)
        for number in (self.layout.arena_bytes, *(d for p in ports for d in p.shape)):
            if is_open(number):
                wanted[number.expression] = None
        self._table = len(self.scope.table)
        self._others = {e: self._table + i for i, e in enumerate(wanted)}
        self._compute = shape_function([*self.scope.hints], [*self.scope.table, *wanted])

    @lazy
    def memory(self) -> tuple[Array, Mapping[str, Array], Array]:
        """The small constants, the large ones, and the addresses of these."""
        program = self.artefact.program
        addresses = np.array([w.ctypes.data for w in program.weights.values()], np.int64)
        return aligned(program.constants), program.weights, addresses

    def stored(self, seconds: float) -> AnyShapeArtefact:
        """Return the artefact, with the time that its compilation took."""
        self.artefact = self.artefact.timed(seconds)
        return self.artefact

    def adopt(self, stored: CompiledArtefact) -> None:
        assert isinstance(stored, AnyShapeArtefact)
        assert not self.workspaces, "workspaces hold the address of the constants"
        # The layout stays: its sizes are those of the own scope.
        program = replace(stored.program, layout=self.layout)
        self.artefact = AnyShapeArtefact(self.scope, self.shapes, program, self.artefact.seconds)

    def executable(self, values: Mapping[Symbol, int]) -> AnyShapeExecutable:
        """Return what runs inputs of these sizes."""
        made = self._compute(values)

        def size(number: int) -> int:
            return made[self._others[number.expression]] if is_open(number) else number

        def port(p: NativePort) -> NativePort:
            shape = tuple(map(size, p.shape)) if any_open(p.shape) else p.shape
            return replace(p, shape=shape)

        arena = size(self.layout.arena_bytes)
        if arena > MAX_TENSOR_BYTES:
            raise ExecutionError(
                "a run of this size needs too much memory",
                expected=f"at most {MAX_TENSOR_BYTES:,} bytes",
                given=f"{arena:,} bytes",
            )
        layout = replace(
            self.layout,
            arena_bytes=arena,
            inputs=tuple(map(port, self.layout.inputs)),
            outputs=tuple(map(port, self.layout.outputs)),
        )
        for p in (*layout.inputs, *layout.outputs):
            check_port(p.name, p.shape, p.dtype.itemsize)
        try:
            # Kernels read constants of one open size there, with the slack of constants.
            table = np.zeros(self._table + SLACK // 8, np.int64)
            table[: self._table] = np.array(made[: self._table], np.int64)
        except OverflowError:
            raise ExecutionError(
                "a run of this size counts too far", expected="numbers of 64 bits"
            ) from None
        return AnyShapeExecutable(self, layout, table)


def compile_any_shape(
    graph: Graph,
    scope: SizeScope,
    features: Features,
    threads: int,
    cache: DiskCache | None = None,
    winograd: bool = True,
    progress: Progress = silent,
    checked: bool | None = None,
) -> AnyShape:
    """Compile an optimised graph with open sizes; see `compile_lowered` for the options.

    Raises UnsupportedError for a graph that is no single native function.
    """
    # A process that finds its code on disk does not import the compiler.
    from monograph.codegen.llvm.module.select import CpuTarget
    from monograph.program.lowering import lower

    lowered = lower(graph, CpuTarget())
    if lowered.split is not None or lowered.states or lowered.in_pairs:
        why = "data decide sizes" if lowered.split is not None else "states or complex numbers"
        raise UnsupportedError("code for any shape is one function", given=why)
    types = zip(graph.input_names, graph.input_types, strict=True)
    shapes = {name: t.static for name, t in types if isinstance(t, TensorType)}
    return compile_open_program(
        lowered.program, scope, shapes, features, threads, cache, winograd, progress, checked
    )


def compile_open_program(
    program: Program,
    scope: SizeScope,
    shapes: Shapes,
    features: Features,
    threads: int,
    cache: DiskCache | None = None,
    winograd: bool = True,
    progress: Progress = silent,
    checked: bool | None = None,
) -> AnyShape:
    """Compile a program with open sizes.

    shapes: by name, the numbers that its sizes are found from: shapes of inputs, and others.
    """
    from monograph.codegen.llvm.module.compile import compile_program
    from monograph.runtime.cpu.executable import make_layout, object_code, useful_threads

    checked = make_config().checked if checked is None else checked
    threads = useful_threads(program, threads)
    module = compile_program(program, features, threads, winograd, checked=checked)
    layout = make_layout(program, module, threads)
    faults = tuple(fault.changed(scope.unmarked) for fault in layout.faults)
    layout = replace(layout, faults=faults)
    empty = not (layout.functions or layout.results or layout.host_kinds)
    if not layout.whole and not empty:
        raise UnsupportedError(
            "code for any shape is one function", given=layout.host_kinds or layout.functions
        )
    objects = object_code(module.texts, features, cache, progress)
    made = Artefact(layout, objects, module.constants, module.weights)
    return AnyShape(AnyShapeArtefact(scope, shapes, made))
