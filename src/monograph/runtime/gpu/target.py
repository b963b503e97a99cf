"""The GPU targets of a session: a device, or an architecture to compile for."""

from __future__ import annotations

import gc
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from monograph.codegen.triton.control.subprograms import host_reason
from monograph.codegen.triton.module.kernel import KERNELS, Arch
from monograph.codegen.triton.module.layout import GpuModule
from monograph.codegen.triton.module.select import GpuTarget
from monograph.config import Config
from monograph.errors import CodegenError, ConfigError, ExecutionError, UnsupportedError
from monograph.ir import Graph
from monograph.ir.sizes import SizeScope
from monograph.program.launch_regions import kind_of, step_name
from monograph.program.lowering import lower
from monograph.program.program import Program, Step
from monograph.program.work import program_work
from monograph.runtime.cache.object_cache import open_cache
from monograph.runtime.cache.store import gpu_options
from monograph.runtime.counts import OFF, RunCounters
from monograph.runtime.executable import CompiledArtefact, Executable, Feeds
from monograph.runtime.feeds import Port
from monograph.runtime.forking import import_whole
from monograph.runtime.gpu import ports
from monograph.runtime.gpu.any_shape import AnyShapeGpu
from monograph.runtime.gpu.artefact import GpuArtefact, LoadedGpuExecutable, make_artefact
from monograph.runtime.gpu.bound_program import GpuProgram, forked
from monograph.runtime.gpu.build.compiler import (
    BinaryCache,
    Built,
    CompileRequest,
    KernelBinary,
    build_all,
)
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams, planned
from monograph.runtime.gpu.build.tune import Tuner, build, compile_chosen, requests_of
from monograph.runtime.gpu.build.tuning_cache import TuningCache, cache_path, environment_of
from monograph.runtime.gpu.capture.capture_policy import Eager
from monograph.runtime.gpu.capture.control import count_kernels, nest_of
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.capture.sized_graphs import SizedGraphs
from monograph.runtime.gpu.driver.device_discovery import (
    architecture,
    names_architecture,
    open_device,
)
from monograph.runtime.gpu.driver.devices import Device, Interpreter
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.executable import (
    MAX_STREAMS,
    GpuExecutable,
    check_served,
    first,
)
from monograph.runtime.gpu.host_io.transfer_policy import MeasuredTransferModes
from monograph.runtime.gpu.memory import DeviceConstants, told_of_failure
from monograph.runtime.gpu.ports import TensorStages, imported
from monograph.runtime.outputs import NOTHING
from monograph.runtime.progress import Progress
from monograph.runtime.shape_code import ShapeCode, Shapes
from monograph.runtime.target import Target

Optimise = Callable[[Graph], Graph]


def graphs_of(device: Device) -> Graphs | None:
    """Return what captures graphs on a device; None if nothing does."""
    if device.graphs is not None or device.place.type != "cuda":
        return device.graphs
    if device.arch.backend == "hip":
        from monograph.runtime.gpu.driver.hip_graphs import hip_graphs

        return hip_graphs(device.place.index)
    from monograph.runtime.gpu.driver.cuda_graphs import cuda_graphs

    return cuda_graphs(device.place.index)


def open_target(
    config: Config, optimise: Optimise, progress: Progress, tally: RunCounters | None = None
) -> GpuBackend | CrossCompiler:
    """Return the target for the GPU of a configuration: a device, or an architecture."""
    if names_architecture(config.device):
        return CrossCompiler(config, architecture(config.device), optimise, progress)
    with told_of_failure():
        device = open_device(config.device)
        if isinstance(device, Interpreter):
            device.checked = config.checked
        return GpuBackend(config, device, optimise, progress, tally)


class _GpuTarget(Target):
    """The members that a device and an architecture without a device share."""

    enqueues = True
    array_types = (np.ndarray, torch.Tensor)

    def __init__(self, config: Config, optimise: Optimise, progress: Progress) -> None:
        self.config = config
        self._optimise = optimise
        self.progress = progress
        self.kept = config.max_cached_shapes
        self.rules = GpuTarget()
        self.tally: RunCounters | None = None
        self.place: torch.device | None = None
        """The device of tensors that outputs are written into."""

    @property
    @abstractmethod
    def arch(self) -> Arch:
        """The architecture that code is compiled for."""

    @property
    def architecture(self) -> str:
        return self.arch.name

    def optimise(self, graph: Graph) -> Graph:
        return self._optimise(graph)

    def import_feeds(self, feeds: Feeds) -> Feeds:
        return {name: imported(x) for name, x in feeds.items()}

    def describe_feeds(self, feeds: Feeds, limit: int = -1) -> Feeds:
        return ports.stand_ins(feeds, limit) if ports.tensors_in(feeds) else feeds

    def executable_feeds(self, feeds: Feeds, checked: dict[str, Any]) -> dict[str, Any]:
        return {**checked, **ports.tensors_in(feeds)}

    def check_outputs(
        self,
        ports_: Sequence[Port],
        feeds: Feeds,
        checked: Feeds,
        out: Feeds,
        donate: Mapping[str, str],
        returned: Feeds,
    ) -> dict[str, Any]:
        return ports.check_places(ports_, feeds, checked, out, donate, returned, self.place)

    def compile(self, graph: Graph) -> Executable:
        from monograph.runtime.dynamic.staged import StagedExecutable, compile_stages

        import_whole(KERNELS.load)
        made = compile_stages(graph, self)
        return TensorStages(made) if isinstance(made, StagedExecutable) else made

    @abstractmethod
    def executable(self, program: Program) -> Executable:
        """Compile a program."""

    @property
    def opens(self) -> bool:
        """Return False: kernels have their sizes as literals."""
        return False

    def open_program(self, program: Program, scope: SizeScope, shapes: Shapes) -> ShapeCode:
        raise UnsupportedError("a GPU has no code for open sizes")

    def package_options(self, dims: Mapping[str, int], donate: Mapping[str, str]) -> dict[str, Any]:
        return gpu_options(self.config, dims, donate)

    def recording(self) -> bool:
        """Return True if the caller captures a graph on the current stream."""
        return False


class GpuBackend(_GpuTarget):
    """A device, and how graphs are compiled for it and run there."""

    def __init__(
        self,
        config: Config,
        device: Device,
        optimise: Optimise,
        progress: Progress,
        tally: RunCounters | None = None,
    ) -> None:
        super().__init__(config, optimise, progress)
        self.tally = tally
        self.graphs = None if config.capture == OFF else graphs_of(device)
        self.device = device
        self.place: torch.device = device.place
        self.kernels = BinaryCache(open_cache(config), device.arch)
        self.constants = DeviceConstants(device)
        cache = TuningCache.open(cache_path(config)) if device.measures else TuningCache(None)
        self.tuner = Tuner(device, cache, config.tune)
        self.measured: MeasuredTransferModes | None = None
        """The measured transfer modes of host arrays; None if they are not measured."""
        self.streams: MeasuredStreams | None = None
        """The measured stream counts of graphs; None if they are not measured."""
        if device.measures and config.tune != OFF:
            self.measured = MeasuredTransferModes(cache, environment_of(device))
            self.streams = MeasuredStreams(cache, environment_of(device))
        self.requested: set[CompileRequest] = set()
        """The kernels that executables of this session launch."""
        self._process = os.getpid()

    @property
    def arch(self) -> Arch:
        return self.device.arch

    def executable(self, program: Program) -> Executable:
        """Compile a program by the candidates that were measured to be fastest.

        Its runs are captured, unless the session is told to do without.
        """
        with told_of_failure():
            return self._captured(self.compiled(program))

    def compiled(self, program: Program) -> GpuExecutable:
        """Compile a program that is launched kernel by kernel."""
        self.check_process()
        self.refuse_recording()
        check_served(program)
        tf32 = self.config.tf32
        self.tuner.tune(program, tf32=tf32, progress=self.progress)
        module = compile_chosen(
            program,
            self.tuner.chooser(program, tf32=tf32),
            lambda m: build(self.device, [m], self.progress, self.kernels),
            self.arch,
            tf32=tf32,
            # Only a graph runs them side by side, and only where that is measured to be faster.
            streams=1 if self.graphs is None or self.streams is None else MAX_STREAMS,
        )
        if self.streams is not None:
            module = planned(module, self.streams)
        self._keep(module)
        self.requested.update(requests_of(module))
        return GpuExecutable(module, self.device, self.constants)

    def compile_any_shape(self, graph: Graph, scope: SizeScope) -> ShapeCode:
        """Compile an optimised graph with open sizes; of each step the generated kernels only.

        Raises UnsupportedError for a graph that is no single program of kernels.
        """
        import_whole(KERNELS.load)
        with told_of_failure():
            self.check_process()
            self.refuse_recording()
            lowered = lower(graph, self.rules)
            if lowered.split is not None or lowered.states or lowered.in_pairs:
                raise UnsupportedError("code for any shape is one program", given="stages")
            program = lowered.whole
            check_served(program)
            module = compile_chosen(
                program,
                first,
                lambda m: build(self.device, [m], self.progress, self.kernels),
                self.arch,
                tf32=self.config.tf32,
                libraries=False,
            )
            self._keep(module)
            self.requested.update(requests_of(module))
            sized = None
            if self.graphs is not None and self.graphs.builds and self.graphs.resizes:
                sized = SizedGraphs(self.graphs)
            wrap = partial(self._captured, sized=sized)
            made = AnyShapeGpu(module, scope, self.device, self.constants, wrap)
        # What compiling has left behind is collected here, not in the first run of a new shape.
        gc.collect()
        return made

    def _keep(self, module: GpuModule) -> None:
        """Keep the chosen kernels for the next process, without the other candidates."""
        if self.device.keeps_code:
            self.kernels.keep({r: self.device.code(r) for r in dict.fromkeys(requests_of(module))})

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> Executable:
        """Load a program that was compiled ahead of time onto the device."""
        assert isinstance(artefact, GpuArtefact)
        self.check_process()
        self.refuse_recording()
        self.progress("load", 0, 1)
        with told_of_failure():
            return self._captured(LoadedGpuExecutable(artefact, self.device, self.constants))

    def _captured(self, executable: GpuProgram, sized: SizedGraphs | None = None) -> Executable:
        mode, tally = self.config.capture, self.tally or RunCounters()
        if mode == OFF:
            return executable
        if self.graphs is None:
            return Eager(executable, f"{self.device.name} has no graphs", mode, tally)
        return Replay(
            executable,
            self.graphs,
            mode,
            tally=tally,
            measured=self.measured,
            streams=None if sized is not None else self.streams,
            sized=sized,
            locks=self.config.pin_inputs,
        )

    def check_process(self) -> None:
        """Refuses a child that was forked: it has no part in its parent's device."""
        if self.place.type != "cpu" and os.getpid() != self._process:
            raise forked()

    def recording(self) -> bool:
        """Return True if the caller captures a graph on the current stream."""
        if self.graphs is not None:
            return self.graphs.capturing_now()
        return self.place.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())

    def refuse_recording(self) -> None:
        """Refuses a caller who records a graph: memory is made and filled where they would be."""
        if self.recording():
            raise ExecutionError(
                "a model is not made ready for new shapes while the caller records a graph",
                hint="run once with these shapes before",
            )

    def stats(self, executables: Sequence[Executable]) -> dict[str, Any]:
        """Return the device memory of the executables, and how their kernels were chosen."""
        own = sum(e.own_bytes for e in executables)
        return {
            "device": self.device.name,
            "constant_bytes": self.constants.nbytes,
            "device_bytes": self.constants.nbytes + own,
            "streams": max((e.streams for e in executables), default=1),
            "syncs": sum(e.syncs for e in executables),
            "tuning_used": len(self.tuner.used),
            "tuned": self.tuner.measured,
            "compiled_kernels": len(self.requested),
        }


class CrossCompiler(_GpuTarget):
    """An architecture to compile for, with no device to run on or to measure with."""

    def __init__(self, config: Config, arch: Arch, optimise: Optimise, progress: Progress) -> None:
        super().__init__(config, optimise, progress)
        self._arch = arch
        self.kernels = BinaryCache(open_cache(config), arch)

    @property
    def arch(self) -> Arch:
        return self._arch

    def executable(self, program: Program) -> OfflineExecutable:
        """Compile a program to machine code, by the default kernels."""
        check_served(program)
        code: dict[CompileRequest, KernelBinary] = {}
        module = compile_chosen(
            program,
            first,
            lambda m: self._compiled(m, code),
            self.arch,
            tf32=self.config.tf32,
            libraries=False,
        )
        return OfflineExecutable(module, code)

    def _compiled(self, module: GpuModule, code: dict[CompileRequest, KernelBinary]) -> Built:
        """Compiles what is not compiled yet; what failed, and why."""
        needed = dict.fromkeys(r for r in requests_of(module) if r not in code)
        code |= self.kernels.find(needed)
        missing = [r for r in needed if r not in code]
        made = build_all(missing, self.arch, lambda n: self.progress("compile", n, len(missing)))
        new = {r: b for r, b in made.items() if isinstance(b, KernelBinary)}
        self.kernels.keep(new)
        code |= new
        return {r: b for r, b in made.items() if isinstance(b, CodegenError)}

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> Executable:
        raise _no_device(self.config.target)

    def stats(self, executables: Sequence[Executable]) -> dict[str, Any]:
        return {"device": None, "device_bytes": 0, "tuning_used": 0, "tuned": 0}


class OfflineExecutable(Executable):
    """A compiled program without a device: it can be saved, not run."""

    runs = copies = launches = kernels = arena_bytes = constant_bytes = bounds_checks = 0

    def __init__(self, module: GpuModule, code: dict[CompileRequest, KernelBinary]) -> None:
        self.module = module
        self.program: Program = module.program
        self.kernels = count_kernels([nest_of(bound) for bound in module.every])
        self.launches = len(module.works)
        self.arena_bytes = module.arena_bytes
        self.bounds_checks = module.bounds_checks
        self._code = code
        self._work = program_work(module.program)

    @property
    def flops(self) -> float:
        return self._work.flops

    @property
    def moved(self) -> float:
        return self._work.bytes

    @property
    def programs(self) -> list[Program]:
        return [self.program]

    @property
    def host_steps(self) -> list[Step]:
        return [step for _, step in self.module.host]

    @property
    def host_kinds(self) -> tuple[str, ...]:
        return tuple(map(step_name, self.host_steps))

    @property
    def host_reasons(self) -> dict[str, str]:
        return {kind_of(s.region): host_reason(s.region) for s in self.host_steps}

    def artefact(self) -> GpuArtefact | None:
        """Return the machine code and constants as an artefact."""
        return make_artefact(self.module, self._code.__getitem__)

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> NoReturn:
        raise _no_device("an architecture")


def _no_device(given: str) -> ConfigError:
    return ConfigError(
        "a target that names an architecture compiles, and runs nothing",
        given=given,
        hint='save what is compiled, and load it with target="gpu" where there is such a device',
    )
