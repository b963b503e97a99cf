"""Code for any shape that was found on disk, and its form there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from monograph.codegen.triton.module.launch import BufferRef, Launch
from monograph.ir import Array
from monograph.ir.sizes import SizeScope
from monograph.runtime.cache.any_shape_artefact import SizeReader, with_sizes
from monograph.runtime.cache.artefact import Weights
from monograph.runtime.cache.object_cache import Buffer
from monograph.runtime.executable import Executable
from monograph.runtime.gpu.any_shape import AnyShapeGpu
from monograph.runtime.gpu.artefact import GpuArtefact, Planned, upload_constants
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.memory import DeviceConstants


@dataclass(frozen=True)
class GpuVariantArtefact:
    """Code for all sizes for which its guards hold, apart from the process that made it."""

    scope: SizeScope
    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of the inputs, with open sizes."""
    program: GpuArtefact
    """The launches; their grids and sizes, ports, and the arena have open sizes."""
    seconds: float = 0.0
    """The time that the compilation took."""

    @property
    def whole(self) -> bool:
        """Return True: the device does all the work."""
        return True

    @property
    def weights(self) -> Mapping[str, Array]:
        """The pieces of constants by digest."""
        return self.program.weights

    def members(self) -> dict[str, Buffer]:
        """Return the members by name, without the weights."""
        return with_sizes(self.scope, self.shapes, self.seconds, self.program.members)

    @staticmethod
    def of(members: Mapping[str, memoryview], weights: Weights) -> GpuVariantArtefact:
        """Return the artefact that the members hold; `weights` finds its constants."""
        read = SizeReader(members)
        program = GpuArtefact.of(members, weights, read.number)
        if not all(isinstance(p, Planned) for p in program.launches):
            raise ValueError("a library takes no open sizes")
        return GpuVariantArtefact(read.scope, read.shapes, program, read.seconds)

    def timed(self, seconds: float) -> GpuVariantArtefact:
        """Return the same code, whose compilation took this time."""
        return replace(self, seconds=seconds)


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
