"""The measured choice: rivals for a step are compiled side by side and timed on the device."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from monograph.codegen.triton import select
from monograph.codegen.triton.kernel import Candidate, GpuContext, Launch
from monograph.codegen.triton.layout import GpuModule, lay_out
from monograph.errors import MonographError
from monograph.program.program import Program, Step
from monograph.runtime.gpu import problems
from monograph.runtime.gpu.build import Request, request
from monograph.runtime.gpu.compiler import build_all
from monograph.runtime.gpu.cuda import CudaDevice
from monograph.runtime.gpu.executable import GpuExecutable

FAST = 8
"""Rivals tried for each problem in the fast mode."""
REPEATS, ROUNDS = 20, 5
MODES = ("off", "fast", "full")


@dataclass
class TuningCache:
    """Winners on disk: JSON that people can read and share, keyed by device and versions."""

    path: Path | None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> TuningCache:
        if path is None or not path.exists():
            return cls(path)
        try:
            data = json.loads(path.read_text())
            entries = {str(k): dict(v) for k, v in data["problems"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)
        return cls(path, entries)

    def winner(self, problem: str) -> str | None:
        name = self.entries.get(problem, {}).get("winner")
        return name if isinstance(name, str) else None

    def put(self, problem: str, label: str, times: dict[str, float]) -> None:
        ordered = dict(sorted(times.items(), key=lambda item: item[1]))
        rounded = {name: round(us, 3) for name, us in ordered.items()}
        self.entries[problem] = {"problem": label, "winner": next(iter(ordered)), "us": rounded}

    def save(self) -> None:
        """Writes the file in one piece; what others wrote meanwhile is kept."""
        if self.path is None:
            return
        merged = {**TuningCache.open(self.path).entries, **self.entries}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        text = json.dumps({"problems": dict(sorted(merged.items()))}, indent=1)
        temporary.write_text(text + "\n")
        temporary.replace(self.path)


@dataclass
class _Problem:
    step: Step
    rivals: dict[str, GpuModule] = field(default_factory=dict)


class Tuner:
    """Chooses among the rivals of every step of a program."""

    def __init__(self, device: CudaDevice, cache: TuningCache, mode: str = "fast") -> None:
        self.device = device
        self.cache = cache
        self.mode = mode

    def tune(
        self,
        program: Program,
        *,
        tf32: bool = False,
        progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    ) -> None:
        """Measures every problem of a program that the cache does not know."""
        if self.mode == "off":
            return
        open_ones = self._open(program, tf32)
        wanted = [r for p in open_ones.values() for m in p.rivals.values() for r in requests_of(m)]
        total = len(dict.fromkeys(wanted))
        built = build_all(
            wanted, self.device.arch, lambda count: progress("compiling", count, total)
        )
        for one, binary in built.items():
            if not isinstance(binary, Exception):
                self.device.load(one, binary)
        for number, (problem, rivals) in enumerate(open_ones.items()):
            progress("measuring", number, len(open_ones))
            times = {}
            for name, module in rivals.rivals.items():
                if any(isinstance(built[r], Exception) for r in requests_of(module)):
                    continue
                us = self._time(module)
                if us is not None:
                    times[name] = us
            if times:
                self.cache.put(problem, problems.label(rivals.step), times)
        progress("measuring", len(open_ones), len(open_ones))
        self.cache.save()

    def _open(self, program: Program, tf32: bool) -> dict[str, _Problem]:
        found: dict[str, _Problem] = {}
        for step in program.steps:
            problem = problems.key(program, step)
            if problem in found or self.cache.winner(problem) is not None:
                continue
            rivals = select.candidates(GpuContext(program, step, self.device.arch, tf32))
            if len(rivals) < 2:
                continue
            tried = rivals if self.mode == "full" else rivals[:FAST]
            found[problem] = _Problem(step)
            for rival in tried:
                found[problem].rivals[rival.name] = lay_out(program, [(step, rival.make())])
        return found

    def chooser(self, program: Program) -> Callable[[Step, list[Candidate]], Candidate]:
        """Picks the measured winner, or the default where nothing was measured."""

        def choose(step: Step, found: list[Candidate]) -> Candidate:
            name = self.cache.winner(problems.key(program, step))
            return next((c for c in found if c.name == name), found[0])

        return choose

    def _time(self, module: GpuModule) -> float | None:
        """The median time of one run in us, from replays of a graph of many; None if it fails."""
        try:
            executable = GpuExecutable(module, self.device)
        except MonographError:
            return None
        ports = {
            f"{b.kind}:{b.name}": _numbers(b.nbytes, self.device.place)
            for b in module.program.places.buffers
            if b.kind in ("input", "output")
        }
        executable.fill(_numbers)
        executable.launch(ports)
        torch.cuda.synchronize(self.device.place)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                executable.launch(ports)
        times = []
        for _ in range(ROUNDS):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1000 / REPEATS)
        return statistics.median(times)


def requests_of(module: GpuModule) -> list[Request]:
    """The kernels that a module needs compiled."""
    return [
        request(
            b.work,
            tuple(a.dtype for a in b.arguments),
            tuple(a.aligned for a in b.arguments),
            b.step.region.kind,
        )
        for b in module.every
        if isinstance(b.work, Launch)
    ]


def prepare(device: CudaDevice, modules: Sequence[GpuModule]) -> None:
    """Compiles what some modules need, side by side."""
    wanted = [r for m in modules for r in requests_of(m) if not device.has(r)]
    for one, binary in build_all(wanted, device.arch).items():
        if isinstance(binary, Exception):
            raise binary
        device.load(one, binary)


def _numbers(nbytes: int, place: torch.device) -> torch.Tensor:
    """Bytes that are small positive numbers in every float type: never zeros, never NaN."""
    return torch.randint(1, 0x3B, (max(nbytes, 1) + 256,), dtype=torch.uint8, device=place)
