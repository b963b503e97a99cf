"""Code for any shape that was found on disk, and its form there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.runtime.cache.any_shape_artefact import SizeReader, VariantArtefact
from monograph.runtime.cache.artefact import Weights
from monograph.runtime.executable import Executable
from monograph.runtime.gpu.any_shape import AnyShapeGpu
from monograph.runtime.gpu.artefact import GpuArtefact, Planned, upload_constants
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.memory import DeviceConstants


class GpuVariantArtefact(VariantArtefact[GpuArtefact]):
    """Launches for any shape; their grids and sizes, ports, and the arena have open sizes."""

    @staticmethod
    def of(members: Mapping[str, memoryview], weights: Weights) -> GpuVariantArtefact:
        """Return the artefact that the members hold; `weights` finds its constants."""
        read = SizeReader(members)
        program = GpuArtefact.of(members, weights, read.number)
        if not all(isinstance(p, Planned) for p in program.launches):
            raise ValueError("a library takes no open sizes")
        return GpuVariantArtefact(read.scope, read.shapes, program, read.seconds)


class StoredAnyShapeGpu(AnyShapeGpu):
    """Code for any shape that an earlier process compiled."""

    def __init__(
        self,
        artefact: GpuVariantArtefact,
        device: Device,
        constants: DeviceConstants,
        wrap: Callable[[GpuProgram], Executable],
    ) -> None:
        program = artefact.program
        self._plans = [p for p in program.launches if isinstance(p, Planned)]
        self._binaries = program.binaries
        super().__init__(
            artefact.scope,
            artefact.shapes,
            program.layout,
            [_launch(plan) for plan in self._plans],
            device,
            upload_constants(program, device, constants),
            wrap,
        )

    def record(self, number: int, work: Launch, places: Sequence[BufferRef]) -> Record:
        plan = self._plans[number]
        special = plan.for_multiples >= 0 and all(work.multiples)
        binary = self._binaries[plan.for_multiples if special else plan.kernel]
        return self.device.loaded(binary, work.grid, places, work.sizes)


def _launch(plan: Planned) -> Launch:
    """Return a launch without its source: its kernel is known."""
    only = plan.for_multiples < 0
    return Launch("", (), plan.grid, sizes=plan.sizes, multiples=(only,) * len(plan.sizes))
