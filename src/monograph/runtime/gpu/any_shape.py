"""Code for any shape on a GPU: one compilation of a model whose open dimensions are numbers.

Kernels take open sizes as arguments (see `KernelWriter.launch`). For each new set of sizes a shape
function computes grids, arguments, offsets of buffers and shapes of ports; nothing is compiled. A
kernel has at most two forms: one for all sizes, and one for sizes that are multiples of 16.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.codegen.triton.module.kernel import Launch
from monograph.codegen.triton.module.layout import Bound, BufferRef, GpuModule
from monograph.errors import ExecutionError, UnsupportedError
from monograph.ir import Array, TensorType
from monograph.ir.memory import MAX_TENSOR_BYTES
from monograph.ir.size_expressions import SizeExpression, Symbol
from monograph.ir.sizes import SizeScope, any_open, is_open
from monograph.program.program import Program
from monograph.runtime.executable import ANY_SHAPE, Executable
from monograph.runtime.gpu.bound_program import DeviceFaultText, DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.executable import layout_of
from monograph.runtime.gpu.memory import DeviceConstants
from monograph.runtime.gpu.run_turns import RunTurns
from monograph.runtime.shape_code import ShapeCode, shape_function

_SIZE = re.compile(r"%size\.(\d+)")
_VECTOR = 16
NO_CONSTANTS: Array = np.zeros(0, np.uint8)
"""In the place of constants that are on the device already."""


class AnyShapeProgram(GpuProgram):
    """Code for any shape, bound to one set of sizes. Programs of a variant share temporaries."""

    def __init__(self, code: AnyShapeGpu, layout: GpuLayout, works: Sequence[Launch]) -> None:
        self._code = code
        stems = code.stems
        arguments = layout.arguments

        def records() -> list[Record]:
            return [
                code.device.record(work, places, stem)
                for work, places, stem in zip(works, arguments, stems, strict=True)
            ]

        super().__init__(
            layout, records, code.device, NO_CONSTANTS, code.constants, turns=code.turns
        )

    @property
    def tier(self) -> str:
        return ANY_SHAPE

    @property
    def programs(self) -> list[Program]:
        return [self._code.program]


@dataclass(frozen=True)
class _Numbers:
    """The numbers of one set of sizes."""

    made: tuple[int, ...]
    places: Mapping[SizeExpression, int]
    table: Sequence[SizeExpression]

    def of(self, number: int) -> int:
        """Return a number at these sizes."""
        return self.made[self.places[number.expression]] if is_open(number) else number

    def all(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(self.of, numbers)) if any_open(numbers) else tuple(numbers)

    def text(self, text: str) -> str:
        """Return a text with numbers in the place of open sizes."""
        return _SIZE.sub(lambda m: str(self.made[self.places[self.table[int(m[1])]]]), text)


class AnyShapeGpu(ShapeCode):
    """The kernels of a model for all sizes for which its guards hold."""

    def __init__(
        self,
        module: GpuModule,
        scope: SizeScope,
        device: Device,
        constants: DeviceConstants,
        wrap: Callable[[GpuProgram], Executable],
    ) -> None:
        check_whole(module)
        self.scope, graph = scope, module.program.graph
        named = zip(graph.input_names, graph.inputs, strict=True)
        self.shapes = {name: v.tensor.static for name, v in named}
        self.device, self.program = device, module.program
        self.turns = RunTurns(device)
        self.stems = [b.step.region.kind for b in module.works]
        self._wrap = wrap
        self._layout = layout_of(module)
        self._works = [_with_alignment(b) for b in module.works]
        pieces = self._layout.pieces or ((0, module.constants.size),)
        self.constants = constants.upload(module.constants, pieces)
        """The constants of all sizes, on the device."""
        self._table = list(scope.table)
        wanted: dict[SizeExpression, None] = dict.fromkeys(self._table)
        for number in self._every_number():
            if is_open(number):
                wanted[number.expression] = None
        self._places = {e: i for i, e in enumerate(wanted)}
        self._compute = shape_function([*scope.hints], [*wanted])

    def _every_number(self) -> Sequence[int]:
        layout = self._layout
        found = [
            layout.arena_bytes,
            *(d for p in (*layout.inputs, *layout.outputs) for d in p.shape),
        ]
        found += [n for row in layout.arguments for a in row for n in (a.offset, a.room, a.below)]
        return found + [n for work in self._works for n in (*work.grid, *work.sizes)]

    def executable(self, values: Mapping[Symbol, int]) -> Executable:
        """Return what runs inputs of these sizes."""
        numbers = _Numbers(self._compute(values), self._places, self._table)
        arena = numbers.of(self._layout.arena_bytes)
        if arena > MAX_TENSOR_BYTES:
            raise ExecutionError(
                "a run of this size needs too much memory",
                expected=f"at most {MAX_TENSOR_BYTES:,} bytes",
                given=f"{arena:,} bytes",
            )
        layout = _bound_layout(self._layout, numbers)
        works = [_bound_launch(work, numbers) for work in self._works]
        return self._wrap(AnyShapeProgram(self, layout, works))


def check_whole(module: GpuModule) -> None:
    """Refuse a module whose work is not all kernels of known order."""
    if not all(isinstance(v.type, TensorType) for v in module.program.graph.inputs):
        raise UnsupportedError("code for any shape takes tensors only")
    if module.host:
        raise UnsupportedError(
            "code for any shape has no steps on the host", given=module.host[0][1]
        )
    for bound in module.works:
        if not isinstance(bound.work, Launch):
            kind = bound.step.region.kind
            raise UnsupportedError("code for any shape has no branches or loops", given=kind)
    names = [name for name, _ in module.program.graph.outputs]
    if names != [p.name for p in layout_of(module).outputs]:
        raise UnsupportedError("every output of code for any shape has memory of its own")
    if is_open(module.kept_bytes):
        raise UnsupportedError("persistent memory of code for any shape has a fixed size")


def _with_alignment(bound: Bound) -> Launch:
    """Return a launch with the alignment of its pointers at all sizes."""
    assert isinstance(bound.work, Launch)
    return replace(bound.work, aligned=tuple(a.aligned for a in bound.arguments))


def _bound_launch(work: Launch, numbers: _Numbers) -> Launch:
    """Return a launch at given sizes, of the form for multiples of 16 where they are."""
    x, y, z = numbers.all(work.grid)
    sizes = numbers.all(work.sizes)
    multiples = work.multiples
    if not all(multiples) and all(n % _VECTOR == 0 for n in sizes):
        multiples = (True,) * len(sizes)
    return replace(work, grid=(x, y, z), sizes=sizes, multiples=multiples)


def _bound_layout(layout: GpuLayout, numbers: _Numbers) -> GpuLayout:
    def port(p: DevicePort) -> DevicePort:
        return replace(p, shape=numbers.all(p.shape)) if any_open(p.shape) else p

    def place(a: BufferRef) -> BufferRef:
        if not any_open((a.offset, a.room, a.below)):
            return a
        offset, room, below = numbers.all((a.offset, a.room, a.below))
        return replace(a, offset=offset, room=room, below=below)

    def fault(f: DeviceFaultText) -> DeviceFaultText:
        return replace(f, message=numbers.text(f.message), expected=numbers.text(f.expected))

    changed: dict[str, Any] = {
        "inputs": tuple(map(port, layout.inputs)),
        "outputs": tuple(map(port, layout.outputs)),
        "arguments": tuple(tuple(map(place, row)) for row in layout.arguments),
        "arena_bytes": numbers.of(layout.arena_bytes),
        "faults": tuple(map(fault, layout.faults)),
    }
    return replace(layout, **changed)
