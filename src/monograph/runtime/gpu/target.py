"""The GPU targets of a session: a device, or an architecture to compile for."""

from __future__ import annotations

import gc
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monograph.codegen.triton.module.launch import Arch
from monograph.config import Config
from monograph.errors import ExecutionError, UnsupportedError
from monograph.ir import Graph
from monograph.ir.lazy import lazy
from monograph.ir.sizes import SizeScope
from monograph.runtime.cache.artefact import Weights
from monograph.runtime.cache.object_cache import open_cache
from monograph.runtime.cache.store import gpu_options
from monograph.runtime.counts import OFF, RunCounters
from monograph.runtime.executable import CompiledArtefact, Executable, Feeds
from monograph.runtime.feeds import Port
from monograph.runtime.forking import import_whole
from monograph.runtime.gpu import ports
from monograph.runtime.gpu.any_shape_stored import GpuVariantArtefact, StoredAnyShapeGpu
from monograph.runtime.gpu.artefact import GpuArtefact, LoadedGpuExecutable
from monograph.runtime.gpu.bound_program import GpuProgram, forked
from monograph.runtime.gpu.build.binaries import BinaryCache
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams
from monograph.runtime.gpu.build.tuning_cache import (
    Entry,
    TuningCache,
    cache_path,
    environment_of,
)
from monograph.runtime.gpu.capture.capture_policy import Eager
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.capture.sized_graphs import SizedGraphs
from monograph.runtime.gpu.driver.device_discovery import (
    architecture,
    names_architecture,
    open_device,
)
from monograph.runtime.gpu.driver.devices import Device, Interpreter
from monograph.runtime.gpu.driver.graphs import Graphs
from monograph.runtime.gpu.host_io.transfer_policy import MeasuredTransferModes
from monograph.runtime.gpu.memory import DeviceConstants, told_of_failure
from monograph.runtime.gpu.ports import TensorStages, imported
from monograph.runtime.progress import Progress
from monograph.runtime.shape_code import ShapeCode, Shapes
from monograph.runtime.target import Target

if TYPE_CHECKING:
    from monograph.codegen.triton.module.select import GpuTarget
    from monograph.program.program import Program
    from monograph.runtime.gpu.build.device_compiler import DeviceCompiler
    from monograph.runtime.gpu.build.tune import Tuner
    from monograph.runtime.gpu.cross_compiler import CrossCompiler
    from monograph.runtime.gpu.executable import GpuExecutable

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
        from monograph.runtime.gpu.cross_compiler import CrossCompiler

        return CrossCompiler(config, architecture(config.device), optimise, progress)
    with told_of_failure():
        device = open_device(config.device)
        if isinstance(device, Interpreter):
            device.checked = config.checked
        return GpuBackend(config, device, optimise, progress, tally)


class GpuTargetBase(Target):
    """The members that a device and an architecture without a device share."""

    enqueues = True
    array_types = (np.ndarray, torch.Tensor)

    def __init__(self, config: Config, optimise: Optimise, progress: Progress) -> None:
        self.config = config
        self._optimise = optimise
        self.progress = progress
        self.kept = config.max_cached_shapes
        self.tally: RunCounters | None = None
        self.place: torch.device | None = None
        """The device of tensors that outputs are written into."""

    @property
    def rules(self) -> GpuTarget:
        """The ops that have kernels, for lowering."""
        from monograph.codegen.triton.module.select import GpuTarget

        return GpuTarget()

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
        from monograph.codegen.triton.module.kernel import KERNELS
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


class GpuBackend(GpuTargetBase):
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
        self.tuning = cache
        """The measurements on disk."""
        self.measured: MeasuredTransferModes | None = None
        """The measured transfer modes of host arrays; None if they are not measured."""
        self.streams: MeasuredStreams | None = None
        """The measured stream counts of graphs; None if they are not measured."""
        if device.measures and config.tune != OFF:
            self.measured = MeasuredTransferModes(cache, environment_of(device))
            self.streams = MeasuredStreams(cache, environment_of(device))
        self.loaded_choices: dict[str, str] = {}
        """The measured winners in programs that were found on disk."""
        self.loaded_kernels = 0
        """The kernels of programs that were found on disk."""
        self._process = os.getpid()

    @property
    def arch(self) -> Arch:
        return self.device.arch

    @lazy
    def compiler(self) -> DeviceCompiler:
        """The compiler; a process that finds all code on disk has no need of it."""
        from monograph.runtime.gpu.build.device_compiler import DeviceCompiler

        return DeviceCompiler(self.config, self.device, self.kernels, self.tuning, self.progress)

    @property
    def tuner(self) -> Tuner:
        """The tuner, which measures candidates."""
        return self.compiler.tuner

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
        return self.compiler.exact(program, self.constants, self.streams, self._wide)

    def compile_any_shape(self, graph: Graph, scope: SizeScope) -> ShapeCode:
        """Compile an optimised graph with open sizes; of each step the generated kernels only.

        Raises UnsupportedError for a graph that is no single program of kernels.
        """
        with told_of_failure():
            self.check_process()
            self.refuse_recording()
            made = self.compiler.any_shape(graph, scope, self.constants, self._sized_wrap())
        # What compiling has left behind is collected here, not in the first run of a new shape.
        gc.collect()
        return made

    def _sized_wrap(self) -> Callable[[GpuProgram], Executable]:
        """Return what captures the programs of one variant, in graphs whose sizes may change."""
        sized = None
        if self.graphs is not None and self.graphs.builds and self.graphs.resizes:
            sized = SizedGraphs(self.graphs)
        return partial(self._captured, sized=sized)

    @property
    def _wide(self) -> bool:
        """True if kernels may run side by side: in graphs only, and where that is measured."""
        return self.graphs is not None and self.streams is not None

    def store_options(
        self, dims: Mapping[str, int], donate: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the options that decide what is compiled; None if no machine code is kept."""
        if not self.device.keeps_code:
            return None
        about = {
            "device": self.device.name,
            "arch": self.arch.name,
            "tune": self.config.tune,
            "streams": self._wide,
            "versions": environment_of(self.device),
        }
        return gpu_options(self.config, dims, donate) | about

    def read_artefact(self, members: Mapping[str, memoryview], weights: Weights) -> GpuArtefact:
        return GpuArtefact.of(members, weights)

    def read_variant(
        self, members: Mapping[str, memoryview], weights: Weights
    ) -> GpuVariantArtefact:
        return GpuVariantArtefact.of(members, weights)

    def accepts(self, artefact: CompiledArtefact) -> bool:
        """Return False if measurements that came later choose other kernels."""
        if not isinstance(artefact, GpuArtefact):
            return True
        entries = self.tuning.of(environment_of(self.device))
        known = ((entries.get(key), winner) for key, winner in artefact.choices.items())
        return all(entry is None or entry["winner"] == winner for entry, winner in known)

    def open_variant(self, artefact: CompiledArtefact) -> ShapeCode:
        """Return code for any shape that was found on disk."""
        assert isinstance(artefact, GpuVariantArtefact)
        self.check_process()
        self.refuse_recording()
        with told_of_failure():
            self.loaded_kernels += len(artefact.program.binaries)
            wrap = self._sized_wrap()
            return StoredAnyShapeGpu(artefact, self.device, self.constants, wrap)

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> Executable:
        """Load a program that was compiled ahead of time onto the device."""
        assert isinstance(artefact, GpuArtefact)
        self.check_process()
        self.refuse_recording()
        self.progress("load", 0, 1)
        with told_of_failure():
            self.loaded_choices.update(artefact.choices)
            self.loaded_kernels += len(artefact.binaries)
            return self._captured(
                LoadedGpuExecutable(artefact, self.device, self.constants, compile_again)
            )

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

    def used_measurements(self) -> dict[str, Entry]:
        """Return the measurements that chose kernels, in programs from disk too."""
        compiler: DeviceCompiler | None = vars(self).get("compiler")
        entries = self.tuning.of(environment_of(self.device))
        loaded = {key: entries[key] for key in self.loaded_choices if key in entries}
        return {**loaded, **(compiler.tuner.used if compiler else {})}

    def _compiled_stats(self) -> dict[str, int]:
        """Return what was measured and compiled; nothing where all code was found on disk."""
        compiler: DeviceCompiler | None = vars(self).get("compiler")
        return {
            "tuning_used": len(self.used_measurements()),
            "tuned": compiler.tuner.measured if compiler else 0,
            "compiled_kernels": len(compiler.requested) if compiler else 0,
            "loaded_kernels": self.loaded_kernels,
        }

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
            **self._compiled_stats(),
        }
