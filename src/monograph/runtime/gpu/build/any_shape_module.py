"""Code for any shape from a module that was compiled in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.codegen.triton.module.layout import Bound, GpuModule
from monograph.errors import UnsupportedError
from monograph.ir import TensorType
from monograph.ir.sizes import SizeScope, is_open
from monograph.runtime.executable import Executable
from monograph.runtime.gpu.any_shape import AnyShapeGpu
from monograph.runtime.gpu.any_shape_stored import GpuVariantArtefact
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.build.layouts import layout_of
from monograph.runtime.gpu.build.stored_programs import make_artefact
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.memory import DeviceConstants


class CompiledAnyShapeGpu(AnyShapeGpu):
    """Code for any shape whose program is known."""

    def __init__(
        self,
        module: GpuModule,
        scope: SizeScope,
        device: Device,
        constants: DeviceConstants,
        wrap: Callable[[GpuProgram], Executable],
    ) -> None:
        check_whole(module)
        graph = module.program.graph
        named = zip(graph.input_names, graph.inputs, strict=True)
        self._stems = [b.step.region.kind for b in module.works]
        layout = layout_of(module)
        super().__init__(
            scope,
            {name: v.tensor.static for name, v in named},
            layout,
            [_with_alignment(b) for b in module.works],
            device,
            constants.upload(module.constants, layout.pieces or ((0, module.constants.size),)),
            wrap,
        )
        self.programs = [module.program]
        self._module = replace(module, constants=module.constants[:0])

    def record(self, number: int, work: Launch, places: Sequence[BufferRef]) -> Record:
        return self.device.record(work, places, self._stems[number])

    def stored(self, seconds: float) -> GpuVariantArtefact | None:
        """Return what a file can hold; None if the device keeps no machine code."""
        if not self.device.keeps_code:
            return None
        block = self.constants
        digests, found = block.digests if self._layout.pieces else (), block.weights
        program = make_artefact(
            self._module,
            self.device.code,
            digests,
            lambda wanted: {d: found[d] for d in wanted},
            {},
        )
        if program is None:
            return None
        return GpuVariantArtefact(self.scope, self.shapes, program, seconds)


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
