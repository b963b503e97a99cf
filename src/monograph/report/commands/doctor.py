"""The command `monograph doctor`: what this machine can run, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from rich.console import Console
from rich.markup import escape

import monograph
from monograph.codegen.llvm.module.features import host_features, usable_features
from monograph.config import Config, make_config
from monograph.errors import ConfigError
from monograph.ir import Graph, Input, tensor
from monograph.ir.dtype import f32
from monograph.ops.elementwise import Add
from monograph.report.render.console import table
from monograph.report.render.tables import bytes_text, count_text
from monograph.runtime.cpu.executable import compile_graph
from monograph.runtime.cpu.threads import available_threads, cgroup_quota
from monograph.runtime.gpu.driver.device_discovery import open_device

REQUIRED = ("numpy", "onnx", "ml_dtypes", "llvmlite", "rich", "typer")
OPTIONAL = {
    "torch": "the gpu target: pip install 'monograph[gpu]'",
    "triton": "the gpu target: pip install 'monograph[gpu]'",
    "cuda-bindings": "the gpu target on NVIDIA GPUs: pip install 'monograph[gpu]'",
    "pillow": "models that decode images: pip install 'monograph[images]'",
    "tokenizers": "text in and out of language models: pip install 'monograph[llm]'",
    "onnxruntime": "comparisons: pip install onnxruntime",
}
"""Packages that Monograph can do without, and what each is for."""
LOW_DISK = 1 << 30
"""The free bytes on the disk of the cache below which the doctor warns."""


@dataclass(frozen=True)
class CpuState:
    """The processor as compiled code uses it."""

    name: str
    instruction_set: str
    usable: tuple[str, ...]
    """All instruction sets that `cpu_isa` may name here."""
    cores: int
    quota: float | None
    """The limit of the container in cores; None for no limit."""
    threads: int
    """The threads that a run uses by default."""
    compile_seconds: float | None
    """The time to compile and run one small kernel; None if this failed."""
    problem: str = ""


@dataclass(frozen=True)
class CacheState:
    """The directory of compiled models."""

    directory: str
    usable: bool
    entries: int = 0
    bytes: int = 0
    limit: int = 0
    free: int | None = None
    """The free bytes of its disk."""
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class GpuState:
    """The first GPU, or the reason why none is used."""

    usable: bool
    name: str = ""
    architecture: str = ""
    platform: str = ""
    """CUDA or HIP, with its version, as torch was built for; "" without torch."""
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the doctor found."""

    cpu: CpuState
    cache: CacheState
    gpu: GpuState
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Optional packages that are not installed, and what each is for."""

    @property
    def ok(self) -> bool:
        """True if models can run on the CPU; everything else is optional."""
        return not self.cpu.problem

    @property
    def advice(self) -> list[str]:
        """One sentence for each thing that the user may want to change."""
        return list(_advice(self))

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok} | asdict(self) | {"advice": self.advice}


def diagnose(config: Config | None = None) -> Diagnosis:
    """Look at the machine. This writes nothing but the empty folder of the cache."""
    versions = {"monograph": monograph.__version__, "python": platform.python_version()}
    missing = {}
    for name in (*REQUIRED, *OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing[name] = OPTIONAL.get(name, "Monograph itself: install Monograph again")
    return Diagnosis(find_cpu(), find_cache(config or make_config()), find_gpu(), versions, missing)


def find_cpu() -> CpuState:
    """Return the processor, after a trial of the compiler."""
    seconds, problem = None, ""
    start = time.perf_counter()
    try:
        x = Input("x", tensor(f32, 16))()
        executable = compile_graph(Graph((x,), (("y", Add()(x, x)),)), host_features(), 1)
        (y,) = executable.run({"x": np.ones(16, np.float32)})
        if not np.array_equal(y, np.full(16, 2, np.float32)):
            problem = f"compiled code gave a wrong sum: {y}"
        seconds = time.perf_counter() - start
    except Exception as e:  # the doctor reports any failure of the compiler
        problem = f"the compiler failed: {type(e).__name__}: {e}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return CpuState(
        llvm.get_host_cpu_name(),
        host_features().name,
        usable_features(),
        cores or 1,
        cgroup_quota(),
        available_threads(),
        seconds,
        problem,
    )


def find_cache(config: Config) -> CacheState:
    """Return the state of the cache directory, and what is wrong with it."""
    if not config.cache_dir or not config.cache_bytes:
        return CacheState(
            config.cache_dir, False, problem="the cache is off: every process compiles again",
            remedy="unset MONOGRAPH_CACHE_DIR and MONOGRAPH_CACHE_BYTES, or name a folder",
        )  # fmt: skip
    directory = Path(config.cache_dir).expanduser()
    problem, remedy = _cache_problem(directory)
    sizes = []
    for path in (directory / "entries").glob("*/*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # another process evicted it
            continue
    free = None
    for place in (directory, *directory.parents):
        if place.is_dir():
            free = shutil.disk_usage(place).free
            break
    if not problem and free is not None and free < LOW_DISK:
        remedy = f"free space on its disk, or set MONOGRAPH_CACHE_DIR: {bytes_text(free)} left"
    return CacheState(
        str(directory), not problem, len(sizes), sum(sizes), config.cache_bytes, free, problem,
        remedy,
    )  # fmt: skip


def _cache_problem(directory: Path) -> tuple[str, str]:
    """Return why compiled models cannot be kept there, and the remedy; two empty texts if not."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        return f"it cannot be created: {e.strerror}", "set MONOGRAPH_CACHE_DIR to another folder"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "this user cannot write to it", "set MONOGRAPH_CACHE_DIR to another folder"
    status = directory.stat()
    if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        return "other users may write to it", f"own it, and give it mode 0700: {directory}"
    return "", ""


def find_gpu() -> GpuState:
    """Return the first GPU, or the reason why a session cannot use one."""
    built_for = _torch_platform()
    try:
        device = open_device("")
    except ConfigError as e:
        given = f" ({e.given})" if e.given else ""
        return GpuState(False, "", "", built_for, f"{e.message}{given}", e.hint or "")
    except Exception as e:  # torch or a driver may fail in any way
        return GpuState(False, "", "", built_for, f"{type(e).__name__}: {e}", "reinstall torch")
    return GpuState(True, device.name, device.arch.name, built_for)


def _torch_platform() -> str:
    try:
        import torch
    except Exception:  # a broken installation may fail in any way
        return ""
    if torch.version.hip:
        return f"HIP {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def _advice(found: Diagnosis) -> Iterator[str]:
    if found.cpu.problem:
        yield f"The CPU target does not work: {found.cpu.problem}. Install llvmlite again."
    if found.cpu.instruction_set in ("sse2", "baseline"):
        yield "This CPU (or virtual machine) has no AVX2: models run several times slower."
    if found.cpu.quota is not None and found.cpu.quota < found.cpu.cores:
        yield (
            f"The container limits this process to {found.cpu.quota:g} of {found.cpu.cores} cores:"
            " raise its CPU quota to use more threads."
        )
    if found.cache.problem:
        yield f"Cache {found.cache.directory or '(none)'}: {found.cache.problem}."
    if found.cache.remedy:
        yield f"Cache: {found.cache.remedy}."
    if not found.gpu.usable:
        yield f"No GPU is used: {found.gpu.problem}. The cpu target works without one."
        if found.gpu.remedy:
            yield f"To use a GPU: {found.gpu.remedy}."


def show_diagnosis(out: Console, found: Diagnosis) -> None:
    """Print the diagnosis as a table, then the advice."""
    rows = table("This machine", "part", "state", "found")

    def row(part: str, state: str, text: str) -> None:
        rows.add_row(part, state, escape(text))

    cpu, cache, gpu = found.cpu, found.cache, found.gpu
    limit = "" if cpu.quota is None else f", quota {cpu.quota:g}"
    row(
        "CPU",
        "ok" if found.ok else "broken",
        f"{cpu.name}: {cpu.instruction_set} (of {', '.join(cpu.usable)})",
    )
    threads = count_text(cpu.threads, "thread")
    row("threads", "ok", f"{threads} by default; {count_text(cpu.cores, 'core')}{limit}")
    free = "" if cache.free is None else f", {bytes_text(cache.free)} free on the disk"
    held = f"{cache.entries} entries, {bytes_text(cache.bytes)} of {bytes_text(cache.limit)}{free}"
    state = "ok" if cache.usable else "not used"
    row("cache", state, f"{cache.directory or '(none)'}: {cache.problem or held}")
    there = f"{gpu.name} ({gpu.architecture}, {gpu.platform})"
    row("GPU", "ok" if gpu.usable else "not used", there if gpu.usable else gpu.problem)
    for name, version in found.versions.items():
        row(name, "ok", version)
    for name, purpose in found.missing.items():
        row(name, "missing", f"for {purpose}")
    out.print(rows)
    for line in found.advice:
        out.print(f"- {line}", markup=False, highlight=False)
