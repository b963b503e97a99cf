"""The target for an architecture without a device: it compiles for packages and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from monograph.codegen.triton.control.subprograms import host_reason
from monograph.codegen.triton.module.launch import Arch
from monograph.codegen.triton.module.layout import GpuModule
from monograph.config import Config
from monograph.errors import CodegenError, ConfigError
from monograph.program.launch_regions import kind_of, step_name
from monograph.program.program import Program, Step
from monograph.program.work import program_work
from monograph.runtime.cache.object_cache import open_cache
from monograph.runtime.executable import CompiledArtefact, Executable, Feeds
from monograph.runtime.gpu.artefact import GpuArtefact
from monograph.runtime.gpu.build.binaries import BinaryCache, Built, CompileRequest, KernelBinary
from monograph.runtime.gpu.build.compiler import build_all
from monograph.runtime.gpu.build.launch_trees import nest_of
from monograph.runtime.gpu.build.stored_programs import constants_of, make_artefact
from monograph.runtime.gpu.build.tune import compile_chosen, requests_of
from monograph.runtime.gpu.capture.control import count_kernels
from monograph.runtime.gpu.executable import check_served, first
from monograph.runtime.gpu.target import GpuTargetBase, Optimise
from monograph.runtime.outputs import NOTHING
from monograph.runtime.progress import Progress


class CrossCompiler(GpuTargetBase):
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
        digests, find = constants_of(self.module)
        return make_artefact(self.module, self._code.__getitem__, digests, find, {})

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> NoReturn:
        raise _no_device("an architecture")


def _no_device(given: str) -> ConfigError:
    return ConfigError(
        "a target that names an architecture compiles, and runs nothing",
        given=given,
        hint='save what is compiled, and load it with target="gpu" where there is such a device',
    )
