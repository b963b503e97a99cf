"""Compiling for a device: candidates are measured, and the chosen kernels are built and kept."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.triton.module.kernel import KERNELS
from monograph.codegen.triton.module.layout import GpuModule
from monograph.codegen.triton.module.select import GpuTarget
from monograph.config import Config
from monograph.errors import UnsupportedError
from monograph.ir import Graph
from monograph.ir.sizes import SizeScope
from monograph.program.lowering import lower
from monograph.program.program import Program
from monograph.runtime.executable import Executable
from monograph.runtime.forking import import_whole
from monograph.runtime.gpu.any_shape import AnyShapeGpu
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.build.any_shape_module import CompiledAnyShapeGpu
from monograph.runtime.gpu.build.binaries import BinaryCache, CompileRequest
from monograph.runtime.gpu.build.stream_plans import planned
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams
from monograph.runtime.gpu.build.tune import Tuner, build, compile_chosen, requests_of
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.executable import MAX_STREAMS, GpuExecutable, check_served, first
from monograph.runtime.gpu.memory import DeviceConstants
from monograph.runtime.progress import Progress


class DeviceCompiler:
    """Compiles programs for one device."""

    def __init__(
        self,
        config: Config,
        device: Device,
        kernels: BinaryCache,
        tuning: TuningCache,
        progress: Progress,
    ) -> None:
        self._tf32 = config.tf32
        self._device = device
        self._kernels = kernels
        self._progress = progress
        self.tuner = Tuner(device, tuning, config.tune)
        self.requested: set[CompileRequest] = set()
        """The kernels that executables of this session launch."""

    def exact(
        self,
        program: Program,
        constants: DeviceConstants,
        streams: MeasuredStreams | None,
        wide: bool,
    ) -> GpuExecutable:
        """Compile a program for one set of shapes, by the candidates that were measured fastest.

        wide: kernels may run side by side.
        """
        check_served(program)
        tf32 = self._tf32
        self.tuner.tune(program, tf32=tf32, progress=self._progress)
        module = compile_chosen(
            program,
            self.tuner.chooser(program, tf32=tf32),
            lambda m: build(self._device, [m], self._progress, self._kernels),
            self._device.arch,
            tf32=tf32,
            streams=MAX_STREAMS if wide else 1,
        )
        if streams is not None:
            module = planned(module, streams)
        self._keep(module)
        choices = self.tuner.winners(program, tf32=tf32)
        return GpuExecutable(module, self._device, constants, choices)

    def any_shape(
        self,
        graph: Graph,
        scope: SizeScope,
        constants: DeviceConstants,
        wrap: Callable[[GpuProgram], Executable],
    ) -> AnyShapeGpu:
        """Compile an optimised graph with open sizes; of each step the generated kernels only.

        Raises UnsupportedError for a graph that is no single program of kernels.
        """
        import_whole(KERNELS.load)
        lowered = lower(graph, GpuTarget())
        if lowered.split is not None or lowered.states or lowered.in_pairs:
            raise UnsupportedError("code for any shape is one program", given="stages")
        program = lowered.whole
        check_served(program)
        module = compile_chosen(
            program,
            first,
            lambda m: build(self._device, [m], self._progress, self._kernels),
            self._device.arch,
            tf32=self._tf32,
            libraries=False,
        )
        self._keep(module)
        return CompiledAnyShapeGpu(module, scope, self._device, constants, wrap)

    def _keep(self, module: GpuModule) -> None:
        """Keep the chosen kernels for the next process, without the other candidates."""
        requests = dict.fromkeys(requests_of(module))
        self.requested.update(requests)
        if self._device.keeps_code:
            self._kernels.keep({r: self._device.code(r) for r in requests})
